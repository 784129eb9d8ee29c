//! The rules of a tool call, as given/when/then.

mod decide;

use super::*;
use crate::ErrorCode;
use crate::aggregate::Decider;
use crate::canonical::call_hash;
use crate::event::EventSet;
use crate::limits::MAX_REDISPATCH_AGE_DAYS;
use cqrs_es::test::TestFramework;
use serde_json::json;

type Command = ToolCallCommand;
type Event = ToolCallEvent;

/// After these events this command gives this: events, or a refusal.
fn check(given: &[Event], when: Command, expect: Result<Vec<Event>, ToolCallError>) {
    let result = TestFramework::<ToolCall>::with(()).given(given.to_vec()).when(when).inspect_result();
    assert_eq!(result, expect);
}

fn request(path: &str) -> ToolCallRequested {
    let arguments = json!({ "path": path });
    ToolCallRequested {
        conversation_id: "c".into(),
        turn_id: "t".into(),
        run_id: "r1".into(),
        user_id: "alice".into(),
        graph_thread_id: "g".into(),
        model_call_id: "call".into(),
        parent_tool_call_id: None,
        tool: "workspace.read_file".into(),
        tool_version: "1".into(),
        target: Target::Device,
        device_id: Some("laptop".into()),
        call_hash: call_hash("workspace.read_file", "1", &arguments),
        arguments,
        risk: Risk::Medium,
    }
}
fn dispatch() -> Dispatch {
    Dispatch {
        request: request("a"),
        run_id: "r1".into(),
        node_id: "node-1".into(),
        epoch: 7,
        connection_id: Some("s1".into()),
        journal_id: Some("j1".into()),
        wait_ms: 120_000,
        ttl_ms: 105_000,
        attempt_is_live: false,
        age_ms: 0,
    }
}
fn send(dispatch: Dispatch) -> Command {
    Command::Dispatch(Box::new(dispatch))
}
fn dispatched(attempt_no: u32) -> Event {
    ToolDispatched {
        attempt_no,
        run_id: "r1".into(),
        node_id: "node-1".into(),
        epoch: 7,
        connection_id: Some("s1".into()),
        journal_id: Some("j1".into()),
        wait_ms: 120_000,
        ttl_ms: 105_000,
    }
    .into()
}
/// Requested and sent this often.
fn sent(attempts: u32) -> Vec<Event> {
    std::iter::once(request("a").into()).chain((1..=attempts).map(dispatched)).collect()
}
fn report(attempt_no: u32, status: ResultStatus) -> ToolResultRecorded {
    let ran = status == ResultStatus::Succeeded;
    ToolResultRecorded {
        executed_attempt_no: attempt_no,
        status,
        output: ran.then(|| json!({ "content": "x" })),
        output_sha256: ran.then(|| "hash of x".into()),
        error: (!ran).then(|| ToolError { code: "IO_ERROR".into(), message: "disk".into() }),
        started_at: None,
        finished_at: None,
        origin: ResultOrigin::Live,
        connection_id: Some("s1".into()),
    }
}
fn laptop() -> Reporter {
    Reporter::Device {
        user_id: "alice".into(),
        device_id: "laptop".into(),
        journal_id: "j1".into(),
        connection_id: "s2".into(),
    }
}
fn acked(disposition: Disposition) -> Event {
    ToolResultAcked { connection_id: "s2".into(), disposition }.into()
}
fn record(result: ToolResultRecorded, reporter: Reporter) -> Command {
    Command::RecordResult { result: Box::new(result), reporter }
}
const EVERY_STATUS: [ResultStatus; 5] = [
    ResultStatus::Succeeded,
    ResultStatus::Failed,
    ResultStatus::Rejected,
    ResultStatus::Cancelled,
    ResultStatus::Indeterminate,
];
fn settled(status: ResultStatus) -> Vec<Event> {
    [sent(1), vec![report(1, status).into()]].concat()
}
fn refuse(request: ToolCallRequested) -> Command {
    let decided = ToolCallDecided {
        stage: "device".into(),
        decision: Decision::Deny,
        code: "DEVICE_OFFLINE".into(),
        by: "gateway".into(),
        reason: None,
    };
    Command::Decide { request: Box::new(request), decided }
}
fn refused() -> Vec<Event> {
    let decided = ToolCallDecided {
        stage: "device".into(),
        decision: Decision::Deny,
        code: "DEVICE_OFFLINE".into(),
        by: "gateway".into(),
        reason: None,
    };
    vec![request("a").into(), decided.into()]
}
fn fold(events: &[Event]) -> ToolCall {
    let mut call = ToolCall::default();
    events.iter().for_each(|event| call.evolve(event));
    call
}

