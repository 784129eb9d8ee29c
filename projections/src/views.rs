//! The handle that everybody reads through: opening, waiting for one's own write, status.
//!
//! What each view answers stands beside its projection (`read.rs`).

use crate::apply::{Failure, Progress, stored};
use crate::db::Pool;
use crate::error::ViewError;
use crate::projection::Projection;
use crate::rebuild::PAGE;
use crate::registry::PROJECTIONS;
use crate::runner::{ProjectionRunner, Task};
use crate::store::{Projections, Store};
use crate::unread::{Unread, apply_what_can};
use devmind_ledger::{LedgerReader, Place};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// A reader waits this long for its own write, at most.
const WAIT: Duration = Duration::from_secs(5);

/// The views. A cheap handle; clones share their connections.
#[derive(Clone)]
pub struct Views {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    ledger: LedgerReader,
    /// Names and versions of this program's.
    projections: Vec<(&'static str, u32)>,
    progress: Vec<Awaited>,
}

/// A projection as those who wait for it see it.
struct Awaited {
    name: &'static str,
    progress: watch::Receiver<Progress>,
    /// The position that somebody waits for: until then the runner takes its time.
    wanted: watch::Sender<u64>,
}

/// How a projection stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProjectionStatus {
    /// Its name.
    pub name: String,
    /// The version that its rows are of.
    pub version: u32,
    /// The version of this program: where the rows are of another, they are being rebuilt.
    pub program_version: u32,
    /// The last event it has applied.
    pub position: u64,
    /// Events that it has not applied yet.
    pub lag: u64,
    /// The event it stopped at. It is tried a few times, also by later starts; once it is halted, an operator
    /// resumes the projection or has it pass over the event.
    pub failed: Option<Failure>,
    /// Events of unknown types that it passed.
    pub skipped_unknown: u64,
}

impl Views {
    /// Opens the views and prepares the runner that keeps them up to date. Missing views are made;
    /// damaged ones, and those of another log, are made anew; those of another version are served until the
    /// runner has built new ones beside them.
    ///
    /// # Errors
    /// When the log cannot be read, or the views cannot be written.
    pub async fn open(place: impl Into<Place>, ledger: LedgerReader) -> Result<(Self, ProjectionRunner), ViewError> {
        Self::open_with(place.into(), ledger, PROJECTIONS.to_vec()).await
    }

    pub(crate) async fn open_with(
        place: Place,
        ledger: LedgerReader,
        projections: Projections,
    ) -> Result<(Self, ProjectionRunner), ViewError> {
        let store = Store::open(&place, &ledger, &projections).await?;
        let (mut progress, mut tasks) = (Vec::new(), Vec::new());
        for projection in projections.iter().copied() {
            let (version, mut now) = stored(&store.read, projection.name()).await?;
            // What failed in an earlier life is tried again: until then it is merely behind.
            now.failed = now.failed.filter(|failure| failure.halted);
            let (sender, receiver) = watch::channel(now);
            let (wanted, is_wanted) = watch::channel(0);
            progress.push(Awaited { name: projection.name(), progress: receiver, wanted });
            let outdated = version != projection.version();
            tasks.push(Task { projection, progress: sender, wanted: is_wanted, outdated });
        }
        let runner = ProjectionRunner::new(place, store.clone(), ledger.clone(), tasks);
        Ok((Self { inner: Arc::new(Inner { store, ledger, projections: named(&projections), progress }) }, runner))
    }

