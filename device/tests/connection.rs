//! The device against a server on a real socket: registering, results, acknowledgements,
//! redelivery, and every way to lose a connection.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use devmind_device::{Backoff, ConnectionStatus, Device, DeviceError, DeviceOptions, Fixed, Health, Identity};
use devmind_domain::ErrorCode;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use support::{Connection, FakeServer, read_request};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

struct Running {
    device_id: String,
    status: watch::Receiver<ConnectionStatus>,
    health: watch::Receiver<Health>,
    cancel: CancellationToken,
    task: JoinHandle<Result<(), DeviceError>>,
}

impl Running {
    async fn start(folder: &Path, server: &str) -> Self {
        Self::start_with(folder, server, Backoff { base: Duration::from_millis(1), cap: Duration::from_millis(5) })
            .await
    }

    async fn start_with(folder: &Path, server: &str, backoff: Backoff) -> Self {
        let workspace = folder.join("ws");
        std::fs::create_dir_all(&workspace).unwrap();
        std::fs::write(workspace.join("README.md"), "hello\n").unwrap();
        let identity = Identity::DevUser("ada".to_owned());
        let options = DeviceOptions::new(server, workspace, folder.join("state"), identity);
        let options = DeviceOptions { backoff, ..options };
        let device = Device::open(options, Arc::new(Fixed(true))).await.unwrap();
        let (device_id, status, health) = (device.device_id().0.clone(), device.status(), device.health());
        let cancel = CancellationToken::new();
        let task = tokio::spawn(device.run(cancel.clone()));
        Self { device_id, status, health, cancel, task }
    }

    /// Stops the device, which need not wait for a server that has gone.
    async fn stop(self, connection: Connection) {
        drop(connection);
        self.cancel.cancel();
        self.task.await.unwrap().unwrap();
    }

