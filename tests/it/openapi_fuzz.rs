//! schemathesis (from PyPI, `tests/peers/schemathesis`) against the running server: what the description
//! allows, its borders and what lies beyond them, with every answer held against the description.

use devmind_api::config::TokenUser;
use devmind_domain::canonical::sha256_hex;
use devmind_tests::contract::description;
use devmind_tests::peers;
use devmind_tests::sse::interrupts;
use devmind_tests::{Question, RawDevice, TestServer, new_id};
use serde_json::{Value, json};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// schemathesis ends within this time, or it is a finding too.
const TIME: Duration = Duration::from_secs(600);
const TOKEN: &str = "the-token-of-the-fuzzer";

/// The description with one good request for each operation, about things that are there; and a run
/// that has ended.
async fn with_examples(server: &TestServer) -> (Value, String) {
    let ann = server.client("ann");
    let (answered, _) = ann.converse(&Question::new("add 1 and 2")).await;
    let (_, events) = ann.converse(&Question::new("the demo text, please")).await;
    let to_run = ann.ask(&Question::new("hello")).await;
    let to_stop = ann.ask(&Question::new("to stop")).await;
    let to_delete = ann.ask(&Question::new("to delete")).await;
    RawDevice::new(server.address()).online(&ann).await.close().await;

    let mut description = description().clone();
    let mut parameter = |path: &str, name: &str, value: &str| {
        let parameters = description["paths"][path]["get"]["parameters"].as_array_mut().unwrap();
        let own = parameters.iter_mut().find(|parameter| parameter["name"] == name).unwrap();
        own["example"] = value.into();
    };
    parameter("/api/turns", "conversation_id", &answered.conversation_id);
    parameter("/api/tool-calls", "run_id", &answered.run_id);
    parameter("/api/runs/events", "run_id", &answered.run_id);
    parameter("/api/ledger/events", "conversation_id", &answered.conversation_id);
    let position = ann.get(&format!("/api/ledger/events?conversation_id={}", answered.conversation_id)).await.ok();
    let position = position["events"][0]["position"].to_string();
    parameter("/api/ledger/proof", "position", &position);
    parameter("/api/ledger/consistency", "from", "1");
    let mut body = |path: &str, value: Value| {
        description["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"] = value;
    };
    body("/api/agent", to_run.input());
    body(
        "/api/agui",
        json!({
            "threadId": "thread", "runId": new_id(), "messages": [{ "id": "m", "role": "user", "content": "add 1 and 2" }],
        }),
    );
    body("/api/turns", json!({ "content": "hello", "idempotency_key": "fuzz-ask" }));
    body("/api/turns/rerun", json!({ "turn_id": answered.turn_id, "idempotency_key": "fuzz-rerun" }));
    body(
        "/api/runs/resume",
        json!({
            "interrupt_id": interrupts(&events)[0], "approved": true, "idempotency_key": "fuzz-resume",
        }),
    );
    body("/api/runs/stop", json!({ "run_id": to_stop.run_id }));
    body("/api/conversations/rename", json!({ "conversation_id": answered.conversation_id, "title": "fuzzed" }));
    body("/api/conversations/delete", json!({ "conversation_id": to_delete.conversation_id }));
    body("/api/desktop/connection-ticket", json!({ "device_id": "laptop" }));
    body(
        "/api/desktop/dev/tool-calls",
        json!({ "run_id": answered.run_id, "tool_name": "workspace.list_files", "arguments": {} }),
    );
    (description, answered.run_id)
}

#[tokio::test]
async fn nothing_that_is_sent_gets_an_answer_that_the_description_does_not_allow() {
    let Some(python) = peers::python("schemathesis").await else { return };
    let server = TestServer::start().await;
    let (description, ended_run) = with_examples(&server).await;
    // With tokens alone, so that a request with a wrong identity can be told from one with a right one.
    let mut stopped = server.stop().await;
    stopped.config.development = Some(false);
    stopped.config.users =
        vec![TokenUser { name: "ann".to_owned(), token_sha256: sha256_hex(TOKEN.as_bytes()), ..TokenUser::default() }];
    let server = stopped.start().await;

    let folder = tempfile::tempdir().unwrap();
    let schema = folder.path().join("openapi.json");
    std::fs::write(&schema, description.to_string()).unwrap();
    let mut command = Command::new(python.program("schemathesis"));
    command.arg("--config-file").arg(python.folder.join("schemathesis.toml")).arg("run").arg(&schema);
    command.args(["--url", &server.url(), "--header", &format!("Authorization: Bearer {TOKEN}"), "--no-color"]);
    command.args(["--phases", "examples,coverage,fuzzing", "--warnings", "off"]);
    command.current_dir(folder.path()).stdin(Stdio::null()).kill_on_drop(true).env("ENDED_RUN", ended_run);
    let output = tokio::time::timeout(TIME, command.output()).await.expect("schemathesis ends").expect("it runs");
    let (report, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{report}\n{errors}");
    // A run that tested nothing is no success.
    let tested = format!("Tested: {}", devmind_tests::contract::operations().count());
    assert!(report.contains(&tested), "{report}\n{errors}");
    server.finish().await;
}
