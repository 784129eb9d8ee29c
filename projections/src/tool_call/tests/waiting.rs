//! Calls that wait for a person: every state of the wait against everything that can end it.

use super::*;
use devmind_domain::conversation::*;
use devmind_domain::event::DomainEvent;

/// Asks a person about call `call`, for run r1.
fn asked_about(call: &str, interrupt: &str) -> Fact {
    let (id, DomainEvent::Conversation(ConversationEvent::InterruptRaised(mut event))) =
        raised("c1", interrupt, "r1", "t1", None)
    else {
        panic!("an interrupt is raised")
    };
    event.tool_call_id = call.into();
    conversation(id, event)
}
/// Call k of run r1 waits for the answer to interrupt i1; then this happened.
pub(super) fn asked(then: impl IntoIterator<Item = Fact>) -> Vec<Fact> {
    [requested("k", "r1"), asked_about("k", "i1"), paused("c1", "r1")].into_iter().chain(then).collect()
}
pub(super) fn resumed() -> Fact {
    followed("c1", "r2", "r1", "t1", RunKind::Resume)
}
fn rerun_of(run: &str) -> Fact {
    followed("c1", "r3", run, "t1", RunKind::Retry)
}
const EVERY_CANCEL: [InterruptCancelReason; 3] =
    [InterruptCancelReason::Edited, InterruptCancelReason::RunStopped, InterruptCancelReason::ConversationDeleted];
const EVERY_STOP: [RunCancelReason; 4] = [
    RunCancelReason::ClientDisconnected,
    RunCancelReason::Stopped,
    RunCancelReason::Abandoned,
    RunCancelReason::ReplacedByRerun,
];

/// Every state of a wait that nothing has ended, with the run that would go on and the code that its end gives.
fn waits() -> Vec<(Vec<Fact>, &'static str, &'static str)> {
    let (yes, no, late) = (resolved("c1", "i1", true), resolved("c1", "i1", false), expired("c1", "i1"));
    let (aborted, silence) = ("ABORTED_BEFORE_DISPATCH", "APPROVAL_EXPIRED");
    let again = [paused("c1", "r2"), followed("c1", "r4", "r2", "t1", RunKind::Resume)];
    vec![
        // Another interrupt of the same pause may still be open.
        (asked([yes.clone()]), "r1", aborted),
        (asked([no.clone()]), "r1", aborted),
        (asked([late.clone()]), "r1", silence),
        (asked([yes.clone(), resumed()]), "r2", aborted),
        (asked([no, resumed()]), "r2", aborted),
        (asked([late.clone(), resumed()]), "r2", silence),
        (asked([yes.clone(), resumed(), claimed("c1", "r2")]), "r2", aborted),
        (asked([late.clone(), resumed(), claimed("c1", "r2")]), "r2", silence),
        (asked([yes, resumed()]).into_iter().chain(again.clone()).collect(), "r4", aborted),
        (asked([late, resumed()]).into_iter().chain(again).collect(), "r4", silence),
    ]
}

/// Everything that ends the run that would go on.
fn ends_of(run: &str) -> Vec<Fact> {
    let stopped = EVERY_STOP.map(|reason| cancelled("c1", run, reason, ""));
    let others = [failed("c1", run, ""), rerun_of(run), conversation("c1", ConversationDeleted {})];
    stopped.into_iter().chain(others).collect()
}

/// Everything about interrupts and runs that says nothing of call k.
fn of_others() -> Vec<Fact> {
    let another = EVERY_CANCEL.map(|reason| withdrawn("c1", "i9", reason));
    let stopped = EVERY_STOP.map(|reason| cancelled("c1", "r9", reason, ""));
    let others = [
        expired("c1", "i9"),
        resolved("c1", "i9", false),
        asked_about("k9", "i9"),
        failed("c1", "r9", ""),
        rerun_of("r9"),
        prepared("c1", "r9", "t1", RunKind::Normal),
        followed("c1", "r8", "r9", "t1", RunKind::Resume),
        conversation("c9", ConversationDeleted {}),
    ];
    another.into_iter().chain(stopped).chain(others).collect()
}

/// Every conclusion: the code, the wait, and what ends it.
fn conclusions() -> Vec<(&'static str, Vec<Fact>, Fact)> {
    let open = EVERY_CANCEL.map(|reason| ("APPROVAL_CANCELLED", asked([]), withdrawn("c1", "i1", reason)));
    let ended = |(wait, run, code): (Vec<Fact>, &str, &'static str)| {
        ends_of(run).into_iter().map(move |end| (code, wait.clone(), end))
    };
    open.into_iter().chain(waits().into_iter().flat_map(ended)).collect()
}

/// One conclusion of each code: what follows on them does not depend on what ended the wait.
fn one_of_each_code() -> Vec<(&'static str, Vec<Fact>, Fact)> {
    let mut each = conclusions();
    each.sort_by_key(|(code, ..)| *code);
    each.dedup_by_key(|(code, ..)| *code);
    assert_eq!(each.len(), 3);
    each
}

