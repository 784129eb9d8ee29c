//! One task per projection: follows the log, applies, tells who waits.
//!
//! A projection that fails on an event stops alone, with position and reason on record; the others
//! go on. It is tried again a few times, further and further apart, by this process and those after it; an
//! attempt that ends the process is one of them. Then it waits for an operator or a rebuild.

use crate::apply::{Applied, Begun, Failure, Progress, apply, begin, begin_rebuild, fail, forgive, stored};
use crate::db::Pool;
use crate::error::ViewError;
use crate::projection::Projection;
use crate::rebuild::{RebuildReport, rebuild_these};
use crate::skips;
use crate::store::Store;
use devmind_domain::event::RecordedEvent;
use devmind_ledger::{Follower, LedgerError, LedgerReader, Place};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Events in one transaction, at most: projections take turns at the file.
const MAX_EVENTS_PER_TRANSACTION: usize = 500;
/// Pause before log or file are tried again, or a failed projection looks whether somebody has helped it; the
/// second attempt at an event comes after one, each further one after twice as many as the one before.
const PAUSE: Duration = Duration::from_secs(1);
/// How long news are gathered before they are applied together, unless somebody waits for them.
const GATHER: Duration = Duration::from_millis(20);

/// One projection to keep up to date.
pub(crate) struct Task {
    pub projection: &'static dyn Projection,
    pub progress: watch::Sender<Progress>,
    /// The position that somebody waits for.
    pub wanted: watch::Receiver<u64>,
    /// Whether the rows are of another version, and have to be replaced first.
    pub outdated: bool,
}

/// Keeps the views up to date.
pub struct ProjectionRunner {
    place: Place,
    store: Store,
    ledger: LedgerReader,
    tasks: Vec<Task>,
}

impl ProjectionRunner {
    pub(crate) fn new(place: Place, store: Store, ledger: LedgerReader, tasks: Vec<Task>) -> Self {
        Self { place, store, ledger, tasks }
    }

