//! The device socket: registration, order of frames, and which of several sockets counts.

use devmind_domain::limits::{MAX_UNREGISTERED_FRAME_BYTES, TICKETS_PER_MINUTE};
use devmind_tests::raw_device::tools;
use devmind_tests::{RawDevice, TestServer, new_id};
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

const PROTOCOL: u16 = 4400;
const DENIED: u16 = 4403;
const REPLACED: u16 = 4409;
const TOO_BIG: u16 = 1009;

#[tokio::test]
async fn a_registered_device_is_told_who_the_server_is_and_is_online_after_its_sync() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let mut socket = device.open(&ann).await;
    socket.send(device.register()).await;
    let registered = socket.expect("device.registered").await;
    assert_eq!((&registered["sequence"], &registered["connection_epoch"]), (&json!(1), &json!(1)));
    assert_eq!(registered["server_id"], server.app().ledger.reader().ledger_id());
    assert_eq!(registered["heartbeat_interval_ms"], 15_000);
    assert_eq!(registered["max_message_bytes"], 4 << 20);
    assert!(!registered["user_hash"].as_str().unwrap().contains("ann"));
    assert_eq!(ann.devices().await[0]["online"], false, "online is registered and synced");
    socket.sync(&tools()).await;
    let connection_id = registered["connection_id"].as_str().unwrap();
    device.wait_online(&ann, connection_id).await;
    assert_eq!(server.client("bob").devices().await, [] as [serde_json::Value; 0]);

    // Each heartbeat is answered, so that the device learns how far the clocks are apart.
    let own = "2001-02-03T04:05:06.000007Z";
    socket.send(json!({ "type": "heartbeat", "time": own })).await;
    let answered = loop {
        let Some(Message::Text(text)) = socket.next_message().await else { panic!("an answer") };
        let frame: serde_json::Value = serde_json::from_str(&text).unwrap();
        if frame["answers"] == own {
            break frame;
        }
    };
    assert!(answered["time"].as_str().unwrap() > "2026", "{answered}");

    // A sync that changes nothing is no event.
    socket.sync(&tools()).await;
    socket.send(json!({ "type": "no.such.type" })).await;
    socket.expect("protocol.error").await;
    server.log().one("ToolRegistrySynced").await;
    socket.close().await;
    server.log().wait_kind("DeviceDisconnected").await;
    assert_eq!(ann.devices().await[0]["online"], false);
    server.finish().await;
}

#[tokio::test]
async fn inv_a07_a_first_frame_that_is_no_sound_registration_closes_the_socket() {
    let server = TestServer::start().await;
    let device = RawDevice::new(server.address());
    let register = |field: &str, value: serde_json::Value| {
        let mut frame = device.register();
        frame["event_id"] = new_id().into();
        frame["sequence"] = 1.into();
        frame[field] = value;
        frame.to_string()
    };
    let large = "x".repeat(MAX_UNREGISTERED_FRAME_BYTES);
    for (user, text, code) in [
        ("u1", "hello".to_owned(), PROTOCOL),
        (
            "u2",
            json!({ "type": "heartbeat", "event_id": "e", "sequence": 1, "time": "2026-01-01T00:00:00Z" }).to_string(),
            PROTOCOL,
        ),
        ("u3", register("sequence", json!(2)), PROTOCOL),
        ("u4", register("protocol_version", json!(2)), PROTOCOL),
        ("u5", register("journal_epoch", json!(-1)), PROTOCOL),
        ("u6", register("version", large.into()), TOO_BIG),
    ] {
        let mut socket = device.open(&server.client(user)).await;
        socket.send_text(text).await;
        assert_eq!(socket.close_code().await, code, "{user}");
    }
    assert!(server.log().of("DeviceConnected").await.is_empty());
    server.finish().await;
}

#[tokio::test]
async fn inv_a13_a_gap_a_repetition_or_a_broken_frame_closes_the_socket_as_a_protocol_error() {
    let server = TestServer::start().await;
    let ann = server.client("ann");
    for sequence in [3, 1, 0] {
        let device = RawDevice::new(server.address());
        let mut socket = device.registered(&ann).await;
        socket.sequence = sequence;
        socket.sync(&tools()).await;
        assert_eq!(socket.close_code().await, PROTOCOL, "sequence {sequence}");
    }
    let device = RawDevice::new(server.address());
    let mut socket = device.registered(&ann).await;
    socket.send_text("{\"type\":".to_owned()).await;
    assert_eq!(socket.close_code().await, PROTOCOL);
    server
        .log()
        .wait("the end of each is recorded", |fact| fact.is("DeviceDisconnected") && fact.payload["code"] == PROTOCOL)
        .await;
    assert!(server.log().of("ToolRegistrySynced").await.is_empty(), "nothing of a frame out of order is done");
    server.finish().await;
}