#[test]
fn a_new_call_is_requested_and_sent_in_one_append() {
    check(&[], send(dispatch()), Ok(sent(1)));
}

#[test]
fn an_unsettled_call_is_sent_again_under_the_next_attempt_and_requested_once() {
    check(&sent(1), send(dispatch()), Ok(vec![dispatched(2)]));
    check(&sent(2), send(dispatch()), Ok(vec![dispatched(3)]));
    let gave_up = [sent(1), vec![ToolWaitTimedOut { attempt_no: 1, after_ms: 120_000 }.into()]].concat();
    check(&gave_up, send(dispatch()), Ok(vec![dispatched(2)]));
}

#[test]
fn one_id_never_stands_for_two_calls() {
    for given in [sent(1), settled(ResultStatus::Succeeded), refused()] {
        let other = Dispatch { request: request("b"), ..dispatch() };
        check(&given, send(other), Err(ToolCallError::HashConflict));
        check(&given, refuse(request("b")), Err(ToolCallError::HashConflict));
    }
    assert_eq!(ToolCallError::HashConflict.code(), ErrorCode::IdempotencyConflict);
}

#[test]
fn a_settled_call_is_never_sent_again_whatever_settled_it() {
    for given in EVERY_STATUS.map(settled).into_iter().chain([refused()]) {
        check(&given, send(dispatch()), Ok(vec![]));
        let elsewhere = Dispatch { journal_id: Some("j2".into()), ..dispatch() };
        check(&given, send(elsewhere), Ok(vec![]));
    }
}

#[test]
fn a_call_stays_with_the_device_and_the_journal_it_was_first_sent_to() {
    let mut other_device = dispatch();
    other_device.request.device_id = Some("desktop".into());
    let mut no_device = dispatch();
    no_device.request.device_id = None;
    let other_journal = Dispatch { journal_id: Some("j2".into()), ..dispatch() };
    let no_journal = Dispatch { journal_id: None, ..dispatch() };
    for changed in [other_device, no_device, other_journal, no_journal] {
        for live in [false, true] {
            let changed = Dispatch { attempt_is_live: live, ..changed.clone() };
            check(&sent(1), send(changed), Err(ToolCallError::DeviceChanged));
        }
    }
    assert_eq!(ToolCallError::DeviceChanged.code(), ErrorCode::DeviceChanged);
    let other_socket = Dispatch { connection_id: Some("s2".into()), ..dispatch() };
    let events = fold(&sent(1)).decide(send(other_socket)).expect("the same journal on a new socket");
    assert_eq!(events.len(), 1);
}

#[test]
fn an_attempt_that_is_under_way_is_joined_and_not_repeated() {
    check(&sent(1), send(Dispatch { attempt_is_live: true, ..dispatch() }), Ok(vec![]));
}

#[test]
fn a_call_that_the_device_may_have_forgotten_is_not_sent_again() {
    let limit = MAX_REDISPATCH_AGE_DAYS * 86_400_000;
    check(&sent(1), send(Dispatch { age_ms: limit, ..dispatch() }), Ok(vec![dispatched(2)]));
    check(&sent(1), send(Dispatch { age_ms: limit + 1, ..dispatch() }), Err(ToolCallError::TooOld));
    assert_eq!(ToolCallError::TooOld.code(), ErrorCode::CallTooOld);
}