    async fn ended(self) -> ErrorCode {
        self.task.await.unwrap().expect_err("stopped by itself").code()
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[tokio::test]
async fn a_device_registers_offers_its_tools_and_answers_a_call() {
    let folder = folder();
    let mut server = FakeServer::start().await;
    let mut device = Running::start(folder.path(), &server.url).await;
    let mut connection = server.connection().await;
    assert_eq!((connection.ticket.as_str(), connection.uri.as_str()), ("ticket-1", "/api/desktop/ws"));
    assert_eq!(server.asked_by(), [format!("ada {}", device.device_id)]);
    let register = connection.register("server-1", "user-1", 4 << 20).await;
    assert_eq!(register["device_id"], device.device_id);
    assert_eq!((&register["journal_epoch"], &register["protocol_version"]), (&json!(1), &json!(1)));
    // Of the workspace its name goes out, and nothing of where it is.
    assert_eq!(register["workspace"], "ws");
    assert!(!register.to_string().contains(folder.path().to_str().unwrap()), "{register}");
    device.status.wait_for(|status| matches!(status, ConnectionStatus::Online { .. })).await.unwrap();

    connection.send(read_request(&device.device_id, "call", 1, "README.md")).await;
    for phase in ["reserved", "confirming", "executing"] {
        let received = connection.next().await;
        assert_eq!((&received["type"], &received["phase"]), (&json!("tool.call.received"), &json!(phase)));
    }
    let result = connection.next().await;
    assert_eq!((&result["type"], &result["status"]), (&json!("tool.call.result"), &json!("succeeded")));
    assert_eq!(result["output"]["content"], "hello\n");
    assert_eq!(result["executed_attempt_no"], 1);
    connection.ack("call").await;

    // Asked again after the ack, it still has the output.
    connection.send(read_request(&device.device_id, "call", 2, "README.md")).await;
    let again = connection.next().await;
    assert_eq!(again["output"], result["output"]);
    assert_eq!(again["executed_attempt_no"], 1, "it ran once, for the first attempt");
    device.stop(connection).await;
}

#[tokio::test]
async fn c08_a_result_is_sent_again_until_it_is_acknowledged_and_then_no_more() {
    let folder = folder();
    let mut server = FakeServer::start().await;
    let device = Running::start(folder.path(), &server.url).await;
    let mut connection = server.registered().await;
    connection.send(read_request(&device.device_id, "call", 1, "README.md")).await;
    let first = connection.next_of("tool.call.result").await;
    connection.close(1012, "restart").await;

    let mut connection = server.registered().await;
    assert_eq!(connection.ticket, "ticket-2", "a fresh ticket each time");
    let second = connection.next_of("tool.call.result").await;
    assert_eq!(second["output"], first["output"]);
    device.stop(connection).await;

    // Also by the next start of the program.
    let device = Running::start(folder.path(), &server.url).await;
    let mut connection = server.connection().await;
    let register = connection.register("server-1", "user-1", 4 << 20).await;
    assert_eq!(register["journal_epoch"], 2);
    assert_eq!(connection.next_of("tool.call.result").await["output"], first["output"]);
    connection.ack("call").await;
    connection.send(read_request(&device.device_id, "other", 1, "missing.md")).await;
    assert_eq!(connection.next_of("tool.call.result").await["tool_call_id"], "other");
    connection.close(1012, "restart").await;

    let mut connection = server.registered().await;
    let next = connection.next_of("tool.call.result").await;
    assert_eq!(next["tool_call_id"], "other", "what was acknowledged is not sent again");
    assert_eq!((&next["status"], &next["error"]["code"]), (&json!("rejected"), &json!("PATH_NOT_FOUND")));
    device.stop(connection).await;
}

#[tokio::test]
async fn other_arguments_than_those_that_were_hashed_or_ran_are_refused_whoever_changed_them() {
    let folder = folder();
    let mut server = FakeServer::start().await;
    let device = Running::start(folder.path(), &server.url).await;
    std::fs::write(folder.path().join("ws/other.md"), "not asked for").unwrap();
    let mut connection = server.registered().await;
    let other = |id: &str| read_request(&device.device_id, id, 1, "other.md");
    // The text is another one than the hash is of, and the other way around.
    for (id, field) in [("text", "arguments_json"), ("hash", "call_hash")] {
        let mut changed = read_request(&device.device_id, id, 1, "README.md");
        changed[field] = other(id)[field].clone();
        connection.send(changed).await;
        let result = connection.next_of("tool.call.result").await;
        assert_eq!((&result["status"], &result["error"]["code"]), (&json!("rejected"), &json!("INVALID_ARGUMENTS")));
        connection.ack(id).await;
    }
    // Whole, but under the id of a call that ran with others.
    connection.send(read_request(&device.device_id, "ran", 1, "README.md")).await;
    assert_eq!(connection.next_of("tool.call.result").await["output"]["content"], "hello\n");
    connection.ack("ran").await;
    connection.send(other("ran")).await;
    assert_eq!(connection.next_of("tool.call.refused").await["code"], "IDEMPOTENCY_CONFLICT");
    device.stop(connection).await;
}

#[tokio::test]
async fn a_request_that_expired_on_its_way_by_the_servers_clock_does_not_run() {
    let folder = folder();
    let mut server = FakeServer::start().await;
    let mut device = Running::start(folder.path(), &server.url).await;
    let mut connection = server.registered().await;
    // This server's clock stands at the beginning of 1970: its user is told that they are apart.
    device.health.wait_for(|health| health.clock_offset_ms.is_some_and(|ms| ms < -1_000_000_000)).await.unwrap();
    for (id, expires_at, status) in [("late", 0, "rejected"), ("in time", 3_600_000_000, "succeeded")] {
        let mut request = read_request(&device.device_id, id, 1, "README.md");
        request["expires_at"] = json!(devmind_domain::Timestamp::from_micros(expires_at));
        connection.send(request).await;
        let result = connection.next_of("tool.call.result").await;
        assert_eq!(result["status"], status, "{result}");
        connection.ack(id).await;
    }
    device.stop(connection).await;
}

#[tokio::test]
async fn at_most_eight_results_are_in_flight_in_the_order_of_settling() {
    let folder = folder();
    let mut server = FakeServer::start().await;
    let device = Running::start(folder.path(), &server.url).await;
    let mut connection = server.registered().await;
    for n in 0..12 {
        let id = format!("call {n}");
        connection.send(read_request(&device.device_id, &id, 1, "missing.md")).await;
        if n < 8 {
            // One at a time, so that the order of settling is known.
            assert_eq!(connection.next_of("tool.call.result").await["tool_call_id"], id);
        }
    }
    // The window is full: what comes next is not a result but the answer to something else.
    connection.send(json!({ "type": "nonsense" })).await;
    assert_eq!(connection.next().await["type"], "protocol.error");
    connection.ack("call 3").await;
    let ninth = connection.next_of("tool.call.result").await["tool_call_id"].clone();
    connection.close(1012, "restart").await;

    let mut connection = server.registered().await;
    for n in [0, 1, 2, 4, 5, 6, 7] {
        assert_eq!(connection.next().await["tool_call_id"], format!("call {n}"));
    }
    assert_eq!(connection.next().await["tool_call_id"], ninth);
    device.stop(connection).await;
}

#[tokio::test]
async fn a_result_goes_only_to_the_server_and_user_that_asked() {
    let folder = folder();
    let mut server = FakeServer::start().await;
    let device = Running::start(folder.path(), &server.url).await;
    let mut connection = server.registered().await;
    connection.send(read_request(&device.device_id, "call", 1, "README.md")).await;
    connection.next_of("tool.call.result").await;
    connection.close(1012, "restart").await;
    for (server_id, user_hash) in [("server-2", "user-1"), ("server-1", "user-2")] {
        let mut connection = server.connection().await;
        connection.register(server_id, user_hash, 4 << 20).await;
        connection.send(read_request(&device.device_id, &format!("for {user_hash}"), 1, "missing.md")).await;
        let result = connection.next_of("tool.call.result").await;
        assert_eq!(result["tool_call_id"], format!("for {user_hash}"), "not the other one's");
        connection.ack(&format!("for {user_hash}")).await;
        connection.close(1012, "restart").await;
    }
    let mut connection = server.registered().await;
    assert_eq!(connection.next_of("tool.call.result").await["tool_call_id"], "call");
    device.stop(connection).await;
}

#[tokio::test]
async fn a_result_that_the_server_never_takes_is_parked() {
    let folder = folder();
    let mut server = FakeServer::start().await;
    let device = Running::start(folder.path(), &server.url).await;
    let mut connection = server.registered().await;
    for (id, permanent) in [("never", true), ("later", false)] {
        connection.send(read_request(&device.device_id, id, 1, "missing.md")).await;
        connection.next_of("tool.call.result").await;
        connection
            .send(json!({ "type": "tool.call.nack", "tool_call_id": id, "code": "X", "permanent": permanent }))
            .await;
    }
    // Frames are handled in order: the answer to the last one says that all were.
    connection.send(read_request(&device.device_id, "marker", 1, "missing.md")).await;
    connection.next_of("tool.call.result").await;
    connection.ack("marker").await;
    connection.close(1012, "restart").await;
    let mut connection = server.registered().await;
    assert_eq!(connection.next_of("tool.call.result").await["tool_call_id"], "later");
    device.stop(connection).await;
}

#[tokio::test]
async fn an_output_too_large_for_this_server_goes_without_it() {
    let folder = folder();
    let mut server = FakeServer::start().await;
    let device = Running::start(folder.path(), &server.url).await;
    std::fs::write(folder.path().join("ws/large.txt"), "x".repeat(50_000)).unwrap();
    let mut connection = server.registered().await;
    connection.send(read_request(&device.device_id, "call", 1, "large.txt")).await;
    let whole = connection.next_of("tool.call.result").await;
    connection.close(1012, "restart").await;
    let mut connection = server.connection().await;
    connection.register("server-1", "user-1", 10_000).await;
    let without = connection.next_of("tool.call.result").await;
    assert_eq!((&without["status"], &without["output_discarded"]), (&json!("succeeded"), &json!(true)));
    assert_eq!((&without["output"], &without["output_sha256"]), (&Value::Null, &whole["output_sha256"]));
    device.stop(connection).await;
}

#[tokio::test]
async fn a_frame_of_an_unknown_kind_is_protested_and_the_connection_goes_on() {
    let folder = folder();
    let mut server = FakeServer::start().await;
    let device = Running::start(folder.path(), &server.url).await;
    let mut connection = server.registered().await;
    for nonsense in [json!({ "type": "tool.call.imagined" }), json!({ "type": "tool.call.request", "tool_call_id": 7 })]
    {
        connection.send(nonsense).await;
        let protest = connection.next().await;
        assert_eq!((&protest["type"], &protest["code"]), (&json!("protocol.error"), &json!("PROTOCOL_ERROR")));
        assert!(protest["about_event_id"].as_str().unwrap().starts_with("event-"));
    }
    connection.send(json!({ "type": "heartbeat", "time": "2026-01-01T00:00:00.000000Z", "new_field": 1 })).await;
    connection.send(read_request(&device.device_id, "call", 1, "README.md")).await;
    assert_eq!(connection.next_of("tool.call.result").await["status"], "succeeded");
    device.stop(connection).await;
}

#[tokio::test]
async fn a_gap_in_the_sequence_or_no_json_closes_with_4400_and_the_third_time_stops_the_device() {
    let folder = folder();
    let mut server = FakeServer::start().await;
    let device = Running::start(folder.path(), &server.url).await;
    for broken in [r#"{"type":"heartbeat","sequence":7}"#, "no json", r#"{"type":"heartbeat"}"#] {
        let mut connection = server.registered().await;
        connection.send_raw(broken).await;
        assert_eq!(connection.next_or_close().await, Err(4400), "{broken}");
    }
    assert_eq!(device.ended().await, ErrorCode::Protocol);
}

#[tokio::test]
async fn a_refused_ticket_is_replaced_at_once_and_a_final_close_stops_the_device() {
    let folder = folder();
    let mut server = FakeServer::start().await;
    // With an hour's back-off, only "at once" can pass.
    let hour = Backoff { base: Duration::from_secs(3_600), cap: Duration::from_secs(3_600) };
    for (code, reason, expected) in [
        (4409, "replaced", ErrorCode::DeviceReplaced),
        (4403, "DEVICE_MISMATCH", ErrorCode::DeviceMismatch),
        (4403, "JOURNAL_ROLLED_BACK", ErrorCode::JournalRolledBack),
    ] {
        let before = server.tickets();
        let device = Running::start_with(folder.path(), &server.url, hour).await;
        let mut status = device.status.clone();
        server.connection().await.close(4401, "TICKET_INVALID").await;
        server.connection().await.close(code, reason).await;
        assert_eq!(server.tickets() - before, 2, "a fresh ticket for each");
        assert_eq!(device.ended().await, expected);
        let stopped = |status: &ConnectionStatus| matches!(status, ConnectionStatus::Stopped { code: Some(code), .. } if *code == expected);
        assert!(stopped(&status.borrow_and_update()));
    }
}

#[tokio::test]
async fn a_server_that_gives_no_ticket_is_asked_again_or_not_by_what_it_says() {
    let folder = folder();
    let mut server = FakeServer::start().await;
    for (status, body, expected) in [
        (401, json!({ "code": "UNAUTHENTICATED", "message": "who?" }), ErrorCode::Unauthenticated),
        (403, json!({ "error": { "code": "FORBIDDEN", "message": "no" } }), ErrorCode::Forbidden),
        (404, json!({}), ErrorCode::ConfigInvalid),
    ] {
        server.refuse_tickets(Some((status, body)));
        assert_eq!(Running::start(folder.path(), &server.url).await.ended().await, expected, "{status}");
    }
    server.refuse_tickets(Some((503, json!({ "code": "NOT_READY", "message": "starting" }))));
    let mut device = Running::start(folder.path(), &server.url).await;
    let offline = |status: &ConnectionStatus| matches!(status, ConnectionStatus::Offline { reason, .. } if reason.contains("starting"));
    device.status.wait_for(offline).await.unwrap();
    server.refuse_tickets(None);
    let connection = server.registered().await;
    device.stop(connection).await;
}

#[tokio::test]
async fn a_stopping_device_sends_what_it_has_says_good_bye_and_frees_its_folder() {
    let folder = folder();
    let mut server = FakeServer::start().await;
    let device = Running::start(folder.path(), &server.url).await;
    let mut connection = server.registered().await;
    connection.send(read_request(&device.device_id, "call", 1, "README.md")).await;
    connection.next_of("tool.call.result").await;
    device.cancel.cancel();
    connection.ack("call").await;
    assert_eq!(connection.next_or_close().await, Err(1001));
    device.task.await.unwrap().unwrap();
    // The lock is free again, and nothing is left to send.
    let device = Running::start(folder.path(), &server.url).await;
    let mut connection = server.registered().await;
    connection.send(json!({ "type": "nonsense" })).await;
    assert_eq!(connection.next().await["type"], "protocol.error");
    device.stop(connection).await;
}

/// Registers the device with a signed head, or with none.
async fn show(connection: &mut Connection, head: Option<Value>) {
    assert_eq!(connection.next().await["type"], "device.register");
    let mut registered = json!({
        "type": "device.registered", "connection_id": "connection", "connection_epoch": 1, "server_id": "l",
        "user_hash": "u", "heartbeat_interval_ms": 15_000, "max_message_bytes": 4 << 20,
        "server_time": devmind_domain::Timestamp::from_micros(0), "settled_position": 0,
    });
    if let Some(head) = head {
        registered["head"] = head;
    }
    connection.send(registered).await;
}

#[tokio::test]
async fn a_head_of_the_same_size_with_another_root_ends_the_device_and_one_that_is_missing_or_badly_signed_is_not_passed_over()
 {
    use devmind_domain::proof::{Checkpoint, Note, NoteSigner, SignatureKind};
    let folder = folder();
    let mut server = FakeServer::start().await;
    let mut device = Running::start(folder.path(), &server.url).await;
    let signer = |seed| NoteSigner::from_seed("devmind-ledger/l", SignatureKind::Ed25519, &[seed; 32]).unwrap();
    let head = |root, key| {
        let checkpoint = Checkpoint { origin: "devmind-ledger/l".to_owned(), size: 7, root: [root; 32] };
        let note = Note::signed(checkpoint.to_text(), &signer(1), 0).to_string();
        Some(json!({ "checkpoint": note, "key": signer(key).public().to_string() }))
    };
    for _ in 0..2 {
        let mut connection = server.connection().await;
        show(&mut connection, head(1, 1)).await;
        assert_eq!(connection.next().await["type"], "tool.registry.sync", "the first, and the same again");
        connection.close(1012, "restart").await;
    }
    let mut connection = server.connection().await;
    show(&mut connection, None).await;
    let shows_none = |status: &ConnectionStatus| matches!(status, ConnectionStatus::Offline { reason, .. } if reason.contains("does not show the head"));
    device.status.wait_for(shows_none).await.unwrap();
    let mut connection = server.connection().await;
    show(&mut connection, head(1, 2)).await;
    assert_eq!(connection.next_or_close().await, Err(4400), "signed by another key than it names");
    drop(connection);
    let mut connection = server.connection().await;
    show(&mut connection, head(2, 1)).await;
    assert!(connection.next_or_close().await.is_err(), "no tool is offered");
    drop(connection);
    assert_eq!(device.ended().await, ErrorCode::LedgerForked);
}
