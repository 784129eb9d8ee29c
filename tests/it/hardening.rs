//! What a peer may ask of the process: connections, heads, sockets, messages, and how fast. Limits are set
//! small where their own size would make a test wait.

use devmind_domain::limits::MAX_RESULT_FRAME_BYTES;
use devmind_tests::raw_device::{connect_from, failure, tools};
use devmind_tests::{Question, RawDevice, RawSocket, TestServer, eventually};
use futures::future::{join, join_all};
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

const PROTOCOL: u16 = 4400;
const DENIED: u16 = 4403;
const SILENT: u16 = 4408;
const RATE: u16 = 4429;
const NOT_TEXT: u16 = 1003;
const TOO_BIG: u16 = 1009;
const BUSY: u16 = 1013;

/// Not the address that the tests' own clients come from.
const ELSEWHERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2));

/// Sends bytes and answers what came until the server closed the connection.
async fn until_closed(mut stream: TcpStream, bytes: &[u8]) -> String {
    // It may close before everything was taken.
    stream.write_all(bytes).await.ok();
    let mut answer = Vec::new();
    let closed = devmind_tests::wait::within_deadline("the server closes", stream.read_to_end(&mut answer)).await;
    closed.ok();
    String::from_utf8_lossy(&answer).into_owned()
}

async fn connect(address: SocketAddr) -> TcpStream {
    connect_from(ELSEWHERE, address).await
}

#[tokio::test]
async fn a_head_that_does_not_come_in_time_closes_the_connection() {
    let server = TestServer::start_with(|config| config.limits.head_within_ms = 100).await;
    let begun = until_closed(connect(server.address()).await, b"GET /healthz HTTP/1.1\r\nhost: loc").await;
    assert!(!begun.contains("200"), "{begun}");
    let silent = until_closed(connect(server.address()).await, b"").await;
    assert!(!silent.contains("200"), "{silent}");
    server.finish().await;
}

#[tokio::test]
async fn a_head_of_too_many_lines_or_bytes_is_refused() {
    let server = TestServer::start().await;
    let get =
        |headers: String| format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n");
    let lines = |count: usize| (0..count).map(|n| format!("x-{n}: 1\r\n")).collect::<String>();
    let long = |bytes: usize| format!("x-long: {}\r\n", "x".repeat(bytes));
    for (headers, status) in [(lines(62), "200"), (lines(63), "431"), (long(15 << 10), "200"), (long(17 << 10), "431")]
    {
        let answer = until_closed(connect(server.address()).await, get(headers).as_bytes()).await;
        assert_eq!(answer.split(' ').nth(1), Some(status), "{answer}");
    }
    server.finish().await;
}

#[tokio::test]
async fn one_address_has_so_many_connections_and_sockets_count_until_they_are_gone() {
    let server = TestServer::start_with(|config| config.limits.connections_per_address = 2).await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let ticket = device.ticket(&ann).await;
    let mut socket = RawSocket::open_from(ELSEWHERE, device.request(&ticket)).await;
    socket.send(device.register()).await;
    socket.expect("device.registered").await;
    let held = connect(server.address()).await;
    // The second place is taken when the server has accepted; it closes the third at once.
    let healthz = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    eventually("the third is closed", || async {
        let third = until_closed(connect(server.address()).await, healthz).await;
        if third.is_empty() { Ok(()) } else { Err(third) }
    })
    .await;
    drop(held);
    socket.close().await;
    eventually("there is room again", || async {
        let answer = until_closed(connect(server.address()).await, healthz).await;
        if answer.contains("200") { Ok(()) } else { Err(answer) }
    })
    .await;
    server.finish().await;
}

#[tokio::test]
async fn everybody_behind_a_proxy_is_not_one_address() {
    let server = TestServer::start_with(|config| {
        config.limits.connections_per_address = 1;
        config.limits.connects_per_minute = 1;
        config.limits.proxies = vec![ELSEWHERE];
    })
    .await;
    let device = RawDevice::new(server.address());
    for _ in 0..3 {
        let mut socket = RawSocket::open_from(ELSEWHERE, device.request("a.b")).await;
        assert_eq!(socket.close_code().await, 4401);
    }
    server.finish().await;
}