#[test]
fn the_first_report_settles_the_call_whatever_it_says() {
    for status in EVERY_STATUS {
        let recorded = vec![report(1, status).into(), acked(Disposition::Stored)];
        check(&sent(1), record(report(1, status), laptop()), Ok(recorded));
        assert!(fold(&settled(status)).is_settled());
    }
}

#[test]
fn inv_b09_a_late_report_still_settles_a_call_that_timed_out_or_was_taken_back() {
    for event in [
        Event::from(ToolWaitTimedOut { attempt_no: 1, after_ms: 120_000 }),
        ToolCancelRequested { attempt_no: 1, reason: CancelReason::RunCancelled }.into(),
    ] {
        let given = [sent(1), vec![event, dispatched(2)]].concat();
        for attempt_no in [1, 2] {
            let report = report(attempt_no, ResultStatus::Succeeded);
            check(&given, record(report.clone(), laptop()), Ok(vec![report.into(), acked(Disposition::Stored)]));
        }
    }
}

#[test]
fn a_report_of_a_foreign_user_device_or_journal_is_refused_settled_or_not() {
    let from = |user: &str, device: &str, journal: &str| Reporter::Device {
        user_id: user.into(),
        device_id: device.into(),
        journal_id: journal.into(),
        connection_id: "s2".into(),
    };
    let strangers = [
        from("mallory", "laptop", "j1"),
        from("alice", "desktop", "j1"),
        from("alice", "laptop", "j2"),
        Reporter::Server,
    ];
    for reporter in strangers {
        for given in [sent(1), settled(ResultStatus::Failed)] {
            let command = record(report(1, ResultStatus::Succeeded), reporter.clone());
            check(&given, command, Err(ToolCallError::ForeignReport));
        }
    }
    assert_eq!(ToolCallError::ForeignReport.code(), ErrorCode::Protocol);
}

#[test]
fn only_the_server_reports_the_calls_it_runs_itself() {
    let mut own = request("a");
    (own.target, own.device_id) = (Target::Server, None);
    let mut dispatched = match dispatched(1) {
        Event::ToolDispatched(dispatched) => dispatched,
        other => panic!("{other:?}"),
    };
    (dispatched.connection_id, dispatched.journal_id) = (None, None);
    let given: Vec<Event> = vec![own.into(), dispatched.into()];
    let result = ToolResultRecorded { connection_id: None, ..report(1, ResultStatus::Succeeded) };
    check(&given, record(result.clone(), Reporter::Server), Ok(vec![result.clone().into()]));
    check(&given, record(result, laptop()), Err(ToolCallError::ForeignReport));
}

#[test]
fn a_report_of_an_attempt_that_was_never_made_is_refused() {
    for attempt_no in [0, 2, u32::MAX] {
        let command = record(report(attempt_no, ResultStatus::Succeeded), laptop());
        check(&sent(1), command, Err(ToolCallError::NoSuchAttempt { attempt_no }));
    }
    let given = refused();
    check(
        &given,
        record(report(1, ResultStatus::Succeeded), laptop()),
        Err(ToolCallError::NoSuchAttempt { attempt_no: 1 }),
    );
    check(&[], record(report(1, ResultStatus::Succeeded), laptop()), Err(ToolCallError::Unknown));
}

#[test]
fn a_value_of_null_is_a_value_also_when_it_is_read_back() {
    let event: Event = ToolResultRecorded { output: Some(json!(null)), ..report(1, ResultStatus::Succeeded) }.into();
    let read = Event::read(event.type_name(), event.version(), &event.payload());
    assert_eq!(read.expect("it loads"), event);
}

