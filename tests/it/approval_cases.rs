//! Several approvals at once, and calls that are not the one that was approved.

use devmind_device::Fixed;
use devmind_tests::sse::interrupts;
use devmind_tests::{Fact, Question, Script, ScriptedModel, TestDevice, TestServer, agui, new_id, workspace};
use serde_json::{Value, json};
use std::sync::Arc;

fn run_id(reply: &Value) -> String {
    reply["run_id"].as_str().unwrap_or_else(|| panic!("no run in {reply}")).to_owned()
}

async fn with(scripts: impl IntoIterator<Item = Script>) -> (TestServer, Arc<ScriptedModel>) {
    let model = ScriptedModel::new(scripts);
    (TestServer::with_scripted(model.clone()).await, model)
}

/// The kinds of a call's facts, in order; the call named by the model's id of it.
fn kinds<'a>(facts: &'a [Fact], model_call_id: &str) -> Vec<&'a str> {
    let end = format!(":{model_call_id}");
    let own = facts.iter().filter(|fact| fact.stream_type == "tool_call" && fact.stream_id.ends_with(&end));
    own.map(|fact| fact.kind.as_str()).collect()
}

/// B01.
#[tokio::test]
async fn two_approvals_of_one_message_have_two_ids_and_each_answer_reaches_its_own_call_in_any_order() {
    // Distinct ids of the model, one id twice, and none at all: the calls are identical in all else.
    for ids in [["a", "b"], ["a", "a"], ["", ""]] {
        for approved_first in [true, false] {
            let calls = [(ids[0], "demo_text", "{}"), (ids[1], "demo_text", "{}")];
            let (server, model) = with([Script::calls(&calls), Script::say("end")]).await;
            let ann = server.client("ann");
            let (asked, events) = ann.converse(&Question::new("twice, please")).await;
            let open = interrupts(&events);
            let raised = server.log().of("InterruptRaised").await;
            let bound: Vec<_> = raised.iter().map(|fact| fact.payload["tool_call_id"].clone()).collect();
            assert!(open.len() == 2 && open[0] != open[1] && bound[0] != bound[1], "{open:?} {bound:?}");
            // The second call is refused, the first allowed, in both orders of answering.
            let mut order = [(0, true), (1, false)];
            if !approved_first {
                order.reverse();
            }
            let mut reply = Value::Null;
            for (which, approved) in order {
                reply = ann.answer(&open[which], approved).await.ok();
            }
            let events = ann.resume(&asked, &run_id(&reply), &open).await;
            agui::assert_success(&events);
            let results: Vec<_> = events.iter().filter(|event| event["type"] == "TOOL_CALL_RESULT").collect();
            let of = |id: &Value| results.iter().find(|event| event["toolCallId"] == *id).unwrap();
            assert!(agui::text(of(&bound[0]), "content").contains("\"ok\":true"), "{results:#?}");
            assert!(agui::text(of(&bound[1]), "content").contains("APPROVAL_REJECTED"), "{results:#?}");
            assert_eq!(server.log().of("ToolDispatched").await.len(), 1);
            assert_eq!(model.times_asked(), 2);
            server.finish().await;
        }
    }
}

/// B01: after a rebuild of the views.
#[tokio::test]
async fn interrupt_ids_are_the_same_after_the_views_were_rebuilt_from_the_log() {
    let calls = [("a", "demo_text", "{}"), ("a", "demo_text", "{}")];
    let (server, _) = with([Script::calls(&calls)]).await;
    let ann = server.client("ann");
    let (asked, _) = ann.converse(&Question::new("twice, please")).await;
    let before = ann.pending(&asked).await;
    assert_eq!(before.len(), 2);
    let stopped = server.stop().await;
    stopped.data.delete_views().await;
    let server = stopped.start().await;
    let ann = server.client("ann");
    assert_eq!(ann.pending(&asked).await, before);
    // And they are still the ones to answer.
    for approval in &before {
        ann.answer(agui::text(approval, "interrupt_id"), false).await.ok();
    }
    assert_eq!(ann.pending(&asked).await, Vec::<Value>::new());
    server.finish().await;
}

