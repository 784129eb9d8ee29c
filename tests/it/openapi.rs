//! The description of the API: committed, complete, and the same wherever it is had.

use devmind_tests::contract::{codes, description, operations};
use devmind_tests::{Process, TestServer};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

fn in_repository(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

#[test]
fn the_committed_description_is_the_one_of_this_program() {
    let committed = std::fs::read_to_string(in_repository("api/openapi.json")).unwrap_or_default();
    let now = format!("{:#}\n", description());
    let renew = "renew it with `cargo run -- openapi > api/openapi.json` and look at what changed for clients";
    for (number, (committed, now)) in committed.lines().zip(now.lines()).enumerate() {
        assert_eq!(committed, now, "api/openapi.json differs from line {}: {renew}", number + 1);
    }
    assert_eq!(committed.len(), now.len(), "api/openapi.json is not complete: {renew}");
}

#[tokio::test]
async fn the_description_is_served_to_anybody_and_printed_by_the_program() {
    let server = TestServer::start().await;
    assert_eq!(&server.client("ann").anonymous().get("/openapi.json").await.ok(), description());
    let printed = Process::run("devmind", &["openapi"], &[]).await;
    printed.assert_success();
    assert_eq!(printed.stdout, format!("{:#}\n", description()));
    server.finish().await;
}

#[test]
fn every_route_comes_from_its_description() {
    // `routes!` registers handler and description together; anything else would register a handler alone.
    let folder = in_repository("api/src/http");
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for forbidden in [".route(", ".route_service(", ".nest_service(", "axum::routing"] {
            assert!(!text.contains(forbidden), "{} registers a route without its description", path.display());
        }
    }
    let routes: BTreeSet<_> = operations().map(|(path, method, _)| format!("{method} {path}")).collect();
    for route in ["get /api/turns", "post /api/turns", "get /api/desktop/ws", "get /openapi.json", "get /readyz"] {
        assert!(routes.contains(route), "{route} is not in {routes:?}");
    }
}

#[test]
fn every_operation_says_what_it_is_who_may_ask_and_how_it_refuses() {
    let mut ids = BTreeSet::new();
    for (path, method, operation) in operations() {
        let name = format!("{method} {path}");
        assert!(ids.insert(operation["operationId"].as_str().unwrap_or_default()), "{name}");
        assert!(operation["summary"].is_string() && operation["tags"].is_array(), "{name}: {operation}");
        // An empty requirement of its own: anybody; none of its own: the document's, a person.
        let personal = operation.get("security").is_none();
        assert_eq!(personal, path.starts_with("/api/") && path != "/api/desktop/ws", "{name}");
        assert_eq!(codes(operation, 401).contains(&"UNAUTHENTICATED"), personal, "{name}");
        assert_eq!(codes(operation, 403).contains(&"READ_ONLY_ROLE"), method == "post", "{name}");
        assert_eq!(operation["requestBody"].is_object(), method == "post", "{name}");
        if method == "post" {
            assert!(codes(operation, 413).contains(&"BODY_TOO_LARGE"), "{name}");
        }
    }
    assert_eq!(description()["security"], json!([{ "bearer": [] }, { "dev_user": [] }]));
}

#[test]
fn the_events_of_a_stream_are_described_as_they_are_sent() {
    let schemas = &description()["components"]["schemas"];
    let frame = &schemas["RunStreamFrame"]["properties"]["data"];
    assert_eq!(frame["contentSchema"]["$ref"], "#/components/schemas/AgUiEvent");
    let events = schemas["AgUiEvent"]["oneOf"].as_array().unwrap();
    let of = |kind: &str| {
        let is = |event: &&Value| event["properties"]["type"]["enum"] == json!([kind]);
        events.iter().find(is).unwrap_or_else(|| panic!("{kind} is not described: {events:#?}"))
    };
    let fields = |kind: &str| of(kind)["properties"].as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    assert_eq!(fields("RUN_STARTED"), names(&["type", "threadId", "runId", "protocolVersion"]));
    assert_eq!(fields("TOOL_CALL_START"), names(&["type", "toolCallId", "toolCallName", "parentMessageId"]));
    assert_eq!(fields("RUN_FINISHED"), names(&["type", "threadId", "runId", "outcome", "usage"]));
}
