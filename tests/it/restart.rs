//! What a restart changes: nothing.

use devmind_device::Fixed;
use devmind_ledger::Place;
use devmind_tests::{Question, TestDevice, TestServer, agui, workspace};
use std::sync::Arc;

/// A server with some of everything in it; answers the client's whole view of it.
async fn with_history() -> (TestServer, serde_json::Value) {
    let (server, folder) = (TestServer::start().await, workspace());
    let device = TestDevice::start(&server, "ann", folder.path(), Arc::new(Fixed(true))).await;
    let ann = server.client("ann");
    let (asked, _) = ann.converse(&Question::new("list the files, then read README.md").on(&device.id)).await;
    ann.converse(&Question::new("read ../outside").on(&device.id).within(&asked.conversation_id)).await;
    ann.converse(&Question::new("add 1 and 2")).await;
    ann.ask(&Question::new("never claimed")).await;
    device.stop().await;
    server.log().wait_kind("DeviceDisconnected").await;
    let everything = ann.everything().await;
    (server, everything)
}

#[tokio::test]
async fn a_second_start_settles_nothing_that_was_settled_and_shows_the_same() {
    let (server, before) = with_history().await;
    let events = server.log().head().await;
    let server = server.restart().await;
    assert_eq!(server.client("ann").everything().await, before);
    let more: Vec<_> = server.log().all().await.into_iter().skip(events as usize).map(|fact| fact.kind).collect();
    assert_eq!(more, ["NodeStopped", "NodeStarted"]);
    let server = server.restart().await;
    assert_eq!(server.client("ann").everything().await, before);
    server.finish().await;
}

#[tokio::test]
async fn inv_x5_views_that_were_deleted_or_damaged_come_back_identical() {
    let (server, before) = with_history().await;
    let stopped = server.stop().await;
    stopped.data.delete_views().await;
    let server = stopped.start().await;
    assert_eq!(server.client("ann").everything().await, before);

    let stopped = server.stop().await;
    if let Place::File(file) = stopped.data.views_place() {
        std::fs::write(file, "this is no database").unwrap();
    }
    let server = stopped.start().await;
    assert_eq!(server.client("ann").everything().await, before);
    server.finish().await;
}

#[tokio::test]
async fn a_device_is_the_same_device_after_its_program_was_started_again() {
    let (server, folder) = (TestServer::start().await, workspace());
    let device = TestDevice::start(&server, "ann", folder.path(), Arc::new(Fixed(true))).await;
    let id = device.id.clone();
    let device = device.restart(&server, Arc::new(Fixed(true))).await;
    assert_eq!(device.id, id);
    let ann = server.client("ann");
    assert_eq!(ann.devices().await.len(), 1);
    agui::assert_success(&ann.converse(&Question::new("read README.md").on(&id)).await.1);
    device.stop().await;
    server.finish().await;
}
