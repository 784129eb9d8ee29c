//! Faults of other projects' device channels, as cases for this one: sockets that outlive their replacement
//! (b21), tickets that can be tried twice (b22), connections that are cut at the worst moment (b23), and a
//! device that goes away while its call is under way (b24; its kills are in `kill_points`).

use devmind_device::Answer;
use devmind_domain::limits::MAX_OPEN_TICKETS;
use devmind_tests::raw_device::{file_output, success, ticket_for, tools};
use devmind_tests::{
    Asked, Client, Cut, DeviceProcess, Question, RawDevice, RawSocket, ServerProcess, Tap, TestDevice, TestServer,
    Traces, Turnstile, eventually, workspace,
};
use futures::future::{join, join_all};
use serde_json::{Value, json};

const TICKET: u16 = 4401;
const DENIED: u16 = 4403;
const REPLACED: u16 = 4409;
const DEV_CALLS: &str = "/api/desktop/dev/tool-calls";

fn read_file(asked: &Asked, id: Option<&str>) -> Value {
    let mut body = json!({
        "run_id": asked.run_id, "tool_name": "workspace.read_file", "arguments": { "path": "README.md" },
    });
    if let Some(id) = id {
        body["tool_call_id"] = id.into();
    }
    body
}

/// Dispatches a read and answers the socket's request; then the call has succeeded.
async fn call_on(client: &Client, asked: &Asked, socket: &mut RawSocket) {
    let body = read_file(asked, None);
    let (answer, ()) = join(client.post(DEV_CALLS, &body), async {
        let request = socket.expect("tool.call.request").await;
        socket.send(success(&request, &file_output("read"))).await;
        assert_eq!(socket.acked(&request["tool_call_id"]).await, "stored");
    })
    .await;
    assert_eq!(answer.ok()["ok"], true);
}

#[tokio::test]
async fn b21_a_late_end_of_a_replaced_socket_leaves_the_device_online_and_calls_go_to_the_new_one() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let asked = ann.ask(&Question::new("x").on(&device.device_id)).await;
    // The old socket reads nothing, and goes away in each of three ways after the new one is there.
    for end in ["closed in order", "dropped", "told that it is replaced"] {
        let mut old = device.online(&ann).await;
        let mut new = device.online(&ann).await;
        match end {
            "closed in order" => old.close().await,
            "dropped" => drop(old),
            _ => assert_eq!(old.close_code().await, REPLACED),
        }
        device.wait_online(&ann, &new.connection_id.clone()).await;
        call_on(&ann, &asked, &mut new).await;
        new.close().await;
    }
    server.finish().await;
}

#[tokio::test]
async fn b21_a_result_that_comes_on_the_old_socket_and_again_on_the_new_one_counts_once() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let asked = ann.ask(&Question::new("x").on(&device.device_id)).await;
    let mut old = device.online(&ann).await;
    let body = read_file(&asked, None);
    let calling = tokio::spawn({
        let (ann, body) = (ann.clone(), body.clone());
        async move { ann.post(DEV_CALLS, &body).await.ok() }
    });
    let request = old.expect("tool.call.request").await;
    let mut new = device.online(&ann).await;
    // Nobody waits on a socket that was replaced.
    assert_eq!(calling.await.unwrap()["error"]["code"], "RESULT_UNKNOWN");
    let report = success(&request, &file_output("read once"));
    // It is closed: the report is not taken there, and the device brings it where it is connected now.
    let mut late = report.clone();
    late["event_id"] = "e".into();
    late["sequence"] = old.sequence.into();
    old.send_message(tokio_tungstenite::tungstenite::Message::text(late.to_string())).await;
    assert_eq!(old.close_code().await, REPLACED);
    new.send(report.clone()).await;
    let disposition = new.acked(&request["tool_call_id"]).await;
    assert!(["stored", "duplicate"].contains(&disposition.as_str()), "{disposition}");
    server.log().one("ToolResultRecorded").await;
    assert_eq!(ann.tool_call(&asked).await["status"], "succeeded");
    new.close().await;
    server.finish().await;
}