#[test]
fn a_settled_call_is_never_overwritten() {
    for first in EVERY_STATUS {
        for second in EVERY_STATUS {
            let said = if first == second { Disposition::Duplicate } else { Disposition::Superseded };
            check(&settled(first), record(report(1, second), laptop()), Ok(vec![acked(said)]));
            let twice = [settled(first), vec![report(1, second).into()]].concat();
            assert_eq!(fold(&twice).result, Some(report(1, first)), "not even by a log that holds two results");
        }
    }
}

#[test]
fn a_report_is_told_apart_as_new_the_same_or_another_one() {
    let first = report(1, ResultStatus::Succeeded);
    assert_eq!(fold(&sent(1)).disposition_of(&first), Disposition::Stored);
    let discarded = ToolResultRecorded { output: None, ..first.clone() };
    let forgotten = ToolResultRecorded { output: None, output_sha256: None, ..first.clone() };
    let redelivered =
        ToolResultRecorded { origin: ResultOrigin::Redelivered, connection_id: Some("s9".into()), ..first.clone() };
    let other_output = ToolResultRecorded { output_sha256: Some("hash of y".into()), ..first.clone() };
    let other_discarded = ToolResultRecorded { output: None, ..other_output.clone() };
    for (second, expected) in [
        (first.clone(), Disposition::Duplicate),
        (redelivered, Disposition::Duplicate),
        (discarded, Disposition::Duplicate),
        (forgotten, Disposition::Duplicate),
        (other_output, Disposition::Superseded),
        (other_discarded, Disposition::Superseded),
        (report(2, ResultStatus::Succeeded), Disposition::Superseded),
        (report(1, ResultStatus::Failed), Disposition::Superseded),
    ] {
        assert_eq!(fold(&settled(ResultStatus::Succeeded)).disposition_of(&second), expected, "{second:?}");
    }
    let other_error = ToolError { code: "NOT_TEXT".into(), message: "disk".into() };
    let failed_otherwise = ToolResultRecorded { error: Some(other_error), ..report(1, ResultStatus::Failed) };
    let failed = fold(&settled(ResultStatus::Failed));
    assert_eq!(failed.disposition_of(&report(1, ResultStatus::Failed)), Disposition::Duplicate);
    assert_eq!(failed.disposition_of(&failed_otherwise), Disposition::Superseded);
}

#[test]
fn the_wait_for_an_attempt_times_out_once_and_only_while_it_is_the_newest_and_unsettled() {
    let time_out = |attempt_no| Command::TimeOut { attempt_no, after_ms: 120_000 };
    let timed_out = |attempt_no| Event::from(ToolWaitTimedOut { attempt_no, after_ms: 120_000 });
    check(&sent(1), time_out(1), Ok(vec![timed_out(1)]));
    check(&sent(2), time_out(1), Ok(vec![]));
    check(&sent(2), time_out(2), Ok(vec![timed_out(2)]));
    check(&sent(1), time_out(2), Ok(vec![]));
    check(&[sent(1), vec![timed_out(1)]].concat(), time_out(1), Ok(vec![]));
    check(&[sent(1), vec![timed_out(1), dispatched(2)]].concat(), time_out(2), Ok(vec![timed_out(2)]));
    for status in EVERY_STATUS {
        check(&settled(status), time_out(1), Ok(vec![]));
    }
}

#[test]
fn an_attempt_is_taken_back_once_and_never_after_it_is_settled() {
    let cancel = || Command::Cancel { reason: CancelReason::RunCancelled };
    let requested = |attempt_no, reason| Event::from(ToolCancelRequested { attempt_no, reason });
    check(&[], cancel(), Ok(vec![]));
    check(&sent(1), cancel(), Ok(vec![requested(1, CancelReason::RunCancelled)]));
    let once = [sent(1), vec![requested(1, CancelReason::WaitTimedOut)]].concat();
    check(&once, cancel(), Ok(vec![]));
    let again = [once, vec![dispatched(2)]].concat();
    check(&again, cancel(), Ok(vec![requested(2, CancelReason::RunCancelled)]));
    for given in EVERY_STATUS.map(settled).into_iter().chain([refused()]) {
        check(&given, cancel(), Ok(vec![]));
    }
}

