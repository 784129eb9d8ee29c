//! Contexts that tools leave for the model, and turns that tools end.

use super::*;

fn id(call: &str) -> ToolCallId {
    ToolCallId::of(&"g".into(), call)
}
fn left(call: &str, message: &str) -> ThreadEvent {
    ContextDeferred { tool_call_id: id(call), message: message.into() }.into()
}
fn concluded(call: &str) -> ThreadEvent {
    TurnConcluded { tool_call_id: id(call) }.into()
}
fn gave(call: &str, content: serde_json::Value) -> ThreadEvent {
    let content = content.to_string();
    ToolResultObserved { tool_call_id: id(call), ok: true, content, error: None }.into()
}
fn of_two(events: impl IntoIterator<Item = ThreadEvent>) -> Vec<ThreadEvent> {
    [request(1), response(1, &ids(1, 2))].into_iter().chain(events).collect()
}

#[test]
fn contexts_reach_the_model_after_all_results_of_their_message_in_the_models_order_of_the_calls() {
    let first = [result("c1.1"), left("c1.1", "second"), left("c1.1", "third")];
    let part = of_two(first.clone());
    assert!(prompt(&[], &fold(&part)).iter().all(|message| !matches!(message, Message::User { .. })));
    let whole = of_two(first.into_iter().chain([result("c1.0"), left("c1.0", "first")]));
    assert_eq!(step(&whole), "call model 2");
    let next = [whole, vec![request(2), response(2, &[])]].concat();
    let told: Vec<_> = prompt(&[], &fold(&next)).iter().map(|message| message.content().to_owned()).collect();
    assert_eq!(told, ["answer 1", "result of c1.0", "result of c1.1", "first", "second", "third", "answer 2"]);
}

#[test]
fn a_turn_that_a_tool_ends_has_what_the_tool_gave_as_its_answer_once_every_call_has_its_result() {
    let words = || gave("c1.0", json!({"ok": true, "tool": "t", "data": "forty-two"}));
    assert_eq!(step(&of_two([words(), concluded("c1.0")])), "run c1.1");
    let whole = |given: &[ThreadEvent]| step(&of_two(given.iter().cloned()));
    // What is left for the model, and the other call's result, do not keep the turn open.
    let ended = [words(), left("c1.0", "x"), concluded("c1.0"), result("c1.1"), left("c1.1", "y")];
    assert_eq!(whole(&ended), "finish answer:m1: forty-two");
    for (data, expected) in [
        (json!({"b": 1, "a": [true]}), r#"finish answer:m1: {"a":[true],"b":1}"#),
        (json!(null), "finish m1: answer 1"),
        (json!(""), "finish m1: answer 1"),
    ] {
        let gave = gave("c1.0", json!({"ok": true, "tool": "t", "data": data}));
        assert_eq!(whole(&[gave, concluded("c1.0"), result("c1.1")]), expected);
    }
    assert_eq!(whole(&[result("c1.0"), concluded("c1.0"), result("c1.1")]), "finish answer:m1: result of c1.0");
    let both = [result("c1.1"), concluded("c1.1"), words(), concluded("c1.0")];
    assert_eq!(whole(&both), "finish answer:m1: forty-two\n\nresult of c1.1", "in the model's order");
    assert!(is_tools_answer(&"answer:m1".into()) && !is_tools_answer(&"m1".into()));
}

#[test]
fn a_turn_ends_only_after_the_person_answered_that_a_call_of_its_message_waits_for() {
    let mut thread = approvals::wants(&[approvals::call("x", "demo_text", "{}"), approvals::call("y", "add", "{}")]);
    thread.evolve(&result("y"));
    thread.evolve(&concluded("y"));
    let mut script = Script { thread, ..Script::default() };
    assert_eq!(ready(run_agent(&mut script)), Ok(AgentEnd::Interrupted));
    script.thread.evolve(&result("x"));
    let answer = "result of y".to_owned();
    assert_eq!(ready(run_agent(&mut script)), Ok(AgentEnd::Answered { message_id: "answer:m1".into(), answer }));
}
