//! Invariants of the device channel that no other test is about, and the table of all of them
//! (`tests/INVARIANTS.md`), which is held against the tests' names.

use devmind_tests::raw_device::{file_output, success, tools};
use devmind_tests::sse::interrupts;
use devmind_tests::{
    Asked, Client, Cut, DeviceProcess, Question, RawDevice, RawSocket, ServerProcess, Tap, TestDevice, TestServer,
    Turnstile, agui, new_id, workspace,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

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

/// A read that is under way: its end, and the request that the device got.
async fn begin(client: &Client, body: Value, socket: &mut RawSocket) -> (tokio::task::JoinHandle<Value>, Value) {
    let client = client.clone();
    let calling = tokio::spawn(async move { client.post(DEV_CALLS, &body).await.ok() });
    let request = socket.expect("tool.call.request").await;
    (calling, request)
}

/// A read that succeeds; its call.
async fn succeed(client: &Client, body: Value, socket: &mut RawSocket) -> String {
    let (calling, request) = begin(client, body, socket).await;
    socket.send(success(&request, &file_output("hello"))).await;
    assert_eq!(socket.acked(&request["tool_call_id"]).await, "stored");
    assert_eq!(calling.await.unwrap()["ok"], true);
    request["tool_call_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn inv_a01_the_model_chooses_tool_and_arguments_and_nothing_of_whose_they_are() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let mut socket = device.online(&ann).await;
    let asked = ann.ask(&Question::new("read README.md").on(&device.device_id)).await;
    let stream = ann.stream(&asked).await;
    let request = socket.expect("tool.call.request").await;
    assert_eq!((&request["run_id"], &request["device_id"]), (&json!(asked.run_id), &json!(device.device_id)));
    let requested = server.log().one("ToolCallRequested").await;
    for (field, expected) in [
        ("user_id", "ann"),
        ("conversation_id", &asked.conversation_id),
        ("run_id", &asked.run_id),
        ("device_id", &device.device_id),
    ] {
        assert_eq!(requested.payload[field], expected, "{field}");
    }
    socket.send(success(&request, &file_output("hello"))).await;
    socket.acked(&request["tool_call_id"]).await;
    stream.rest().await;
    // Arguments that name another device, user or run are no arguments of the tool.
    for field in ["device_id", "user_id", "run_id", "conversation_id"] {
        let mut body = read_file(&asked, None);
        body["arguments"][field] = "another".into();
        assert_eq!(ann.post(DEV_CALLS, &body).await.refused(), (422, "INVALID_ARGUMENTS"), "{field}");
    }
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn inv_a02_a_ticket_is_the_callers_own_whatever_the_body_names() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let body = json!({ "device_id": device.device_id, "user_id": "bob" });
    assert_eq!(ann.post("/api/desktop/connection-ticket", &body).await.refused(), (422, "VALIDATION_FAILED"));
    let socket = device.online(&ann).await;
    let connected = server.log().one("DeviceConnected").await;
    assert_eq!(connected.stream_id, format!("ann/{}", device.device_id));
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn inv_a04_every_connection_of_the_device_spends_a_ticket_of_its_own() {
    let (server, folder) = (TestServer::start().await, workspace());
    let tap = Tap::before(server.address()).await;
    let device = TestDevice::start_at(&tap.url(), &server, "ann", folder.path(), Turnstile::new().0).await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("x").on(&device.id)).await;
    // Lost once, so that it connects again.
    tap.cut(Cut::Before("tool.call.request"));
    ann.post(DEV_CALLS, &read_file(&asked, None)).await.ok();
    device.online(&ann).await;
    let log = server.log();
    let (connected, spent) = (log.of("DeviceConnected").await, log.of("DeviceTicketConsumed").await);
    let distinct: BTreeSet<_> = spent.iter().map(|fact| fact.payload["ticket_hash"].to_string()).collect();
    assert_eq!((connected.len(), distinct.len()), (2, 2));
    device.stop().await;
    server.finish().await;
}

#[tokio::test]
async fn inv_a10_everybody_who_waits_on_a_socket_knows_at_once_that_it_was_replaced() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let asked = ann.ask(&Question::new("x").on(&device.device_id)).await;
    let mut old = device.online(&ann).await;
    let (first, _) = begin(&ann, read_file(&asked, None), &mut old).await;
    let (second, _) = begin(&ann, read_file(&asked, None), &mut old).await;
    let new = device.online(&ann).await;
    // Long before the end of their wait, which is no part of this test's time.
    for calling in [first, second] {
        assert_eq!(calling.await.unwrap()["error"]["code"], "RESULT_UNKNOWN");
    }
    new.close().await;
    server.finish().await;
}

#[tokio::test]
async fn inv_a15_a_sync_replaces_the_whole_set_of_tools_and_no_other_can_be_called() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let asked = ann.ask(&Question::new("x").on(&device.device_id)).await;
    let mut socket = device.online(&ann).await;
    let listing: Vec<_> =
        tools().as_array().unwrap().iter().filter(|tool| tool["name"] == "workspace.list_files").cloned().collect();
    socket.sync(&json!(listing)).await;
    // An answer to a later frame says that the sync was taken.
    socket.send(json!({ "type": "no.such.type" })).await;
    socket.expect("protocol.error").await;
    let answer = ann.post(DEV_CALLS, &read_file(&asked, None)).await.ok();
    assert_eq!(answer["error"]["code"], "TOOL_NOT_AVAILABLE");
    assert!(server.log().of("ToolDispatched").await.is_empty());
    socket.close().await;
    server.finish().await;
}