/// B02.
#[tokio::test]
async fn one_answer_of_two_is_held_nothing_runs_or_is_asked_again_and_the_last_one_goes_on_once() {
    let calls = [("x", "add", r#"{"a":1,"b":2}"#), ("a", "demo_text", "{}"), ("b", "demo_text", "{}")];
    let (server, model) = with([Script::calls(&calls), Script::say("end")]).await;
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("go")).await;
    let open = interrupts(&events);
    assert_eq!(agui::results(&events).len(), 1, "the call that needs nobody is done before anybody is asked");

    let held = ann.answer(&open[0], true).await.ok();
    assert_eq!(held.get("run_id"), None, "{held}");
    assert_eq!(held["open_interrupts"], json!([open[1]]));
    let head = server.log().head().await;
    let turn = ann.turn(&asked).await;
    assert_eq!(turn["status"], "interrupted");
    let still: Vec<_> = ann.pending(&asked).await.iter().map(|one| one["interrupt_id"].clone()).collect();
    assert_eq!(still, [json!(open[1])], "the answered one is not asked again");
    assert_eq!(ann.answer(&open[0], true).await.ok(), held, "and is the same when it comes again");
    assert_eq!(server.log().head().await, head, "nothing more happens");
    assert_eq!(model.times_asked(), 1);

    let reply = ann.answer(&open[1], true).await.ok();
    assert_eq!(ann.answer(&open[0], true).await.ok(), held, "the first reply, for ever");
    agui::assert_success(&ann.resume(&asked, &run_id(&reply), &open).await);
    let facts = server.log().all().await;
    assert_eq!(kinds(&facts, "x"), ["ToolCallRequested", "ToolDispatched", "ToolResultRecorded"]);
    let approved = ["ToolCallRequested", "ToolCallDecided", "ToolCallDecided", "ToolDispatched", "ToolResultRecorded"];
    for call in ["a", "b"] {
        assert_eq!(kinds(&facts, call), approved, "{call}");
    }
    assert_eq!(model.times_asked(), 2);
    server.finish().await;
}

/// B02: the answers in one request.
#[tokio::test]
async fn several_answers_come_in_one_request_which_is_all_or_nothing() {
    let calls = [("a", "demo_text", "{}"), ("b", "demo_text", "{}")];
    let (server, _) = with([Script::calls(&calls), Script::say("end")]).await;
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("go")).await;
    let open = interrupts(&events);
    let one = |id: &str, approved: bool| json!({ "interrupt_id": id, "approved": approved });
    let post = async |decisions: Value| {
        ann.post("/api/runs/resume", &json!({ "decisions": decisions, "idempotency_key": new_id() })).await
    };
    let head = server.log().head().await;
    let unknown = post(json!([one(&open[0], true), one(&new_id(), true)])).await;
    assert_eq!(unknown.refused(), (404, "INTERRUPT_NOT_FOUND"));
    assert_eq!(post(json!([])).await.refused(), (422, "VALIDATION_FAILED"));
    assert_eq!(server.log().head().await, head, "nothing of a refused request is recorded");
    let reply = post(json!([one(&open[0], true), one(&open[1], false)])).await.ok();
    assert_eq!(post(json!([one(&open[0], true), one(&open[1], true)])).await.status, 409);
    let events = ann.resume(&asked, &run_id(&reply), &open).await;
    let verdicts: Vec<_> = agui::results_by_call(&events).iter().map(|result| result["ok"].clone()).collect();
    assert_eq!(verdicts, [json!(true), json!(false)]);
    server.finish().await;
}

/// B02: contradictory answers within one request.
#[tokio::test]
async fn one_request_with_both_answers_to_one_approval_is_refused_whole() {
    let (server, _) = with([Script::calls(&[("a", "demo_text", "{}")])]).await;
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("go")).await;
    let open = interrupts(&events);
    let head = server.log().head().await;
    let both = [true, false].map(|approved| json!({ "interrupt_id": open[0], "approved": approved }));
    let body = json!({ "decisions": both, "idempotency_key": new_id() });
    let answer = ann.post("/api/runs/resume", &body).await;
    assert!(answer.status >= 400, "{answer:?}");
    assert_eq!(server.log().head().await, head);
    // The same answer twice is one answer.
    let twice = [false, false].map(|approved| json!({ "interrupt_id": open[0], "approved": approved }));
    let body = json!({ "decisions": twice, "idempotency_key": new_id() });
    let reply = ann.post("/api/runs/resume", &body).await.ok();
    server.log().one("InterruptResolved").await;
    agui::assert_success(&ann.resume(&asked, &run_id(&reply), &open).await);
    server.finish().await;
}

