//! Building rows from the log beside the live ones, and swapping them in while a server may keep serving. What was
//! built when the process ended is found again by the next that builds the same ([`Beside::kept`]).
//!
//! The swap is one transaction. A runner that keeps the same rows notices at its next batch: its
//! position is no longer the stored one, and it goes on from there.

use crate::apply::{Applied, apply, locked, reset, stored};
use crate::beside::Beside;
use crate::build::{Built, Drafted, Wanted, copy, draft, make_there, told, write};
use crate::compare::Schemas;
use crate::db::{Pool, values};
use crate::draft::Draft;
use crate::error::ViewError;
use crate::projection::Projection;
use crate::registry::PROJECTIONS;
use crate::skips;
use crate::store::postgres::SCHEMA;
use crate::store::{Projections, Store};
use devmind_ledger::{LedgerError, LedgerReader, Place};
use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Events read at once.
pub(crate) const PAGE: u32 = 500;
/// A live projection that moves on is caught up with this often before the rebuild gives up.
pub(crate) const MAX_CATCH_UPS: u32 = 100;

/// What a rebuild did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RebuildReport {
    /// Each projection with the position its rows now stand at.
    pub projections: Vec<(String, u64)>,
    /// Projections that could not be built, and at which event; their live rows are as before.
    pub failed: Vec<Unbuilt>,
    /// Events read, once for every projection.
    pub events: u64,
    /// Events that an interrupted rebuild had applied, counted in the same way.
    pub resumed: u64,
    /// How long it took (milliseconds).
    pub elapsed_ms: u64,
}

/// A projection that fails on an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unbuilt {
    /// The projection.
    pub name: &'static str,
    /// The event.
    pub position: u64,
    /// What happened.
    pub reason: String,
}

impl Unbuilt {
    /// What an error says of one projection; any other is an error of them all.
    pub(crate) fn of(error: ViewError) -> Result<Self, ViewError> {
        match error {
            ViewError::Failed { projection: name, position, reason } => Ok(Self { name, position, reason }),
            other => Err(other),
        }
    }
}

impl RebuildReport {
    /// The report, where nothing failed.
    ///
    /// # Errors
    /// [`ViewError::Failed`].
    pub fn whole(self) -> Result<Self, ViewError> {
        match self.failed.first().cloned() {
            None => Ok(self),
            Some(Unbuilt { name: projection, position, reason }) => {
                Err(ViewError::Failed { projection, position, reason })
            }
        }
    }

    /// Events in a second.
    pub fn events_per_second(&self) -> u64 {
        rate(self.events, self.elapsed_ms)
    }
}

/// Rebuilds every projection from the log. `progress` is told (events read, events to read). One that fails on an
/// event keeps the rows that it has; the others are rebuilt.
///
/// # Errors
/// When log or file cannot be used; the live rows are as before then.
pub async fn rebuild(
    views: impl Into<Place>,
    ledger: &LedgerReader,
    progress: impl FnMut(u64, u64) + Send,
) -> Result<RebuildReport, ViewError> {
    rebuild_these(views.into(), ledger, PROJECTIONS.to_vec(), progress).await
}

/// Rebuilds one projection.
///
/// # Errors
/// As [`rebuild`]; [`ViewError::UnknownProjection`].
pub async fn rebuild_one(
    views: impl Into<Place>,
    ledger: &LedgerReader,
    projection: &str,
    progress: impl FnMut(u64, u64) + Send,
) -> Result<RebuildReport, ViewError> {
    rebuild_these(views.into(), ledger, vec![named(projection)?], progress).await
}

