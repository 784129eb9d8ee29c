//! Interrupts: raised, answered, expired, and the run that goes on.

use super::*;
use crate::aggregate::Decider;
use crate::canonical::call_hash;
use crate::tool_call::{Risk, Target, ToolCallRequested};
use serde_json::json;

fn interrupt(claim: Claim) -> Command {
    let interrupts = vec![asked(1, Some(at(10))), asked(2, None)];
    Command::Interrupt { run_id: "r1".into(), claim, interrupts }
}
fn decide(decisions: &[(u32, bool)]) -> Command {
    Command::Answer(answer(decisions))
}
fn expire(moment: i64) -> Command {
    Command::Expire { now: at(moment), run_id: "r2".into() }
}
fn fold(events: &[Event]) -> Conversation {
    let mut state = Conversation::default();
    events.iter().for_each(|event| state.evolve(event));
    state
}
/// Every interrupt of the latest turn with where it stands, in one word.
fn statuses(events: &[Event]) -> Vec<String> {
    let word = |interrupt: &Interrupt| {
        let status = match &interrupt.status {
            InterruptStatus::Open => "open".to_owned(),
            InterruptStatus::Resolved { approved, by } => format!("{by} {approved}"),
            InterruptStatus::Cancelled => "cancelled".to_owned(),
            InterruptStatus::Expired => "expired".to_owned(),
        };
        format!("{} {status}", interrupt.interrupt_id)
    };
    fold(events).latest.iter().flat_map(|turn| &turn.interrupts).map(word).collect()
}

#[test]
fn the_start_that_claimed_a_run_pauses_it_with_every_question_in_order() {
    let paused = RunInterrupted { run_id: "r1".into() }.into();
    let expect = vec![raised_by("r1", 1, Some(at(10))), raised_by("r1", 2, None), paused];
    check(&running(), interrupt(owner(7)), Ok(expect));
}

#[test]
fn a_zombie_cannot_pause_a_run_and_neither_can_its_owner_when_it_does_not_run() {
    for stranger in [owner(6), owner(8), Claim { node_id: "node-2".into(), epoch: 7 }] {
        check(&running(), interrupt(stranger), Err(ConversationError::RunNotActive));
    }
    let ended = [succeeded("r1"), failed("r1"), cancelled("r1", RunCancelReason::Stopped)];
    let mut not_running = vec![vec![], vec![started(), turn(1)], queued(), waiting(&[None])];
    not_running.extend(ended.map(|end| then(running(), end)));
    for given in not_running {
        check(&given, interrupt(owner(7)), Err(ConversationError::RunNotActive));
    }
}

#[test]
fn interrupts_are_open_until_decided_cancelled_or_expired() {
    let ends = vec![resolved(1, true), withdrawn(3, InterruptCancelReason::Edited), expired(4)];
    let state = fold(&[waiting(&[None; 4]), ends].concat());
    let turn = state.latest.expect("a turn");
    assert_eq!(turn.open_interrupts().map(|open| open.interrupt_id.as_str()).collect::<Vec<_>>(), ["i2"]);
}

#[test]
fn one_answer_decides_and_prepares_the_run_that_goes_on_in_the_same_thread() {
    for approved in [true, false] {
        let expect = vec![resolved(1, approved), resumed("r2", "r1", 2)];
        check(&waiting(&[None]), decide(&[(1, approved)]), Ok(expect));
    }
}

#[test]
fn several_answers_in_one_request_are_decided_each_by_its_own() {
    let expect = vec![resolved(2, false), resolved(1, true), resumed("r2", "r1", 2)];
    check(&waiting(&[None, None]), decide(&[(2, false), (1, true)]), Ok(expect));
}

#[test]
fn a_partial_answer_is_kept_and_the_last_one_prepares_the_run() {
    let given = waiting(&[None, None, None]);
    check(&given, decide(&[(2, true)]), Ok(vec![resolved(2, true)]));
    let given = then(given, resolved(2, true));
    check(&given, decide(&[(1, false)]), Ok(vec![resolved(1, false)]));
    let given = then(given, resolved(1, false));
    check(&given, decide(&[(3, true)]), Ok(vec![resolved(3, true), resumed("r2", "r1", 2)]));
}

#[test]
fn the_same_answer_again_is_the_same_as_once() {
    let partly = then(waiting(&[None, None]), resolved(1, true));
    check(&partly, decide(&[(1, true)]), Ok(vec![]));
    // With an answer that is new, only the new one counts.
    let expect = vec![resolved(2, false), resumed("r2", "r1", 2)];
    check(&partly, decide(&[(1, true), (2, false)]), Ok(expect));
    let wholly = [waiting(&[None]), vec![resolved(1, false), resumed("r2", "r1", 2)]].concat();
    for later in [vec![], vec![claimed("r2")], vec![claimed("r2"), succeeded("r2")]] {
        let later = [wholly.clone(), later].concat();
        check(&later, Command::Answer(Answer { run_id: "r3".into(), ..answer(&[(1, false)]) }), Ok(vec![]));
    }
}