/// B04: the model makes "the same" call again after the approval.
#[tokio::test]
async fn an_approval_is_for_one_call_alone_the_same_call_made_again_is_asked_about_again() {
    let first = Script::calls(&[("c1", "demo_text", "{}")]);
    let again = Script::calls(&[("c1", "demo_text", " { } ")]);
    let (server, model) = with([first, again, Script::say("end")]).await;
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("go")).await;
    let first = interrupts(&events);
    let reply = ann.answer(&first[0], true).await.ok();
    let events = ann.resume(&asked, &run_id(&reply), &first).await;
    let second = interrupts(&events);
    assert_ne!(first, second);
    let raised = server.log().of("InterruptRaised").await;
    let id = |n: usize| agui::text(&raised[n].payload, "tool_call_id").to_owned();
    assert_eq!(id(1), format!("{}~2.0", id(0)), "a call of its own");
    assert_eq!(server.log().of("ToolDispatched").await.len(), 1);
    let pending = ann.pending(&asked).await;
    assert_eq!((pending.len(), &pending[0]["interrupt_id"]), (1, &json!(second[0])));

    let reply = ann.answer(&second[0], false).await.ok();
    let events = ann.resume(&asked, &run_id(&reply), &second).await;
    agui::assert_success(&events);
    assert_eq!(agui::results(&events)[0]["error"]["code"], "APPROVAL_REJECTED");
    assert_eq!(server.log().of("ToolDispatched").await.len(), 1, "the first answer did not count for the second call");
    assert_eq!(model.times_asked(), 3);
    server.finish().await;
}

/// B04 (a, b, d, e): other arguments, another tool, another type, one argument more.
#[tokio::test]
async fn nothing_else_runs_on_an_approval_that_was_given_for_other_arguments_or_another_tool() {
    let others = [("demo_text", r#"{"path":"b"}"#), ("rm_rf", "{}"), ("demo_text", "true"), ("demo_text", "[]")];
    let scripts = others.iter().map(|(tool, arguments)| Script::calls(&[("c1", tool, arguments)]));
    let all = [Script::calls(&[("c1", "demo_text", "{}")])].into_iter().chain(scripts).chain([Script::say("end")]);
    let (server, _) = with(all.collect::<Vec<_>>()).await;
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("go")).await;
    let open = interrupts(&events);
    let reply = ann.answer(&open[0], true).await.ok();
    let events = ann.resume(&asked, &run_id(&reply), &open).await;
    agui::assert_success(&events);
    let codes: Vec<_> = agui::results(&events).iter().map(|result| result["error"]["code"].clone()).collect();
    let refused =
        ["INVALID_ARGUMENTS", "UNKNOWN_TOOL", "INVALID_ARGUMENTS", "INVALID_ARGUMENTS"].map(|code| json!(code));
    assert_eq!(codes[0], Value::Null);
    assert_eq!(codes[1..], refused);
    assert_eq!(server.log().of("ToolDispatched").await.len(), 1);
    let allowed = server.log().of("ToolCallDecided").await;
    assert_eq!(allowed.iter().filter(|fact| fact.payload["decision"] == "allow").count(), 1);
    server.finish().await;
}

/// B04: the digest that is stored is that of tool, version and arguments, and the call's own.
#[tokio::test]
async fn the_recorded_answer_carries_the_hash_of_exactly_what_is_dispatched() {
    let (server, _) = with([Script::calls(&[("c1", "demo_text", "{}")]), Script::say("end")]).await;
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("go")).await;
    let open = interrupts(&events);
    let reply = ann.answer(&open[0], true).await.ok();
    ann.resume(&asked, &run_id(&reply), &open).await;
    let log = server.log();
    let hash = devmind_domain::canonical::call_hash("demo_text", "1", &json!({}));
    assert_eq!(log.one("InterruptRaised").await.payload["arguments_hash"], hash);
    assert_eq!(log.one("InterruptResolved").await.payload["arguments_hash"], hash);
    assert_eq!(log.one("ToolCallRequested").await.payload["call_hash"], hash);
    server.finish().await;
}

#[tokio::test]
async fn a_message_with_a_device_call_and_an_approval_runs_the_one_asks_about_the_other_and_answers_both() {
    let calls = [("d", "demo_text", "{}"), ("r", "workspace_list_files", "{}")];
    let (server, model) = with([Script::calls(&calls), Script::say("end")]).await;
    let files = workspace();
    let device = TestDevice::start(&server, "ann", files.path(), Arc::new(Fixed(true))).await;
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("go").on(&device.id)).await;
    let open = interrupts(&events);
    assert_eq!(open.len(), 1);
    assert_eq!(device.executions(), 1, "the device did not wait for the other's approval");
    let reply = ann.answer(&open[0], true).await.ok();
    let events = ann.resume(&asked, &run_id(&reply), &open).await;
    agui::assert_success(&events);
    assert_eq!(device.executions(), 1);
    // In the model's order, whatever order they were answered in.
    let prompt = &model.prompts()[1];
    let answered: Vec<_> = prompt
        .iter()
        .filter_map(|message| match message {
            devmind_domain::agent::Message::Tool { tool_call_id, .. } => Some(tool_call_id.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(answered, ["d", "r"]);
    let turn = ann.turn(&asked).await;
    let calls = turn["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2, "{turn:#}");
    assert!(calls.iter().all(|call| call["status"] == "succeeded"), "{turn:#}");
    device.stop().await;
    server.finish().await;
}
