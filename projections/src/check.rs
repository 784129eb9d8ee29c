//! Proving that the live rows are what the log says: rebuilds them beside and compares row by row.
//!
//! Writes nothing to the live rows; a server may keep them meanwhile.

use crate::apply::{Failure, Progress, stored, stored_in};
use crate::beside::Beside;
use crate::build::{Wanted, build};
use crate::compare::{TableCheck, compare};
use crate::db::Pool;
use crate::error::ViewError;
use crate::projection::Projection;
use crate::rebuild::{Counter, MAX_CATCH_UPS, Unbuilt, fill, millis, named, rate};
use crate::registry::PROJECTIONS;
use crate::store::Projections;
use devmind_ledger::{LedgerReader, Place};
use serde::Serialize;
use std::fmt;
use std::time::Instant;

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// Each projection's finding.
    pub projections: Vec<ProjectionCheck>,
    /// Projections that could not be built for the comparison, and at which event.
    pub failed: Vec<Unbuilt>,
    /// Events read, once for every projection.
    pub events: u64,
    /// How long it took (milliseconds).
    pub elapsed_ms: u64,
}

/// What a check found of one projection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProjectionCheck {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: u32,
    /// The position at which live and rebuilt were compared.
    pub position: u64,
    /// Why the live rows stand there and go no further, where an event stopped them: equal as they are, they lack
    /// what the log says since.
    pub stopped: Option<Failure>,
    /// Each table's finding.
    pub tables: Vec<TableCheck>,
}

impl CheckReport {
    /// Whether every live row equals its rebuilt one, and none is missing or too many.
    pub fn is_equal(&self) -> bool {
        self.failed.is_empty() && self.projections.iter().all(ProjectionCheck::is_equal)
    }

    /// Events in a second.
    pub fn events_per_second(&self) -> u64 {
        rate(self.events, self.elapsed_ms)
    }
}

impl ProjectionCheck {
    /// Whether all tables are equal.
    pub fn is_equal(&self) -> bool {
        self.tables.iter().all(|table| table.differences == 0)
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for projection in &self.projections {
            let verdict = if projection.is_equal() { "equal" } else { "DIFFERENT" };
            writeln!(f, "{} v{} at {}: {verdict}", projection.name, projection.version, projection.position)?;
            if let Some(Failure { position, reason, .. }) = &projection.stopped {
                writeln!(f, "  stopped: event {position}: {reason}")?;
            }
            for table in &projection.tables {
                write!(f, "{table}")?;
            }
        }
        for Unbuilt { name, position, reason } in &self.failed {
            writeln!(f, "{name}: cannot be built: event {position}: {reason}")?;
        }
        write!(f, "{} events in {} ms ({} events/s)", self.events, self.elapsed_ms, self.events_per_second())
    }
}

/// Checks every projection. `progress` is told (events read, events to read).
///
/// # Errors
/// When log or file cannot be used, or the live rows were made by another version of the program.
pub async fn check(
    views: impl Into<Place>,
    ledger: &LedgerReader,
    progress: impl FnMut(u64, u64) + Send,
) -> Result<CheckReport, ViewError> {
    check_these(views.into(), ledger, PROJECTIONS.to_vec(), progress).await
}

/// Checks one projection.
///
/// # Errors
/// As [`check`]; [`ViewError::UnknownProjection`].
pub async fn check_one(
    views: impl Into<Place>,
    ledger: &LedgerReader,
    projection: &str,
    progress: impl FnMut(u64, u64) + Send,
) -> Result<CheckReport, ViewError> {
    check_these(views.into(), ledger, vec![named(projection)?], progress).await
}

pub(crate) async fn check_these(
    views: Place,
    ledger: &LedgerReader,
    projections: Projections,
    progress: impl FnMut(u64, u64) + Send,
) -> Result<CheckReport, ViewError> {
    let begun = Instant::now();
    let beside = Beside::new(&views, &projections).await?;
    let live = beside.live_for_reading(&views).await?;
    let mut wanted = Vec::new();
    for projection in projections {
        let to = live_position(stored(&live, projection.name()).await?, projection)?;
        wanted.push(Wanted { projection, from: 0, to });
    }
    let mut counter = Counter::new(wanted.iter().map(|wanted| wanted.to).sum(), progress);
    let mut report = CheckReport { projections: Vec::new(), failed: Vec::new(), events: 0, elapsed_ms: 0 };
    // Most of the work first. Only then are the live rows held still: a long read transaction would
    // keep the live file's write-ahead log growing.
    for (projection, built) in build(&beside, ledger, &wanted, &mut |events| counter.add(events)).await? {
        let found = match built {
            Ok(built) => check_projection(&live, &beside, ledger, projection, built, &mut counter).await,
            Err(unbuilt) => {
                report.failed.push(unbuilt);
                continue;
            }
        };
        match found {
            Ok(found) => report.projections.push(found),
            Err(error) => report.failed.push(Unbuilt::of(error)?),
        }
    }
    live.close().await;
    beside.remove().await?;
    report.events = counter.done;
    report.elapsed_ms = millis(begun.elapsed());
    Ok(report)
}

async fn check_projection<F: FnMut(u64, u64) + Send>(
    live: &Pool,
    beside: &Beside,
    ledger: &LedgerReader,
    projection: &dyn Projection,
    built: u64,
    counter: &mut Counter<F>,
) -> Result<ProjectionCheck, ViewError> {
    let mut position = live_position(stored(live, projection.name()).await?, projection)?;
    let mut built = fill(&beside.store, projection, ledger, built, position, &mut |events| counter.add(events)).await?;
    // What is built later than a moment cannot be seen in it, so the moment comes last.
    let mut still = live.at_once().await?;
    for _ in 0..MAX_CATCH_UPS {
        let now = live_position(stored_in(&mut still, projection.name()).await?, projection)?;
        if now == position {
            break;
        }
        still.rollback().await?;
        position = now;
        built = fill(&beside.store, projection, ledger, built, position, &mut |events| counter.add(events)).await?;
        still = live.at_once().await?;
    }
    let stands = stored_in(&mut still, projection.name()).await?;
    let stopped = stands.1.failed.clone();
    let position = live_position(stands, projection)?;
    if built != position {
        let reason = format!("it stands at {position}, the log leads to {built}");
        return Err(ViewError::Contended { projection: projection.name(), reason });
    }
    let mut tables = Vec::new();
    for table in projection.tables() {
        tables.push(compare(&mut still, &beside.schemas, table).await?);
    }
    still.commit().await?;
    let name = projection.name().to_owned();
    Ok(ProjectionCheck { name, version: projection.version(), position, stopped, tables })
}

fn live_position((version, progress): (u32, Progress), projection: &dyn Projection) -> Result<u64, ViewError> {
    if version != projection.version() {
        let reason = format!("its rows are of version {version}, this program has {}", projection.version());
        return Err(ViewError::NotReady { projection: projection.name(), reason });
    }
    Ok(progress.position)
}
