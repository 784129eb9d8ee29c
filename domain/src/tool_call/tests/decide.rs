//! Decisions of the pipeline: refusals, questions to a person, and what they allow.

use super::*;

fn decided(decision: Decision, by: &str) -> ToolCallDecided {
    let code = match decision {
        Decision::Allow => "APPROVAL_GIVEN",
        Decision::Ask => "APPROVAL_REQUIRED",
        Decision::Deny => "APPROVAL_REJECTED",
    };
    ToolCallDecided { stage: "approval".into(), decision, code: code.into(), by: by.into(), reason: None }
}
fn decide(path: &str, decision: Decision) -> Command {
    Command::Decide { request: Box::new(request(path)), decided: decided(decision, "pipeline") }
}
/// Requested, with these decisions about it.
fn after(decisions: &[Decision]) -> Vec<Event> {
    let decided = decisions.iter().map(|decision| decided(*decision, "pipeline").into());
    std::iter::once(request("a").into()).chain(decided).collect()
}
use Decision::{Allow, Ask, Deny};
const EVERY_DECISION: [Decision; 3] = [Allow, Ask, Deny];

#[test]
fn a_refused_call_is_recorded_with_its_reason_and_never_dispatched() {
    check(&[], refuse(request("a")), Ok(refused()));
    check(&refused(), refuse(request("a")), Ok(vec![]));
    check(&refused(), send(dispatch()), Ok(vec![]));
    assert!(fold(&refused()).is_settled());
}

#[test]
fn a_new_call_is_requested_with_what_was_decided_and_a_known_one_only_decided() {
    for decision in EVERY_DECISION {
        check(&[], decide("a", decision), Ok(after(&[decision])));
        let event = decided(decision, "pipeline").into();
        check(&[request("a").into()], decide("a", decision), Ok(vec![event]));
    }
}

#[test]
fn a_request_alone_is_recorded_once_and_what_follows_adds_to_it() {
    let ask = |path: &str| Command::Request(Box::new(request(path)));
    check(&[], ask("a"), Ok(vec![request("a").into()]));
    for given in [vec![request("a").into()], after(&[Ask]), refused(), sent(1)] {
        check(&given, ask("a"), Ok(vec![]));
        check(&given, ask("b"), Err(ToolCallError::HashConflict));
    }
    check(&[request("a").into()], send(dispatch()), Ok(sent(1)[1..].to_vec()));
}

#[test]
fn the_same_decision_twice_is_one_and_another_one_is_news() {
    for first in EVERY_DECISION {
        check(&after(&[first]), decide("a", first), Ok(vec![]));
    }
    for (first, second) in [(Ask, Allow), (Ask, Deny), (Allow, Ask), (Allow, Deny)] {
        check(&after(&[first]), decide("a", second), Ok(vec![decided(second, "pipeline").into()]));
    }
    let by_alice = decided(Allow, "user:alice");
    let command = Command::Decide { request: Box::new(request("a")), decided: by_alice.clone() };
    check(&after(&[Allow]), command, Ok(vec![by_alice.into()]));
}

#[test]
fn a_decision_about_other_arguments_is_none_about_this_call() {
    for given in EVERY_DECISION.map(|decision| after(&[decision])).into_iter().chain([sent(1)]) {
        for decision in EVERY_DECISION {
            check(&given, decide("b", decision), Err(ToolCallError::HashConflict));
        }
    }
}

#[test]
fn what_was_sent_or_settled_is_past_every_decision() {
    for given in EVERY_STATUS.map(settled).into_iter().chain([sent(1), sent(2), refused(), after(&[Ask, Deny])]) {
        for decision in EVERY_DECISION {
            check(&given, decide("a", decision), Ok(vec![]));
        }
    }
    let report = report(1, ResultStatus::Succeeded);
    check(&sent(1), record(report.clone(), laptop()), Ok(vec![report.into(), acked(Disposition::Stored)]));
}

