//! A ledger that refuses something while a device is called: what the device, the run and the next prompt
//! get to know all the same.

use devmind_tests::raw_device::{file_output, success};
use devmind_tests::{
    Client, Question, RawDevice, RawSocket, Reply, Script, ScriptedModel, ServerProcess, TestServer, agui,
};
use serde_json::{Value, json};
use std::sync::Arc;

/// The second waits for the first: what is not known runs alone.
const TWO_CALLS: [(&str, &str, &str); 2] =
    [("a", "workspace_read_file", r#"{"path":"x"}"#), ("b", "no_such_tool", "{}")];

struct World {
    server: TestServer,
    ann: Client,
    socket: RawSocket,
    device: RawDevice,
}

async fn world(model: Arc<ScriptedModel>) -> World {
    let server = TestServer::with_scripted(model).await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let socket = device.online(&ann).await;
    World { server, ann, socket, device }
}

fn codes(events: &[Value]) -> Vec<Value> {
    agui::results(events).iter().map(|result| result["error"]["code"].clone()).collect()
}

#[tokio::test]
async fn a_stop_takes_the_call_back_and_ends_the_run_as_stopped_also_when_neither_can_be_recorded_of_the_call() {
    let model = ScriptedModel::new([Script::calls(&TWO_CALLS), Script::say("fine")]);
    let World { server, ann, mut socket, device } = world(model).await;
    let asked = ann.ask(&Question::new("go").on(&device.device_id)).await;
    let stream = ann.stream(&asked).await;
    let request = socket.expect("tool.call.request").await;
    let taking_back = "NEW.event_type = 'ToolCancelRequested'";
    let outcome = "NEW.event_type = 'ToolResultObserved' AND NEW.payload LIKE '%RUN_CANCELLED%'";
    server.ledger_refuses(&format!("{taking_back} OR ({outcome})")).await;
    assert_eq!(ann.stop(&asked.run_id).await, "cancelled");
    let cancel = socket.expect("tool.call.cancel").await;
    assert_eq!((&cancel["tool_call_id"], &cancel["attempt_no"]), (&request["tool_call_id"], &json!(1)));
    let events = stream.rest().await;
    assert_eq!(agui::last(&events)["outcome"]["type"], "cancelled");
    assert_eq!(codes(&events), [json!("RESULT_UNKNOWN"), json!("TOOL_NOT_STARTED")]);
    server.ledger_takes_all().await;

    // The device's report counts all the same.
    socket.send(success(&request, &file_output("read"))).await;
    assert_eq!(socket.acked(&request["tool_call_id"]).await, "stored");
    let (_, events) = ann.converse(&Question::new("go on").within(&asked.conversation_id)).await;
    agui::assert_success(&events);
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn of_a_call_that_was_dispatched_no_stand_in_says_that_it_was_not_started() {
    let model = ScriptedModel::new([Script::calls(&TWO_CALLS)]);
    let World { server, ann, mut socket, device } = world(model).await;
    let asked = ann.ask(&Question::new("go").on(&device.device_id)).await;
    let stream = ann.stream(&asked).await;
    let request = socket.expect("tool.call.request").await;
    server.ledger_refuses("NEW.event_type = 'ToolResultObserved' AND NEW.payload LIKE '%never shown%'").await;
    socket.send(success(&request, &file_output("never shown"))).await;
    assert_eq!(socket.acked(&request["tool_call_id"]).await, "stored");
    let events = stream.rest().await;
    assert_eq!(agui::error_code(&events), "INTERNAL");
    assert_eq!(codes(&events), [json!("RESULT_UNKNOWN"), json!("TOOL_NOT_STARTED")]);
    server.ledger_takes_all().await;
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn a_refusal_of_an_attempt_that_is_not_waited_for_ends_no_wait() {
    let model = ScriptedModel::new([Script::calls(&TWO_CALLS), Script::say("fine")]);
    let World { server, ann, mut socket, device } = world(model).await;
    let asked = ann.ask(&Question::new("go").on(&device.device_id)).await;
    let stream = ann.stream(&asked).await;
    let request = socket.expect("tool.call.request").await;
    let id = &request["tool_call_id"];
    let other = json!({ "type": "tool.call.refused", "tool_call_id": id, "attempt_no": 7, "code": "DEVICE_BUSY" });
    socket.send(other).await;
    // Answered in its turn: the refusal has been taken.
    let unknown = json!({ "type": "tool.call.received", "tool_call_id": "none", "attempt_no": 1, "phase": "reserved" });
    socket.send(unknown).await;
    socket.expect("protocol.error").await;
    socket.send(success(&request, &file_output("read"))).await;
    let events = stream.rest().await;
    agui::assert_success(&events);
    assert_eq!(codes(&events), [json!(null), json!(null)]);
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn a_run_of_an_earlier_start_that_cannot_be_ended_keeps_neither_the_server_nor_the_others_from_it() {
    let endpoint =
        devmind_tests::ModelEndpoint::start([Reply::stream().text("one").hold(), Reply::stream().hold()]).await;
    let url = endpoint.url();
    let server = ServerProcess::start(&[("MODEL_BASE_URL", &url), ("MODEL_NAME", "scripted")]).await;
    let ann = server.client("ann");
    let (first, second) = (ann.ask(&Question::new("one")).await, ann.ask(&Question::new("two")).await);
    let streams = (ann.stream(&first).await, ann.stream(&second).await);
    endpoint.asked(2).await;
    let killed = server.kill().await;
    drop(streams);
    let refuse = format!(
        "CREATE TRIGGER refused_by_a_test BEFORE INSERT ON events WHEN NEW.event_type = 'RunFailed' \
         AND NEW.payload LIKE '%{}%' BEGIN SELECT RAISE(ABORT, 'refused by a test'); END",
        first.run_id
    );
    killed.data.change_ledger(&refuse).await;

    // The one stays as it is, and the other is ended.
    let server = killed.start().await;
    let ann = server.client("ann");
    assert_eq!(ann.turn(&first).await["status"], "running");
    assert_eq!(ann.turn(&second).await["error_code"], "SERVER_RESTARTED");
    let killed = server.kill().await;
    killed.data.change_ledger("DROP TRIGGER refused_by_a_test").await;
    // It is ended when it can be.
    let server = killed.start().await;
    let ann = server.client("ann");
    assert_eq!(ann.turn(&first).await["error_code"], "SERVER_RESTARTED");
    server.finish().await;
}
