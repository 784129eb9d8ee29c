//! Applying events to one projection's rows: a batch, its position and a failure, in one transaction.
//!
//! The batch is written only from the position it starts at, so whoever else moved the projection
//! meanwhile (a rebuild's swap, a second process on the same file) is never overwritten. An attempt that
//! may not come back is counted before it is made ([`begin`]), so that a crash counts like a failure.

use crate::change::Change;
use crate::db::{Pool, Row, Work, is_the_statements_fault, values};
use crate::projection::Projection;
use crate::row::Columns;
use crate::together::{Together, together};
use devmind_domain::ErrorCode;
use devmind_domain::canonical::hash_json;
use devmind_domain::event::{AggregateType, DecodeError, DomainEvent, Facts, RecordedEvent};
use devmind_domain::upcast;
use serde::Serialize;
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Characters of a recorded reason, at most.
const MAX_REASON_CHARS: usize = 500;
/// Attempts at one event before it is left alone.
pub(crate) const MAX_ATTEMPTS: u32 = 3;

/// Why a projection stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Failure {
    /// The event it failed on.
    pub position: u64,
    /// What happened.
    pub reason: String,
    /// Attempts at it, those that the process did not survive among them.
    pub attempts: u32,
    /// Whether it is left alone from here on, until an operator resumes the projection.
    pub halted: bool,
}

/// How far a projection has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The last event it has applied.
    pub position: u64,
    /// The event it stopped at.
    pub failed: Option<Failure>,
    /// Attempts begun at the event after the position that did not succeed.
    pub attempts: u32,
    /// Events of unknown types that it passed.
    pub skipped_unknown: u64,
}

/// What became of a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    /// The projection stands here now, failed or not.
    Now(Progress),
    /// Nothing was written: somebody else had moved it here.
    Moved(Progress),
    /// Nothing was written: another version of the projection owns the rows.
    Superseded {
        /// That version.
        version: u32,
    },
}

/// What one event means to a projection.
pub(crate) enum Step {
    /// Nothing.
    Pass,
    /// Nothing, as this program does not know its type.
    Unknown,
    /// These changes.
    Write(Vec<Change>),
}

/// An event decoded when the first projection asks for it.
pub(crate) type Decoded = OnceCell<Result<Facts, DecodeError>>;

/// What is known before an attempt at the event after a position.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// It is this attempt at it, now on record.
    Attempt(u32),
    /// Nothing is to be attempted: there were too many.
    Halted(Progress),
    /// Somebody else had moved it here.
    Moved(Progress),
    /// Another version of the projection owns the rows.
    Superseded {
        /// That version.
        version: u32,
    },
}

/// Puts on record that the event after `from` is about to be tried: whoever tries it may not live to say so.
///
/// # Errors
/// When the database fails.
pub(crate) async fn begin(pool: &Pool, projection: &dyn Projection, from: u64) -> Result<Begun, sqlx::Error> {
    let mut transaction = pool.begin().await?;
    let (version, stored) = locked(&mut transaction, projection.name()).await?;
    if version != projection.version() {
        return Ok(Begun::Superseded { version });
    }
    if stored.position != from {
        return Ok(Begun::Moved(stored));
    }
    let (attempt, progress) = match stored.attempts {
        made if made < MAX_ATTEMPTS => (Some(made + 1), Progress { attempts: made + 1, ..stored }),
        made => {
            let failed = stored.failed.clone().unwrap_or_else(|| Failure {
                position: from + 1,
                reason: format!("the program ended during each of {made} attempts, before it could say why"),
                attempts: made,
                halted: true,
            });
            (None, Progress { failed: Some(failed), ..stored })
        }
    };
    save(&mut transaction, projection.name(), &progress, None).await?;
    transaction.commit().await?;
    Ok(attempt.map_or(Begun::Halted(progress), Begun::Attempt))
}