#[test]
fn one_interrupt_named_twice_in_a_request_is_decided_once_and_never_both_ways() {
    let expect = vec![resolved(1, true), resumed("r2", "r1", 2)];
    check(&waiting(&[None]), decide(&[(1, true), (1, true)]), Ok(expect));
    for first in [true, false] {
        let both = decide(&[(1, first), (1, !first)]);
        check(&waiting(&[None]), both, Err(ConversationError::InterruptAlreadyResolved));
    }
}

#[test]
fn the_opposite_answer_is_refused_whatever_has_happened_since() {
    let given = then(waiting(&[None, None]), resolved(1, true));
    let refused = || Err(ConversationError::InterruptAlreadyResolved);
    check(&given, decide(&[(1, false)]), refused());
    check(&given, decide(&[(2, true), (1, false)]), refused());
    let resumed = [waiting(&[None]), vec![resolved(1, true), resumed("r2", "r1", 2)]].concat();
    let ended = [resumed.clone(), vec![claimed("r2"), succeeded("r2")]].concat();
    for given in [resumed, ended] {
        check(&given, decide(&[(1, false)]), refused());
    }
    assert_eq!(ConversationError::InterruptAlreadyResolved.code(), ErrorCode::InterruptAlreadyResolved);
}

#[test]
fn an_answer_after_the_deadline_is_refused_also_before_anybody_has_recorded_the_end() {
    for (deadline, accepted) in [(4, false), (5, false), (6, true)] {
        let expect = if accepted {
            Ok(vec![resolved(1, true), resumed("r2", "r1", 2)])
        } else {
            Err(ConversationError::InterruptExpired)
        };
        check(&waiting(&[Some(at(deadline))]), decide(&[(1, true)]), expect);
    }
    check(&then(waiting(&[None, None]), expired(1)), decide(&[(1, true)]), Err(ConversationError::InterruptExpired));
    assert_eq!(ConversationError::InterruptExpired.code(), ErrorCode::InterruptExpired);
}

#[test]
fn one_refused_answer_of_a_request_refuses_them_all() {
    let given = waiting(&[None, Some(at(1))]);
    check(&given, decide(&[(1, true), (2, true)]), Err(ConversationError::InterruptExpired));
    check(&given, decide(&[(1, true), (9, true)]), Err(ConversationError::InterruptNotFound));
}

#[test]
fn an_interrupt_that_was_taken_back_takes_no_answer() {
    let stopped = cancelled("r1", RunCancelReason::Stopped);
    let given = [waiting(&[None]), vec![withdrawn(1, InterruptCancelReason::RunStopped), stopped]].concat();
    check(&given, decide(&[(1, true)]), Err(ConversationError::InterruptClosed));
    assert_eq!(ConversationError::InterruptClosed.code(), ErrorCode::InterruptClosed);
}

#[test]
fn an_interrupt_of_no_turn_or_of_an_earlier_one_takes_no_answer() {
    let earlier = [waiting(&[None]), vec![resolved(1, true), resumed("r2", "r1", 2), claimed("r2")]].concat();
    let earlier = [earlier, vec![succeeded("r2"), turn(2), run(2)]].concat();
    for given in [vec![started()], queued(), waiting(&[]), earlier] {
        check(&given, decide(&[(1, true)]), Err(ConversationError::InterruptNotFound));
    }
}

#[test]
fn only_the_owner_answers_and_only_where_the_conversation_is_still_there() {
    let stranger = Command::Answer(Answer { user_id: "mallory".into(), ..answer(&[(1, true)]) });
    check(&waiting(&[None]), stranger, Err(ConversationError::NotOwner));
    check(&[], decide(&[(1, true)]), Err(ConversationError::NotFound));
    let deleted = then(waiting(&[None]), ConversationDeleted {});
    check(&deleted, decide(&[(1, true)]), Err(ConversationError::NotFound));
}

#[test]
fn silence_ends_an_interrupt_when_its_time_is_over_and_not_before() {
    let given = waiting(&[Some(at(10))]);
    check(&given, expire(9), Ok(vec![]));
    for moment in [10, 11] {
        check(&given, expire(moment), Ok(vec![expired(1), resumed("r2", "r1", 2)]));
    }
    check(&waiting(&[None]), expire(i64::MAX), Ok(vec![]));
    for given in [vec![], queued(), running(), waiting(&[]), then(running(), succeeded("r1"))] {
        check(&given, expire(99), Ok(vec![]));
    }
}

