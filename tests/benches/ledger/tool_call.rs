//! One call of a device's tool, from the request to the acknowledged result: requested, dispatched, executed,
//! recorded and acknowledged, both journals durable, nobody asked; over HTTP, a socket and PostgreSQL.

use crate::load::{Callers, Measure};
use crate::table::Table;
use devmind_tests::{Question, ScriptedModel, TestDevice, TestServer, Turnstile};
use serde_json::json;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// More than any run of the bench can reach.
const NO_LIMIT: u32 = 1_000_000;

/// Calls of one device, by one caller and by sixteen.
pub async fn rows(measure: &Measure, table: &mut Table) {
    if !table.wants("tool call") {
        return;
    }
    let server = TestServer::on_postgres(ScriptedModel::new([]), |config| {
        config.limits.listings_per_minute = NO_LIMIT;
        config.limits.messages_per_second = NO_LIMIT;
        config.limits.message_burst = NO_LIMIT;
    })
    .await;
    let workspace = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(workspace.path().join("README.md"), "hello").expect("a file");
    let (confirm, _person) = Turnstile::new();
    let device = TestDevice::start(&server, "ann", workspace.path(), confirm).await;
    let client = server.client("ann");
    let asked = client.ask(&Question::new("for the bench").on(&device.id)).await;
    for callers in [1, 16] {
        let (client, run_id) = (client.clone(), asked.run_id.clone());
        let times = Arc::new(Mutex::new(Vec::new()));
        let noted = times.clone();
        let calls = Callers {
            callers,
            call: move |_, _| {
                let (client, noted) = (client.clone(), noted.clone());
                let body = json!({
                    "run_id": run_id, "tool_name": "workspace.list_files", "arguments": { "path": "." },
                });
                async move {
                    let began = Instant::now();
                    let answer = client.post("/api/desktop/dev/tool-calls", &body).await.ok();
                    assert_eq!(answer["ok"], true, "{answer}");
                    noted.lock().unwrap_or_else(PoisonError::into_inner).push(began.elapsed());
                }
            },
        };
        let rates = measure.side_by_side(&[&calls]).await;
        table.figure(&format!("tool call, PostgreSQL, {callers} callers"), rates[0], "calls/s");
        let mut times = std::mem::take(&mut *times.lock().unwrap_or_else(PoisonError::into_inner));
        times.sort_unstable();
        table.time(&format!("tool call, {callers} callers: p50"), share(&times, 50));
        table.time(&format!("tool call, {callers} callers: p99"), share(&times, 99));
    }
    device.stop().await;
    server.finish().await;
}

/// The time within which so many percent of the calls were answered.
fn share(sorted: &[Duration], percent: usize) -> Duration {
    sorted.get(sorted.len() * percent / 100).copied().unwrap_or_default()
}
