//! The figures for Prometheus say what the ledger and the views say.

use devmind_tests::{Question, Script, ScriptedModel, TestServer};

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
