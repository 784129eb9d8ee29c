//! A client that goes away stops its run: model and tools end, what was streamed is kept.

use devmind_tests::raw_device::{failure, file_output, success};
use devmind_tests::{Asked, Client, ModelEndpoint, Question, RawDevice, Reply, TestServer, agui, eventually};
use serde_json::{Value, json};

/// Waits until the turn's run has ended, and answers the turn.
async fn ended(client: &Client, asked: &Asked) -> Value {
    eventually("the run has ended", || async {
        let turn = client.turn(asked).await;
        if turn["status"] == "running" { Err(turn.to_string()) } else { Ok(turn) }
    })
    .await
}

#[tokio::test]
async fn a_client_that_leaves_mid_stream_cancels_the_run_with_the_partial_answer_kept() {
    let endpoint = ModelEndpoint::start([Reply::stream().text("half an ").text("answer").hold()]).await;
    let server = TestServer::with_model(&endpoint).await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("tell me")).await;
    let mut stream = ann.stream(&asked).await;
    stream.until("the second piece", |event| event["delta"] == "answer").await;
    drop(stream);
    endpoint.aborted(1).await;
    let turn = ended(&ann, &asked).await;
    assert_eq!((&turn["status"], &turn["error_code"]), (&json!("cancelled"), &json!("CLIENT_DISCONNECTED")));
    assert_eq!((&turn["answer"], &turn["partial"]), (&json!("half an answer"), &json!(true)));
    let cancelled = server.log().one("RunCancelled").await;
    assert_eq!(cancelled.payload["error_code"], "CLIENT_DISCONNECTED");
    assert_eq!(cancelled.payload["partial_text"], "half an answer");
    let (_, events) = ann.converse(&Question::new("again").within(&asked.conversation_id)).await;
    agui::assert_success(&events);
    server.finish().await;
}

#[tokio::test]
async fn a_client_that_leaves_before_the_first_byte_cancels_the_run_and_the_request_to_the_model() {
    let endpoint = ModelEndpoint::start([Reply::Silence]).await;
    let server = TestServer::with_model(&endpoint).await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("tell me")).await;
    let mut stream = ann.stream(&asked).await;
    stream.until("the start", |event| event["type"] == "RUN_STARTED").await;
    endpoint.asked(1).await;
    drop(stream);
    endpoint.aborted(1).await;
    let turn = ended(&ann, &asked).await;
    assert_eq!((&turn["status"], &turn["error_code"]), (&json!("cancelled"), &json!("CLIENT_DISCONNECTED")));
    assert_eq!((&turn["answer"], &turn["partial"]), (&json!(null), &json!(false)));
    server.finish().await;
}

#[tokio::test]
async fn a_new_question_is_refused_while_a_run_is_under_way_and_other_conversations_do_not_wait() {
    let endpoint = ModelEndpoint::start([Reply::stream().text("slowly").hold()]).await;
    let server = TestServer::with_model(&endpoint).await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("tell me")).await;
    let mut stream = ann.stream(&asked).await;
    stream.until("some text", |event| event["type"] == "TEXT_MESSAGE_CONTENT").await;
    let second = Question::new("and now?").within(&asked.conversation_id);
    assert_eq!(ann.post("/api/turns", second.body()).await.refused(), (409, "RUN_IN_PROGRESS"));
    agui::assert_success(&ann.converse(&Question::new("elsewhere")).await.1);
    drop(stream);
    ended(&ann, &asked).await;
    agui::assert_success(&ann.converse(&second).await.1);
    server.finish().await;
}

#[tokio::test]
async fn inv_b17_inv_b18_a_client_that_leaves_while_the_device_works_takes_the_call_back_and_the_devices_report_settles_it()
 {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let mut socket = device.online(&ann).await;
    let asked = ann.ask(&Question::new("read README.md").on(&device.device_id)).await;
    let stream = ann.stream(&asked).await;
    let request = socket.expect("tool.call.request").await;
    drop(stream);
    let cancel = socket.expect("tool.call.cancel").await;
    assert_eq!((&cancel["tool_call_id"], &cancel["attempt_no"]), (&request["tool_call_id"], &json!(1)));
    assert_eq!(cancel["reason"], "RUN_CANCELLED");
    let turn = ended(&ann, &asked).await;
    assert_eq!((&turn["status"], &turn["error_code"]), (&json!("cancelled"), &json!("CLIENT_DISCONNECTED")));
    let row = ann.tool_call(&asked).await;
    assert_eq!((&row["status"], &row["error_code"]), (&json!("unknown"), &json!("RUN_CANCELLED")));
    assert_eq!(row["settled"], false);

    socket.send(failure(&request, "cancelled", "CANCELLED_BY_SERVER")).await;
    assert_eq!(socket.acked(&request["tool_call_id"]).await, "stored");
    let row = ann.tool_call(&asked).await;
    assert_eq!((&row["status"], &row["settled"]), (&json!("cancelled"), &json!(true)));
    server.log().one("ToolCancelRequested").await;
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn inv_b12_a_cancel_that_comes_too_late_leaves_the_devices_success_as_the_truth() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let mut socket = device.online(&ann).await;
    let asked = ann.ask(&Question::new("read README.md").on(&device.device_id)).await;
    let stream = ann.stream(&asked).await;
    let request = socket.expect("tool.call.request").await;
    drop(stream);
    socket.expect("tool.call.cancel").await;
    socket.send(success(&request, &file_output("already read"))).await;
    assert_eq!(socket.acked(&request["tool_call_id"]).await, "stored");
    assert_eq!(ended(&ann, &asked).await["status"], "cancelled");
    assert_eq!(ann.tool_call(&asked).await["status"], "succeeded");
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn the_real_device_closes_its_question_when_the_client_leaves_and_reports_the_call_as_cancelled() {
    let (server, folder) = (TestServer::start().await, devmind_tests::workspace());
    let (person, mut turnstile) = devmind_tests::Turnstile::new();
    let device = devmind_tests::TestDevice::start(&server, "ann", folder.path(), person).await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("read README.md").on(&device.id)).await;
    let stream = ann.stream(&asked).await;
    turnstile.shown().await;
    drop(stream);
    let result = server.log().wait_kind("ToolResultRecorded").await;
    assert_eq!(result.payload["status"], "cancelled");
    assert_eq!(result.payload["error"]["code"], "CANCELLED_BY_SERVER");
    server.log().wait_kind("ToolResultAcked").await;
    assert_eq!(ended(&ann, &asked).await["error_code"], "CLIENT_DISCONNECTED");
    assert_eq!(ann.tool_call(&asked).await["status"], "cancelled");
    assert_eq!(device.executions(), 0);
    device.stop().await;
    server.finish().await;
}
