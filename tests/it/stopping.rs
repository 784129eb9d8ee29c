//! Stopping in order, with streams and sockets open: each is told, nothing is left running.

use devmind_device::Fixed;
use devmind_tests::{ModelEndpoint, Question, RawDevice, Reply, TestDevice, TestServer, agui, workspace};
use serde_json::json;
use std::sync::Arc;

#[tokio::test]
async fn an_open_stream_gets_its_terminal_event_and_an_open_socket_its_close_code() {
    let endpoint = ModelEndpoint::start([Reply::stream().text("half").hold()]).await;
    let server = TestServer::with_model(&endpoint).await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let mut socket = device.online(&ann).await;
    let asked = ann.ask(&Question::new("tell me")).await;
    let queued = ann.ask(&Question::new("not begun")).await;
    let mut stream = ann.stream(&asked).await;
    stream.until("some text", |event| event["delta"] == "half").await;

    let (stopped, events, end) = tokio::join!(server.stop(), stream.rest(), socket.end());
    assert_eq!(agui::error_code(&events), "SHUTTING_DOWN");
    assert_eq!(end.code, 1012, "{end:?}");
    endpoint.aborted(1).await;
    let log = stopped.data.log().await;
    assert_eq!(log.one("RunFailed").await.payload["error_code"], "SHUTTING_DOWN");
    assert_eq!(log.one("RunFailed").await.payload["partial_text"], "half");
    assert_eq!(log.one("DeviceDisconnected").await.payload["code"], 1012);

    // What had not begun can still be claimed afterwards.
    let server = stopped.start().await;
    let ann = server.client("ann");
    assert_eq!(ann.turn(&asked).await["status"], "failed");
    agui::assert_success(&ann.run(&queued).await);
    server.finish().await;
}

#[tokio::test]
async fn a_call_under_way_at_the_stop_is_taken_back_and_its_report_counts_after_the_next_start() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let mut socket = device.online(&ann).await;
    let asked = ann.ask(&Question::new("read README.md").on(&device.device_id)).await;
    let stream = ann.stream(&asked).await;
    let request = socket.expect("tool.call.request").await;
    let (stopped, events, end) = tokio::join!(server.stop(), stream.rest(), socket.end());
    assert_eq!(agui::error_code(&events), "SHUTTING_DOWN");
    assert_eq!(end.code, 1012);

    let server = stopped.start().await;
    let ann = server.client("ann");
    assert_eq!(ann.tool_call(&asked).await["status"], "unknown");
    let mut socket = device.online(&ann).await;
    socket.send(devmind_tests::raw_device::failure(&request, "cancelled", "CANCELLED_BY_SERVER")).await;
    assert_eq!(socket.acked(&request["tool_call_id"]).await, "stored");
    assert_eq!(ann.tool_call(&asked).await["status"], "cancelled");
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn the_real_device_comes_back_by_itself_after_the_server_was_stopped_and_started() {
    let (server, folder) = (TestServer::start().await, workspace());
    let device = TestDevice::start(&server, "ann", folder.path(), Arc::new(Fixed(true))).await;
    let server = server.restart().await;
    let ann = server.client("ann");
    device.online(&ann).await;
    let (asked, events) = ann.converse(&Question::new("read README.md").on(&device.id)).await;
    agui::assert_success(&events);
    assert_eq!(ann.tool_call(&asked).await["status"], json!("succeeded"));
    device.stop().await;
    server.finish().await;
}

#[tokio::test]
async fn a_second_program_of_a_device_is_told_that_its_journal_is_in_use() {
    let (server, folder) = (TestServer::start().await, workspace());
    let state = tempfile::tempdir().unwrap();
    let options = || {
        let identity = devmind_device::Identity::DevUser("ann".to_owned());
        devmind_device::DeviceOptions::new(server.url(), folder.path().to_owned(), state.path().join("s"), identity)
    };
    let first = devmind_device::Device::open(options(), Arc::new(Fixed(true))).await.unwrap();
    let second = devmind_device::Device::open(options(), Arc::new(Fixed(true))).await;
    assert_eq!(second.err().map(|error| error.code().as_str()), Some("STATE_LOCKED"));
    drop(first);
    server.finish().await;
}