/// The addresses that a process listens on (`/proc`).
fn listening(id: i32) -> Vec<String> {
    let sockets: BTreeSet<String> = std::fs::read_dir(format!("/proc/{id}/fd"))
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()?.to_str().map(str::to_owned))
        .filter_map(|link| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = |name: &str| std::fs::read_to_string(format!("/proc/{id}/net/{name}")).unwrap_or_default();
    let (four, six) = (table("tcp"), table("tcp6"));
    let rows = four.lines().chain(six.lines()).map(|line| line.split_whitespace().collect::<Vec<_>>());
    // Local address, remote address, state (0A: listens) … and the socket's number as the tenth.
    rows.filter(|row| row.get(3) == Some(&"0A") && row.get(9).is_some_and(|number| sockets.contains(*number)))
        .map(|row| row[1].to_owned())
        .collect()
}

#[tokio::test]
async fn inv_a16_a_device_that_needs_no_page_listens_on_no_port() {
    let (server, folder) = (ServerProcess::start(&[]).await, workspace());
    let state = tempfile::tempdir().unwrap();
    let mut device = DeviceProcess::start(&server.url(), "ann", folder.path(), state, &["--yes"]);
    device.connected().await;
    assert_eq!(listening(device.process.id().as_raw_nonzero().get()), [] as [String; 0]);
    device.finish().await;
    server.finish().await;
}

#[tokio::test]
async fn inv_b02_the_run_that_goes_on_has_the_calls_of_the_one_before_it() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let mut socket = device.online(&ann).await;
    let question = Question::new("the demo text, please").on(&device.device_id);
    let (asked, events) = ann.converse(&question).await;
    let id = succeed(&ann, read_file(&asked, None), &mut socket).await;
    let answer = json!({ "interrupt_id": interrupts(&events)[0], "approved": true, "idempotency_key": new_id() });
    let resumed = ann.post("/api/runs/resume", &answer).await.ok();
    assert_ne!(resumed["run_id"], asked.run_id.as_str());
    let mut again = read_file(&asked, Some(&id));
    again["run_id"] = resumed["run_id"].clone();
    assert_eq!(ann.post(DEV_CALLS, &again).await.ok()["output"]["content"], "hello");
    let dispatched = server.log().of("ToolDispatched").await;
    assert_eq!(dispatched.iter().filter(|fact| fact.stream_id == id).count(), 1);
    socket.close().await;
    server.finish().await;
}