    /// Views as they were when the log ended at `position`, made from that prefix, so nothing later leaks in and
    /// nothing is written; and without which events, because they cannot be understood. Takes time and room in a
    /// temporary file in proportion to the prefix, and memory of one page. `progress` is told positions (done, all).
    ///
    /// # Errors
    /// When the log cannot be read; [`ViewError::UnknownProjection`].
    pub async fn at(
        ledger: &LedgerReader,
        position: u64,
        views: &[&str],
        mut progress: impl FnMut(u64, u64) + Send,
    ) -> Result<(Self, Unread), ViewError> {
        let projections: Projections =
            views.iter().map(|name| crate::rebuild::named(name)).collect::<Result<_, _>>()?;
        let store = Store::unnamed(&projections).await?;
        let (mut unread, mut skips) = (Unread::default(), Vec::new());
        for projection in projections.iter().copied() {
            skips.push(unread.skips(ledger, projection).await?);
        }
        let mut reached = 0;
        while reached < position {
            let mut events = ledger.read(reached, PAGE).await?;
            events.retain(|event| event.position <= position);
            let Some(last) = events.last() else { break };
            for (projection, skips) in projections.iter().zip(&skips) {
                apply_what_can(&store.write, *projection, skips, reached, &events, &mut unread).await?;
            }
            reached = last.position;
            progress(reached, position);
        }
        let at_rest = |projection: &&'static dyn Projection| {
            // The sender goes at once: a position that was not reached now never will be.
            let (_, progress) = watch::channel(Progress { position: reached, ..Progress::default() });
            Awaited { name: projection.name(), progress, wanted: watch::Sender::new(reached) }
        };
        let progress = projections.iter().map(at_rest).collect();
        let projections = named(&projections);
        Ok((Self { inner: Arc::new(Inner { store, ledger: ledger.clone(), projections, progress }) }, unread))
    }

    /// Views over rows that nobody moves on.
    pub(crate) fn of_rows(store: Store, projections: &[&'static dyn Projection], ledger: LedgerReader) -> Self {
        Self { inner: Arc::new(Inner { store, ledger, projections: named(projections), progress: Vec::new() }) }
    }

    /// Waits until every projection has applied `position`: whoever appended it then reads its own write.
    ///
    /// A failed projection does not hold the others up: they are waited for, then it is named.
    ///
    /// # Errors
    /// [`ViewError::NotReady`] naming a projection that has failed before the position, that did not
    /// reach it within five seconds, or whose runner has ended.
    pub async fn wait_for(&self, position: u64) -> Result<(), ViewError> {
        let deadline = Instant::now() + WAIT;
        let mut outcome = Ok(());
        for awaited in &self.inner.progress {
            awaited.want(position);
        }
        for awaited in &self.inner.progress {
            outcome = outcome.and(awaited.reach(position, deadline).await);
        }
        outcome
    }

    /// The same for one projection, for a reader that needs no other: `conversation`, `tool_call`, `device`.
    ///
    /// # Errors
    /// As [`Self::wait_for`]; [`ViewError::UnknownProjection`].
    pub async fn wait_for_one(&self, projection: &str, position: u64) -> Result<(), ViewError> {
        let found = self.inner.progress.iter().find(|awaited| awaited.name == projection);
        let awaited = found.ok_or_else(|| ViewError::unknown_projection(projection))?;
        awaited.want(position);
        awaited.reach(position, Instant::now() + WAIT).await
    }

    /// How every projection stands, as stored with its rows.
    ///
    /// # Errors
    /// When views or log cannot be read.
    pub async fn status(&self) -> Result<Vec<ProjectionStatus>, ViewError> {
        standing(&self.inner.store.read, &self.inner.ledger, &self.inner.projections).await
    }

    /// Closes the connections, after the runner has ended.
    pub async fn close(&self) {
        self.inner.store.close().await;
    }

    #[cfg(test)]
    pub(crate) fn progress_of(&self, projection: &str) -> watch::Receiver<Progress> {
        let found = self.inner.progress.iter().find(|awaited| awaited.name == projection);
        found.expect("in the list").progress.clone()
    }

    /// The connections that read.
    pub(crate) fn read_pool(&self) -> &Pool {
        &self.inner.store.read
    }
}

/// Names and versions.
pub(crate) fn named(projections: &[&'static dyn Projection]) -> Vec<(&'static str, u32)> {
    projections.iter().map(|projection| (projection.name(), projection.version())).collect()
}

/// How projections stand, as stored with their rows.
pub(crate) async fn standing(
    pool: &Pool,
    ledger: &LedgerReader,
    projections: &[(&'static str, u32)],
) -> Result<Vec<ProjectionStatus>, ViewError> {
    let mut list = Vec::new();
    for (name, program_version) in projections {
        let (version, Progress { position, failed, attempts: _, skipped_unknown }) = stored(pool, name).await?;
        let (name, program_version) = ((*name).to_owned(), *program_version);
        list.push(ProjectionStatus { name, version, program_version, position, lag: 0, failed, skipped_unknown });
    }
    // Read after the positions: a lag is never negative.
    let head = ledger.head().await?.position;
    for status in &mut list {
        status.lag = head.saturating_sub(status.position);
    }
    Ok(list)
}

impl Awaited {
    fn want(&self, position: u64) {
        self.wanted.send_if_modified(|wanted| {
            let further = position > *wanted;
            *wanted = position.max(*wanted);
            further
        });
    }

    async fn reach(&self, position: u64, deadline: Instant) -> Result<(), ViewError> {
        let projection = self.name;
        let mut progress = self.progress.clone();
        let not_ready = |reason| ViewError::NotReady { projection, reason };
        let there = progress.wait_for(|now| now.position >= position || now.failed.is_some());
        let now = match timeout_at(deadline, there).await {
            Ok(Ok(now)) => now.clone(),
            Ok(Err(_)) => return Err(not_ready("its runner has ended".to_owned())),
            Err(_) => {
                return Err(not_ready(format!("it did not reach position {position} within {} s", WAIT.as_secs())));
            }
        };
        match now.failed {
            Some(failure) if now.position < position => {
                Err(not_ready(format!("it failed on event {}: {}", failure.position, failure.reason)))
            }
            Some(_) | None => Ok(()),
        }
    }
}