/// The same before the rows of another version are replaced by those of this one.
///
/// # Errors
/// When the database fails.
pub(crate) async fn begin_rebuild(pool: &Pool, projection: &dyn Projection) -> Result<Begun, sqlx::Error> {
    let mut transaction = pool.begin().await?;
    let (version, stored) = locked(&mut transaction, projection.name()).await?;
    if version == projection.version() {
        return Ok(Begun::Moved(stored));
    }
    let made = stored.attempts;
    let (attempt, progress) = if made < MAX_ATTEMPTS {
        (Some(made + 1), Progress { attempts: made + 1, ..stored })
    } else {
        let failed = stored.failed.clone().unwrap_or_else(|| Failure {
            position: stored.position + 1,
            reason: format!(
                "the program ended during each of {made} attempts to build version {}, before it could say why",
                projection.version()
            ),
            attempts: made,
            halted: true,
        });
        (None, Progress { failed: Some(failed), ..stored })
    };
    save(&mut transaction, projection.name(), &progress, None).await?;
    transaction.commit().await?;
    Ok(attempt.map_or(Begun::Halted(progress), Begun::Attempt))
}

/// Puts on record what the attempt that was counted last ended with.
pub(crate) async fn fail(pool: &Pool, name: &str, position: u64, reason: &str) -> Result<Progress, sqlx::Error> {
    let mut transaction = pool.begin().await?;
    let (_, stored) = locked(&mut transaction, name).await?;
    let attempts = stored.attempts;
    let reason = reason.chars().take(MAX_REASON_CHARS).collect();
    let failed = Some(Failure { position, reason, attempts, halted: attempts >= MAX_ATTEMPTS });
    let progress = Progress { failed, ..stored };
    save(&mut transaction, name, &progress, None).await?;
    transaction.commit().await?;
    Ok(progress)
}

/// Forgets the attempts and the failure: the projection is tried again from where it stands.
pub(crate) async fn forgive(work: &mut Work, name: &str) -> Result<(), sqlx::Error> {
    work.run(
        "UPDATE projection_position SET attempts = 0, failed_position = NULL, failed_reason = NULL WHERE name = $1",
        &values![name],
    )
    .await
}

/// Applies events that follow on `from`, up to the first one that fails; `skips` are passed over.
///
/// # Errors
/// When the database fails; an event's own failure is not an error but a recorded [`Failure`].
pub(crate) async fn apply(
    pool: &Pool,
    projection: &dyn Projection,
    skips: &BTreeSet<u64>,
    from: u64,
    events: &[Arc<RecordedEvent>],
) -> Result<Applied, sqlx::Error> {
    let (mut steps, mut failure) = plan(projection, skips, events);
    if failure.is_none()
        && let Some(now) = straight(pool, projection, from, &steps, events).await?
    {
        return Ok(Applied::Now(now));
    }
    loop {
        let mut transaction = pool.begin().await?;
        let (version, stored) = locked(&mut transaction, projection.name()).await?;
        if version != projection.version() {
            return Ok(Applied::Superseded { version });
        }
        if stored.position != from {
            return Ok(Applied::Moved(stored));
        }
        if let Some((index, reason)) = write(&mut transaction, &steps).await? {
            // Once more without it: the events before it are applied, of itself nothing is left.
            transaction.rollback().await?;
            failure = Some((index, reason));
            steps.truncate(index);
            continue;
        }
        let unknown = steps.iter().filter(|step| matches!(step, Step::Unknown)).count() as u64;
        let last = steps.len().checked_sub(1).and_then(|last| events.get(last));
        // Those counted before were at the event that was reached now, or are of no more interest.
        let attempts = match (&failure, last) {
            (None, _) => 0,
            (Some(_), None) => stored.attempts.max(1),
            (Some(_), Some(_)) => 1,
        };
        let now = Progress {
            position: last.map_or(from, |event| event.position),
            failed: failure.as_ref().and_then(|(index, reason)| {
                let position = events.get(*index)?.position;
                let reason = reason.chars().take(MAX_REASON_CHARS).collect();
                Some(Failure { position, reason, attempts, halted: attempts >= MAX_ATTEMPTS })
            }),
            attempts,
            skipped_unknown: stored.skipped_unknown + unknown,
        };
        save(&mut transaction, projection.name(), &now, last.map(|event| hex::encode(event.leaf_hash))).await?;
        transaction.commit().await?;
        return Ok(Applied::Now(now));
    }
}