#[tokio::test]
async fn one_address_opens_so_many_sockets_a_minute_and_a_foreign_page_cannot_use_them_up() {
    let server = TestServer::start_with(|config| config.limits.connects_per_minute = 3).await;
    let device = RawDevice::new(server.address());
    for _ in 0..5 {
        let mut request = device.request("a.b");
        request.headers_mut().insert("origin", "https://evil.example".parse().unwrap());
        assert_eq!(RawSocket::open(request).await.close_code().await, DENIED);
    }
    for expected in [4401, 4401, 4401, RATE] {
        assert_eq!(RawSocket::open(device.request("a.b")).await.close_code().await, expected);
    }
    // Another address is not touched.
    assert_eq!(RawSocket::open_from(ELSEWHERE, device.request("a.b")).await.close_code().await, 4401);
    server.finish().await;
}

#[tokio::test]
async fn only_so_many_sockets_may_wait_before_they_register() {
    let server = TestServer::start_with(|config| config.limits.pending_sockets_per_address = 2).await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let mut first = device.open(&ann).await;
    let second = device.open(&ann).await;
    // The two have their places once their tickets are spent.
    server.log().wait("both tickets are spent", |fact| fact.is("DeviceTicketConsumed")).await;
    eventually("both wait", || async {
        let spent = server.log().of("DeviceTicketConsumed").await.len();
        if spent == 2 { Ok(()) } else { Err(spent.to_string()) }
    })
    .await;
    let ticket = device.ticket(&ann).await;
    assert_eq!(RawSocket::open(device.request(&ticket)).await.close_code().await, BUSY);
    assert_eq!(server.log().of("DeviceTicketConsumed").await.len(), 2, "its ticket is still good");
    first.send(device.register()).await;
    first.expect("device.registered").await;
    let mut third = RawSocket::open(device.request(&ticket)).await;
    third.send(device.register()).await;
    third.expect("device.registered").await;
    drop(second);
    third.close().await;
    server.finish().await;
}

#[tokio::test]
async fn a_device_that_sends_too_fast_is_closed() {
    let server = TestServer::start_with(|config| {
        config.limits.messages_per_second = 1;
        config.limits.message_burst = 5;
    })
    .await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let heartbeat = |sequence: u64| {
        let frame =
            json!({ "type": "heartbeat", "time": "2026-01-01T00:00:00Z", "event_id": "e", "sequence": sequence });
        Message::text(frame.to_string())
    };
    // Both are answered, so both count. How many are allowed meanwhile depends on how fast they are.
    for message in [heartbeat as fn(u64) -> Message, |_| Message::Ping("".into())] {
        let mut socket = device.registered(&ann).await;
        let mut sequence = socket.sequence;
        let code = loop {
            assert!(sequence < 100, "nothing is too fast");
            socket.send_message(message(sequence)).await;
            sequence += 1;
            match socket.next_message().await {
                Some(Message::Close(frame)) => break frame.map(|frame| u16::from(frame.code)),
                Some(_) => {}
                None => break None,
            }
        };
        assert_eq!(code, Some(RATE));
    }
    server.finish().await;
}

#[tokio::test]
async fn a_binary_message_is_refused_as_what_it_is() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let mut unregistered = device.open(&ann).await;
    unregistered.send_message(Message::Binary(device.register().to_string().into())).await;
    assert_eq!(unregistered.close_code().await, NOT_TEXT);
    let mut registered = device.registered(&ann).await;
    registered.send_message(Message::Binary("{}".into())).await;
    assert_eq!(registered.close_code().await, NOT_TEXT);
    server.finish().await;
}

