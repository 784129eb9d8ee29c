//! Tickets: one-time passes, burnt when they are presented, refused in one way whatever is wrong.

use devmind_domain::canonical::sha256_hex;
use devmind_domain::device::{Device, DeviceCommand, stream_key};
use devmind_domain::event::{Actor, Metadata};
use devmind_domain::limits::TICKETS_PER_MINUTE;
use devmind_tests::raw_device::ticket_for;
use devmind_tests::{RawDevice, RawSocket, TestServer};
use futures::future::join_all;
use serde_json::json;

const TICKET: u16 = 4401;
const DENIED: u16 = 4403;

#[tokio::test]
async fn inv_a03_a_ticket_opens_one_socket_and_is_refused_the_second_time() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let ticket = device.ticket(&ann).await;
    let mut first = RawSocket::open(device.request(&ticket)).await;
    first.send(device.register()).await;
    first.expect("device.registered").await;
    let mut second = RawSocket::open(device.request(&ticket)).await;
    assert_eq!(second.close_code().await, TICKET);
    let log = server.log();
    log.one("DeviceTicketConsumed").await;
    log.one("DeviceConnected").await;
    first.close().await;
    server.finish().await;
}

#[tokio::test]
async fn a_ticket_presented_many_times_at_once_opens_one_socket() {
    let server = TestServer::start_with(|config| config.limits.pending_sockets_per_address = 12).await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let ticket = device.ticket(&ann).await;
    let outcomes = join_all((0..12).map(|_| async {
        let mut socket = RawSocket::open(device.request(&ticket)).await;
        socket.send(device.register()).await;
        match socket.next().await {
            Ok(frame) => {
                assert_eq!(frame["type"], "device.registered");
                Ok(socket)
            }
            Err(end) => Err(end.code),
        }
    }))
    .await;
    let (open, refused): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
    assert_eq!(open.len(), 1);
    // A client may still be sending when it is refused: then the close is lost with the connection.
    assert!(refused.iter().all(|end| matches!(end, Err(TICKET | 1006))));
    server.log().one("DeviceTicketConsumed").await;
    server.log().one("DeviceConnected").await;
    drop(open);
    server.log().wait_kind("DeviceDisconnected").await;
    server.finish().await;
}

#[tokio::test]
async fn inv_a08_tickets_that_are_unknown_malformed_or_missing_are_refused_alike() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let ticket = device.ticket(&ann).await;
    let (key, secret) = ticket.split_once('.').unwrap();
    let mut ends = Vec::new();
    for wrong in [
        format!("{key}.{}", secret.chars().rev().collect::<String>()),
        format!("{key}."),
        format!(".{secret}"),
        secret.to_owned(),
        "!!!.???".to_owned(),
        "x".repeat(2_000),
    ] {
        ends.push(RawSocket::open(device.request(&wrong)).await.end().await);
    }
    ends.push(RawSocket::open(device.bare_request()).await.end().await);
    assert!(ends.iter().all(|end| *end == ends[0] && end.code == TICKET), "{ends:?}");
    assert!(server.log().of("DeviceTicketConsumed").await.is_empty());
    // The real one still works.
    let mut socket = RawSocket::open(device.request(&ticket)).await;
    socket.send(device.register()).await;
    socket.expect("device.registered").await;
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn an_expired_ticket_is_refused_and_burnt() {
    let server = TestServer::start().await;
    let device = RawDevice::new(server.address());
    let key = stream_key(&"ann".into(), &device.device_id.as_str().into());
    let mut ticket = device.ticket(&server.client("ann")).await;
    ticket.push_str("-issued-long-ago");
    // The same as a ticket that was given out a minute and a second ago.
    let app = server.app();
    let long_ago = devmind_api::ids::now().plus_millis(-devmind_domain::limits::TICKET_TTL_MS - 1_000);
    let command = DeviceCommand::IssueTicket { ticket_hash: sha256_hex(ticket.as_bytes()), now: long_ago };
    let metadata = Metadata::new(Actor::user("ann"), app.claim.node_id.clone());
    devmind_ledger::execute::<Device>(&app.ledger, &key, &metadata, command, None).await.unwrap();
    for _ in 0..2 {
        assert_eq!(RawSocket::open(device.request(&ticket)).await.close_code().await, TICKET);
    }
    server.log().one("DeviceTicketConsumed").await;
    assert!(server.log().of("DeviceConnected").await.is_empty());
    server.finish().await;
}