pub(crate) async fn rebuild_these(
    views: Place,
    ledger: &LedgerReader,
    projections: Projections,
    progress: impl FnMut(u64, u64) + Send,
) -> Result<RebuildReport, ViewError> {
    let begun = Instant::now();
    // Makes the file where it is missing, and replaces one that is damaged.
    let live = Store::open(&views, ledger, &projections).await?;
    let beside = Beside::kept(&views, ledger, &projections).await?;
    let head = ledger.head().await?.position;
    let mut counter = Counter::new(head * projections.len() as u64, progress);
    let mut wanted = Vec::new();
    for projection in projections {
        wanted.push(Wanted { projection, from: beside.stands(projection).await?, to: head });
    }
    let resumed = wanted.iter().map(|wanted| wanted.from).sum();
    counter.add(resumed);
    let drafted = draft(&beside, ledger, &wanted, &mut |events| counter.add(events)).await?;
    beside.attach(&live.write).await?;
    let mut swapping = Vec::new();
    for drafted in drafted {
        swapping.push(swap_drafted(&live.write, &beside, ledger, head, drafted));
    }
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    let mut swapping = stream::iter(swapping).buffered(live.write.writers());
    while let Some((projection, swapped)) = swapping.try_next().await? {
        match swapped {
            Ok(position) => done.push((projection.name().to_owned(), position)),
            Err(unbuilt) => failed.push(unbuilt),
        }
    }
    drop(swapping);
    live.close().await;
    beside.remove().await?;
    let events = counter.done.saturating_sub(resumed);
    Ok(RebuildReport { projections: done, failed, events, resumed, elapsed_ms: millis(begun.elapsed()) })
}

async fn swap_drafted(
    live: &Pool,
    rebuilt: &Beside,
    ledger: &LedgerReader,
    to: u64,
    Drafted { projection, built, draft }: Drafted,
) -> Result<Built, ViewError> {
    let swapped = match (built, draft) {
        (Err(unbuilt), _) => Err(unbuilt),
        (Ok(_), None) => told(swap(live, rebuilt, ledger, projection).await)?,
        (Ok(_), Some(draft)) => match told(swap_draft(live, draft, ledger, projection).await)? {
            Ok(Some(position)) => Ok(position),
            Ok(None) => match told(make_there(rebuilt, ledger, projection, to).await)? {
                Ok(_) => told(swap(live, rebuilt, ledger, projection).await)?,
                Err(unbuilt) => Err(unbuilt),
            },
            Err(unbuilt) => Err(unbuilt),
        },
    };
    Ok((projection, swapped))
}

/// Puts a draft's rows in the place of the live ones, never behind where those stand; nothing where the database
/// refuses them.
pub(crate) async fn swap_draft(
    live: &Pool,
    mut draft: Draft,
    ledger: &LedgerReader,
    projection: &'static dyn Projection,
) -> Result<Option<u64>, ViewError> {
    for _ in 0..MAX_CATCH_UPS {
        let stands = draft.position(projection.name())?;
        let mut work = live.begin().await?;
        let (_, now) = locked(&mut work, projection.name()).await?;
        if now.position > stands {
            work.rollback().await?;
            let wanted = Wanted { projection, from: stands, to: now.position };
            let (drafts, built) = write(vec![(draft, vec![projection])], ledger, &[wanted], &mut |_| {}).await?;
            if let Some((_, Err(Unbuilt { name, position, reason }))) = built.into_iter().next() {
                return Err(ViewError::Failed { projection: name, position, reason });
            }
            let Some(caught_up) = drafts.into_iter().next() else { break };
            draft = caught_up;
            continue;
        }
        reset(&mut work, projection).await?;
        return match copy(draft, SCHEMA, &mut work, projection).await? {
            (_, true) => work.commit().await.map(|()| Some(stands)).map_err(ViewError::from),
            (_, false) => Ok(None),
        };
    }
    Err(always_ahead(projection))
}

fn always_ahead(projection: &dyn Projection) -> ViewError {
    let reason = format!("it was always ahead after {MAX_CATCH_UPS} catch-ups");
    ViewError::Contended { projection: projection.name(), reason }
}