#[tokio::test]
async fn b21_ten_quick_reconnects_and_ends_that_fall_into_the_next_hello_leave_the_last_one_online() {
    let server = TestServer::start_with(|config| config.limits.tickets_per_minute = 100).await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let asked = ann.ask(&Question::new("x").on(&device.device_id)).await;
    let mut current = device.registered(&ann).await;
    for _ in 0..10 {
        let mut next = device.open(&ann).await;
        // The old one ends while the new one says hello.
        let ((), registered) = join(async { drop(current) }, async {
            next.send(device.register()).await;
            next.expect("device.registered").await
        })
        .await;
        next.connection_id = registered["connection_id"].as_str().unwrap().to_owned();
        current = next;
    }
    current.sync(&tools()).await;
    device.wait_online(&ann, &current.connection_id.clone()).await;
    call_on(&ann, &asked, &mut current).await;
    assert_eq!(server.app().gateway.connections.len(), 1);
    current.close().await;
    server.finish().await;
}

#[tokio::test]
async fn b22_a_ticket_that_is_tried_as_another_device_or_without_an_upgrade_is_burnt() {
    let server = TestServer::start().await;
    let (ann, device, other) =
        (server.client("ann"), RawDevice::new(server.address()), RawDevice::new(server.address()));
    let ticket = device.ticket(&ann).await;
    let mut socket = RawSocket::open(device.request(&ticket)).await;
    socket.send(other.register()).await;
    assert_eq!(socket.close_code().await, DENIED);
    assert_eq!(RawSocket::open(device.request(&ticket)).await.close_code().await, TICKET);

    // A plain GET is no upgrade, and a presentation of the ticket.
    let ticket = device.ticket(&ann).await;
    let plain = ann.anonymous().get(&format!("/api/desktop/ws?ticket={ticket}")).await;
    assert_eq!(plain.refused(), (400, "PROTOCOL_ERROR"));
    assert_eq!(RawSocket::open(device.request(&ticket)).await.close_code().await, TICKET);
    assert!(server.log().of("DeviceConnected").await.is_empty());
    server.finish().await;
}

#[tokio::test]
async fn b22_a_plain_request_of_a_foreign_page_burns_nothing() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let ticket = device.ticket(&ann).await;
    let url = format!("{}/api/desktop/ws?ticket={ticket}", server.url());
    let page = reqwest::Client::new().get(url).header("origin", "https://evil.example").send().await.unwrap();
    assert_eq!(page.status(), 400);
    let mut socket = RawSocket::open(device.request(&ticket)).await;
    socket.send(device.register()).await;
    socket.expect("device.registered").await;
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn b22_of_two_sockets_with_one_ticket_exactly_one_connects_two_hundred_times() {
    let server = TestServer::start_with(|config| {
        config.limits.tickets_per_minute = 1_000;
        config.limits.connects_per_minute = 1_000;
    })
    .await;
    let ann = server.client("ann");
    for _ in 0..200 {
        // A device each: what is loaded of its stream stays short.
        let device = RawDevice::new(server.address());
        let ticket = device.ticket(&ann).await;
        let ends = join_all((0..2).map(|_| async {
            let mut socket = RawSocket::open(device.request(&ticket)).await;
            let mut register = device.register();
            register["event_id"] = "e".into();
            register["sequence"] = 1.into();
            // The one that is refused may be closed already.
            socket.send_message(tokio_tungstenite::tungstenite::Message::text(register.to_string())).await;
            socket.next().await.is_ok()
        }))
        .await;
        assert_eq!(ends.iter().filter(|connected| **connected).count(), 1);
    }
    assert_eq!(server.log().of("DeviceConnected").await.len(), 200);
    server.finish().await;
}