#[tokio::test]
async fn inv_a12_pings_and_pieces_of_a_message_are_not_signs_of_life() {
    /// More than a busy machine keeps a heartbeat from being answered.
    const SILENCE_MS: u64 = 2_000;
    const HEARTBEAT_MS: u64 = 100;
    let server = TestServer::start_with(|config| {
        config.limits.heartbeat_interval_ms = HEARTBEAT_MS;
        config.limits.silence_ms = SILENCE_MS;
        config.limits.messages_per_second = 1_000;
    })
    .await;
    let ann = server.client("ann");
    // A device each, at the same time: each waits for the whole silence.
    let pieces = [
        Message::Ping("".into()),
        Message::Frame(Frame::message(" ".as_bytes().to_vec(), OpCode::Data(Data::Continue), false)),
    ];
    let silent = join_all(pieces.map(async |piece| {
        let device = RawDevice::new(server.address());
        let mut socket = device.registered(&ann).await;
        if let Message::Frame(_) = &piece {
            let start = Frame::message("{".as_bytes().to_vec(), OpCode::Data(Data::Text), false);
            socket.send_message(Message::Frame(start)).await;
        }
        let mut heartbeats = 0;
        let code = loop {
            match socket.next_message().await {
                Some(Message::Close(frame)) => break frame.map(|frame| u16::from(frame.code)),
                // One with every heartbeat.
                Some(Message::Text(_)) => {
                    heartbeats += 1;
                    assert!(heartbeats < 10 * SILENCE_MS / HEARTBEAT_MS, "it stays open by {piece:?}");
                    socket.send_message(piece.clone()).await;
                }
                Some(_) => {}
                None => break None,
            }
        };
        assert_eq!(code, Some(SILENT), "{piece:?}");
    }));
    // A complete message is one.
    let heard = async {
        let mut socket = RawDevice::new(server.address()).registered(&ann).await;
        let mut heartbeats = 0;
        while heartbeats < SILENCE_MS / HEARTBEAT_MS + 5 {
            if let Message::Text(_) = socket.next_message().await.expect("the socket stays open") {
                heartbeats += 1;
                socket.send(json!({ "type": "heartbeat", "time": "2026-01-01T00:00:00Z" })).await;
            }
        }
        socket.close().await;
    };
    join(silent, heard).await;
    server.finish().await;
}

#[tokio::test]
async fn a_heartbeat_comes_with_a_ping() {
    let server = TestServer::start_with(|config| config.limits.heartbeat_interval_ms = 50).await;
    let device = RawDevice::new(server.address());
    let mut socket = device.registered(&server.client("ann")).await;
    assert!(matches!(socket.next_message().await, Some(Message::Ping(_))));
    let Some(Message::Text(text)) = socket.next_message().await else { panic!("a heartbeat") };
    assert!(text.contains("heartbeat") && text.contains("\"sequence\":2"), "{text}");
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn a_message_over_the_limit_of_a_result_closes_the_socket_and_one_below_it_does_not() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let mut socket = device.registered(&ann).await;
    socket.send(json!({ "type": "no.such.type", "padding": "x".repeat(MAX_RESULT_FRAME_BYTES - 1_000) })).await;
    socket.expect("protocol.error").await;
    socket.send(json!({ "type": "no.such.type", "padding": "x".repeat(MAX_RESULT_FRAME_BYTES) })).await;
    assert_eq!(socket.close_code().await, TOO_BIG);
    server.finish().await;
}

#[tokio::test]
async fn a_device_that_takes_no_frames_is_closed_and_holds_nobody_up() {
    let server = TestServer::start_with(|config| {
        config.limits.send_deadline_ms = 200;
        config.limits.messages_per_second = 1_000_000;
        config.limits.message_burst = 1_000_000;
    })
    .await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let mut socket = device.registered(&ann).await;
    // Every frame is complained about, and nobody reads the complaints.
    let frame = |sequence: u64| json!({ "type": "x".repeat(900), "event_id": "e", "sequence": sequence }).to_string();
    let mut sequence = socket.sequence;
    while socket.send_message(Message::text(frame(sequence))).await {
        sequence += 1;
    }
    let end = server.log().wait_kind("DeviceDisconnected").await;
    assert!([json!(BUSY), json!(SILENT)].contains(&end.payload["code"]), "{end}");
    server.finish().await;
}

