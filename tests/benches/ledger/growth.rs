//! What a command costs on a conversation that has grown old, beside the same on a young one: both after
//! the ledger was opened anew, so that nothing is remembered but what is stored. And what an append costs in a log
//! that has grown long, beside the same in a short one.

use crate::load::{Callers, Measure};
use crate::table::Table;
use crate::{ours, read};
use devmind_domain::conversation::{Ask, Conversation, ConversationCommand};
use devmind_domain::ids::{ConversationId, RunId, UserId};
use devmind_ledger::{Append, Ledger, execute};
use futures::{StreamExt, stream};
use std::path::Path;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Questions that are timed on each conversation.
const TIMED: u64 = 200;
/// Turns of the young conversation.
const YOUNG: u64 = 10;
/// Events of the short log.
const SHORT: u64 = 10_000;
/// Callers that append.
const CALLERS: usize = 64;

/// Prepares turns of a conversation that has ten, and of one that has thousands.
pub async fn rows(measure: &Measure, table: &mut Table) {
    if !table.wants("growth") {
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

/// Appends to a log of ten thousand events, and to the same when it has grown.
async fn appends(measure: &Measure, table: &mut Table) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ledger = Ledger::open(&folder.path().join("ledger.sqlite")).await.expect("the ledger opens");
    let (store, metadata) = (ledger.clone(), ours::metadata());
    let append = Callers {
        callers: CALLERS,
        call: move |caller, n| {
            ours::carry_out(store.clone(), metadata.clone(), ours::stream(caller, n), ours::key(caller, n))
        },
    };
    fill(&ledger, 0, SHORT).await;
    let early = measure.side_by_side(&[&append]).await[0];
    fill(&ledger, SHORT, measure.grown).await;
    let late = measure.side_by_side(&[&append]).await[0];
    ledger.close().await;
    let name = format!("growth: an append, SQLite, {CALLERS} callers, at {} events ÷ at {SHORT}", measure.grown);
    table.at_most(&name, 1e6 / late, 1e6 / early, "µs", 1.3);
}

/// Adds events until there are about so many.
async fn fill(ledger: &Ledger, from: u64, to: u64) {
    let commands = (from / read::STREAM)..(to / read::STREAM);
    let appending =
        stream::iter(commands).map(|n| ledger.append(Append { streams: read::devices(n), idempotency: None }));
    appending.buffer_unordered(CALLERS).for_each(|done| async { drop(done.expect("appended")) }).await;
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
