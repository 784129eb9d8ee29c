//! What a command costs on a conversation that has grown old, beside the same on a young one: both after
//! the ledger was opened anew, so that nothing is remembered but what is stored.

use crate::load::Measure;
use crate::ours;
use crate::table::Table;
use devmind_domain::conversation::{Ask, Conversation, ConversationCommand};
use devmind_domain::ids::{ConversationId, RunId, UserId};
use devmind_ledger::{Ledger, execute};
use std::path::Path;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Questions that are timed on each conversation.
const TIMED: u64 = 200;
/// Turns of the young conversation.
const YOUNG: u64 = 10;

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
    let early = timed(&file, &young).await;
    let late = timed(&file, &old).await;
    let name = format!("growth: a turn prepared at turn {} ÷ at turn {YOUNG}", measure.turns);
    table.at_most(&name, late.as_secs_f64() * 1e3, early.as_secs_f64() * 1e3, "ms", 1.2);
}

/// The mean time of a question, the first of which finds nothing in memory.
async fn timed(file: &Path, conversation: &ConversationId) -> Duration {
    let ledger = Ledger::open(file).await.expect("the ledger opens");
    let mut asking = Duration::ZERO;
    for _ in 0..TIMED {
        asking += turn(&ledger, conversation).await;
    }
    ledger.close().await;
    asking / u32::try_from(TIMED).expect("a small number")
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
