//! When heads of the log are signed: as it grows, when somebody asks, and last at the stop.

use crate::config::ServerConfig;
use crate::ids::now;
use crate::lifecycle::StartError;
use crate::state::App;
use devmind_domain::ErrorCode;
use devmind_ledger::LedgerReader;
use devmind_ledger::proof::{CheckpointRecord, RecordError};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// A checkpoint is published after so many events …
const EVERY_EVENTS: u64 = 1_000;
/// … and where the log grew at all, after so long.
const EVERY: Duration = Duration::from_secs(60);
/// How often is looked.
const LOOK: Duration = Duration::from_secs(1);

/// Opens the key and the record of checkpoints, and compares the log with the newest of them.
pub(crate) async fn open(config: &ServerConfig, reader: &LedgerReader) -> Result<CheckpointRecord, StartError> {
    let key = config.checkpoint_key.as_deref();
    let opened = CheckpointRecord::open(&config.data, key, reader.clone(), seed).await;
    opened.map_err(|error| {
        let hint = match &error {
            RecordError::Forked { .. } => {
                "restore the ledger from a newer copy; to go on with this one all the same, move checkpoints.jsonl away"
            }
            RecordError::Key(_) => "name a readable key with checkpoint_key, or leave it out",
            RecordError::File { .. } => "check its permissions; checkpoints.jsonl can be moved away",
            RecordError::Ledger(error) => error.code().help(),
        };
        StartError { hint: Some(hint.to_owned()), ..StartError::new(error.code(), error) }
    })
}

fn seed() -> io::Result<[u8; 32]> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(io::Error::other)?;
    Ok(seed)
}

/// Publishes a checkpoint after so many events or so long, until the process stops.
pub(crate) async fn publish_as_the_log_grows(app: Arc<App>) {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut published_at = Instant::now();
    loop {
        tokio::select! {
            () = app.stopping.cancelled() => return,
            _ = looks.tick() => {}
        }
        let Ok(head) = app.ledger.reader().head().await else { continue };
        let grown = head.position.saturating_sub(app.checkpoints.newest_size().await);
        if grown >= EVERY_EVENTS || (grown > 0 && published_at.elapsed() >= EVERY) {
            publish(&app).await;
            published_at = Instant::now();
        }
    }
}

/// Publishes a checkpoint of the head. A failure is no reason to stop: the log is what counts.
pub(crate) async fn publish(app: &App) {
    if let Err(error) = app.checkpoints.publish(now()).await {
        tracing::error!(cause = %error, code = ErrorCode::as_str(error.code()), "no checkpoint was published");
    }
}