#[test]
fn the_run_goes_on_only_when_no_interrupt_is_open_any_more() {
    let given = waiting(&[Some(at(10)), Some(at(20)), None]);
    check(&given, expire(15), Ok(vec![expired(1)]));
    let given = then(given, expired(1));
    check(&given, expire(15), Ok(vec![]));
    check(&given, decide(&[(2, true)]), Ok(vec![resolved(2, true)]));
    let given = then(given, resolved(2, true));
    check(&given, expire(99), Ok(vec![]));
    check(&given, decide(&[(3, false)]), Ok(vec![resolved(3, false), resumed("r2", "r1", 2)]));
}

#[test]
fn the_last_silence_lets_the_run_go_on_after_the_answers_before() {
    let given = then(waiting(&[Some(at(10)), None]), resolved(2, true));
    check(&given, expire(10), Ok(vec![expired(1), resumed("r2", "r1", 2)]));
    let done = [given, vec![expired(1), resumed("r2", "r1", 2)]].concat();
    check(&done, expire(99), Ok(vec![]));
    check(&done, claim("r2"), Ok(vec![claimed("r2")]));
}

#[test]
fn no_second_run_begins_beside_one_that_has_not_paused() {
    // No command leaves such a log: a question and the pause are one append.
    let given = then(running(), raised_by("r1", 1, Some(at(10))));
    check(&given, decide(&[(1, true)]), Ok(vec![resolved(1, true)]));
    check(&given, expire(10), Ok(vec![expired(1)]));
}

#[test]
fn decisions_stay_known_along_the_runs_that_resume_a_thread_and_to_no_other_run() {
    let first = [waiting(&[None, None]), vec![resolved(1, true), expired(2), resumed("r2", "r1", 2)]].concat();
    assert_eq!(statuses(&first), ["i1 alice true", "i2 expired"]);
    let paused = RunInterrupted { run_id: "r2".into() }.into();
    let second = [first, vec![claimed("r2"), raised_by("r2", 3, None), paused]].concat();
    assert_eq!(statuses(&second), ["i1 alice true", "i2 expired", "i3 open"]);
    check(
        &second,
        Command::Answer(Answer { run_id: "r3".into(), ..answer(&[(3, false)]) }),
        Ok(vec![resolved(3, false), resumed("r3", "r2", 3)]),
    );
    let ended = [second, vec![resolved(3, false), resumed("r3", "r2", 3), claimed("r3"), succeeded("r3")]].concat();
    assert_eq!(statuses(&ended), ["i1 alice true", "i2 expired", "i3 alice false"]);
    for next in [Command::Ask(ask(2)), Command::Rerun(rerun(None)), Command::Rerun(rerun(Some("changed")))] {
        let events = fold(&ended).decide(next).expect("accepted");
        assert!(statuses(&[ended.clone(), events].concat()).is_empty());
    }
}

#[test]
fn a_run_does_not_wait_for_approvals_that_it_does_not_name() {
    let command = Command::Interrupt { run_id: "r1".into(), claim: owner(7), interrupts: vec![] };
    check(&running(), command, Err(ConversationError::NothingToAsk));
}

/// A permission for the whole conversation, with the answer to interrupt `n`.
fn grant(n: u32, risk: Risk, scope: GrantScope) -> NewGrant {
    let arguments = json!({ "path": "docs/a.md" });
    NewGrant {
        grant_id: format!("g{n}").into(),
        interrupt_id: format!("i{n}").into(),
        arguments: arguments.clone(),
        call: Box::new(ToolCallRequested {
            conversation_id: "c".into(),
            turn_id: "t1".into(),
            run_id: "r1".into(),
            user_id: "alice".into(),
            graph_thread_id: "g1".into(),
            model_call_id: format!("c{n}"),
            parent_tool_call_id: None,
            tool: "workspace.read_file".into(),
            tool_version: "1".into(),
            target: Target::Device,
            device_id: Some("laptop".into()),
            call_hash: call_hash("workspace.read_file", "1", &arguments),
            arguments,
            risk,
        }),
        scope,
    }
}
fn docs() -> GrantScope {
    GrantScope::Folder { path: "docs".into() }
}
/// Interrupts that show the call of [`grant`].
fn shown(count: u32) -> Vec<Event> {
    let hash = grant(1, Risk::Medium, docs()).call.call_hash;
    let mut events = waiting(&vec![None; count as usize]);
    for event in &mut events {
        if let Event::InterruptRaised(raised) = event {
            raised.arguments_hash.clone_from(&hash);
        }
    }
    events
}
fn answer_with(decisions: &[(u32, bool)], grants: Vec<NewGrant>) -> Command {
    Command::Answer(Answer { grants, ..answer(decisions) })
}