#[test]
fn a_call_that_waits_for_a_person_is_not_dispatched_before_it_is_allowed() {
    for (decisions, expect) in [
        (&[Ask][..], Err(ToolCallError::NotApproved)),
        (&[Allow], Ok(vec![dispatched(1)])),
        (&[Ask, Allow], Ok(vec![dispatched(1)])),
        (&[Ask, Allow, Ask], Err(ToolCallError::NotApproved)),
        (&[Ask, Allow, Ask, Allow], Ok(vec![dispatched(1)])),
        (&[Ask, Deny], Ok(vec![])),
    ] {
        check(&after(decisions), send(dispatch()), expect);
        // A claim that an attempt is under way or that the call is new does not get round the question.
        if decisions.last() == Some(&Ask) {
            let live = Dispatch { attempt_is_live: true, ..dispatch() };
            check(&after(decisions), send(live), Err(ToolCallError::NotApproved));
        }
    }
    assert_eq!(ToolCallError::NotApproved.code(), ErrorCode::ApprovalRequired);
}

#[test]
fn a_stage_that_allows_or_asks_does_not_settle_the_call() {
    for decisions in [&[Allow][..], &[Ask], &[Ask, Allow]] {
        assert!(!fold(&after(decisions)).is_settled());
    }
}

#[test]
fn order_never_turns_a_refusal_into_permission() {
    for later in [Allow, Ask] {
        let call = fold(&after(&[Deny, later]));
        assert_eq!(call.refusal(), Some(&decided(Deny, "pipeline")), "a log that a faulty program wrote");
        assert!(call.is_settled());
        check(&after(&[Deny, later]), send(dispatch()), Ok(vec![]));
    }
}

#[test]
fn a_call_that_waits_for_a_person_was_never_sent_so_nobody_can_report_or_take_it_back() {
    let given = after(&[Ask]);
    let report = report(1, ResultStatus::Succeeded);
    check(&given, record(report, laptop()), Err(ToolCallError::NoSuchAttempt { attempt_no: 1 }));
    check(&given, Command::Cancel { reason: CancelReason::RunCancelled }, Ok(vec![]));
}

#[test]
fn what_a_later_stage_made_of_an_outcome_is_recorded_once_and_changes_nothing_else_of_the_call() {
    let revised = ToolOutcomeRevised { by: "render".into(), reason: "RENDER_FAILED".into(), content_hash: "h".into() };
    check(&[], Command::Revise(vec![revised.clone()]), Err(ToolCallError::Unknown));
    let before = refused();
    check(&before, Command::Revise(vec![revised.clone()]), Ok(vec![revised.clone().into()]));
    let after: Vec<Event> = before.iter().cloned().chain([revised.clone().into()]).collect();
    assert_eq!(ToolCall { revisions: vec![], ..fold(&after) }, fold(&before));
    check(&after, Command::Revise(vec![revised.clone()]), Ok(vec![]));
    let other = ToolOutcomeRevised { content_hash: "other".into(), ..revised };
    check(&after, Command::Revise(vec![other.clone()]), Ok(vec![other.into()]));
}

#[test]
fn what_was_decided_first_is_the_verdict_and_a_persons_answer_is_the_conversations_to_tell() {
    let policy = |decision, by: &str| {
        Event::from(ToolCallDecided {
            stage: "policy".into(),
            decision,
            code: "CODE".into(),
            by: by.into(),
            reason: None,
        })
    };
    let asked = || vec![request("a").into(), policy(Ask, "policy:p")];
    let answered = Event::from(decided(Allow, "user:alice"));
    for (what, events, verdict) in [
        ("requested", vec![request("a").into()], None),
        ("asked", asked(), Some((Ask, "policy:p"))),
        ("asked before there were policies", after(&[Ask]), Some((Ask, "pipeline"))),
        ("answered", [asked(), vec![answered.clone()]].concat(), Some((Ask, "tool"))),
        ("sent", [asked(), vec![answered, dispatched(1)]].concat(), Some((Allow, "tool"))),
        ("allowed by a rule", vec![request("a").into(), policy(Allow, "policy:p")], Some((Allow, "policy:p"))),
        ("refused by a rule", vec![request("a").into(), policy(Deny, "policy:p")], Some((Deny, "policy:p"))),
        ("sent without a word", sent(1), Some((Allow, "tool"))),
    ] {
        let own = fold(&events).verdict();
        assert_eq!(own.as_ref().map(|own| (own.decision, own.by.as_str())), verdict, "{what}");
    }
}
