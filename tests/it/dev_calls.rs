//! Calls of device tools without a model: the same call again is answered, joined, or sent once more, and
//! a late result of an earlier attempt settles it for everybody.

use devmind_api::config::TokenUser;
use devmind_domain::canonical::sha256_hex;
use devmind_tests::raw_device::{failure, file_output, success};
use devmind_tests::{Answer, Asked, Client, Question, RawDevice, RawSocket, TestServer, eventually};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const PATH: &str = "/api/desktop/dev/tool-calls";

fn body(asked: &Asked, path: &str, id: Option<&str>) -> Value {
    let mut body = json!({ "run_id": asked.run_id, "tool_name": "workspace.read_file", "arguments": { "path": path } });
    if let Some(id) = id {
        body["tool_call_id"] = id.into();
    }
    body
}

/// A call under way.
fn call(client: &Client, asked: &Asked, path: &str, id: Option<&str>) -> JoinHandle<Answer> {
    let (client, body) = (client.clone(), body(asked, path, id));
    tokio::spawn(async move { client.post(PATH, &body).await })
}

/// What it answered.
async fn answered(call: JoinHandle<Answer>) -> Value {
    call.await.unwrap().ok()
}

fn code(answer: &Value) -> &str {
    assert_eq!(answer["ok"], false, "{answer}");
    answer["error"]["code"].as_str().unwrap()
}

fn id_of(request: &Value) -> String {
    request["tool_call_id"].as_str().unwrap().to_owned()
}

/// Ends the socket without a word, and waits until the server knows.
async fn lose(server: &TestServer, socket: RawSocket) {
    let connection_id = socket.connection_id.clone();
    drop(socket);
    let ended = |fact: &devmind_tests::Fact| {
        fact.is("DeviceDisconnected") && fact.payload["connection_id"] == connection_id.as_str()
    };
    server.log().wait("the end of the socket", ended).await;
}

async fn start() -> (TestServer, Client, RawDevice, Asked) {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let asked = ann.ask(&Question::new("never claimed").on(&device.device_id)).await;
    (server, ann, device, asked)
}