#[test]
fn progress_is_recorded_when_it_goes_forward_and_never_after_the_result() {
    let receive = |attempt_no, phase| Command::Receive { attempt_no, phase };
    let received = |attempt_no, phase| Event::from(ToolReceived { attempt_no, phase });
    let phases = [Phase::Reserved, Phase::Confirming, Phase::Executing];
    for phase in phases {
        check(&sent(1), receive(1, phase), Ok(vec![received(1, phase)]));
        check(&settled(ResultStatus::Succeeded), receive(1, phase), Ok(vec![]));
        check(&sent(1), receive(2, phase), Err(ToolCallError::NoSuchAttempt { attempt_no: 2 }));
    }
    for (reached, before) in phases.into_iter().enumerate() {
        for (next, phase) in phases.into_iter().enumerate() {
            let given = [sent(1), vec![received(1, before)]].concat();
            let news = if next > reached { vec![received(1, phase)] } else { vec![] };
            check(&given, receive(1, phase), Ok(news));
            // A log of the time when a phase could go back still never lets it go forward twice.
            let back = [given, vec![received(1, Phase::Executing), received(1, before)]].concat();
            check(&back, receive(1, phase), Ok(vec![]));
            // Another attempt starts over, and does not open the earlier one again.
            let again = [sent(1), vec![received(1, before), dispatched(2)]].concat();
            check(&again, receive(2, phase), Ok(vec![received(2, phase)]));
            let both = [again, vec![received(2, Phase::Reserved)]].concat();
            let news = if next > reached { vec![received(1, phase)] } else { vec![] };
            check(&both, receive(1, phase), Ok(news));
        }
    }
}

#[test]
fn a_device_that_goes_back_and_forth_writes_no_more_than_three_phases_an_attempt() {
    let mut call = fold(&sent(2));
    let mut recorded = 0;
    for round in 0..100 {
        for phase in [Phase::Confirming, Phase::Reserved, Phase::Executing, Phase::Confirming] {
            let events = call.decide(Command::Receive { attempt_no: 1 + round % 2, phase }).expect("an attempt");
            recorded += events.len();
            events.iter().for_each(|event| call.evolve(event));
        }
    }
    assert_eq!(recorded, 2 * 2, "confirming and executing, once for each attempt");
}

#[test]
fn inv_x1_a_result_and_its_acknowledgement_are_one_decision_and_none_is_acknowledged_without_a_result() {
    for status in EVERY_STATUS {
        let first = vec![report(1, status).into(), acked(Disposition::Stored)];
        check(&sent(1), record(report(1, status), laptop()), Ok(first.clone()));
        let once = [sent(1), first].concat();
        check(&once, record(report(1, status), laptop()), Ok(vec![acked(Disposition::Duplicate)]));
        assert_eq!(fold(&once).acks, 1);
    }
    check(&[], record(report(1, ResultStatus::Succeeded), laptop()), Err(ToolCallError::Unknown));
    let refused_and_sent = [refused(), vec![dispatched(1)]].concat();
    check(&refused_and_sent, record(report(1, ResultStatus::Succeeded), laptop()), Err(ToolCallError::NoResult));
}

#[test]
fn a_revised_outcome_leaves_what_happened_as_it_was() {
    let given = settled(ResultStatus::Succeeded);
    let revised = ToolOutcomeRevised { by: "post".into(), reason: "late".into(), content_hash: "h".into() };
    let after = fold(&[given.clone(), vec![revised.clone().into()]].concat());
    assert_eq!(after, ToolCall { revisions: vec![revised], ..fold(&given) });
}
