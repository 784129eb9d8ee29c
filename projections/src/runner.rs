//! One task per projection: follows the log, applies, tells who waits.
//!
//! A projection that fails on an event stops alone, with position and reason on record; the others
//! go on. It is tried again at the next start, or as soon as a rebuild has moved it.

use crate::apply::{Applied, Failure, Progress, apply, stored};
use crate::projection::Projection;
use crate::store::Store;
use devmind_domain::event::RecordedEvent;
use devmind_ledger::{LedgerError, LedgerReader};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Events in one transaction, at most: projections take turns at the file.
const MAX_EVENTS_PER_TRANSACTION: usize = 500;
/// Pause before log or file are tried again, or a failed projection looks whether a rebuild has helped it.
const PAUSE: Duration = Duration::from_secs(1);

/// One projection to keep up to date.
pub(crate) struct Task {
    pub projection: &'static dyn Projection,
    pub progress: watch::Sender<Progress>,
}

/// Keeps the views up to date.
pub struct ProjectionRunner {
    store: Store,
    ledger: LedgerReader,
    tasks: Vec<Task>,
}

impl ProjectionRunner {
    pub(crate) fn new(store: Store, ledger: LedgerReader, tasks: Vec<Task>) -> Self {
        Self { store, ledger, tasks }
    }

    /// Follows the log until cancelled, or until the ledger is closed. A transaction under way is finished first.
    pub async fn run(self, cancel: CancellationToken) {
        let mut running = JoinSet::new();
        for task in self.tasks {
            let keeper =
                Keeper { task, store: self.store.clone(), ledger: self.ledger.clone(), cancel: cancel.clone() };
            running.spawn(keeper.keep());
        }
        while let Some(ended) = running.join_next().await {
            if let Err(error) = ended {
                tracing::error!(error = %error, "a projection's task ended by a panic");
            }
        }
    }
}

/// What one task works with.
struct Keeper {
    task: Task,
    store: Store,
    ledger: LedgerReader,
    cancel: CancellationToken,
}

/// Why the log is followed from another position, or not at all.
enum Turn {
    Ended,
    Moved,
    Pause,
}

impl Keeper {
    async fn keep(self) {
        loop {
            match self.follow().await {
                Turn::Ended => return,
                Turn::Moved => continue,
                Turn::Pause => {}
            }
            loop {
                tokio::select! {
                    () = self.cancel.cancelled() => return,
                    () = tokio::time::sleep(PAUSE) => {}
                }
                if self.task.progress.borrow().failed.is_none() || self.was_helped().await {
                    break;
                }
            }
        }
    }

    fn name(&self) -> &'static str {
        self.task.projection.name()
    }

    /// Applies batch after batch from where the projection stands.
    async fn follow(&self) -> Turn {
        let mut follower = self.ledger.follow(self.task.progress.borrow().position);
        loop {
            let next = tokio::select! {
                biased;
                () = self.cancel.cancelled() => return Turn::Ended,
                next = follower.next() => next,
            };
            let events = match next {
                Ok(events) => events,
                Err(LedgerError::Closed) => return Turn::Ended,
                Err(error) => {
                    tracing::warn!(projection.name = self.name(), error = %error, "the log cannot be read; trying again");
                    return Turn::Pause;
                }
            };
            for events in events.chunks(MAX_EVENTS_PER_TRANSACTION) {
                if let ControlFlow::Break(turn) = self.apply(events).await {
                    return turn;
                }
            }
        }
    }

    async fn apply(&self, events: &[Arc<RecordedEvent>]) -> ControlFlow<Turn> {
        let from = self.task.progress.borrow().position;
        let turn = match apply(&self.store.write, self.task.projection, from, events).await {
            Ok(Applied::Now(now)) => {
                let failed = now.failed.clone();
                self.task.progress.send_replace(now);
                match failed {
                    None => return ControlFlow::Continue(()),
                    Some(failure) => {
                        tracing::error!(
                            projection.name = self.name(),
                            event.position = failure.position,
                            reason = failure.reason,
                            "the projection stopped at an event; others go on, it is tried again at the next start"
                        );
                        Turn::Pause
                    }
                }
            }
            Ok(Applied::Moved(now)) => {
                self.task.progress.send_replace(Progress { failed: None, ..now });
                Turn::Moved
            }
            Ok(Applied::Superseded { version }) => {
                let reason = format!("another program keeps version {version} of it in the same file");
                tracing::error!(projection.name = self.name(), reason, "the projection stopped");
                let failed = Some(Failure { position: from + 1, reason });
                self.task.progress.send_modify(|now| now.failed = failed);
                Turn::Pause
            }
            Err(error) => {
                tracing::warn!(projection.name = self.name(), error = %error, "the view cannot be written; trying again");
                Turn::Pause
            }
        };
        ControlFlow::Break(turn)
    }

    /// Whether somebody rebuilt the rows since the failure; then it goes on from there.
    async fn was_helped(&self) -> bool {
        match stored(&self.store.read, self.name()).await {
            Ok((version, now)) if version == self.task.projection.version() && now.failed.is_none() => {
                self.task.progress.send_replace(now);
                true
            }
            Ok(_) => false,
            Err(error) => {
                tracing::warn!(projection.name = self.name(), error = %error, "the view cannot be read; trying again");
                false
            }
        }
    }
}
