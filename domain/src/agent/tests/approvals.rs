//! Whether a call may go on, what the loop does while it may not, and results for calls that never will.

use super::*;
use crate::ErrorCode;
use crate::canonical::call_hash;
use crate::conversation::{Conversation, Interrupt, InterruptStatus, LatestTurn};
use crate::tool_call::{
    Decision, ResultOrigin, ResultStatus, Risk, Target, ToolCall, ToolCallDecided, ToolCallRequested, ToolError,
    ToolOutcomeRevised, ToolResultRecorded,
};
use crate::tools::{Amendment, PolicyAnswer, PostExecute, Registry, ToolDefinition, Verdict};
use std::sync::Arc;

pub(super) fn call(id: &str, name: &str, arguments: &str) -> ModelToolCall {
    ModelToolCall { id: id.into(), name: name.into(), arguments: arguments.into() }
}
/// A call that a person must approve.
fn guarded(id: &str) -> ModelToolCall {
    call(id, "demo_text", "{}")
}
fn free(id: &str) -> ModelToolCall {
    call(id, "add", r#"{"a":1,"b":2}"#)
}
fn guarded_hash() -> String {
    call_hash("demo_text", "1", &json!({}))
}
/// What the conversation says about calls, by model call id and hash, in the order it was asked.
pub(super) fn decided(decisions: &[(&str, &str, InterruptStatus)]) -> Approvals {
    let interrupt = |(call, hash, status): &(&str, &str, InterruptStatus)| Interrupt {
        interrupt_id: format!("i of {call}").into(),
        run_id: "r".into(),
        tool_call_id: ToolCallId::of(&"g".into(), call),
        arguments_hash: (*hash).into(),
        expires_at: None,
        status: status.clone(),
    };
    let latest = LatestTurn {
        turn_id: "t".into(),
        sequence_no: 1,
        message_id: "q".into(),
        content: "question".into(),
        run: None,
        answer_message_id: None,
        interrupts: decisions.iter().map(interrupt).collect(),
    };
    Approvals::of(&Conversation { latest: Some(latest), ..Conversation::default() }, &"g".into())
}
/// Whether a call may go on about which no policy had a word.
fn about(approvals: &Approvals, call: &ModelToolCall, over_limit: bool) -> Permission {
    judged_by_tools(approvals, [call]).about(catalogue(), call, over_limit)
}
pub(super) fn yes() -> InterruptStatus {
    InterruptStatus::Resolved { approved: true, by: "alice".into() }
}
pub(super) fn no() -> InterruptStatus {
    InterruptStatus::Resolved { approved: false, by: "alice".into() }
}
/// A thread whose model wants these calls.
pub(super) fn wants(calls: &[ModelToolCall]) -> Thread {
    let mut event = response(1, &[]);
    if let ThreadEvent::ModelResponded(responded) = &mut event {
        responded.tool_calls = calls.to_vec();
    }
    fold(&[request(1), event])
}
/// The step with each call and what is known of its permission.
fn planned(thread: &Thread, approvals: &Approvals) -> (&'static str, Vec<(String, Permission)>) {
    let calls = |calls: Vec<PlannedCall>| calls.into_iter().map(|planned| (planned.call.id, planned.permission));
    let approvals = judged_by_tools(approvals, calls_of(thread));
    match next_step(thread, &approvals, catalogue()) {
        Step::RunTools(list) => ("run", calls(list).collect()),
        Step::AwaitApproval(list) => ("await", calls(list).collect()),
        Step::CallModel { .. } => ("call model", vec![]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_person_decided_about_a_call_is_its_permission() {
    let hash = guarded_hash();
    for (status, permission) in [
        (InterruptStatus::Open, Permission::Undecided),
        (yes(), Permission::Allowed("alice".into())),
        (no(), Permission::Rejected("alice".into())),
        (InterruptStatus::Cancelled, Permission::Cancelled),
        (InterruptStatus::Expired, Permission::Expired),
    ] {
        let approvals = decided(&[("c", &hash, status)]);
        assert_eq!(about(&approvals, &guarded("c"), false), permission);
    }
    for nobody_asked in [decided(&[]), Approvals::default(), Approvals::of(&Conversation::default(), &"g".into())] {
        assert_eq!(about(&nobody_asked, &guarded("c"), false), Permission::Undecided);
    }
}

#[test]
fn an_approval_holds_for_one_call_of_one_thread_with_one_hash_and_for_nothing_else() {
    let hash = guarded_hash();
    let versions = [call_hash("demo_text", "2", &json!({})), call_hash("add", "1", &json!({})), String::new()];
    for other in versions {
        assert_eq!(about(&decided(&[("c", &other, yes())]), &guarded("c"), false), Permission::Undecided, "{other}");
    }
    let approvals = decided(&[("c", &hash, yes())]);
    for id in ["d", "", "g:c", "c~1.1"] {
        assert_eq!(about(&approvals, &guarded(id), false), Permission::Undecided, "{id}");
    }
    let elsewhere = Approvals::of(&Conversation::default(), &"g2".into());
    assert_eq!(about(&elsewhere, &guarded("c"), false), Permission::Undecided);
}

#[test]
fn decisions_of_another_thread_are_not_seen() {
    let interrupt = Interrupt {
        interrupt_id: "i".into(),
        run_id: "r".into(),
        tool_call_id: ToolCallId::of(&"g-before-the-retry".into(), "c"),
        arguments_hash: guarded_hash(),
        expires_at: None,
        status: yes(),
    };
    let latest = LatestTurn {
        turn_id: "t".into(),
        sequence_no: 1,
        message_id: "q".into(),
        content: "question".into(),
        run: None,
        answer_message_id: None,
        interrupts: vec![interrupt],
    };
    let conversation = Conversation { latest: Some(latest), ..Conversation::default() };
    let of = |thread: &str| about(&Approvals::of(&conversation, &thread.into()), &guarded("c"), false);
    assert_eq!(of("g"), Permission::Undecided);
    assert_eq!(of("g-before-the-retry"), Permission::Allowed("alice".into()));
}

#[test]
fn a_call_that_can_only_fail_or_needs_no_approval_waits_for_nobody() {
    for (call, over_limit) in [
        (free("c"), false),
        (call("c", "workspace_read_file", r#"{"path":"a"}"#), false),
        (call("c", "demo_text", r#"{"x":1}"#), false),
        (call("c", "demo_text", "{"), false),
        (call("c", "no_such_tool", "{}"), false),
        (guarded("c"), true),
    ] {
        assert_eq!(about(&decided(&[]), &call, over_limit), Permission::NotNeeded, "{call:?}");
        let refused = decided(&[("c", &guarded_hash(), no())]);
        assert_eq!(about(&refused, &call, over_limit), Permission::NotNeeded, "{call:?}");
    }
}

#[test]
fn where_a_call_was_asked_about_again_the_newest_answer_counts() {
    let hash = guarded_hash();
    for (first, second, permission) in [
        (InterruptStatus::Expired, InterruptStatus::Open, Permission::Undecided),
        (InterruptStatus::Expired, yes(), Permission::Allowed("alice".into())),
        (yes(), no(), Permission::Rejected("alice".into())),
    ] {
        let approvals = decided(&[("c", &hash, first), ("c", &hash, second)]);
        assert_eq!(about(&approvals, &guarded("c"), false), permission);
    }
}

#[test]
fn a_call_that_waits_for_a_person_does_not_hold_back_the_others() {
    let mut thread = wants(&[guarded("x"), free("y"), guarded("z"), call("bad", "demo_text", "{")]);
    let hash = guarded_hash();
    let open = decided(&[("z", &hash, yes())]);
    let ready = vec![
        ("y".into(), Permission::NotNeeded),
        ("z".into(), Permission::Allowed("alice".into())),
        ("bad".into(), Permission::NotNeeded),
    ];
    assert_eq!(planned(&thread, &open), ("run", ready));
    for id in ["y", "z", "bad"] {
        thread.evolve(&result(id));
    }
    assert_eq!(planned(&thread, &open), ("await", vec![("x".into(), Permission::Undecided)]));
    let allowed = decided(&[("z", &hash, yes()), ("x", &hash, yes())]);
    assert_eq!(planned(&thread, &allowed), ("run", vec![("x".into(), Permission::Allowed("alice".into()))]));
    thread.evolve(&result("x"));
    assert_eq!(planned(&thread, &allowed), ("call model", vec![]));
}

#[test]
fn every_end_of_an_approval_gets_the_call_a_result_and_never_a_second_question() {
    let thread = wants(&[guarded("c")]);
    for (status, permission) in [
        (no(), Permission::Rejected("alice".into())),
        (InterruptStatus::Expired, Permission::Expired),
        (InterruptStatus::Cancelled, Permission::Cancelled),
    ] {
        let approvals = decided(&[("c", &guarded_hash(), status)]);
        assert_eq!(planned(&thread, &approvals), ("run", vec![("c".into(), permission)]));
    }
}

#[test]
fn two_calls_with_the_same_arguments_have_two_decisions() {
    let thread = wants(&[guarded("first"), guarded("second")]);
    let both = vec![("first".into(), Permission::Undecided), ("second".into(), Permission::Undecided)];
    assert_eq!(planned(&thread, &decided(&[])), ("await", both));
    let hash = guarded_hash();
    let one = decided(&[("first", &hash, no())]);
    assert_eq!(planned(&thread, &one), ("run", vec![("first".into(), Permission::Rejected("alice".into()))]));
    let both = decided(&[("first", &hash, no()), ("second", &hash, yes())]);
    let permissions = vec![
        ("first".into(), Permission::Rejected("alice".into())),
        ("second".into(), Permission::Allowed("alice".into())),
    ];
    assert_eq!(planned(&thread, &both), ("run", permissions));
}

#[test]
fn a_guarded_call_beyond_the_limit_is_answered_and_nobody_is_asked() {
    let calls: Vec<_> = (0..=MAX_TOOL_CALLS_PER_RUN).map(|n| guarded(&n.to_string())).collect();
    let last = MAX_TOOL_CALLS_PER_RUN.to_string();
    assert_eq!(planned(&wants(&calls), &decided(&[])), ("run", vec![(last, Permission::NotNeeded)]));
}

#[test]
fn the_loop_ends_interrupted_after_everything_that_needs_no_answer() {
    let thread = wants(&[guarded("x"), free("y")]);
    let mut script = Script { thread, ..Script::default() };
    assert_eq!(ready(run_agent(&mut script)), Ok(AgentEnd::Interrupted));
    assert_eq!(script.log, ["tools y", "await 1"]);
}

#[test]
fn a_resumed_loop_runs_the_approved_call_and_asks_the_model_no_second_time_for_it() {
    let thread = wants(&[guarded("x")]);
    let approvals = decided(&[("x", &guarded_hash(), yes())]);
    let mut script = Script { thread, approvals, answers: vec![response(2, &[])], ..Script::default() };
    let end = ready(run_agent(&mut script));
    assert_eq!(end, Ok(AgentEnd::Answered { message_id: "m2".into(), answer: "answer 2".into() }));
    assert_eq!(script.log, ["tools x", "model 2"]);
}

#[test]
fn a_halt_while_a_person_is_asked_leaves_the_loop_and_does_not_end_it_as_interrupted() {
    let mut script = Script { thread: wants(&[guarded("x")]), halt_at: Some("await"), ..Script::default() };
    assert_eq!(ready(run_agent(&mut script)), Err("await"));
}

#[test]
fn every_call_that_will_never_run_gets_one_result_that_says_why() {
    let mut thread = wants(&[guarded("x"), free("y"), guarded("z")]);
    thread.evolve(&result("y"));
    let not_started = |thread: &Thread| -> Vec<ToolResultObserved> {
        let results = stand_in_results(thread, &"g".into(), |_| Arc::default(), None, ErrorCode::ToolNotStarted);
        results.into_iter().map(|result| result.observed).collect()
    };
    let results = not_started(&thread);
    let ids: Vec<_> = results.iter().map(|result| result.tool_call_id.as_str()).collect();
    assert_eq!(ids, ["g:x", "g:z"], "in the model's order, and none for the call that has its result");
    for result in &results {
        assert!(!result.ok && result.error.as_deref() == Some(ErrorCode::ToolNotStarted.as_str()), "{result:?}");
        let content: serde_json::Value = serde_json::from_str(&result.content).expect("JSON");
        assert_eq!(content["tool"], "demo_text");
        assert_eq!(content["error"]["code"], ErrorCode::ToolNotStarted.as_str());
    }
    results.into_iter().for_each(|result| thread.evolve(&result.into()));
    let told: Vec<_> = prompt(&[], &thread).into_iter().skip(1).collect();
    assert!(matches!(&told[..], [Message::Tool { .. }, Message::Tool { .. }, Message::Tool { .. }]), "{told:?}");
    assert!(not_started(&thread).is_empty(), "a second time adds nothing");
    assert!(not_started(&Thread::default()).is_empty());
}

/// What `add` came to in the log: a report, or the refusal of a stage.
fn recorded(result: Option<Result<serde_json::Value, &str>>, tool_version: &str) -> ToolCall {
    let request = ToolCallRequested {
        conversation_id: "c".into(),
        turn_id: "t".into(),
        run_id: "r".into(),
        user_id: "alice".into(),
        graph_thread_id: "g".into(),
        model_call_id: "y".into(),
        parent_tool_call_id: None,
        tool: "add".into(),
        tool_version: tool_version.into(),
        target: Target::Server,
        device_id: None,
        arguments: json!({ "a": 1, "b": 2 }),
        call_hash: "h".into(),
        risk: Risk::Low,
    };
    let mut call = ToolCall { request: Some(request), ..ToolCall::default() };
    match result {
        Some(Ok(output)) => call.evolve(
            &ToolResultRecorded {
                executed_attempt_no: 1,
                status: ResultStatus::Succeeded,
                output: Some(output),
                output_sha256: None,
                error: None,
                started_at: None,
                finished_at: None,
                origin: ResultOrigin::Live,
                connection_id: None,
            }
            .into(),
        ),
        Some(Err(words)) => {
            let error = ToolError { code: "GUARD_REFUSED".into(), message: words.into() };
            call.evolve(&ToolCallDecided::deny("guard", &error, "g").into());
        }
        None => {}
    }
    call
}

#[test]
fn what_is_recorded_of_a_call_is_told_at_its_runs_end_and_only_else_the_code_of_the_end() {
    let thread = wants(&[free("y")]);
    let short = || vec![PostExecute::new("short", |_| Amendment::Content("short".into()))];
    let told = |call: ToolCall, steps: Vec<PostExecute>| -> (String, usize) {
        let (call, steps) = (Arc::new(call), Arc::from(steps));
        let stages = Some(Stages { tools: catalogue(), tool_set: None, post_execute: &steps });
        let code = ErrorCode::ServerRestarted;
        let results = stand_in_results(&thread, &"g".into(), |_| call.clone(), stages, code);
        let [StandIn { observed, revisions, .. }] = &results[..] else { panic!("{results:?}") };
        assert_eq!(observed.ok, observed.error.is_none());
        (observed.error.clone().unwrap_or_else(|| observed.content.clone()), revisions.len())
    };
    let sum = || recorded(Some(Ok(json!({ "sum": 3 }))), "1");
    let revised = |content: &str| {
        let content_hash = crate::canonical::sha256_hex(content.as_bytes());
        let (by, reason) = ("short".into(), "CONTENT_REPLACED".into());
        ToolCall { revisions: vec![ToolOutcomeRevised { by, reason, content_hash }], ..sum() }
    };
    let restarted = || ("SERVER_RESTARTED".to_owned(), 0);
    let stood_in = || ("SERVER_RESTARTED".to_owned(), 1);
    let real = r#"{"data":{"sum":3},"ok":true,"tool":"add"}"#;
    for (what, given, expected) in [
        ("nothing is recorded", told(ToolCall::default(), vec![]), restarted()),
        ("it was only requested", told(recorded(None, "1"), vec![]), restarted()),
        ("a result", told(sum(), vec![]), (real.to_owned(), 0)),
        ("a refusal", told(recorded(Some(Err("no")), "1"), vec![]), ("GUARD_REFUSED".to_owned(), 0)),
        ("a result that a step changes", told(sum(), short()), ("short".to_owned(), 1)),
        ("one that it has changed already", told(revised("short"), short()), ("short".to_owned(), 0)),
        ("one that it had changed into something else", told(revised("other"), short()), stood_in()),
        ("nothing, and a step changes what is told of it", told(ToolCall::default(), short()), stood_in()),
        ("a request, and a step changes what is told of it", told(recorded(None, "1"), short()), stood_in()),
        ("a request of another version, and a step", told(recorded(None, "2"), short()), stood_in()),
        ("of another version of the tool", told(recorded(Some(Ok(json!({ "sum": 3 }))), "2"), vec![]), restarted()),
    ] {
        assert_eq!(given, expected, "{what}");
    }

    let many = wants(&[free("y"), free("z")]);
    let long = vec![PostExecute::new("long", |_| Amendment::Content("x".repeat(5 << 20)))].into();
    let stages = Some(Stages { tools: catalogue(), tool_set: None, post_execute: &long });
    let results = stand_in_results(&many, &"g".into(), |_| Arc::new(sum()), stages, ErrorCode::ServerRestarted);
    let codes: Vec<_> = results.iter().map(|result| result.observed.error.as_deref()).collect();
    assert_eq!(codes, [None, Some("SERVER_RESTARTED")], "one append must hold them all");
}

#[test]
fn what_stands_in_for_a_call_that_never_began_passes_post_execute_and_the_last_word_of_its_tool() {
    let last = ToolDefinition {
        finalize_content: Some(Arc::new(|content| format!("{content}!"))),
        ..catalogue().get("add").expect("a tool of the catalogue").clone()
    };
    let tools = Registry::new([last]).expect("whole");
    let steps: Arc<[_]> = Arc::new([PostExecute::new("step", |call| match call.outcome.error_code().as_deref() {
        Some("TOOL_NOT_STARTED") => Amendment::Content(format!("{} not begun: {}", call.tool, call.arguments)),
        _ => Amendment::Keep,
    })]);
    let told = |offered: Option<&str>, tool_set, call: ToolCall, code| {
        let (mut thread, call) = (wants(&[free("y")]), Arc::new(call));
        thread.tool_set = offered.map(str::to_owned);
        let stages = Some(Stages { tools: &tools, tool_set, post_execute: &steps });
        let mut results = stand_in_results(&thread, &"g".into(), |_| call.clone(), stages, code);
        assert_eq!(results.len(), 1);
        results.remove(0)
    };
    let never = |offered, tool_set| told(offered, tool_set, ToolCall::default(), ErrorCode::ToolNotStarted);
    for set in [None, Some("set")] {
        let StandIn { observed, request, revisions } = never(set, set);
        assert_eq!(observed.content, r#"add not begun: {"a":1,"b":2}!"#);
        assert_eq!((observed.ok, observed.error.as_deref()), (false, Some("TOOL_NOT_STARTED")));
        let by: Vec<_> = revisions.iter().map(|revision| revision.by.as_str()).collect();
        assert_eq!(by, ["step", "finalize_content"]);
        // What is made of it is a fact of the call, and so is then what the model wanted.
        let (call, admission) = request.expect("the call that was not recorded");
        assert_eq!((call, admission.tool.as_str(), admission.version.as_str()), (free("y"), "add", "1"));
    }
    // Which tool the model meant nobody can say where it was offered others.
    let StandIn { observed, request, revisions } = never(Some("other"), None);
    assert_eq!((observed.error.as_deref(), request, revisions.len()), (Some("TOOL_NOT_STARTED"), None, 0));
    assert!(observed.content.starts_with(r#"{"data":null"#), "{}", observed.content);

    let StandIn { observed, request, .. } = told(None, None, recorded(None, "1"), ErrorCode::ToolNotStarted);
    assert_eq!((observed.content.as_str(), request), (r#"add not begun: {"a":1,"b":2}!"#, None));
    // Of another version the tool's last word is not asked, and what was said before is not said twice.
    let StandIn { observed, revisions, .. } = told(None, None, recorded(None, "2"), ErrorCode::ToolNotStarted);
    assert_eq!(observed.content, r#"add not begun: {"a":1,"b":2}"#);
    let again = ToolCall { revisions, ..recorded(None, "2") };
    assert!(told(None, None, again, ErrorCode::ToolNotStarted).revisions.is_empty());
}

#[test]
fn a_call_is_judged_before_anything_of_its_message_runs_or_is_asked_and_its_verdict_is_for_its_hash_alone() {
    let thread = wants(&[free("x"), guarded("y"), call("bad", "demo_text", "{")]);
    let unjudged = |approvals: &Approvals| -> Vec<String> {
        match next_step(&thread, approvals, catalogue()) {
            Step::Judge(calls) => calls.into_iter().map(|planned| planned.call.id).collect(),
            other => panic!("{other:?}"),
        }
    };
    let mut approvals = decided(&[("y", &guarded_hash(), yes())]);
    assert_eq!(unjudged(&approvals), ["x", "y"], "what can only fail is not judged, a person's yes is no verdict");
    let allow = || Verdict::of_answer("p", PolicyAnswer::Allow).expect("a word");
    approvals.judged(ToolCallId::of(&"g".into(), "x"), call_hash("add", "1", &json!({"a": 1, "b": 2})), allow());
    approvals.judged(ToolCallId::of(&"g".into(), "y"), call_hash("demo_text", "2", &json!({})), allow());
    assert_eq!(unjudged(&approvals), ["y"], "a verdict about another version is none");
}

#[test]
fn a_verdict_is_the_permission_and_a_person_is_heard_only_where_it_asks() {
    let hash = guarded_hash();
    let verdict = |decision| Verdict { decision, code: "CODE".into(), by: "policy:p".into(), reason: String::new() };
    for (decision, status, permission) in [
        (Decision::Deny, yes(), Permission::Denied(verdict(Decision::Deny))),
        (Decision::Allow, no(), Permission::Granted(verdict(Decision::Allow))),
        (Decision::Ask, yes(), Permission::Allowed("alice".into())),
        (Decision::Ask, no(), Permission::Rejected("alice".into())),
        (Decision::Ask, InterruptStatus::Open, Permission::Undecided),
    ] {
        let mut approvals = decided(&[("c", &hash, status)]);
        approvals.judged(ToolCallId::of(&"g".into(), "c"), hash.clone(), verdict(decision));
        assert_eq!(approvals.about(catalogue(), &guarded("c"), false), permission);
        let beyond = approvals.about(catalogue(), &guarded("c"), true);
        assert_eq!(beyond, Permission::NotNeeded, "no verdict makes a call that can only fail anything else");
    }
}
