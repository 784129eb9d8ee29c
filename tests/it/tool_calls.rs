//! The model's calls: what it is told of each, and what is recorded, when nothing is sent to a device.

use devmind_domain::limits::MAX_TOOL_CALLS_PER_RUN;
use devmind_tests::{ModelEndpoint, Question, RawDevice, Reply, TestServer, agui};
use serde_json::{Value, json};

/// The error code of each result that a request to the model carries, `null` for a success.
fn codes(messages: &[Value]) -> Vec<Value> {
    let results = messages.iter().filter(|message| message["role"] == "tool");
    results
        .map(|message| serde_json::from_str::<Value>(message["content"].as_str().unwrap()).expect("a result is JSON"))
        .map(|result| result["error"]["code"].clone())
        .collect()
}

#[tokio::test]
async fn calls_that_cannot_be_made_give_the_model_their_codes_and_the_run_goes_on() {
    let endpoint = ModelEndpoint::start([
        Reply::stream()
            .call(0, "c1", "add", "{\"a\": 1, ")
            .call(1, "c2", "add", "[1, 2]")
            .call(2, "c3", "add", "{\"a\": 1, \"a\": 2, \"b\": 3}")
            .call(3, "c4", "add", "{\"a\": 1, \"b\": \"2\"}")
            .call(4, "c5", "rm_rf", "{}")
            .call(5, "c6", "add", "{\"a\": 1, \"b\": 2}")
            .calls(),
        Reply::say("I see."),
    ])
    .await;
    let server = TestServer::with_model(&endpoint).await;
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("do it")).await;
    agui::assert_success(&events);
    let expected = [
        json!("INVALID_ARGUMENTS"),
        json!("INVALID_ARGUMENTS"),
        json!("INVALID_ARGUMENTS"),
        json!("INVALID_ARGUMENTS"),
        json!("UNKNOWN_TOOL"),
        json!(null),
    ];
    let messages = endpoint.messages(1);
    assert_eq!(codes(&messages), expected);
    // Every call is followed by exactly its result, in the model's own order and under its own ids.
    let ids: Vec<_> = messages.iter().filter(|m| m["role"] == "tool").map(|m| m["tool_call_id"].clone()).collect();
    assert_eq!(ids, ["c1", "c2", "c3", "c4", "c5", "c6"]);
    let assistant = messages.iter().find(|message| message["tool_calls"].is_array()).unwrap();
    assert_eq!(assistant["tool_calls"][0]["function"]["arguments"], "{\"a\": 1, ", "arguments stay verbatim");
    let statuses: Vec<_> = ann.tool_calls(&asked).await.iter().map(|call| call["status"].clone()).collect();
    assert_eq!(statuses, ["rejected", "rejected", "rejected", "rejected", "rejected", "succeeded"]);
    assert_eq!(server.log().of("ToolDispatched").await.len(), 1, "only the sound call was begun");
    server.finish().await;
}

#[tokio::test]
async fn inv_b22_the_seventeenth_call_of_a_run_is_refused_and_the_run_goes_on() {
    let calls = MAX_TOOL_CALLS_PER_RUN as usize + 1;
    let all =
        (0..calls).fold(Reply::stream(), |stream, n| stream.call(n, &format!("c{n}"), "add", "{\"a\":1,\"b\":1}"));
    let endpoint = ModelEndpoint::start([all.calls(), Reply::say("enough")]).await;
    let server = TestServer::with_model(&endpoint).await;
    let (_, events) = server.client("ann").converse(&Question::new("add a lot")).await;
    agui::assert_success(&events);
    let codes = codes(&endpoint.messages(1));
    assert!(codes[..calls - 1].iter().all(Value::is_null), "{codes:?}");
    assert_eq!(codes[calls - 1], "TOOL_LIMIT_REACHED");
    assert_eq!(server.log().of("ToolDispatched").await.len(), calls - 1);
    server.finish().await;
}

#[tokio::test]
async fn inv_b01_calls_without_an_id_or_with_one_twice_get_ids_of_their_own() {
    let endpoint = ModelEndpoint::start([
        Reply::stream().call(0, "same", "add", "{\"a\":1,\"b\":1}").call(1, "same", "add", "{\"a\":2,\"b\":2}").calls(),
        Reply::stream().call(0, "", "add", "{\"a\":3,\"b\":3}").call(1, "same", "add", "{\"a\":4,\"b\":4}").calls(),
        Reply::say("done"),
    ])
    .await;
    let server = TestServer::with_model(&endpoint).await;
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("add")).await;
    agui::assert_success(&events);
    // Those of one message come in any order.
    let mut sums: Vec<_> = agui::results(&events).iter().map(|result| result["data"]["sum"].as_u64()).collect();
    sums.sort_unstable();
    assert_eq!(sums, [Some(2), Some(4), Some(6), Some(8)]);
    let calls = ann.tool_calls(&asked).await;
    assert_eq!(calls.len(), 4);
    let ids: std::collections::BTreeSet<_> = calls.iter().map(|call| call["tool_call_id"].to_string()).collect();
    assert_eq!(ids.len(), 4, "{ids:?}");
    server.finish().await;
}