/// Applies events that follow on `from` and none of which fails, with as few statements as can be: moving the projection
/// keeps others out until its rows are written, too. Most events are of no interest to most projections; then that is
/// all. `None`, with nothing done, where it does not stand at `from` or the database refuses a change.
async fn straight(
    pool: &Pool,
    projection: &dyn Projection,
    from: u64,
    steps: &[Step],
    events: &[Arc<RecordedEvent>],
) -> Result<Option<Progress>, sqlx::Error> {
    const MOVE: &str = "UPDATE projection_position SET position = $4, leaf_hash = $5, failed_position = NULL, \
         failed_reason = NULL, attempts = 0, skipped_unknown = skipped_unknown + $6 \
         WHERE name = $1 AND version = $2 AND position = $3 RETURNING skipped_unknown";
    let Some(last) = events.last() else { return Ok(None) };
    let unknown = steps.iter().filter(|step| matches!(step, Step::Unknown)).count() as u64;
    let leaf_hash = hex::encode(last.leaf_hash);
    let to = values![projection.name(), projection.version(), from, last.position, leaf_hash, unknown];
    let progress = |row: &Row| {
        let skipped_unknown = Columns(row).count("skipped_unknown")?;
        Ok(Progress { position: last.position, failed: None, attempts: 0, skipped_unknown })
    };
    let changes = together(projection, events, steps);
    if changes.is_empty() {
        return pool.row(MOVE, &to).await?.as_ref().map(progress).transpose();
    }
    let mut work = pool.begin().await?;
    let Some(moved) = work.row(MOVE, &to).await? else {
        work.rollback().await?;
        return Ok(None);
    };
    for Together { sql, rows, .. } in changes {
        match work.run_for(sql, &rows).await {
            Ok(()) => {}
            Err(error) if is_the_statements_fault(&error) => {
                work.rollback().await?;
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
    }
    let now = progress(&moved)?;
    work.commit().await?;
    Ok(Some(now))
}

/// Runs the pure function over all events, up to the first that fails.
fn plan(
    projection: &dyn Projection,
    skips: &BTreeSet<u64>,
    events: &[Arc<RecordedEvent>],
) -> (Vec<Step>, Option<(usize, String)>) {
    let mut steps = Vec::with_capacity(events.len());
    for (index, event) in events.iter().enumerate() {
        match step(projection, skips, event, &Decoded::new()) {
            Ok(step) => steps.push(step),
            Err(reason) => return (steps, Some((index, reason))),
        }
    }
    (steps, None)
}

/// Runs the pure function over one event. The error is why it failed.
pub(crate) fn step(
    projection: &dyn Projection,
    skips: &BTreeSet<u64>,
    event: &RecordedEvent,
    decoded: &Decoded,
) -> Result<Step, String> {
    if skips.contains(&event.position) {
        return Ok(Step::Pass);
    }
    let kind = AggregateType::ALL.into_iter().find(|kind| kind.as_str() == event.stream.aggregate_type);
    if kind.is_some_and(|kind| !projection.reads().contains(&kind)) {
        return Ok(Step::Pass);
    }
    match decoded.get_or_init(|| event.decode()) {
        // The function has no state that a panic could leave half changed.
        Ok(decoded) => match catch_unwind(AssertUnwindSafe(|| {
            decoded.iter().flat_map(|fact| projection.changes(event, fact)).collect()
        })) {
            Ok(changes) => Ok(Step::Write(changes)),
            Err(panic) => Err(format!("panicked: {}", panic_text(panic.as_ref()))),
        },
        Err(DecodeError::UnknownType { .. }) => Ok(Step::Unknown),
        // A newer meaning of something that this program shows: rows without it would be wrong.
        Err(error @ DecodeError::UnknownVersion { .. }) => {
            Err(format!("{}: {error}", ErrorCode::LedgerSchemaNewer.as_str()))
        }
        Err(error @ DecodeError::Payload { .. }) => Err(error.to_string()),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

/// The first event whose changes the database refused, with its reason.
async fn write(work: &mut Work, steps: &[Step]) -> Result<Option<(usize, String)>, sqlx::Error> {
    for (index, step) in steps.iter().enumerate() {
        let changes = match step {
            Step::Write(changes) => changes,
            Step::Pass | Step::Unknown => continue,
        };
        for change in changes {
            match work.change(change).await {
                Ok(_) => {}
                Err(error) if is_the_statements_fault(&error) => return Ok(Some((index, error.to_string()))),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(None)
}

const STORED: &str = "SELECT * FROM projection_position WHERE name = $1";

/// A projection's version and progress as stored.
pub(crate) async fn stored(pool: &Pool, name: &str) -> Result<(u32, Progress), sqlx::Error> {
    progress(pool.row(STORED, &values![name]).await?)
}

/// The same for somebody who goes by it until the end of the transaction.
pub(crate) async fn locked(work: &mut Work, name: &str) -> Result<(u32, Progress), sqlx::Error> {
    let lock = if work.is_postgres() { " FOR UPDATE" } else { "" };
    progress(work.row(&format!("{STORED}{lock}"), &values![name]).await?)
}

/// The same within a transaction that only reads.
pub(crate) async fn stored_in(work: &mut Work, name: &str) -> Result<(u32, Progress), sqlx::Error> {
    progress(work.row(STORED, &values![name]).await?)
}

fn progress(row: Option<Row>) -> Result<(u32, Progress), sqlx::Error> {
    let row = row.ok_or(sqlx::Error::RowNotFound)?;
    let row = Columns(&row);
    let attempts = row.small("attempts")?;
    let failed = match row.maybe_count("failed_position")? {
        Some(position) => {
            let reason = row.maybe_text("failed_reason")?.unwrap_or_default();
            Some(Failure { position, reason, attempts, halted: attempts >= MAX_ATTEMPTS })
        }
        None => None,
    };
    let progress =
        Progress { position: row.count("position")?, failed, attempts, skipped_unknown: row.count("skipped_unknown")? };
    Ok((row.small("version")?, progress))
}

async fn save(work: &mut Work, name: &str, now: &Progress, leaf_hash: Option<String>) -> Result<(), sqlx::Error> {
    work.run(
        "UPDATE projection_position SET position = $2, leaf_hash = COALESCE($3, leaf_hash), failed_position = $4, \
         failed_reason = $5, skipped_unknown = $6, attempts = $7 WHERE name = $1",
        &values![
            name,
            now.position,
            leaf_hash,
            now.failed.as_ref().map(|failure| failure.position),
            now.failed.as_ref().map(|failure| failure.reason.as_str()),
            now.skipped_unknown,
            now.attempts,
        ],
    )
    .await
}

/// A hash of every event type and version that this program can read.
pub(crate) fn known_types() -> String {
    let types = DomainEvent::all_types().into_iter();
    let older = upcast::steps().iter().map(|step| (step.of, step.event_type, step.version));
    hash_json(&types.chain(older).map(|(kind, name, version)| (kind.as_str(), name, version)).collect::<Vec<_>>())
}

/// Empties a projection: it begins again before the first event.
pub(crate) async fn reset(work: &mut Work, projection: &dyn Projection) -> Result<(), sqlx::Error> {
    for table in projection.tables() {
        // Table names are the projection's own static text.
        work.run(&format!("DELETE FROM {table}"), &[]).await?;
    }
    work.run(
        "INSERT INTO projection_position (name, version, position, skipped_unknown, known_types) \
         VALUES ($1, $2, 0, 0, $3) ON CONFLICT (name) DO UPDATE SET version = excluded.version, position = 0, \
         leaf_hash = NULL, failed_position = NULL, failed_reason = NULL, attempts = 0, skipped_unknown = 0, \
         known_types = excluded.known_types",
        &values![projection.name(), projection.version(), known_types()],
    )
    .await
}