#[tokio::test]
async fn inv_b03_an_edited_question_makes_new_calls_that_are_carried_out_again() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let mut socket = device.online(&ann).await;
    let asked = ann.ask(&Question::new("read README.md").on(&device.device_id)).await;
    let mut ids = BTreeSet::new();
    let mut latest = asked.clone();
    for attempt in 0..3 {
        let stream = ann.stream(&latest).await;
        let request = socket.expect("tool.call.request").await;
        assert_eq!(request["attempt_no"], 1, "a new call");
        ids.insert(request["tool_call_id"].as_str().unwrap().to_owned());
        socket.send(success(&request, &file_output("hello"))).await;
        socket.acked(&request["tool_call_id"]).await;
        agui::assert_success(&stream.rest().await);
        if attempt < 2 {
            latest = ann.rerun(&asked, (attempt == 0).then_some("read README.md once more")).await;
        }
    }
    assert_eq!(ids.len(), 3);
    // And a call of the old thread is none of the new run's.
    let thread = thread_of(&server, &latest).await;
    let old = ids.iter().find(|id| !id.starts_with(&thread)).unwrap().clone();
    let answer = ann.post(DEV_CALLS, &read_file(&latest, Some(&old))).await;
    assert_eq!(answer.refused(), (422, "VALIDATION_FAILED"));
    socket.close().await;
    server.finish().await;
}

async fn thread_of(server: &TestServer, asked: &Asked) -> String {
    let requested = server.log().of("ToolCallRequested").await;
    let own = requested.iter().find(|fact| fact.payload["run_id"] == asked.run_id.as_str()).unwrap();
    own.payload["graph_thread_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn inv_b19_a_call_whose_end_is_not_known_is_not_sent_again_by_itself() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let mut socket = device.online(&ann).await;
    let asked = ann.ask(&Question::new("read README.md").on(&device.device_id)).await;
    let stream = ann.stream(&asked).await;
    socket.expect("tool.call.request").await;
    drop(socket);
    let events = stream.rest().await;
    assert_eq!(agui::results(&events)[0]["error"]["code"], "RESULT_UNKNOWN");
    let mut socket = device.online(&ann).await;
    // What the server had to send by itself would come before its answer to this.
    socket.send(json!({ "type": "no.such.type" })).await;
    socket.expect("protocol.error").await;
    server.log().one("ToolDispatched").await;
    assert_eq!(ann.tool_call(&asked).await["status"], "unknown");
    socket.close().await;
    server.finish().await;
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The names of all tests and other functions in the sources.
fn functions(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !name.starts_with('.') && !["target", "node_modules", "data"].contains(&name) {
            functions(&path, found);
        } else if name.ends_with(".rs") {
            for line in std::fs::read_to_string(&path).unwrap().lines() {
                let rest = line.trim_start().trim_start_matches("async ").strip_prefix("fn ");
                found.extend(rest.map(|rest| rest.split(['(', '<']).next().unwrap().trim().to_owned()));
            }
        }
    }
}

#[test]
fn every_invariant_of_the_table_has_the_test_that_it_names() {
    let table = std::fs::read_to_string(repository().join("tests/INVARIANTS.md")).unwrap();
    let mut tests = BTreeSet::new();
    functions(&repository(), &mut tests);
    let mut listed = BTreeSet::new();
    for row in table.lines().filter(|line| line.starts_with("| ") && line.contains('`')) {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let (id, named) = (cells[0], cells[2].trim_matches('`'));
        assert!(tests.contains(named), "{id}: there is no test {named}");
        let (letter, number) = id.split_at(1);
        let number: u32 = number.parse().unwrap();
        let tag = match letter {
            "X" => format!("inv_x{number}_"),
            // The device's own, which no case of another list is named like.
            "C" => format!("c{number:02}_"),
            letter => format!("inv_{}{number:02}_", letter.to_lowercase()),
        };
        assert!(named.contains(&tag), "{id}: {named} does not say so by {tag}");
        assert!(listed.insert(id.to_owned()), "{id} stands twice");
    }
    let all = [('A', 17), ('B', 23), ('C', 23), ('X', 6)];
    let all = all.into_iter().flat_map(|(letter, count)| (1..=count).map(move |number| format!("{letter}{number}")));
    assert_eq!(listed, all.collect());
}