#[tokio::test]
async fn b22_a_ticket_outlives_a_restart_once_and_only_the_newest_unused_ones_are_remembered() {
    let server = TestServer::start_with(|config| config.limits.tickets_per_minute = 100).await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let mut tickets = Vec::new();
    for _ in 0..20 {
        tickets.push(device.ticket(&ann).await);
    }
    let server = server.restart().await;
    let (forgotten, remembered) = tickets.split_at(tickets.len() - MAX_OPEN_TICKETS);
    for ticket in [&forgotten[0], forgotten.last().unwrap()] {
        assert_eq!(RawSocket::open(device.request(ticket)).await.close_code().await, TICKET);
    }
    let mut socket = RawSocket::open(device.request(&remembered[0])).await;
    socket.send(device.register()).await;
    socket.expect("device.registered").await;
    assert_eq!(RawSocket::open(device.request(&remembered[0])).await.close_code().await, TICKET);
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn b22_inv_a05_a_ticket_is_in_no_line_of_the_log_and_in_no_file_at_the_most_talkative_level() {
    let server = ServerProcess::start(&[("RUST_LOG", "trace")]).await;
    let ann = server.client("ann");
    let mut secrets = Vec::new();
    for place in ["header", "subprotocol", "query", "plain", "unused"] {
        let device = RawDevice::new(server.address);
        let ticket = ticket_for(&ann, &device.device_id).await;
        let mut request = device.bare_request();
        match place {
            "header" => request = device.request(&ticket),
            "subprotocol" => {
                let protocols = format!("devmind.v1, ticket.{ticket}").parse().unwrap();
                request.headers_mut().insert("sec-websocket-protocol", protocols);
            }
            _ => *request.uri_mut() = format!("{}?ticket={ticket}", request.uri()).parse().unwrap(),
        }
        match place {
            "unused" => {}
            "plain" => drop(ann.anonymous().get(&format!("/api/desktop/ws?ticket={ticket}")).await),
            _ => {
                let mut socket = RawSocket::open(request).await;
                socket.send(device.register()).await;
                socket.expect("device.registered").await;
                socket.close().await;
            }
        }
        secrets.push(ticket.split_once('.').unwrap().1.to_owned());
    }
    let data = server.data.clone();
    let finished = server.finish().await;
    assert!(finished.stderr.contains("device connected"), "the log is there to be searched");
    let mut texts = vec![("stdout", finished.stdout.into_bytes()), ("stderr", finished.stderr.into_bytes())];
    for entry in std::fs::read_dir(data.path()).unwrap() {
        texts.push(("a file", std::fs::read(entry.unwrap().path()).unwrap()));
    }
    assert!(texts.len() >= 4, "log and views are searched");
    for secret in secrets {
        for (place, text) in &texts {
            let found = text.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!found, "a ticket's secret is in {place}");
        }
    }
}

/// Reads a file through a connection that is cut there, and answers how often the request arrived.
async fn cut_at(cut: Cut) -> usize {
    let (server, folder) = (TestServer::start().await, workspace());
    let tap = Tap::before(server.address()).await;
    let (person, turnstile) = Turnstile::new();
    turnstile.answer(Answer::Allow);
    let device = TestDevice::start_at(&tap.url(), &server, "ann", folder.path(), person).await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("x").on(&device.id)).await;
    let first = tap.arrived("device.registered").len();
    tap.cut(cut.clone());
    let outcome = ann.post(DEV_CALLS, &read_file(&asked, None)).await.ok();
    // What was said to the model is honest: it is not known, or it is the result.
    let said = outcome["ok"] == true || outcome["error"]["code"] == "RESULT_UNKNOWN";
    assert!(said, "{cut:?}: {outcome}");
    let id = outcome["tool_call_id"].as_str().unwrap().to_owned();
    eventually("the device is back", || async {
        let connections = tap.arrived("device.registered").len();
        if tap.cuts() == 1 && connections > first { Ok(()) } else { Err(format!("{connections} {}", tap.cuts())) }
    })
    .await;
    device.online(&ann).await;
    // Answered from the ledger, joined, or sent once more; each time it is the one result.
    let again = ann.post(DEV_CALLS, &read_file(&asked, Some(&id))).await.ok();
    assert_eq!(again["ok"], true, "{cut:?}: {again}");
    assert!(again["output"]["content"].as_str().is_some_and(|content| !content.is_empty()), "{again}");
    let call = eventually("acknowledged", || async {
        let call = ann.tool_call(&asked).await;
        let acked = server.log().of("ToolResultAcked").await.len();
        if call["status"] == "succeeded" && acked >= 1 { Ok(call) } else { Err(call.to_string()) }
    })
    .await;
    assert_eq!(call["settled"], true);
    assert_eq!(device.executions(), 1, "{cut:?}");
    server.log().one("ToolResultRecorded").await;
    device.stop().await;
    server.finish().await;
    tap.arrived("tool.call.request").len()
}