#[tokio::test]
async fn inv_a14_an_unknown_frame_type_is_complained_about_and_the_socket_goes_on() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let mut socket = device.registered(&ann).await;
    socket.send(json!({ "type": "tool.call.teleport", "where": "to" })).await;
    let complaint = socket.expect("protocol.error").await;
    assert_eq!(complaint["code"], "PROTOCOL_ERROR");
    assert!(complaint["about_event_id"].is_string(), "{complaint}");
    // Unknown fields are ignored.
    socket.send(json!({ "type": "tool.registry.sync", "tools": tools(), "of_a_newer_version": true })).await;
    device.wait_online(&ann, &socket.connection_id.clone()).await;
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn inv_a09_a_newer_socket_replaces_the_older_one_whose_late_end_changes_nothing() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let mut first = device.online(&ann).await;
    let mut second = device.online(&ann).await;
    let end = first.end().await;
    assert_eq!(end.code, REPLACED, "{end:?}");
    drop(first);
    let replaced = server.log().one("DeviceReplaced").await;
    assert_eq!(replaced.payload["old_connection_id"], json!(device_connections(&server).await[0]));
    // The old socket is gone for good when its task has ended; the new one is still the one.
    second.send(json!({ "type": "no.such.type" })).await;
    second.expect("protocol.error").await;
    device.wait_online(&ann, &second.connection_id.clone()).await;
    assert!(server.log().of("DeviceDisconnected").await.is_empty(), "the end of a replaced socket is no event");

    // And calls go to the new one.
    let asked = ann.ask(&devmind_tests::Question::new("read README.md").on(&device.device_id)).await;
    let stream = ann.stream(&asked).await;
    let request = second.expect("tool.call.request").await;
    second.send(devmind_tests::raw_device::failure(&request, "rejected", "CONFIRMATION_REJECTED")).await;
    assert_eq!(second.acked(&request["tool_call_id"]).await, "stored");
    stream.rest().await;
    second.close().await;
    server.finish().await;
}

async fn device_connections(server: &TestServer) -> Vec<String> {
    let connected = server.log().of("DeviceConnected").await;
    connected.iter().map(|fact| fact.payload["connection_id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn sockets_of_different_users_with_one_device_id_do_not_disturb_each_other() {
    let server = TestServer::start().await;
    let (ann, bob, device) = (server.client("ann"), server.client("bob"), RawDevice::new(server.address()));
    let of_ann = device.online(&ann).await;
    let of_bob = device.online(&bob).await;
    device.wait_online(&ann, &of_ann.connection_id).await;
    device.wait_online(&bob, &of_bob.connection_id).await;
    assert!(server.log().of("DeviceReplaced").await.is_empty());
    of_ann.close().await;
    of_bob.close().await;
    server.finish().await;
}

#[tokio::test]
async fn a_journal_that_went_back_in_time_is_refused() {
    let server = TestServer::start().await;
    let (ann, mut device) = (server.client("ann"), RawDevice::new(server.address()));
    device.journal_epoch = 7;
    device.registered(&ann).await.close().await;
    // The same opening of the journal may come again, after a lost connection.
    device.registered(&ann).await.close().await;
    device.journal_epoch = 6;
    let mut socket = device.open(&ann).await;
    socket.send(device.register()).await;
    let end = socket.end().await;
    assert_eq!((end.code, end.reason.as_str()), (DENIED, "JOURNAL_ROLLED_BACK"));
    device.journal_epoch = 8;
    device.registered(&ann).await.close().await;
    assert_eq!(server.log().of("DeviceConnected").await.len(), 3);
    server.finish().await;
}

#[tokio::test]
async fn a_socket_that_never_registers_is_closed() {
    let server = TestServer::start_with(|config| config.limits.register_within_ms = 100).await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let mut socket = device.open(&ann).await;
    assert_eq!(socket.close_code().await, PROTOCOL);
    assert!(server.log().of("DeviceConnected").await.is_empty());
    server.finish().await;
}

#[tokio::test]
async fn many_sockets_opened_at_once_leave_one_that_counts() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    // No more than a device's stream remembers tickets.
    let count = devmind_domain::limits::MAX_OPEN_TICKETS.min(TICKETS_PER_MINUTE as usize);
    let mut tickets = Vec::new();
    for _ in 0..count {
        tickets.push(device.ticket(&ann).await);
    }
    let sockets = futures::future::join_all(tickets.iter().map(|ticket| async {
        let mut socket = devmind_tests::RawSocket::open(device.request(ticket)).await;
        socket.send(device.register()).await;
        let registered = socket.next().await;
        (socket, registered)
    }))
    .await;
    let newest = device_connections(&server).await.pop().unwrap();
    for (mut socket, registered) in sockets {
        match registered {
            Ok(frame) if frame["connection_id"] == newest.as_str() => {
                socket.sync(&tools()).await;
                device.wait_online(&ann, &newest).await;
                socket.close().await;
            }
            Ok(_) => assert_eq!(socket.close_code().await, REPLACED),
            Err(end) => assert_eq!(end.code, REPLACED),
        }
    }
    server.finish().await;
}