/// Puts the rebuilt rows in the place of the live ones, never behind where those stand.
pub(crate) async fn swap(
    live: &Pool,
    rebuilt: &Beside,
    ledger: &LedgerReader,
    projection: &dyn Projection,
) -> Result<u64, ViewError> {
    let Schemas { live: to, rebuilt: from } = &rebuilt.schemas;
    for _ in 0..MAX_CATCH_UPS {
        let (_, beside) = stored(&rebuilt.store.write, projection.name()).await?;
        let mut work = live.begin().await?;
        let (_, live) = locked(&mut work, projection.name()).await?;
        if live.position > beside.position {
            work.rollback().await?;
            fill(&rebuilt.store, projection, ledger, beside.position, live.position, &mut |_| {}).await?;
            continue;
        }
        reset(&mut work, projection).await?;
        if work.is_postgres() {
            // Whole tables are copied.
            work.run("SET LOCAL enable_seqscan = on", &[]).await?;
        }
        for table in projection.tables() {
            work.run(&format!("INSERT INTO {to}.{table} SELECT * FROM {from}.{table}"), &[]).await?;
        }
        let position = format!(
            "UPDATE {to}.projection_position SET (position, leaf_hash, skipped_unknown) = (SELECT r.position, \
             r.leaf_hash, r.skipped_unknown FROM {from}.projection_position r WHERE r.name = $1) WHERE name = $1"
        );
        work.run(&position, &values![projection.name()]).await?;
        work.commit().await?;
        return Ok(beside.position);
    }
    Err(always_ahead(projection))
}

/// Applies the log to a store that nobody else writes, from one position up to another or the log's end.
/// Answers where it stands then; `count` is told the events of every page.
pub(crate) async fn fill(
    store: &Store,
    projection: &dyn Projection,
    ledger: &LedgerReader,
    from: u64,
    to: u64,
    count: &mut (dyn FnMut(u64) + Send),
) -> Result<u64, ViewError> {
    let skips = skips::of(ledger, projection).await.map_err(|error| unreadable(projection, error))?;
    let mut position = from;
    while position < to {
        let page = ledger.read_gapless(position, PAGE).await;
        let mut events = page.map_err(|error| unreadable(projection, error))?;
        events.retain(|event| event.position <= to);
        if events.is_empty() {
            break;
        }
        position = match apply(&store.write, projection, &skips, position, &events).await? {
            Applied::Now(now) => match now.failed {
                None => now.position,
                Some(failure) => {
                    return Err(ViewError::Failed {
                        projection: projection.name(),
                        position: failure.position,
                        reason: failure.reason,
                    });
                }
            },
            Applied::Moved(_) | Applied::Superseded { .. } => {
                let reason = "its temporary rows were changed by somebody else".to_owned();
                return Err(ViewError::Contended { projection: projection.name(), reason });
            }
        };
        count(events.len() as u64);
        kill_point::at(|| format!("fill {}", projection.name()));
    }
    Ok(position)
}

/// An error of one event is one of the projection that needs it; any other is one of them all.
pub(crate) fn unreadable(projection: &dyn Projection, error: LedgerError) -> ViewError {
    let (position, reason) = match error {
        LedgerError::Damaged { position, reason, .. } => (position, reason),
        LedgerError::Undecodable { position, error, .. } => (position, error.to_string()),
        other => return other.into(),
    };
    ViewError::Failed { projection: projection.name(), position, reason }
}

/// Tells how many of all events are done.
pub(crate) struct Counter<F> {
    pub done: u64,
    total: u64,
    progress: F,
}

impl<F: FnMut(u64, u64) + Send> Counter<F> {
    pub fn new(total: u64, progress: F) -> Self {
        Self { done: 0, total, progress }
    }
    pub fn add(&mut self, events: u64) {
        self.done += events;
        // The log may have grown meanwhile: more than all is never done.
        self.total = self.total.max(self.done);
        (self.progress)(self.done, self.total);
    }
}

/// The projection of a name.
pub(crate) fn named(name: &str) -> Result<&'static dyn Projection, ViewError> {
    let found = PROJECTIONS.iter().find(|projection| projection.name() == name);
    found.copied().ok_or_else(|| ViewError::unknown_projection(name))
}

pub(crate) fn millis(elapsed: Duration) -> u64 {
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
}

/// Events in a second.
pub(crate) fn rate(events: u64, elapsed_ms: u64) -> u64 {
    events.saturating_mul(1_000) / elapsed_ms.max(1)
}
