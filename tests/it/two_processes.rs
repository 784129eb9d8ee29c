//! The two-process form: `devmind` and `devmind-device`, as the README shows it.

use devmind_tests::{DeviceProcess, ModelEndpoint, Question, Reply, ServerProcess, agui, eventually, workspace};
use serde_json::json;

#[tokio::test]
async fn a_server_and_a_device_in_processes_of_their_own_answer_a_question_about_files() {
    let (server, folder) = (ServerProcess::start(&[]).await, workspace());
    let ann = server.client("ann");
    let mut device =
        DeviceProcess::start(&server.url(), "ann", folder.path(), tempfile::tempdir().unwrap(), &["--yes"]);
    device.connected().await;
    let id = eventually("the device is online", || async {
        let devices = ann.devices().await;
        match devices.first().filter(|device| device["online"] == true) {
            Some(device) => Ok(device["device_id"].as_str().unwrap().to_owned()),
            None => Err(format!("{devices:?}")),
        }
    })
    .await;
    let question = Question::new("list the files of my workspace root, then read README.md").on(&id);
    let (asked, events) = ann.converse(&question).await;
    agui::assert_success(&events);
    assert!(agui::spoken(&events).contains("The quick brown fox"));
    let calls = ann.tool_calls(&asked).await;
    assert!(calls.len() == 2 && calls.iter().all(|call| call["status"] == "succeeded"), "{calls:#?}");

    // The device leaves in order, which the server records; the ticket is in nobody's output.
    let said = device.finish().await;
    let log = server.log().await;
    log.wait_kind("DeviceDisconnected").await;
    assert!(!said.stderr.contains("ticket="), "{said:#?}");
    let finished = server.finish().await;
    assert!(!finished.stderr.contains("ticket="), "{finished:#?}");
}

#[tokio::test]
async fn sigterm_ends_an_open_stream_with_a_terminal_event_and_the_process_with_0() {
    let endpoint = ModelEndpoint::start([Reply::stream().text("half").hold()]).await;
    let url = endpoint.url();
    let folder = workspace();
    let server = ServerProcess::start(&[("MODEL_BASE_URL", &url), ("MODEL_NAME", "scripted")]).await;
    let ann = server.client("ann");
    let mut device =
        DeviceProcess::start(&server.url(), "ann", folder.path(), tempfile::tempdir().unwrap(), &["--yes"]);
    device.connected().await;
    let asked = ann.ask(&Question::new("tell me")).await;
    let mut stream = ann.stream(&asked).await;
    stream.until("some text", |event| event["delta"] == "half").await;
    let data = server.data.clone();
    let (finished, events) = tokio::join!(server.finish(), stream.rest());
    assert_eq!(agui::error_code(&events), "SHUTTING_DOWN");
    assert!(finished.stderr.contains("stopped"), "{finished:#?}");
    device.process.line("the server is stopping").await;
    device.finish().await;
    let failed = data.log().await.one("RunFailed").await;
    assert_eq!(failed.payload["partial_text"], json!("half"));
}

#[tokio::test]
async fn a_token_of_the_configuration_file_is_an_identity_for_client_and_device() {
    let token = "the-token-of-this-test";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("devmind.toml");
    let hash = devmind_domain::canonical::sha256_hex(token.as_bytes());
    let text = format!("development = false\n\n[[users]]\nname = \"ann\"\ntoken_sha256 = \"{hash}\"\n");
    std::fs::write(&file, text).unwrap();
    let server = ServerProcess::start_with(&["--config", file.to_str().unwrap()], &[]).await;
    assert_eq!(server.client("ann").get("/api/conversations").await.refused(), (401, "UNAUTHENTICATED"));
    let workspace = workspace();
    let more = ["--yes", "--token", token];
    let mut device =
        DeviceProcess::start(&server.url(), "ignored", workspace.path(), tempfile::tempdir().unwrap(), &more);
    device.connected().await;
    let connected = server.log().await.wait_kind("DeviceConnected").await;
    assert!(connected.stream_id.starts_with("ann/"), "{connected}");
    device.finish().await;
    server.finish().await;
}