#[tokio::test]
async fn b23_a_connection_cut_before_the_device_has_the_request_executes_it_once_when_it_is_sent_again() {
    assert_eq!(cut_at(Cut::Before("tool.call.request")).await, 1);
}

#[tokio::test]
async fn b23_a_connection_cut_before_the_server_hears_of_the_reservation_executes_once() {
    let requests = cut_at(Cut::Before("tool.call.received")).await;
    assert!((1..=2).contains(&requests), "{requests}");
}

#[tokio::test]
async fn b23_a_connection_cut_between_execution_and_result_is_answered_from_the_journal() {
    let requests = cut_at(Cut::Before("tool.call.result")).await;
    assert!((1..=2).contains(&requests), "{requests}");
}

#[tokio::test]
async fn b23_inv_x4_a_connection_cut_before_the_acknowledgement_brings_the_result_again_and_changes_nothing() {
    assert_eq!(cut_at(Cut::Before("tool.call.ack")).await, 1);
    assert_eq!(cut_at(Cut::After("tool.call.result")).await, 1);
}

#[tokio::test]
async fn b24_a_run_that_is_stopped_while_its_device_is_down_runs_nothing_when_the_device_is_back() {
    let (server, folder, traces) = (ServerProcess::start(&[]).await, workspace(), Traces::new());
    traces.go();
    let ann = server.client("ann");
    let state = tempfile::tempdir().unwrap();
    // Killed when it has reserved the call and asks: nothing was begun.
    let environment = traces.environment();
    let mut environment: Vec<_> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    environment.push(("DEVMIND_KILL_POINT", "perform ask before"));
    let mut device = DeviceProcess::start_slow_with(&server.url(), "ann", folder.path(), state, &environment);
    let device_id = eventually("online", || async {
        let devices = ann.devices().await;
        let online = devices.iter().find(|device| device["online"] == true);
        online.map(|device| device["device_id"].as_str().unwrap().to_owned()).ok_or(format!("{devices:?}"))
    })
    .await;
    let asked = ann.ask(&Question::new("read README.md").on(&device_id)).await;
    let stream = ann.stream(&asked).await;
    assert!(device.process.killed().await);
    ann.post("/api/runs/stop", &json!({ "run_id": asked.run_id })).await.ok();
    drop(stream);
    environment.pop();
    let state = device.kill().await;
    let device = DeviceProcess::start_slow_with(&server.url(), "ann", folder.path(), state, &environment);
    let call = eventually("the call is settled", || async {
        let call = ann.tool_call(&asked).await;
        if call["settled"] == true { Ok(call) } else { Err(call.to_string()) }
    })
    .await;
    assert_eq!((&call["status"], &call["error_code"]), (&json!("cancelled"), &json!("NOT_EXECUTED")));
    assert_eq!(traces.reads(), [] as [String; 0], "nothing was read");
    device.finish().await;
    server.finish().await;
}

#[tokio::test]
async fn b24_nobody_is_asked_twice_about_one_call() {
    let (server, folder) = (TestServer::start().await, workspace());
    let (person, mut turnstile) = Turnstile::new();
    let device = TestDevice::start(&server, "ann", folder.path(), person).await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("x").on(&device.id)).await;
    let body = read_file(&asked, None);
    let calling = tokio::spawn({
        let ann = ann.clone();
        async move { ann.post(DEV_CALLS, &body).await.ok() }
    });
    turnstile.shown().await;
    // The program ends while it asks: the call was not begun, and never will be.
    let (person, mut turnstile) = Turnstile::new();
    let device = device.restart(&server, person).await;
    let outcome = calling.await.unwrap();
    let id = outcome["tool_call_id"].as_str().unwrap();
    let again = ann.post(DEV_CALLS, &read_file(&asked, Some(id))).await.ok();
    assert_eq!(again["ok"], false, "{again}");
    assert!(!turnstile.was_asked(), "{again}");
    assert_eq!(device.executions(), 0);
    assert_eq!(ann.tool_call(&asked).await["status"], "cancelled");
    device.stop().await;
    server.finish().await;
}