#[tokio::test]
async fn a_ticket_for_another_device_is_refused_and_burnt() {
    let server = TestServer::start().await;
    let (ann, device, other) =
        (server.client("ann"), RawDevice::new(server.address()), RawDevice::new(server.address()));
    let ticket = device.ticket(&ann).await;
    let mut socket = RawSocket::open(device.request(&ticket)).await;
    socket.send(other.register()).await;
    let end = socket.end().await;
    assert_eq!((end.code, end.reason.as_str()), (DENIED, "DEVICE_MISMATCH"));
    let mut socket = RawSocket::open(device.request(&ticket)).await;
    assert_eq!(socket.close_code().await, TICKET, "presenting it has burnt it");
    assert!(server.log().of("DeviceConnected").await.is_empty());
    server.finish().await;
}

#[tokio::test]
async fn inv_a06_a_foreign_origin_is_refused_before_the_ticket_is_spent() {
    let server =
        TestServer::start_with(|config| config.allowed_origins = vec!["https://ours.example".to_owned()]).await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let ticket = device.ticket(&ann).await;
    let from = |origin: &str| {
        let mut request = device.request(&ticket);
        request.headers_mut().insert("origin", origin.parse().unwrap());
        request
    };
    for origin in ["https://evil.example", "null", "https://ours.example.evil.example", "http://ours.example", ""] {
        let end = RawSocket::open(from(origin)).await.end().await;
        assert_eq!((end.code, end.reason.as_str()), (DENIED, "ORIGIN_DENIED"), "{origin:?}");
    }
    assert!(server.log().of("DeviceTicketConsumed").await.is_empty(), "a hostile page must not burn a ticket");
    let mut socket = RawSocket::open(from("https://ours.example")).await;
    socket.send(device.register()).await;
    socket.expect("device.registered").await;
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn a_ticket_is_taken_from_header_subprotocol_or_query_and_is_in_no_event() {
    let server = TestServer::start().await;
    let ann = server.client("ann");
    let mut tickets = Vec::new();
    for place in 0..3 {
        let device = RawDevice::new(server.address());
        let ticket = device.ticket(&ann).await;
        let request = match place {
            0 => device.request(&ticket),
            1 => {
                let mut request = device.bare_request();
                let protocols = format!("devmind.v1, ticket.{ticket}");
                request.headers_mut().insert("sec-websocket-protocol", protocols.parse().unwrap());
                request
            }
            _ => {
                let mut request = device.bare_request();
                *request.uri_mut() = format!("{}?ticket={ticket}", request.uri()).parse().unwrap();
                request
            }
        };
        let mut socket = RawSocket::open(request).await;
        socket.send(device.register()).await;
        socket.expect("device.registered").await;
        socket.close().await;
        tickets.push(ticket);
    }
    for fact in server.log().all().await {
        assert!(!tickets.iter().any(|ticket| fact.text.contains(ticket)), "a ticket is in the log: {fact}");
    }
    server.finish().await;
}

#[tokio::test]
async fn a_user_gets_only_so_many_tickets_a_minute_and_tickets_need_an_identity() {
    /// Few: of more, the next would be due again before a busy machine has asked for all of them.
    const FEW: u32 = 2;
    let server = TestServer::start_with(|config| {
        assert_eq!(std::mem::replace(&mut config.limits.tickets_per_minute, FEW), TICKETS_PER_MINUTE);
    })
    .await;
    let ann = server.client("ann");
    for n in 0..FEW {
        ticket_for(&ann, &format!("device-{n}")).await;
    }
    let body = json!({ "device_id": "one-more" });
    assert_eq!(ann.post("/api/desktop/connection-ticket", &body).await.refused(), (429, "RATE_LIMITED"));
    ticket_for(&server.client("bob"), "of-bob").await;
    let nobody = ann.anonymous().post("/api/desktop/connection-ticket", &body).await;
    assert_eq!(nobody.refused(), (401, "UNAUTHENTICATED"));
    server.finish().await;
}