#[tokio::test]
async fn a_model_that_never_stops_calling_is_stopped_by_the_limit_of_rounds() {
    let rounds = devmind_domain::limits::MAX_MODEL_ROUNDS_PER_RUN as usize;
    let calls = (0..rounds + 1).map(|n| Reply::call(&format!("c{n}"), "add", &json!({ "a": n, "b": 1 })));
    let endpoint = ModelEndpoint::start(calls).await;
    let server = TestServer::with_model(&endpoint).await;
    let (asked, events) = server.client("ann").converse(&Question::new("add for ever")).await;
    assert_eq!(agui::error_code(&events), "MODEL_ROUND_LIMIT");
    assert_eq!(endpoint.requests().len(), rounds);
    assert_eq!(server.client("ann").turn(&asked).await["error_code"], "MODEL_ROUND_LIMIT");
    server.finish().await;
}

/// A call of a device's tool that nothing can be sent to: the model gets the code, the call is
/// recorded, and nothing is dispatched.
async fn refused_before_dispatch(server: &TestServer, question: Question, code: &str) {
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&question).await;
    agui::assert_success(&events);
    assert_eq!(agui::results(&events)[0]["error"]["code"], code);
    assert!(agui::spoken(&events).contains(code), "the model answers from the refusal");
    let call = ann.tool_call(&asked).await;
    assert_eq!((&call["status"], &call["error_code"]), (&json!("rejected"), &json!(code)));
    assert_eq!(call["attempts"], json!([]));
    let kinds = server.log().kinds_of_stream(call["tool_call_id"].as_str().unwrap()).await;
    assert_eq!(kinds, ["ToolCallRequested", "ToolCallDecided"], "recorded, and not dispatched");
}

#[tokio::test]
async fn inv_b14_without_a_device_an_offline_one_or_one_that_does_not_offer_the_tool_nothing_is_dispatched() {
    let server = TestServer::start().await;
    let ann = server.client("ann");
    let read = || Question::new("read README.md");
    refused_before_dispatch(&server, read(), "DESKTOP_DEVICE_NOT_SELECTED").await;
    refused_before_dispatch(&server, read().on("never-seen"), "DEVICE_OFFLINE").await;

    // Connected, but its tools are not known yet: that is offline, too.
    let device = RawDevice::new(server.address());
    let mut socket = device.registered(&ann).await;
    refused_before_dispatch(&server, read().on(&device.device_id), "DEVICE_OFFLINE").await;

    // Online without this tool.
    let mut tools = devmind_tests::raw_device::tools();
    tools.as_array_mut().unwrap().retain(|tool| tool["name"] != "workspace.read_file");
    socket.sync(&tools).await;
    device.wait_online(&ann, &socket.connection_id.clone()).await;
    refused_before_dispatch(&server, read().on(&device.device_id), "TOOL_NOT_AVAILABLE").await;

    // A device that says that its tool is less dangerous than the catalogue knows does not offer it.
    let mut tools = devmind_tests::raw_device::tools();
    for tool in tools.as_array_mut().unwrap() {
        tool["risk"] = "LOW".into();
    }
    socket.sync(&tools).await;
    // The frames of one socket are handled in order: an answer to the next one means that the sync is done.
    socket.send(json!({ "type": "no.such.type" })).await;
    socket.expect("protocol.error").await;
    refused_before_dispatch(&server, read().on(&device.device_id), "TOOL_NOT_AVAILABLE").await;

    // Somebody else's device is not there.
    let bob = server.client("bob");
    let (asked, _) = bob.converse(&read().on(&device.device_id)).await;
    assert_eq!(bob.tool_call(&asked).await["error_code"], "DEVICE_OFFLINE");

    socket.close().await;
    refused_before_dispatch(&server, read().on(&device.device_id), "DEVICE_OFFLINE").await;
    server.finish().await;
}

#[tokio::test]
async fn a_nul_character_in_what_is_asked_called_and_answered_is_served_like_any_other() {
    let endpoint = ModelEndpoint::start([
        Reply::stream().text("a\0b").call(0, "c1", "add", "{\"a\": 1, \"b\": \"\\u0000\"}").calls(),
        Reply::say("done\0"),
    ])
    .await;
    let server = TestServer::with_model(&endpoint).await;
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("is \0 a word?")).await;
    agui::assert_success(&events);
    assert_eq!(agui::spoken(&events), "a\0bdone\0", "the stream carries what was said");
    assert_eq!(ann.turn(&asked).await["answer"], "done\u{fffd}");
    let call = ann.tool_call(&asked).await;
    assert_eq!(call["status"], "rejected");
    let id = call["tool_call_id"].as_str().expect("an id");
    let about_it = ann.get(&format!("/api/ledger/events?tool_call_id={id}")).await.ok();
    let kinds: Vec<_> =
        about_it["events"].as_array().expect("events").iter().map(|e| e["event_type"].clone()).collect();
    assert_eq!(kinds, ["ModelResponded", "ToolCallRequested", "ToolCallDecided", "ToolResultObserved"]);
    for path in ["/api/conversations/a%00b/turns", "/api/ledger/events?run_id=a%00b", "/api/ledger/events?actor=%00"] {
        let status = ann.get(path).await.status;
        assert!(status < 500, "{path} was answered with {status}");
    }
    server.finish().await;
}
