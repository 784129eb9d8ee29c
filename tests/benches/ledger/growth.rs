//! What a command costs on a conversation that has grown old, beside the same on a young one: both after
//! the ledger was opened anew, so that nothing is remembered but what is stored. And what an append costs in a log
//! that has grown long, beside the same in a short one, in the same rounds.

use crate::load::{Callers, Measure, Work};
use crate::progress::Progress;
use crate::table::Table;
use crate::{ours, read};
use devmind_domain::conversation::{Ask, Conversation, ConversationCommand};
use devmind_domain::ids::{ConversationId, RunId, UserId};
use devmind_ledger::{Append, Ledger, execute};
use futures::{StreamExt, stream};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use uuid::Uuid;

/// What wants this group of rows.
const GROUP: &str = "growth";
/// Questions that are timed on each conversation.
const TIMED: u64 = 200;
/// Turns of the young conversation.
const YOUNG: u64 = 10;
/// Events of the short log.
const SHORT: u64 = 10_000;
/// Callers that append.
const CALLERS: usize = 64;
/// What an event takes of the disk, with its indexes and some room for what is not yet in its place (bytes).
const EVENT_BYTES: u64 = 1_200;

/// Sees that the log that grows long has room on the disk.
///
/// # Errors
/// What it needs, and what there is.
pub fn room(measure: &Measure, table: &Table) -> Result<(), String> {
    const MIB: u64 = 1 << 20;
    let folder = std::env::temp_dir();
    let disk = rustix::fs::statvfs(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let (needs, free) = (measure.grown * EVENT_BYTES / MIB, disk.f_bavail * disk.f_frsize / MIB);
    if !table.wants(GROUP) || needs <= free {
        return Ok(());
    }
    let (events, folder) = (measure.grown, folder.display());
    Err(format!(
        "a log of {events} events needs {needs} MiB in {folder}, which has {free} MiB: set TMPDIR, or grow less"
    ))
}

/// Prepares turns of a conversation that has ten, and of one that has thousands.
pub async fn rows(measure: &Measure, table: &mut Table) {
    if !table.wants(GROUP) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("ledger.sqlite");
    let (old, young) = (ConversationId::from("old"), ConversationId::from("young"));
    let ledger = Ledger::open(&file).await.expect("the ledger opens");
    for (conversation, turns) in [(&old, measure.turns), (&young, YOUNG)] {
        for _ in 0..turns {
            turn(&ledger, conversation).await;
        }
    }
    ledger.close().await;
    let (early, late) = timed(&file, &young, &old).await;
    let name = format!("growth: a turn prepared at turn {} ÷ at turn {YOUNG}", measure.turns);
    table.at_most(&name, late.as_secs_f64() * 1e3, early.as_secs_f64() * 1e3, "ms", 1.2);
    appends(measure, table).await;
}

/// Appends to a log of ten thousand events, and to one that has grown.
async fn appends(measure: &Measure, table: &mut Table) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ledger = filled(folder.path(), measure.grown).await;
    let rates = measure.side_by_side(&[&Short, &appending(&ledger)]).await;
    ledger.close().await;
    let name = format!("growth: an append, SQLite, {CALLERS} callers, at {} events ÷ at {SHORT}", measure.grown);
    table.at_most(&name, 1e6 / rates[1], 1e6 / rates[0], "µs", 1.3);
}

/// Appends to a log that is new in every round: measuring makes it grow.
struct Short;

#[async_trait::async_trait(?Send)]
impl Work for Short {
    async fn rate(&self, warm_up: Duration, each: Duration) -> f64 {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let ledger = filled(folder.path(), SHORT).await;
        let rate = appending(&ledger).rate(warm_up, each).await;
        ledger.close().await;
        rate
    }
}

fn appending(ledger: &Ledger) -> impl Work + use<> {
    let (ledger, metadata) = (ledger.clone(), ours::metadata());
    Callers {
        callers: CALLERS,
        on: Handle::current(),
        call: move |caller, n| {
            ours::carry_out(ledger.clone(), metadata.clone(), ours::stream(caller, n), ours::key(caller, n))
        },
    }
}

/// A log of about so many events.
async fn filled(folder: &Path, events: u64) -> Ledger {
    let ledger = Ledger::open(&folder.join("ledger.sqlite")).await.expect("the ledger opens");
    let mut progress = Progress::new("growth: events appended", events);
    let mut appending = stream::iter(0..events / read::STREAM)
        .map(|n| ledger.append(Append { streams: read::devices(n), idempotency: None }))
        .buffer_unordered(CALLERS);
    while let Some(done) = appending.next().await {
        done.expect("appended");
        progress.add(read::STREAM);
    }
    drop(appending);
    ledger
}

/// The mean times of a question on each, in turns, so that whatever else the machine does touches both; the first
/// of each finds nothing in memory.
async fn timed(file: &Path, young: &ConversationId, old: &ConversationId) -> (Duration, Duration) {
    let ledger = Ledger::open(file).await.expect("the ledger opens");
    let (mut early, mut late) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..TIMED {
        early += turn(&ledger, young).await;
        late += turn(&ledger, old).await;
    }
    ledger.close().await;
    let count = u32::try_from(TIMED).expect("a small number");
    (early / count, late / count)
}

/// Asks, then takes the question back, so that the next one can be asked. How long the asking took.
async fn turn(ledger: &Ledger, conversation: &ConversationId) -> Duration {
    let (user_id, run_id) = (UserId::from("user-1"), RunId::from(id()));
    let ask = ConversationCommand::Ask(Ask {
        user_id: user_id.clone(),
        existing: false,
        turn_id: id().into(),
        message_id: id().into(),
        run_id: run_id.clone(),
        graph_thread_id: id().into(),
        content: "x".repeat(ours::PAYLOAD_BYTES / 2),
        device_id: None,
    });
    let metadata = ours::metadata();
    let began = Instant::now();
    execute::<Conversation>(ledger, conversation.as_str(), &metadata, ask, None).await.expect("asked");
    let took = began.elapsed();
    let stop = ConversationCommand::Stop { user_id, run_id };
    execute::<Conversation>(ledger, conversation.as_str(), &metadata, stop, None).await.expect("stopped");
    took
}

fn id() -> String {
    Uuid::now_v7().to_string()
}