#[test]
fn what_is_allowed_for_the_conversation_comes_with_a_yes_and_is_no_wider_than_what_was_shown() {
    let given = |scope| {
        let command = answer_with(&[(1, true)], vec![grant(1, Risk::Medium, scope)]);
        let result = fold(&shown(1)).decide(command);
        result.map(|events| events.iter().any(|event| matches!(event, Event::ToolGrantGiven(_))))
    };
    let path = |path: &str| GrantScope::Path { path: path.into() };
    let folder = |path: &str| GrantScope::Folder { path: path.into() };
    for (scope, possible) in [
        (GrantScope::Tool, true),
        (path("docs/a.md"), true),
        (path("docs/b.md"), false),
        (folder("docs"), true),
        (folder("."), true),
        (folder("docs/a"), false),
        (folder("src"), false),
    ] {
        let refused = given(scope.clone()).is_err_and(|error| error.code() == crate::ErrorCode::GrantRefused);
        assert_eq!(refused, !possible, "{scope:?}");
    }
    let refused = |decisions: &[(u32, bool)], new: NewGrant| {
        let error = fold(&shown(2)).decide(answer_with(decisions, vec![new])).expect_err("refused");
        assert!(matches!(error, ConversationError::GrantRefused(_)), "{error}");
    };
    refused(&[(1, true)], grant(1, Risk::High, docs()));
    refused(&[(1, false)], grant(1, Risk::Medium, docs()));
    refused(&[(1, true)], grant(2, Risk::Medium, docs()));
    let mut other = grant(1, Risk::Medium, docs());
    other.call.tool = "demo_text".into();
    refused(&[(1, true)], other);
    let mut other = grant(1, Risk::Medium, docs());
    other.call.call_hash = "another".into();
    refused(&[(1, true)], other);
}

#[test]
fn a_grant_counts_until_it_is_revoked_or_the_conversation_ends_and_a_repeated_answer_gives_no_second_one() {
    let mut events = shown(2);
    let yes = |n: u32, scope| answer_with(&[(n, true)], vec![grant(n, Risk::Medium, scope)]);
    let mut state = fold(&events);
    for command in [yes(1, docs()), answer_with(&[(2, true)], vec![])] {
        let decided = state.decide(command).expect("decided");
        decided.iter().for_each(|event| state.evolve(event));
        events.extend(decided);
    }
    assert_eq!(state.grants.iter().map(|own| own.grant_id.as_str()).collect::<Vec<_>>(), ["g1"]);
    check(&events, yes(1, docs()), Ok(vec![]));
    check(&events, answer_with(&[(1, true)], vec![]), Ok(vec![]));
    check(&events, yes(1, GrantScope::Tool), Err(ConversationError::InterruptAlreadyResolved));
    check(&events, yes(2, docs()), Err(ConversationError::InterruptAlreadyResolved));

    let revoke = |user: &str, id: &str| Command::RevokeGrant { user_id: user.into(), grant_id: id.into() };
    check(&events, revoke("mallory", "g1"), Err(ConversationError::NotOwner));
    check(&events, revoke("alice", "g2"), Err(ConversationError::GrantNotFound));
    let revoked: Event = ToolGrantRevoked { grant_id: "g1".into(), revoked_by: "alice".into() }.into();
    check(&events, revoke("alice", "g1"), Ok(vec![revoked.clone()]));
    let after = [events.clone(), vec![revoked]].concat();
    assert_eq!(fold(&after).grants, vec![]);
    check(&after, revoke("alice", "g1"), Err(ConversationError::GrantNotFound));
    assert_eq!(fold(&then(events, ConversationDeleted {})).grants, vec![]);
}

#[test]
fn a_conversation_has_so_many_grants_at_a_time() {
    let mut state = fold(&shown(1));
    let mut given = grant(1, Risk::Medium, docs());
    for _ in 0..MAX_GRANTS {
        let own = Grant {
            grant_id: "old".into(),
            interrupt_id: "old".into(),
            tool: "t".into(),
            tool_version: "1".into(),
            scope: GrantScope::Tool,
        };
        state.grants.push(own);
    }
    let full = state.decide(answer_with(&[(1, true)], vec![given.clone()])).expect_err("refused");
    assert!(matches!(full, ConversationError::GrantRefused(_)), "{full}");
    state.grants.pop();
    given.scope = GrantScope::Tool;
    assert!(state.decide(answer_with(&[(1, true)], vec![given])).is_ok());
}