#[tokio::test]
async fn a_close_reason_fits_its_frame_whatever_it_quotes() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let mut socket = device.registered(&ann).await;
    socket.send_text(json!({ "event_id": "e", "sequence": "é€".repeat(300) }).to_string()).await;
    let end = socket.end().await;
    assert_eq!(end.code, PROTOCOL);
    assert!((110..=123).contains(&end.reason.len()), "{end:?}");
    server.finish().await;
}

#[tokio::test]
async fn json_that_is_nested_too_deeply_is_refused_in_a_body_and_in_a_report() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let body = format!("{{\"content\":\"x\",\"idempotency_key\":\"k\",\"more\":{}}}", nested(32));
    assert_eq!(ann.post_text("/api/turns", body).await.refused(), (400, "MALFORMED_JSON"));

    let mut socket = device.online(&ann).await;
    let asked = ann.ask(&Question::new("read README.md").on(&device.device_id)).await;
    let stream = ann.stream(&asked).await;
    let request = socket.expect("tool.call.request").await;
    for poison in [nested(40), "9007199254740993".to_owned(), "{\"a\":1,\"a\":2}".to_owned()] {
        let report = json!({
            "type": "tool.call.result", "tool_call_id": request["tool_call_id"], "executed_attempt_no": 1,
            "status": "succeeded", "output": "POISON", "event_id": "e", "sequence": socket.sequence,
        });
        socket.sequence += 1;
        socket.send_text(report.to_string().replace("\"POISON\"", &poison)).await;
        socket.expect("protocol.error").await;
        let nack = socket.expect("tool.call.nack").await;
        assert_eq!((&nack["tool_call_id"], &nack["permanent"]), (&request["tool_call_id"], &json!(true)));
    }
    // The socket goes on, and the call can still be settled.
    socket.send(failure(&request, "failed", "IO_ERROR")).await;
    assert_eq!(socket.acked(&request["tool_call_id"]).await, "stored");
    stream.rest().await;
    socket.sync(&tools()).await;
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn a_complaint_does_not_repeat_a_long_message() {
    let server = TestServer::start().await;
    let device = RawDevice::new(server.address());
    let mut socket = device.registered(&server.client("ann")).await;
    socket.send(json!({ "type": "x".repeat(100_000) })).await;
    let complaint: Value = socket.expect("protocol.error").await;
    assert!(complaint["message"].as_str().unwrap().len() <= 1_024);
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn of_what_its_user_is_not_asked_about_a_device_tells_only_so_much_in_a_minute() {
    let server = TestServer::start_with(|config| config.limits.listings_per_minute = 2).await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let mut socket = device.online(&ann).await;
    let asked = ann.ask(&Question::new("x").on(&device.device_id)).await;
    for (tool, arguments, expected) in [
        ("workspace.list_files", json!({}), "PATH_NOT_FOUND"),
        ("workspace.search_files", json!({ "pattern": "*" }), "PATH_NOT_FOUND"),
        ("workspace.list_files", json!({}), "RATE_LIMITED"),
        // Here somebody is asked.
        ("workspace.read_file", json!({ "path": "x" }), "PATH_NOT_FOUND"),
    ] {
        let body = json!({ "run_id": asked.run_id, "tool_name": tool, "arguments": arguments });
        let calling = tokio::spawn({
            let ann = ann.clone();
            async move { ann.post("/api/desktop/dev/tool-calls", &body).await.ok() }
        });
        if expected != "RATE_LIMITED" {
            let request = socket.expect("tool.call.request").await;
            socket.send(failure(&request, "failed", expected)).await;
            socket.acked(&request["tool_call_id"]).await;
        }
        assert_eq!(calling.await.unwrap()["error"]["code"], expected, "{tool}");
    }
    socket.close().await;
    server.finish().await;
}
