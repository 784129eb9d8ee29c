//! The rules of a conversation, as given/when/then.

mod approvals;
mod ending;
mod reading;
mod rerun;

use super::*;
use crate::ErrorCode;
use crate::aggregate::Decider;
use crate::ids::*;
use crate::limits::MAX_TITLE_CHARS;
use crate::time::Timestamp;
use cqrs_es::test::TestFramework;

type Command = ConversationCommand;
type Event = ConversationEvent;

/// After these events this command gives this: events, or a refusal.
fn check(given: &[Event], when: Command, expect: Result<Vec<Event>, ConversationError>) {
    let result = TestFramework::<Conversation>::with(()).given(given.to_vec()).when(when).inspect_result();
    assert_eq!(result, expect);
}

/// One event after others.
fn then(mut given: Vec<Event>, event: impl Into<Event>) -> Vec<Event> {
    given.push(event.into());
    given
}

fn ask(n: u32) -> Ask {
    Ask {
        user_id: "alice".into(),
        existing: n > 1,
        turn_id: format!("t{n}").into(),
        message_id: format!("q{n}").into(),
        run_id: format!("r{n}").into(),
        graph_thread_id: format!("g{n}").into(),
        content: format!("question {n}"),
        device_id: Some("laptop".into()),
    }
}
fn started() -> Event {
    ConversationStarted { user_id: "alice".into(), title: "question 1".into() }.into()
}
fn turn(n: u32) -> Event {
    TurnPrepared {
        turn_id: format!("t{n}").into(),
        sequence_no: n,
        message_id: format!("q{n}").into(),
        content: format!("question {n}"),
        device_id: Some("laptop".into()),
    }
    .into()
}
fn run(n: u32) -> Event {
    RunPrepared {
        run_id: format!("r{n}").into(),
        turn_id: format!("t{n}").into(),
        kind: RunKind::Normal,
        trigger: RunTrigger::Ask,
        run_seq: 1,
        graph_thread_id: format!("g{n}").into(),
        parent_run_id: None,
        device_id: Some("laptop".into()),
    }
    .into()
}
fn owner(epoch: u64) -> Claim {
    Claim { node_id: "node-1".into(), epoch }
}
fn claimed(run_id: &str) -> Event {
    RunClaimed { run_id: run_id.into(), node_id: "node-1".into(), epoch: 7, context_hash: "h".into() }.into()
}
fn succeeded(run_id: &str) -> Event {
    RunSucceeded { run_id: run_id.into(), message_id: "a".into(), answer: "yes".into() }.into()
}
fn failed(run_id: &str) -> Event {
    RunFailed {
        run_id: run_id.into(),
        error_code: "MODEL_TIMEOUT".into(),
        error_message: "silent".into(),
        message_id: Some("a".into()),
        partial_text: "ye".into(),
    }
    .into()
}
fn cancelled(run_id: &str, reason: RunCancelReason) -> Event {
    let partial = reason == RunCancelReason::ClientDisconnected;
    RunCancelled {
        run_id: run_id.into(),
        error_code: reason,
        message_id: partial.then(|| "a".into()),
        partial_text: if partial { "ye".into() } else { String::new() },
    }
    .into()
}

fn claim(run_id: &str) -> Command {
    Command::ClaimRun { run_id: run_id.into(), claim: owner(7), context_hash: "h".into() }
}
fn complete(run_id: &str, claim: Claim) -> Command {
    Command::CompleteRun { run_id: run_id.into(), claim, message_id: "a".into(), answer: "yes".into() }
}
fn fail(run_id: &str, claim: Claim) -> Command {
    Command::FailRun {
        run_id: run_id.into(),
        claim,
        error_code: "MODEL_TIMEOUT".into(),
        error_message: "silent".into(),
        message_id: Some("a".into()),
        partial_text: "ye".into(),
    }
}
fn cancel(run_id: &str, claim: Claim) -> Command {
    Command::CancelRun {
        run_id: run_id.into(),
        claim,
        reason: RunCancelReason::ClientDisconnected,
        message_id: Some("a".into()),
        partial_text: "ye".into(),
    }
}
/// Every way to end a run, with the event it causes.
fn ends(claim: &Claim) -> [(Command, Event); 3] {
    [
        (complete("r1", claim.clone()), succeeded("r1")),
        (fail("r1", claim.clone()), failed("r1")),
        (cancel("r1", claim.clone()), cancelled("r1", RunCancelReason::ClientDisconnected)),
    ]
}

fn queued() -> Vec<Event> {
    vec![started(), turn(1), run(1)]
}
fn running() -> Vec<Event> {
    then(queued(), claimed("r1"))
}
fn interrupted() -> Vec<Event> {
    then(running(), RunInterrupted { run_id: "r1".into() })
}

