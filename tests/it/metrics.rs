//! The figures for Prometheus say what the ledger and the views say.

use devmind_device::Fixed;
use devmind_tests::{Question, Script, ScriptedModel, TestDevice, TestServer};
use std::sync::Arc;

#[tokio::test]
async fn the_figures_are_those_of_the_log_and_the_views() {
    let server = TestServer::with_scripted(ScriptedModel::new([Script::say("hello")])).await;
    let ann = server.client("ann");
    ann.converse(&Question::new("hi")).await;
    // Reading the turns waits for the views.
    ann.get("/api/conversations").await.ok();
    let head = server.log().head().await;
    let answer = reqwest::get(format!("http://{}/metrics", server.address())).await.expect("an answer");
    let format = answer.headers()["content-type"].to_str().expect("text").to_owned();
    assert!(format.starts_with("application/openmetrics-text"), "{format}");
    let text = answer.text().await.expect("text");
    for line in [
        format!("devmind_ledger_position {head}"),
        "devmind_ledger_open 1".to_owned(),
        "devmind_runs_active 0".to_owned(),
        "devmind_devices_online 0".to_owned(),
        format!("devmind_projection_position{{projection=\"conversation\"}} {head}"),
        "devmind_projection_failed{projection=\"tool_call\"} 0".to_owned(),
        "# EOF".to_owned(),
    ] {
        assert!(text.lines().any(|own| own == line), "{line} is missing in\n{text}");
    }
    server.finish().await;
}

#[tokio::test]
async fn a_run_under_way_and_a_device_that_is_connected_are_counted() {
    let server = TestServer::with_scripted(ScriptedModel::new([Script::new().text("half").hold()])).await;
    let folder = tempfile::tempdir().unwrap();
    let device = TestDevice::start(&server, "ann", folder.path(), Arc::new(Fixed(true))).await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("hi")).await;
    let mut stream = ann.stream(&asked).await;
    stream.until("text", |event| event["delta"] == "half").await;
    let text = reqwest::get(format!("http://{}/metrics", server.address())).await.unwrap().text().await.unwrap();
    for line in ["devmind_runs_active 1", "devmind_devices_online 1"] {
        assert!(text.lines().any(|own| own == line), "{line} is missing in\n{text}");
    }
    assert_eq!(ann.stop(&asked.run_id).await, "cancelled");
    stream.rest().await;
    device.stop().await;
    server.finish().await;
}