#[tokio::test]
async fn a_device_tool_is_called_without_a_model_and_its_call_is_in_the_ledger_like_any_other() {
    let (server, ann, device, asked) = start().await;
    let mut socket = device.online(&ann).await;
    let calling = call(&ann, &asked, "README.md", None);
    let request = socket.expect("tool.call.request").await;
    assert_eq!((&request["run_id"], &request["attempt_no"]), (&json!(asked.run_id), &json!(1)));
    socket.send(success(&request, &file_output("hello"))).await;
    assert_eq!(socket.acked(&request["tool_call_id"]).await, "stored");
    let answer = answered(calling).await;
    assert_eq!((&answer["ok"], &answer["output"]["content"]), (&json!(true), &json!("hello")));
    let row = ann.tool_call(&asked).await;
    assert_eq!((&row["tool_call_id"], &row["status"]), (&request["tool_call_id"], &json!("succeeded")));

    // Settled: the same call again is answered from the ledger, and nothing is sent.
    let again = answered(call(&ann, &asked, "README.md", Some(&id_of(&request)))).await;
    assert_eq!(again, answer);
    server.log().one("ToolDispatched").await;
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn inv_b05_one_id_with_other_arguments_is_a_conflict_and_nothing_is_sent() {
    let (server, ann, device, asked) = start().await;
    let mut socket = device.online(&ann).await;
    let calling = call(&ann, &asked, "README.md", None);
    let request = socket.expect("tool.call.request").await;
    let other = answered(call(&ann, &asked, "LICENSE", Some(&id_of(&request)))).await;
    assert_eq!(code(&other), "IDEMPOTENCY_CONFLICT");
    socket.send(failure(&request, "rejected", "CONFIRMATION_REJECTED")).await;
    assert_eq!(code(&answered(calling).await), "CONFIRMATION_REJECTED");
    let other = answered(call(&ann, &asked, "LICENSE", Some(&id_of(&request)))).await;
    assert_eq!(code(&other), "IDEMPOTENCY_CONFLICT");
    server.log().one("ToolDispatched").await;
    socket.acked(&request["tool_call_id"]).await;
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn a_call_that_is_under_way_is_joined_and_both_get_its_result() {
    let (server, ann, device, asked) = start().await;
    let mut socket = device.online(&ann).await;
    let first = call(&ann, &asked, "README.md", None);
    let request = socket.expect("tool.call.request").await;
    let second = call(&ann, &asked, "README.md", Some(&id_of(&request)));
    eventually("both are under way", || async {
        let runs = server.app().runs.len();
        if runs == 2 { Ok(()) } else { Err(runs.to_string()) }
    })
    .await;
    socket.send(success(&request, &file_output("hello"))).await;
    socket.acked(&request["tool_call_id"]).await;
    assert_eq!(answered(first).await, answered(second).await);
    server.log().one("ToolDispatched").await;
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn inv_b07_a_call_that_nobody_knows_the_end_of_is_sent_again_and_a_late_result_of_the_first_attempt_settles_it() {
    let (server, ann, device, asked) = start().await;
    let mut socket = device.online(&ann).await;
    let calling = call(&ann, &asked, "README.md", None);
    let first = socket.expect("tool.call.request").await;
    let id = id_of(&first);
    lose(&server, socket).await;
    assert_eq!(code(&answered(calling).await), "RESULT_UNKNOWN");

    let mut socket = device.online(&ann).await;
    let calling = call(&ann, &asked, "README.md", Some(&id));
    let second = socket.expect("tool.call.request").await;
    assert_eq!((&second["tool_call_id"], &second["attempt_no"]), (&json!(id), &json!(2)));
    assert_eq!(second["call_created_at"], first["call_created_at"], "the call is as old as it is");
    lose(&server, socket).await;
    assert_eq!(code(&answered(calling).await), "RESULT_UNKNOWN");

    let mut socket = device.online(&ann).await;
    let calling = call(&ann, &asked, "README.md", Some(&id));
    let third = socket.expect("tool.call.request").await;
    assert_eq!(third["attempt_no"], 3);
    // The device had run the first.
    socket.send(success(&first, &file_output("of the first"))).await;
    assert_eq!(socket.acked(&json!(id)).await, "stored");
    let answer = answered(calling).await;
    assert_eq!(answer["output"]["content"], "of the first");
    // What comes of the others is acknowledged and changes nothing.
    socket.send(success(&first, &file_output("of the first"))).await;
    assert_eq!(socket.acked(&json!(id)).await, "duplicate");
    socket.send(failure(&third, "failed", "IO_ERROR")).await;
    assert_eq!(socket.acked(&json!(id)).await, "superseded");

    let row = ann.tool_call(&asked).await;
    assert_eq!((&row["status"], &row["origin"]), (&json!("succeeded"), &json!("redelivered")));
    assert_eq!(row["attempts"].as_array().map(Vec::len), Some(3), "{row}");
    server.log().one("ToolResultRecorded").await;
    assert_eq!(answered(call(&ann, &asked, "README.md", Some(&id))).await, answer);
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn inv_b06_a_late_result_that_comes_before_the_next_attempt_is_the_answer_and_nothing_is_sent() {
    let (server, ann, device, asked) = start().await;
    let mut socket = device.online(&ann).await;
    let calling = call(&ann, &asked, "README.md", None);
    let request = socket.expect("tool.call.request").await;
    lose(&server, socket).await;
    assert_eq!(code(&answered(calling).await), "RESULT_UNKNOWN");
    let mut socket = device.online(&ann).await;
    socket.send(failure(&request, "indeterminate", "DEVICE_RESTARTED")).await;
    assert_eq!(socket.acked(&request["tool_call_id"]).await, "stored");
    let again = answered(call(&ann, &asked, "README.md", Some(&id_of(&request)))).await;
    assert_eq!(code(&again), "DEVICE_RESTARTED");
    server.log().one("ToolDispatched").await;
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn a_call_stays_with_the_journal_that_it_was_sent_to() {
    let (server, ann, mut device, asked) = start().await;
    let mut socket = device.online(&ann).await;
    let calling = call(&ann, &asked, "README.md", None);
    let request = socket.expect("tool.call.request").await;
    lose(&server, socket).await;
    assert_eq!(code(&answered(calling).await), "RESULT_UNKNOWN");

    // The same device with a new journal does not know what the old one did.
    device.journal_id = devmind_tests::new_id();
    let mut socket = device.online(&ann).await;
    let again = answered(call(&ann, &asked, "README.md", Some(&id_of(&request)))).await;
    assert_eq!(code(&again), "DEVICE_CHANGED");
    server.log().one("ToolDispatched").await;
    // And its report of that call is nobody's.
    socket.send(success(&request, &file_output("of another journal"))).await;
    socket.expect("protocol.error").await;
    socket.expect("tool.call.nack").await;
    assert_eq!(ann.tool_call(&asked).await["status"], "unknown");
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn what_cannot_be_called_is_refused_before_anything_is_recorded() {
    let (server, ann, device, asked) = start().await;
    let before = server.log().head().await;
    let with = |field: &str, value: Value| {
        let mut body = body(&asked, "README.md", None);
        body[field] = value;
        body
    };
    for (body, expected) in [
        (with("run_id", json!("no-such-run")), (404, "RUN_NOT_FOUND")),
        (with("tool_name", json!("workspace.delete_file")), (404, "UNKNOWN_TOOL")),
        (with("tool_name", json!("add")), (404, "UNKNOWN_TOOL")),
        (with("arguments", json!({ "path": 1 })), (422, "INVALID_ARGUMENTS")),
        (with("arguments", json!([])), (422, "INVALID_ARGUMENTS")),
        (with("tool_call_id", json!("another-thread:1")), (422, "VALIDATION_FAILED")),
        (with("more", json!(1)), (422, "VALIDATION_FAILED")),
    ] {
        assert_eq!(ann.post(PATH, &body).await.refused(), expected, "{body}");
    }
    assert_eq!(server.client("bob").post(PATH, &body(&asked, "x", None)).await.refused(), (403, "FORBIDDEN"));
    assert_eq!(server.log().head().await, before);

    // Where the device is not there, the call is recorded as what it is: refused before it was sent.
    let offline = ann.post(PATH, &body(&asked, "README.md", None)).await.ok();
    assert_eq!(code(&offline), "DEVICE_OFFLINE");
    assert!(server.log().of("ToolDispatched").await.is_empty());
    let without = ann.ask(&Question::new("no device")).await;
    let answer = ann.post(PATH, &body(&without, "README.md", None)).await.ok();
    assert_eq!(code(&answer), "DESKTOP_DEVICE_NOT_SELECTED");
    drop(device);
    server.finish().await;
}

#[tokio::test]
async fn a_call_without_a_model_goes_through_policies_and_output_checks_and_nobody_is_asked_about_it() {
    let policies = json!([
        { "id": "secrets", "arguments": { "/path": { "glob": "secrets/**" } }, "decision": "deny" },
        { "id": "docs", "arguments": { "/path": { "glob": "docs/**" } }, "decision": "ask" },
    ]);
    let server = TestServer::start_with(|config| config.policies = serde_json::from_value(policies).unwrap()).await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let asked = ann.ask(&Question::new("never claimed").on(&device.device_id)).await;
    let mut socket = device.online(&ann).await;
    let id = format!("{}:again", server.log().one("RunPrepared").await.payload["graph_thread_id"].as_str().unwrap());
    for _ in 0..2 {
        assert_eq!(code(&answered(call(&ann, &asked, "./secrets/a", Some(&id))).await), "TOOL_DENIED");
    }
    assert_eq!(server.log().kinds_of_stream(&id).await, ["ToolCallRequested", "ToolCallDecided"], "decided once");
    assert_eq!(code(&answered(call(&ann, &asked, "docs/a", None)).await), "APPROVAL_UNAVAILABLE");
    let calling = call(&ann, &asked, "README.md", None);
    let request = socket.expect("tool.call.request").await;
    socket.send(success(&request, &json!({ "content": 1 }))).await;
    assert_eq!(code(&answered(calling).await), "INVALID_TOOL_OUTPUT");
    server.log().one("ToolOutcomeRevised").await;
    socket.acked(&request["tool_call_id"]).await;
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn a_client_that_goes_away_does_not_take_the_call_back_and_a_stop_of_the_run_does() {
    let (server, ann, device, asked) = start().await;
    let mut socket = device.online(&ann).await;
    let leaving = call(&ann, &asked, "README.md", None);
    let request = socket.expect("tool.call.request").await;
    leaving.abort();
    socket.send(success(&request, &file_output("hello"))).await;
    assert_eq!(socket.acked(&request["tool_call_id"]).await, "stored");

    let stopped = call(&ann, &asked, "LICENSE", None);
    let request = socket.expect("tool.call.request").await;
    ann.post("/api/runs/stop", &json!({ "run_id": asked.run_id })).await.ok();
    assert_eq!(socket.expect("tool.call.cancel").await["tool_call_id"], request["tool_call_id"]);
    assert_eq!(code(&answered(stopped).await), "RUN_CANCELLED");
    socket.send(failure(&request, "cancelled", "CANCELLED_BY_SERVER")).await;
    assert_eq!(socket.acked(&request["tool_call_id"]).await, "stored");
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn inv_a17_outside_development_there_is_no_such_route() {
    let token = "the-token-of-the-test";
    let server = TestServer::start_with(|config| {
        let token_sha256 = sha256_hex(token.as_bytes());
        config.users.push(TokenUser { name: "ann".to_owned(), token_sha256, ..TokenUser::default() });
    })
    .await;
    let http = reqwest::Client::new();
    let body = json!({ "run_id": "r", "tool_name": "workspace.list_files", "arguments": {} });
    let request = http.post(format!("{}{PATH}", server.url())).bearer_auth(token).json(&body);
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 404);
    assert_eq!(answer.json::<Value>().await.unwrap()["error"]["code"], "NOT_FOUND");
    server.finish().await;
}