fn at(moment: i64) -> Timestamp {
    Timestamp::from_micros(moment)
}
/// A question to a person about call `c{n}` of thread g1.
fn asked(n: u32, expires_at: Option<Timestamp>) -> NewInterrupt {
    NewInterrupt {
        interrupt_id: format!("i{n}").into(),
        tool_call_id: ToolCallId::of(&"g1".into(), &format!("c{n}")),
        tool: "demo_text".into(),
        arguments: serde_json::json!({ "n": n }),
        arguments_hash: format!("h{n}"),
        message: "Allow?".into(),
        expires_at,
    }
}
fn raised_by(run_id: &str, n: u32, expires_at: Option<Timestamp>) -> Event {
    let new = asked(n, expires_at);
    InterruptRaised {
        interrupt_id: new.interrupt_id,
        run_id: run_id.into(),
        turn_id: "t1".into(),
        kind: InterruptKind::ToolApproval,
        tool_call_id: new.tool_call_id,
        tool: new.tool,
        arguments: new.arguments,
        arguments_hash: new.arguments_hash,
        message: new.message,
        expires_at,
    }
    .into()
}
/// Run r1 waits for the interrupts i1, i2 … with these deadlines.
fn waiting(deadlines: &[Option<Timestamp>]) -> Vec<Event> {
    let raised = (1..).zip(deadlines).map(|(n, deadline)| raised_by("r1", n, *deadline));
    let raised: Vec<_> = raised.collect();
    then([running(), raised].concat(), RunInterrupted { run_id: "r1".into() })
}
fn resolved(n: u32, approved: bool) -> Event {
    let (resolved_by, arguments_hash) = ("alice".into(), format!("h{n}"));
    InterruptResolved { interrupt_id: format!("i{n}").into(), approved, resolved_by, arguments_hash }.into()
}
fn expired(n: u32) -> Event {
    InterruptExpired { interrupt_id: format!("i{n}").into() }.into()
}
fn withdrawn(n: u32, reason: InterruptCancelReason) -> Event {
    InterruptCancelled { interrupt_id: format!("i{n}").into(), reason }.into()
}
/// The run that goes on after `parent`, which was number `run_seq - 1` of turn t1.
fn resumed(run_id: &str, parent: &str, run_seq: u32) -> Event {
    RunPrepared {
        run_id: run_id.into(),
        turn_id: "t1".into(),
        kind: RunKind::Resume,
        trigger: RunTrigger::Approval,
        run_seq,
        graph_thread_id: "g1".into(),
        parent_run_id: Some(parent.into()),
        device_id: Some("laptop".into()),
    }
    .into()
}
/// Alice's answers at moment 5; the run that may go on is r2.
fn answer(decisions: &[(u32, bool)]) -> Answer {
    Answer {
        user_id: "alice".into(),
        decisions: decisions.iter().map(|(n, approved)| (format!("i{n}").into(), *approved)).collect(),
        grants: vec![],
        now: at(5),
        run_id: "r2".into(),
    }
}
fn rerun(content: Option<&str>) -> Rerun {
    Rerun {
        user_id: "alice".into(),
        turn_id: "t1".into(),
        content: content.map(Into::into),
        message_id: "q1-edited".into(),
        run_id: "r1-again".into(),
        graph_thread_id: "g1-again".into(),
    }
}

#[test]
fn the_first_question_starts_the_conversation_with_a_turn_and_a_queued_run() {
    check(&[], Command::Ask(ask(1)), Ok(queued()));
}

#[test]
fn a_question_for_a_conversation_that_is_not_there_starts_none() {
    check(&[], Command::Ask(Ask { existing: true, ..ask(1) }), Err(ConversationError::NotFound));
}

#[test]
fn an_ended_turn_makes_room_for_the_next_question_whatever_its_end() {
    for end in [succeeded("r1"), failed("r1"), cancelled("r1", RunCancelReason::Stopped)] {
        check(&then(running(), end), Command::Ask(ask(2)), Ok(vec![turn(2), run(2)]));
    }
}

#[test]
fn a_question_is_refused_while_the_latest_one_is_being_answered() {
    check(&running(), Command::Ask(ask(2)), Err(ConversationError::RunInProgress));
    assert_eq!(ConversationError::RunInProgress.code(), ErrorCode::RunInProgress);
}

#[test]
fn a_question_is_refused_while_the_latest_one_waits_for_an_approval() {
    check(&interrupted(), Command::Ask(ask(2)), Err(ConversationError::WaitingApproval));
    assert_eq!(ConversationError::WaitingApproval.code(), ErrorCode::TurnWaitingApproval);
}

#[test]
fn a_question_abandons_the_run_that_nobody_has_claimed() {
    let expect = vec![cancelled("r1", RunCancelReason::Abandoned), turn(2), run(2)];
    check(&queued(), Command::Ask(ask(2)), Ok(expect));
}

#[test]
fn turns_are_numbered_one_after_another() {
    let mut given = queued();
    for n in 2..=5 {
        given.extend([cancelled(&format!("r{}", n - 1), RunCancelReason::Abandoned), turn(n), run(n)]);
    }
    let expect = vec![cancelled("r5", RunCancelReason::Abandoned), turn(6), run(6)];
    check(&given, Command::Ask(ask(6)), Ok(expect));
}