    /// Follows the log until cancelled, or until the ledger is closed. A transaction under way is finished first.
    pub async fn run(self, cancel: CancellationToken) {
        let mut running = JoinSet::new();
        let at_risk = Arc::new(Mutex::new(()));
        for task in self.tasks {
            let (place, store, at_risk) = (self.place.clone(), self.store.clone(), at_risk.clone());
            let (ledger, cancel) = (self.ledger.clone(), cancel.clone());
            let keeper = Keeper { task, place, store, ledger, cancel, at_risk, care: Care::Counted };
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
    place: Place,
    store: Store,
    ledger: LedgerReader,
    cancel: CancellationToken,
    /// Held from when an attempt is counted to when it is over: an attempt that ends the process must not
    /// be counted for the others as well.
    at_risk: Arc<Mutex<()>>,
    care: Care,
}

/// Why the log is followed from another position, or not at all.
enum Turn {
    Ended,
    Moved,
    Pause,
}

/// How much is trusted to be applied together.
#[derive(Clone, Copy)]
enum Care {
    /// Whole batches.
    Little,
    /// The next attempt is counted before it is made: the first one after a start or a failure.
    Counted,
    /// So are as many events, each alone: an attempt did not come back, and one of them ended it.
    Alone(usize),
}

impl Keeper {
    async fn keep(mut self) {
        while self.task.outdated {
            if self.replace().await.is_break() || (self.task.outdated && self.pause().await.is_break()) {
                return;
            }
        }
        loop {
            match self.follow().await {
                Turn::Ended => return,
                Turn::Moved => continue,
                Turn::Pause => {}
            }
            if self.pause().await.is_break() {
                return;
            }
            self.care = Care::Counted;
        }
    }

    fn name(&self) -> &'static str {
        self.task.projection.name()
    }

    /// Builds the rows of this version beside those of another, which are served as they are, and swaps.
    async fn replace(&mut self) -> ControlFlow<()> {
        let (name, pool) = (self.name(), self.store.write.clone());
        let begun = match begin_rebuild(&pool, self.task.projection).await {
            Ok(begun) => begun,
            Err(error) => {
                self.views_failed(&error);
                return ControlFlow::Continue(());
            }
        };
        match begun {
            Begun::Attempt(_) => {}
            // Another process was faster.
            Begun::Moved(now) => {
                self.task.outdated = false;
                self.task.progress.send_replace(now);
                return ControlFlow::Continue(());
            }
            Begun::Halted(now) => {
                self.stopped(now);
                return ControlFlow::Continue(());
            }
            Begun::Superseded { version } => {
                self.superseded(version);
                return ControlFlow::Continue(());
            }
        }
        tracing::info!(projection.name = name, version = self.task.projection.version(), "building a new version");
        let (place, ledger) = (self.place.clone(), self.ledger.clone());
        let building = rebuild_these(place, &ledger, vec![self.task.projection], |_, _| {});
        let built = tokio::select! {
            biased;
            () = self.cancel.cancelled() => {
                // An end in order is no failed attempt.
                if let Err(error) = self.uncount(&pool).await {
                    self.views_failed(&error);
                }
                return ControlFlow::Break(());
            }
            built = building => built.and_then(RebuildReport::whole),
        };
        let now = match built {
            Ok(_) => stored(&self.store.read, name).await.map(|(_, now)| now),
            Err(ViewError::Failed { position, reason, .. }) => match fail(&pool, name, position, &reason).await {
                Ok(now) => {
                    self.stopped(now);
                    return ControlFlow::Continue(());
                }
                Err(error) => Err(error),
            },
            Err(error) => {
                tracing::warn!(projection.name = name, error = %error, "a new version could not be built; trying again");
                self.uncount(&pool).await
            }
        };
        match now {
            Ok(now) => {
                self.task.outdated = now.failed.is_some() || !self.is_current().await;
                self.task.progress.send_replace(now);
            }
            Err(error) => {
                self.views_failed(&error);
            }
        }
        ControlFlow::Continue(())
    }

    /// What was counted was not the events' fault.
    async fn uncount(&self, pool: &Pool) -> Result<Progress, sqlx::Error> {
        let mut work = pool.begin().await?;
        forgive(&mut work, self.name()).await?;
        work.commit().await?;
        stored(pool, self.name()).await.map(|(_, now)| now)
    }

    async fn is_current(&self) -> bool {
        let version = self.task.projection.version();
        stored(&self.store.read, self.name()).await.is_ok_and(|(stored, _)| stored == version)
    }

    /// Waits until it is time to try again: soon for trouble that is not the event's, later with each attempt
    /// at an event, and for somebody's help where there were enough of them.
    async fn pause(&self) -> ControlFlow<()> {
        let mut waited = Duration::ZERO;
        loop {
            tokio::select! {
                () = self.cancel.cancelled() => return ControlFlow::Break(()),
                () = tokio::time::sleep(PAUSE) => waited += PAUSE,
            }
            let failed = self.task.progress.borrow().failed.clone();
            let again = failed.is_none_or(|failed| !failed.halted && waited >= spacing(failed.attempts));
            if again || self.was_helped().await {
                return ControlFlow::Continue(());
            }
        }
    }

    /// Applies batch after batch from where the projection stands.
    async fn follow(&mut self) -> Turn {
        let skips = match skips::of(&self.ledger, self.task.projection).await {
            Ok(skips) => skips,
            Err(error) => return self.log_failed(&error),
        };
        let mut follower = self.ledger.follow(self.task.progress.borrow().position);
        loop {
            let next = tokio::select! {
                biased;
                () = self.cancel.cancelled() => return Turn::Ended,
                next = gathered(&mut follower, &mut self.task.wanted) => next,
            };
            let events = match next {
                Ok(events) => events,
                Err(error) => return self.log_failed(&error),
            };
            for events in events.chunks(MAX_EVENTS_PER_TRANSACTION) {
                if let ControlFlow::Break(turn) = self.apply_carefully(&skips, events).await {
                    return turn;
                }
            }
        }
    }

    fn log_failed(&self, error: &LedgerError) -> Turn {
        if matches!(error, LedgerError::Closed) {
            return Turn::Ended;
        }
        tracing::warn!(projection.name = self.name(), error = %error, "the log cannot be read; trying again");
        Turn::Pause
    }

    async fn apply_carefully(&mut self, skips: &BTreeSet<u64>, events: &[Arc<RecordedEvent>]) -> ControlFlow<Turn> {
        let mut rest = events;
        while !rest.is_empty() {
            let at_risk = self.at_risk.clone();
            let _alone = match self.care {
                Care::Little => None,
                Care::Counted | Care::Alone(_) => Some(at_risk.lock().await),
            };
            let together = match self.care {
                Care::Little => rest.len(),
                Care::Counted if self.begin().await? == 1 => rest.len(),
                Care::Counted => {
                    self.care = Care::Alone(MAX_EVENTS_PER_TRANSACTION);
                    1
                }
                Care::Alone(_) => {
                    self.begin().await?;
                    1
                }
            };
            let (now, later) = rest.split_at(together);
            self.apply(skips, now).await?;
            self.care = match self.care {
                Care::Alone(left) if left > 1 => Care::Alone(left - 1),
                Care::Alone(_) | Care::Counted | Care::Little => Care::Little,
            };
            rest = later;
        }
        ControlFlow::Continue(())
    }

    /// Counts an attempt; answers which one it is.
    async fn begin(&self) -> ControlFlow<Turn, u32> {
        let from = self.task.progress.borrow().position;
        match begin(&self.store.write, self.task.projection, from).await {
            Ok(Begun::Attempt(attempt)) => ControlFlow::Continue(attempt),
            Ok(Begun::Halted(now)) => ControlFlow::Break(self.stopped(now)),
            Ok(Begun::Moved(now)) => ControlFlow::Break(self.moved(now)),
            Ok(Begun::Superseded { version }) => ControlFlow::Break(self.superseded(version)),
            Err(error) => ControlFlow::Break(self.views_failed(&error)),
        }
    }

    async fn apply(&self, skips: &BTreeSet<u64>, events: &[Arc<RecordedEvent>]) -> ControlFlow<Turn> {
        let from = self.task.progress.borrow().position;
        let applying = apply(&self.store.write, self.task.projection, skips, from, events);
        let turn = match kill_point::around(|| format!("apply {}", self.name()), applying).await {
            Ok(Applied::Now(now)) if now.failed.is_none() => {
                self.task.progress.send_replace(now);
                return ControlFlow::Continue(());
            }
            Ok(Applied::Now(now)) => self.stopped(now),
            Ok(Applied::Moved(now)) => self.moved(now),
            Ok(Applied::Superseded { version }) => self.superseded(version),
            Err(error) => self.views_failed(&error),
        };
        ControlFlow::Break(turn)
    }

    fn stopped(&self, now: Progress) -> Turn {
        if let Some(Failure { position, reason, attempts, halted }) = &now.failed {
            let next = match halted {
                true => "it waits for `devmind-replay projection resume` or `skip`",
                false => "it is tried again",
            };
            tracing::error!(
                projection.name = self.name(),
                event.position = position,
                reason,
                attempts,
                "the projection stopped at an event, others go on; {next}"
            );
        }
        self.task.progress.send_replace(now);
        Turn::Pause
    }

    fn moved(&self, now: Progress) -> Turn {
        let failed = now.failed.is_some();
        self.task.progress.send_replace(now);
        if failed { Turn::Pause } else { Turn::Moved }
    }

    fn superseded(&self, version: u32) -> Turn {
        let reason = format!("another program keeps version {version} of it in the same file");
        tracing::error!(projection.name = self.name(), reason, "the projection stopped");
        self.task.progress.send_modify(|now| {
            now.failed = Some(Failure { position: now.position + 1, reason, attempts: 0, halted: true });
        });
        Turn::Pause
    }

    fn views_failed(&self, error: &sqlx::Error) -> Turn {
        tracing::warn!(projection.name = self.name(), error = %error, "the view cannot be written; trying again");
        Turn::Pause
    }

    /// Whether somebody resumed it or rebuilt its rows since the failure; then it goes on from there.
    async fn was_helped(&self) -> bool {
        match stored(&self.store.read, self.name()).await {
            Ok((version, now))
                if now.failed.is_none() && (self.task.outdated || version == self.task.projection.version()) =>
            {
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

/// The next events: at once where somebody waits for them, else with what comes in the next moment.
async fn gathered(
    follower: &mut Follower,
    wanted: &mut watch::Receiver<u64>,
) -> Result<Vec<Arc<RecordedEvent>>, LedgerError> {
    let mut events = follower.next().await?;
    let first = events.first().map_or(0, |event| event.position);
    if events.len() < MAX_EVENTS_PER_TRANSACTION {
        // Nobody can wait any more where the handle is gone.
        let hurry = async {
            if wanted.wait_for(|wanted| *wanted >= first).await.is_err() {
                std::future::pending().await
            }
        };
        drop(tokio::time::timeout(GATHER, hurry).await);
        if follower.is_behind() {
            events.extend(follower.next().await?);
        }
    }
    Ok(events)
}

/// How long after an attempt the next one is made.
fn spacing(attempts: u32) -> Duration {
    PAUSE * 2_u32.saturating_pow(attempts.saturating_sub(1))
}
