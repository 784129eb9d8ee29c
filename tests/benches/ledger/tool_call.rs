//! One call of a device's tool, from the request to the acknowledged result: requested, dispatched, executed,
//! recorded and acknowledged, both journals durable, nobody asked; over HTTP, a socket and PostgreSQL. Beside it, where
//! they are asked for, peers that list the same folder in one durable step.

mod kept;
mod peers;

use crate::load::{self, Callers, Measure, Work};
use crate::table::Table;
use devmind_tests::{Client, Question, ScriptedModel, TestDevice, TestServer, Turnstile};
use futures::FutureExt;
use futures::future::BoxFuture;
use peers::Peer;
pub use peers::Programs;
use serde_json::json;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// What wants this group of rows.
pub const GROUP: &str = "tool call";

/// More than any run of the bench can reach.
const NO_LIMIT: u32 = 1_000_000;
/// Callers, the least ratio to Restate's rate, and within what ninety-nine of a hundred calls are to be answered.
const GOALS: [(usize, f64, Option<Duration>); 2] = [(1, 2.5, None), (16, 4.0, Some(Duration::from_millis(10)))];

/// Calls of one device, by one caller and by sixteen; side by side with the peers, if there are any.
pub async fn rows(measure: &Measure, table: &mut Table, programs: Option<&Programs>) {
    if !table.wants(GROUP) {
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

    let mut contenders = vec![ours(client, asked.run_id)];
    if let Some(programs) = programs {
        contenders.push(theirs(Peer::restate(programs).await, workspace.path()));
        contenders.push(theirs(Peer::dbos(programs).await, workspace.path()));
    }
    for (callers, goal, p99) in GOALS {
        let works: Vec<_> = contenders.iter().map(|contender| contender.callers(callers)).collect();
        let works: Vec<_> = works.iter().map(|work| work as &dyn Work).collect();
        let rates = measure.side_by_side(&works).await;
        for (contender, rate) in contenders.iter().zip(&rates) {
            let (name, times) = (format!("{GROUP}, {callers} callers: {}", contender.name), contender.times());
            table.figure(&name, *rate, "calls/s");
            table.time(&format!("{name}, p50"), share(&times, 50), None);
            table.time(&format!("{name}, p99"), share(&times, 99), p99.filter(|_| contender.name == OURS));
        }
        if let [ours, restate, ..] = rates[..] {
            let name = format!("{GROUP}, {callers} callers: {OURS}");
            table.at_least(&name, ours, "calls/s", ("Restate", restate), goal);
        }
    }
    drop(contenders);
    device.stop().await;
    server.finish().await;
}

const OURS: &str = "ours";

/// Who does one thing when called, and the times within which it was done.
struct Contender {
    name: &'static str,
    call: Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
    times: Arc<Mutex<Vec<Duration>>>,
}

impl Contender {
    fn new<F: Future<Output = ()> + Send + 'static>(
        name: &'static str,
        call: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self {
        Self { name, call: Arc::new(move || call().boxed()), times: Arc::default() }
    }

    /// So many callers of it, whose times are noted.
    fn callers(&self, callers: usize) -> Callers<impl Fn(usize, u64) -> BoxFuture<'static, ()> + Clone + use<>> {
        let (call, times) = (self.call.clone(), self.times.clone());
        let timed = move |_, _| {
            let (done, times) = (call(), times.clone());
            async move {
                let began = Instant::now();
                done.await;
                times.lock().unwrap_or_else(PoisonError::into_inner).push(began.elapsed());
            }
            .boxed()
        };
        let on = if self.name == OURS { Handle::current() } else { load::peers().clone() };
        Callers { callers, on, call: timed }
    }

    /// The times since they were last taken, the shortest first.
    fn times(&self) -> Vec<Duration> {
        let mut times = std::mem::take(&mut *self.times.lock().unwrap_or_else(PoisonError::into_inner));
        times.sort_unstable();
        times
    }
}

/// A device of ours lists its workspace.
fn ours(client: Client, run_id: String) -> Contender {
    Contender::new(OURS, move || {
        let client = client.clone();
        let body = json!({ "run_id": run_id, "tool_name": "workspace.list_files", "arguments": { "path": "." } });
        async move {
            let answer = client.post("/api/desktop/dev/tool-calls", &body).await.ok();
            assert_eq!(answer["ok"], true, "{answer}");
        }
    })
}

/// A peer lists the same folder.
fn theirs(peer: Peer, folder: &Path) -> Contender {
    let folder = folder.to_owned();
    Contender::new(peer.name, move || {
        let names = peer.list(&folder);
        async move { assert_eq!(names.await, ["README.md"]) }
    })
}

/// The time within which so many percent of the calls were answered.
fn share(sorted: &[Duration], percent: usize) -> Duration {
    sorted.get(sorted.len() * percent / 100).copied().unwrap_or_default()
}