#[tokio::test]
async fn a_call_whose_approval_is_taken_back_or_whose_run_ends_is_rejected_with_the_cause() {
    for (code, wait, end) in conclusions() {
        assert_eq!(status(&wait).await, "created -", "{wait:?}");
        let history = [wait, vec![end]].concat();
        let row = row_of(&history).await;
        let moment = at(history.len() as u64).as_micros();
        let help = devmind_domain::ErrorCode::parse(code).expect("a code").help();
        let expected = json!({"status": "rejected", "error_code": code, "error_message": help, "settled_at": moment,
            "executed_attempt_no": null, "output": null, "output_sha256": null, "concluded": 1});
        assert_eq!(row, expected, "{history:?}");
    }
}

#[tokio::test]
async fn a_call_waits_on_while_it_is_asked_about_answered_or_resumed_and_whatever_ends_elsewhere() {
    let open = (asked([]), "r1", "");
    for (wait, ..) in waits().into_iter().chain([open]) {
        for other in of_others() {
            let history = [wait.clone(), vec![other.clone()]].concat();
            assert_eq!(status(&history).await, "created -", "{other:?} after {wait:?}");
        }
    }
    for (wait, run, _) in waits().into_iter().filter(|(_, run, _)| *run != "r1") {
        // The run that asked has left the call to the one that resumed.
        for end in [cancelled("c1", "r1", RunCancelReason::Stopped, ""), rerun_of("r1")] {
            assert_eq!(status(&[wait.clone(), vec![end]].concat()).await, "created -", "{run}: {wait:?}");
        }
    }
}

#[tokio::test]
async fn the_first_conclusion_stays() {
    let ends = || ["r1", "r2", "r4"].into_iter().flat_map(ends_of).chain([withdrawn("c1", "i1", EVERY_CANCEL[0])]);
    for (_, wait, end) in conclusions() {
        let before = [wait, vec![end]].concat();
        let again = before.iter().cloned().chain(ends()).chain([asked_about("k", "i2"), expired("c1", "i1")]);
        assert_eq!(row_of(&again.collect::<Vec<_>>()).await, row_of(&before).await, "{before:?}");
    }
}

#[tokio::test]
async fn a_conclusion_leaves_no_trace_once_the_calls_own_stream_says_what_became_of_it() {
    let dispatched = || dispatched("k", 1, 1, Some("x1"));
    let facts = settlements().into_iter().map(|(_, fact)| vec![fact]);
    let sent = settlements().into_iter().map(|(_, fact)| vec![dispatched(), fact]);
    let twice =
        settlements().into_iter().map(|(_, fact)| vec![fact, result("k", 1, ResultStatus::Succeeded), denied()]);
    let lost = [vec![dispatched()], vec![dispatched(), timed_out(1)]];
    let facts: Vec<_> = facts.chain(sent).chain(twice).chain(lost).collect();
    let nothing = cancelled("c1", "r9", RunCancelReason::Stopped, "");
    for (code, wait, end) in one_of_each_code() {
        for later in &facts {
            let concluded = row_of(&[wait.clone(), vec![end.clone()], later.clone()].concat()).await;
            let never = row_of(&[wait.clone(), vec![nothing.clone()], later.clone()].concat()).await;
            assert_eq!(concluded, never, "{code} by {end:?}, then {later:?}");
        }
    }
}

#[tokio::test]
async fn what_the_calls_own_stream_said_is_never_concluded_away() {
    let dispatched = || dispatched("k", 1, 1, Some("x1"));
    let facts = settlements().into_iter().map(|(_, fact)| vec![fact]);
    let lost = [vec![dispatched(), timed_out(1)], vec![dispatched(), disconnected("ann/d1", "x1")]];
    for said in facts.chain(lost) {
        for (_, wait, end) in one_of_each_code() {
            let before = [wait, said.clone()].concat();
            let after = [before.clone(), vec![end.clone()]].concat();
            assert_eq!(row_of(&after).await, row_of(&before).await, "{said:?}, then {end:?}");
        }
    }
}

#[tokio::test]
async fn each_call_of_a_stopped_pause_is_told_its_own_cause() {
    let mut bench = Bench::new().await;
    let calls = ["k1", "k2", "k3", "k4"];
    bench.append(calls.map(|call| requested(call, "r1"))).await;
    bench.append([asked_about("k1", "i1"), asked_about("k2", "i2"), asked_about("k3", "i3")]).await;
    bench.append([paused("c1", "r1"), resolved("c1", "i1", true), expired("c1", "i2")]).await;
    bench.append([withdrawn("c1", "i3", InterruptCancelReason::RunStopped)]).await;
    bench.append([cancelled("c1", "r1", RunCancelReason::Stopped, "")]).await;
    // It ends no wait any more, and a call that nobody was asked about never waited.
    bench.append([conversation("c1", ConversationDeleted {})]).await;
    let seen = bench.views().await.tool_calls(ToolCallQuery::Run("r1".into())).await.expect("calls");
    let seen: Vec<_> =
        seen.iter().map(|call| (call.status.as_str(), call.error_code.as_deref(), call.settled)).collect();
    let expected = [
        ("rejected", Some("ABORTED_BEFORE_DISPATCH"), true),
        ("rejected", Some("APPROVAL_EXPIRED"), true),
        ("rejected", Some("APPROVAL_CANCELLED"), true),
        // Nobody was asked about it, so nothing is known of it but that it was wanted.
        ("created", None, false),
    ];
    assert_eq!(seen, expected);
}
