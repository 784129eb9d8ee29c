//! The real AG-UI client (`@ag-ui/client` 1.0 from npm, `tests/peers/agui`) against the running
//! server: no violation of the protocol. Needs node 20 or later and npm; says so when it is skipped.

use devmind_device::Fixed;
use devmind_tests::peers;
use devmind_tests::wait::within_deadline;
use devmind_tests::{ModelEndpoint, Reply, TestDevice, TestServer, workspace};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use tokio::process::Command;

/// Runs the peer; its summary must be clean.
async fn drive(folder: &Path, server: &TestServer, arguments: &[&str]) -> Value {
    let url = server.url();
    let mut command = Command::new("node");
    command.arg("agui-peer.mjs").arg(&url).args(["--user", "ann"]).args(arguments).current_dir(folder);
    let output = within_deadline("the peer", command.kill_on_drop(true).output()).await.expect("node runs");
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {} {}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    });
    assert_eq!((&summary["ok"], &summary["violations"]), (&json!(true), &json!([])), "{arguments:?}: {summary:#}");
    assert!(output.status.success(), "{arguments:?}: {summary:#}");
    summary
}

#[tokio::test]
async fn the_real_client_finds_no_violation() {
    let Some(peer) = peers::node("agui").await else { return };
    let (server, files) = (TestServer::start().await, workspace());
    let device = TestDevice::start(&server, "ann", files.path(), Arc::new(Fixed(true))).await;
    let on_device = json!({ "device_id": device.id }).to_string();

    // Tools, text, several turns of one conversation, and a second claim of each run.
    let summary = drive(
        &peer,
        &server,
        &[
            "--prompt",
            "list the files of my workspace root, then read README.md",
            "--then",
            "My name is Ann",
            "--then",
            "What is my name?",
            "--turn-json",
            &on_device,
            "--reclaim",
            "--expect-reclaim",
            "409",
            "--expect",
            "success",
        ],
    )
    .await;
    assert_eq!(summary["final_text"], "Your name is Ann.");
    assert_eq!(summary["events_by_type"]["TOOL_CALL_RESULT"], 2);
    assert_eq!(summary["reclaims"].as_array().unwrap().len(), 3);

    // Refusals are results, not errors of the protocol.
    let summary = drive(&peer, &server, &["--prompt", "read ../outside", "--turn-json", &on_device]).await;
    assert_eq!(summary["outcome"], "success");
    let summary = drive(&peer, &server, &["--prompt", "read README.md"]).await;
    assert!(summary["final_text"].as_str().unwrap().contains("DESKTOP_DEVICE_NOT_SELECTED"));
    device.stop().await;
    server.finish().await;
}

#[tokio::test]
async fn the_real_client_finds_no_violation_when_it_aborts_or_the_model_fails() {
    let Some(peer) = peers::node("agui").await else { return };
    let endpoint = ModelEndpoint::start([
        Reply::stream().text("half an answer").hold(),
        Reply::stream().text("half").cut(),
        Reply::say("a whole answer"),
    ])
    .await;
    let server = TestServer::with_model(&endpoint).await;
    let summary = drive(&peer, &server, &["--abort-at", "TEXT_MESSAGE_CONTENT", "--expect", "aborted"]).await;
    assert_eq!(summary["turns"].as_array().unwrap().len(), 1);
    endpoint.aborted(1).await;
    server.log().wait_kind("RunCancelled").await;
    drive(&peer, &server, &["--expect", "error"]).await;
    let summary = drive(&peer, &server, &["--expect", "success"]).await;
    assert_eq!(summary["final_text"], "a whole answer");
    server.finish().await;
}

#[tokio::test]
async fn the_real_client_finds_no_violation_when_an_approval_is_given_or_refused() {
    let Some(peer) = peers::node("agui").await else { return };
    let server = TestServer::start().await;
    for (flag, result) in [("--approve", "The demo text is:"), ("--deny", "APPROVAL_REJECTED")] {
        let arguments = [
            "--prompt",
            "add 1 and 2, then show me the demo text",
            "--then",
            "show me the demo text",
            flag,
            "--reclaim",
            "--expect-reclaim",
            "409",
            "--expect",
            "success",
        ];
        let summary = drive(&peer, &server, &arguments).await;
        assert!(summary["final_text"].as_str().unwrap().contains(result), "{summary:#}");
        assert_eq!(summary["reclaims"].as_array().unwrap().len(), 4, "two turns, each interrupted once and resumed");
    }
    // Nobody answers: the interrupt is the end.
    let summary = drive(&peer, &server, &["--prompt", "show me the demo text", "--expect", "interrupt"]).await;
    assert_eq!(summary["outcome"], "interrupt");
    server.finish().await;
}

#[tokio::test]
async fn the_real_client_finds_no_violation_when_it_goes_on_after_it_left() {
    let Some(peer) = peers::node("agui").await else { return };
    let endpoint = ModelEndpoint::start([
        Reply::stream().text("half of ").hold(),
        Reply::stream().text("I will add.").call(0, "a", "add", r#"{"a":1,"b":2}"#).call(0, "a", "", "").calls(),
        Reply::stream().text("it is 3").done(),
    ])
    .await;
    let server = TestServer::with_model(&endpoint).await;
    drive(
        &peer,
        &server,
        &["--abort-at", "TEXT_MESSAGE_CONTENT", "--reclaim", "--expect-reclaim", "409", "--expect", "aborted"],
    )
    .await;
    endpoint.aborted(1).await;
    server.log().wait_kind("RunCancelled").await;
    let summary = drive(&peer, &server, &["--prompt", "add", "--then", "thanks", "--expect", "success"]).await;
    assert_eq!(summary["final_text"], "done");
    server.finish().await;
}