#[test]
fn only_the_owner_may_ask_whatever_the_latest_turn_is_doing() {
    for given in [queued(), running(), interrupted(), then(running(), succeeded("r1"))] {
        let stranger = Ask { user_id: "mallory".into(), ..ask(2) };
        check(&given, Command::Ask(stranger), Err(ConversationError::NotOwner));
    }
    assert_eq!(ConversationError::NotOwner.code(), ErrorCode::Forbidden);
}

#[test]
fn a_deleted_conversation_takes_no_question() {
    let given = then(then(running(), succeeded("r1")), ConversationDeleted {});
    check(&given, Command::Ask(ask(2)), Err(ConversationError::NotFound));
}

#[test]
fn a_queued_run_is_claimed_for_one_start_of_one_server_process() {
    check(&queued(), claim("r1"), Ok(vec![claimed("r1")]));
}

#[test]
fn a_run_is_claimed_once_ever() {
    let ended = [succeeded("r1"), failed("r1"), cancelled("r1", RunCancelReason::Stopped)];
    let mut claimed_before = vec![running(), interrupted()];
    claimed_before.extend(ended.map(|end| then(running(), end)));
    for given in claimed_before {
        check(&given, claim("r1"), Err(ConversationError::AlreadyClaimed));
    }
    check(
        &then(queued(), cancelled("r1", RunCancelReason::Stopped)),
        claim("r1"),
        Err(ConversationError::AlreadyClaimed),
    );
}

#[test]
fn a_run_that_is_not_the_latest_turns_run_is_not_found() {
    check(&[], claim("r1"), Err(ConversationError::RunNotFound));
    check(&[started(), turn(1)], claim("r1"), Err(ConversationError::RunNotFound));
    check(&queued(), claim("r2"), Err(ConversationError::RunNotFound));
    assert_eq!(ConversationError::RunNotFound.code(), ErrorCode::RunNotFound);
}

#[test]
fn an_abandoned_run_is_never_claimed() {
    let mut given = then(queued(), cancelled("r1", RunCancelReason::Abandoned));
    given.extend([turn(2), run(2)]);
    check(&given, claim("r1"), Err(ConversationError::RunNotFound));
    check(&given, claim("r2"), Ok(vec![claimed("r2")]));
}

#[test]
fn the_start_that_claimed_a_run_ends_it_in_any_way() {
    for (command, event) in ends(&owner(7)) {
        check(&running(), command, Ok(vec![event]));
    }
}

#[test]
fn a_zombie_cannot_end_a_run_that_another_start_or_another_process_owns() {
    let strangers = [owner(6), owner(8), Claim { node_id: "node-2".into(), epoch: 7 }];
    for (command, _) in strangers.iter().flat_map(ends) {
        check(&running(), command, Err(ConversationError::RunNotActive));
    }
    assert_eq!(ConversationError::RunNotActive.code(), ErrorCode::RunNotActive);
}

#[test]
fn a_terminal_run_never_changes_again_even_for_its_owner() {
    for (_, end) in ends(&owner(7)) {
        for (command, _) in ends(&owner(7)) {
            check(&then(running(), end.clone()), command, Err(ConversationError::RunNotActive));
        }
    }
}

#[test]
fn a_run_that_is_queued_interrupted_or_unknown_cannot_be_ended_as_if_it_ran() {
    for given in [vec![], vec![started(), turn(1)], queued(), interrupted()] {
        for (command, _) in ends(&owner(7)) {
            check(&given, command, Err(ConversationError::RunNotActive));
        }
    }
}

#[test]
fn a_zombie_of_an_earlier_turn_cannot_end_the_run_of_the_latest_one() {
    let given = [running(), vec![succeeded("r1"), turn(2), run(2), claimed("r2")]].concat();
    for (command, _) in ends(&owner(7)) {
        check(&given, command, Err(ConversationError::RunNotActive));
    }
    check(&given, complete("r2", owner(7)), Ok(vec![succeeded("r2")]));
}

#[test]
fn a_title_is_the_first_fifty_characters_and_never_half_of_one() {
    let long = "é".repeat(MAX_TITLE_CHARS + 10);
    let cut = "é".repeat(MAX_TITLE_CHARS);
    for (question, title) in [
        ("short", "short"),
        ("  spaces around \n", "spaces around"),
        (long.as_str(), cut.as_str()),
        ("🦀 crab", "🦀 crab"),
        ("", ""),
    ] {
        assert_eq!(title_of(question), title);
    }
    let exactly = "語".repeat(MAX_TITLE_CHARS);
    assert_eq!(title_of(&exactly), exactly);
    let events = Conversation::default().decide(Command::Ask(Ask { content: long.clone(), ..ask(1) }));
    let started = ConversationStarted { user_id: "alice".into(), title: cut };
    assert_eq!(events.expect("accepted").first(), Some(&started.into()));
}

#[test]
fn the_state_stays_the_same_size_whatever_the_history() {
    let mut state = Conversation::default();
    let mut sizes = std::collections::BTreeSet::new();
    for n in 1..=9 {
        let events = state.decide(Command::Ask(ask(n))).expect("accepted");
        events.iter().for_each(|event| state.evolve(event));
        sizes.insert(crate::canonical::canonical_json(&state).len());
    }
    assert_eq!(sizes.len(), 1, "{sizes:?}");
}
