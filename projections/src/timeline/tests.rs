//! The story of a device call, told from hand-made events and read from a real log.

use super::*;
use crate::testing::recorded;
use devmind_domain::event::{Actor, Metadata, NewEvent, StreamId};
use devmind_domain::ids::RunId;
use devmind_ledger::{Append, Ledger, StreamAppend};
use serde_json::{Value, json};

/// One event: its stream's kind and id, its type, its payload.
type Line = (&'static str, &'static str, &'static str, Value);

fn conversation(event_type: &'static str, payload: Value) -> Line {
    ("conversation", "c", event_type, payload)
}
fn thread(event_type: &'static str, payload: Value) -> Line {
    ("thread", "g", event_type, payload)
}
fn call(event_type: &'static str, payload: Value) -> Line {
    ("tool_call", "g:call", event_type, payload)
}

fn story() -> Vec<Line> {
    vec![
        conversation(
            "TurnPrepared",
            json!({ "turn_id": "t", "sequence_no": 1, "message_id": "q", "content": "read\u{202e} README", "device_id": "d" }),
        ),
        conversation(
            "RunPrepared",
            json!({
                "run_id": "r", "turn_id": "t", "kind": "normal", "trigger": "ask", "run_seq": 1,
                "graph_thread_id": "g", "device_id": "d",
            }),
        ),
        conversation("RunClaimed", json!({ "run_id": "r", "node_id": "n", "epoch": 3, "context_hash": "h" })),
        thread(
            "ModelRequested",
            json!({
                "run_id": "r", "round": 1, "provider": "built-in", "model": "demo", "parameters": {},
                "request_hash": "h", "tools_hash": "h",
            }),
        ),
        thread(
            "ModelResponded",
            json!({
                "run_id": "r", "round": 1, "message_id": "m", "content": "",
                "tool_calls": [{ "id": "call", "name": "workspace.read_file", "arguments": "{}" }],
                "finish_reason": "tool_calls", "usage": { "input": 10, "output": 2 }, "served_model": "demo",
                "latency_ms": 1,
            }),
        ),
        call(
            "ToolCallRequested",
            json!({
                "conversation_id": "c", "turn_id": "t", "run_id": "r", "user_id": "ann", "graph_thread_id": "g",
                "model_call_id": "call", "tool": "workspace.read_file", "tool_version": "1", "target": "device",
                "device_id": "d", "arguments": { "path": "README.md" }, "call_hash": "h", "risk": "MEDIUM",
            }),
        ),
        call(
            "ToolDispatched",
            json!({
                "attempt_no": 1, "run_id": "r", "node_id": "n", "epoch": 3, "connection_id": "s", "journal_id": "j",
                "wait_ms": 1, "ttl_ms": 1,
            }),
        ),
        call("ToolReceived", json!({ "attempt_no": 1, "phase": "reserved" })),
        call("ToolReceived", json!({ "attempt_no": 1, "phase": "confirming" })),
        call("ToolReceived", json!({ "attempt_no": 1, "phase": "executing" })),
        ("device", "ann/d", "DeviceDisconnected", json!({ "connection_id": "s", "code": 1006, "reason": "gone" })),
        call(
            "ToolResultRecorded",
            json!({
                "executed_attempt_no": 1, "status": "succeeded", "output": { "content": "x" }, "output_sha256": "h",
                "origin": "redelivered", "connection_id": "s2",
            }),
        ),
        call("ToolResultAcked", json!({ "connection_id": "s2", "disposition": "stored" })),
        thread("ToolResultObserved", json!({ "tool_call_id": "g:call", "ok": true, "content": "x" })),
        conversation("RunSucceeded", json!({ "run_id": "r", "message_id": "m", "answer": "It says x." })),
    ]
}

fn decoded((kind, id, event_type, payload): &Line) -> (&'static str, DomainEvent) {
    (id, DomainEvent::decode(kind, event_type, 1, &payload.to_string()).expect("a known event").remove(0))
}

#[test]
fn a_timeline_says_who_did_what_where_and_how_long_it_took() {
    let facts: Vec<_> = story().iter().map(decoded).collect();
    let lines = timeline(&recorded(&facts));
    let told: Vec<_> = lines.iter().map(|line| (line.duration_ms, line.text.as_str())).collect();
    // One millisecond lies between two events.
    let expected = [
        (None, "asked question 1: \"read\\u{202e} README\""),
        (None, "run r waits (normal), may use device d"),
        (Some(1), "run claimed by server process n (start 3)"),
        (None, "model demo of built-in asked, round 1"),
        (Some(1), "model wants workspace.read_file (call); 10 tokens in, 2 out"),
        (None, "call: workspace.read_file on device d, risk MEDIUM, with \"{\\\"path\\\":\\\"README.md\\\"}\""),
        (None, "call: attempt 1 sent on connection s"),
        (Some(1), "call: the device has it in its journal"),
        (None, "call: a person at the device is asked"),
        (Some(1), "call: the person at the device said yes; it runs"),
        (None, "connection s ended: 1006 \"gone\""),
        (Some(5), "call: attempt 1 succeeded with 15 bytes, delivered on a later connection"),
        (Some(1), "call: result acknowledged on connection s2: stored"),
        (Some(8), "call: the model is told ok, 1 bytes"),
        (Some(12), "run answered: \"It says x.\""),
    ];
    assert_eq!(told, expected);
    let offsets: Vec<_> = lines.iter().map(|line| line.offset_ms).collect();
    assert_eq!(offsets, (0..15).collect::<Vec<_>>());
}

#[test]
fn a_printed_line_has_the_end_of_a_long_actor_and_escapes_what_it_shows() {
    let mut line = timeline(&recorded(&[decoded(&story()[0])])).remove(0);
    line.actor = "device:01a22988-bd5a-7450-b9aa-bc3083e050d3".to_owned();
    assert_eq!(
        line.to_string(),
        "#1         0.000s            device:…083e050d3 asked question 1: \"read\\u{202e} README\""
    );
    line.actor = "user:\u{1b}".to_owned();
    assert!(line.to_string().contains("user:\\u{1b}"), "{line}");
}

#[test]
fn a_refusal_names_the_person_who_said_no_and_an_unknown_event_is_told_as_such() {
    let mut facts: Vec<_> = story()[..7].iter().map(decoded).collect();
    let payload = json!({
        "executed_attempt_no": 1, "status": "rejected", "origin": "live",
        "error": { "code": "CONFIRMATION_REJECTED", "message": "no" },
    });
    facts.push(decoded(&call("ToolResultRecorded", payload)));
    let mut events = recorded(&facts);
    Arc::make_mut(&mut events[0]).event_type = "TurnImagined".to_owned();
    let lines = timeline(&events);
    assert!(lines[7].text.contains("rejected: the person at the device said no"), "{}", lines[7].text);
    assert!(lines[0].text.contains("TurnImagined cannot be told"), "{}", lines[0].text);
}

/// Appends a story as a server does: the run is in the metadata of its own process's events.
async fn put(ledger: &Ledger, lines: &[Line], run: &str) {
    for line in lines {
        let (id, event) = decoded(line);
        let stream = StreamId { aggregate_type: line.0.to_owned(), aggregate_id: id.to_owned() };
        let expected_version = ledger.reader().read_stream(&stream, 0).await.expect("read").len() as u64;
        let mut metadata = Metadata::new(Actor::user("ann"), "n".into());
        // Devices and processes serve many runs: their events name none.
        if !["device", "node"].contains(&line.0) {
            metadata = metadata.run(&run.into()).conversation(&"c".into());
        }
        // Neither does a result that came on a later connection.
        if line.2 == "ToolResultRecorded" || line.2 == "ToolResultAcked" {
            metadata.correlation_id = None;
        }
        let event = NewEvent { event_id: uuid::Uuid::now_v7().to_string(), event, metadata };
        let append = StreamAppend { stream, expected_version, events: vec![event] };
        ledger.append(Append { streams: vec![append], idempotency: None }).await.expect("appended");
    }
}

#[tokio::test]
async fn the_timeline_of_a_run_has_what_concerns_it_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = Ledger::open(&folder.path().join("ledger.sqlite")).await.expect("a ledger");
    let others = [
        conversation(
            "TurnPrepared",
            json!({ "turn_id": "t0", "sequence_no": 1, "message_id": "q", "content": "another question" }),
        ),
        ("node", "n", "NodeStarted", json!({ "node_id": "n", "epoch": 3, "version": "1" })),
        ("thread", "other", "ToolResultObserved", json!({ "tool_call_id": "x:y", "ok": true, "content": "" })),
    ];
    put(&ledger, &others, "another run").await;
    let mut whole = story();
    let replaced = json!({ "old_connection_id": "foreign", "new_connection_id": "x" });
    whole.insert(8, ("device", "ann/d", "DeviceReplaced", replaced));
    let started = json!({ "node_id": "n", "epoch": 4, "version": "1" });
    whole.insert(12, ("node", "n", "NodeStarted", started));
    put(&ledger, &whole, "r").await;
    put(&ledger, &others[..1], "another run").await;

    let lines = timeline_of_run(ledger.reader(), &RunId::from("r")).await.expect("read");
    let types: Vec<_> = lines.iter().map(|line| line.event_type.as_str()).collect();
    let mut expected: Vec<_> = story().iter().map(|line| line.2).collect();
    expected.insert(11, "NodeStarted");
    assert_eq!(types, expected);
    assert_eq!(timeline_of_run(ledger.reader(), &RunId::from("nobody")).await.expect("read"), []);
}
