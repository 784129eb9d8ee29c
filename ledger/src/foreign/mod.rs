//! Taking in a log that a store of the cqrs-es family wrote: the table `events` of sqlite-es or postgres-es.
//!
//! Our own event types are stored as if they had been appended here; events of other types are kept as they
//! are, when that is wanted. Nothing is dropped: what cannot be taken over makes the whole import refuse.
//! The family records neither the time nor the order between streams. So every event gets the time of the import,
//! and streams are interleaved as their rows stand in the table; within a stream the order is exact.
//! Reading the rows is in `source`, what an event becomes in `translate`.

mod source;
mod translate;

pub use source::ForeignSource;

use crate::append::Head;
use crate::error::LedgerError;
use crate::limits::MAX_PAGE_EVENTS;
use crate::place::Place;
use crate::store::{Batch, Failure, HeadRow, Opened, PARTITION, ReadLog, open_writable};
use crate::writer::now;
use devmind_domain::canonical::Hash;
use devmind_domain::event::{RecordedEvent, StreamId};
use source::ForeignRow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use translate::{Foreign, translate};
use uuid::Uuid;

/// Events of one transaction.
const BATCH_EVENTS: usize = 1_000;
/// Rows that may stand before an earlier event of their stream; more of them are no log that was appended to.
const MAX_HELD_EVENTS: usize = 10_000;
/// Problems kept with their reasons, at most; more are counted.
const MAX_PROBLEMS: usize = 100;

/// Why a log could not be taken in.
#[derive(Debug, thiserror::Error)]
pub enum ForeignError {
    /// The other store cannot be read.
    #[error("the other store cannot be read: {0}")]
    Source(String),
    /// The ledger holds another history.
    #[error("the ledger holds other events: a log is taken into an empty one, or goes on where it was interrupted")]
    NotEmpty,
    /// Our own ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The ledger refused the batch.
    #[error("the ledger cannot store it: {0}")]
    Storage(String),
}

/// What another store's log holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignReport {
    /// All of its events.
    pub events: u64,
    /// Its streams.
    pub streams: u64,
    /// Events of our own types, by type.
    pub known: BTreeMap<String, u64>,
    /// Events of other types, by `aggregate type / event type`.
    pub unknown: BTreeMap<String, u64>,
    /// Why it cannot be taken in: the event, and the reason; the first of them, where there are very many.
    pub problems: Vec<(String, String)>,
    /// How many reasons there are.
    pub problems_total: u64,
}

impl ForeignReport {
    /// Events of other types.
    pub fn unknown_events(&self) -> u64 {
        self.unknown.values().sum()
    }

    fn problem(&mut self, stream: &StreamId, sequence: u64, reason: String) {
        self.problems_total += 1;
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push((format!("{stream} event {sequence}"), reason));
        }
    }
}

/// A log that was taken in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenIn {
    /// The ledger's size.
    pub size: u64,
    /// Its root.
    pub root: Hash,
    /// Events that were there from an earlier import.
    pub resumed: u64,
}

/// Reads another store's log through and says what is in it; nothing is written.
///
/// # Errors
/// [`ForeignError::Source`].
pub async fn inspect(
    source: &ForeignSource,
    mut progress: impl FnMut(u64, u64),
) -> Result<ForeignReport, ForeignError> {
    let mut report = ForeignReport::default();
    let mut ordered = Ordered::default();
    let mut rows = source.open().await?;
    let total = rows.total;
    while let Some(row) = rows.next().await? {
        for event in ordered.admit(row, &mut report)? {
            report.events += 1;
            let counts = if event.known { &mut report.known } else { &mut report.unknown };
            let name = if event.known { event.event_type.clone() } else { event.name() };
            *counts.entry(name).or_default() += 1;
            progress(report.events, total);
        }
    }
    report.streams = ordered.next.len() as u64;
    ordered.end(&mut report);
    Ok(report)
}

/// Takes another store's log into the ledger in `ledger`, made where it is missing, which nobody else writes.
/// Events that an earlier import stored are compared and not stored again. The caller has inspected the log and
/// decided about events of other types; a problem that appeared since then ends the import where it stands.
///
/// # Errors
/// [`ForeignError`].
pub async fn take_in(
    source: &ForeignSource,
    ledger: impl Into<Place>,
    progress: impl FnMut(u64, u64),
) -> Result<TakenIn, ForeignError> {
    let mut opened = open_writable(&ledger.into()).await?;
    let begun = opened.head.position;
    let stored = store(source, &mut opened, progress).await;
    let Opened { write, read, .. } = opened;
    read.close().await;
    let closed = write.close().await;
    let head = stored?;
    closed?;
    Ok(TakenIn { size: head.position, root: head.root, resumed: begun })
}

async fn store(
    source: &ForeignSource,
    opened: &mut Opened,
    mut progress: impl FnMut(u64, u64),
) -> Result<Head, ForeignError> {
    let mut report = ForeignReport::default();
    let mut ordered = Ordered::default();
    let mut before = Stored { log: Arc::clone(&opened.read), after: 0, page: VecDeque::new() };
    let begun = opened.head.position;
    let (mut seen, mut batch) = (0, Vec::with_capacity(BATCH_EVENTS));
    let mut rows = source.open().await?;
    let total = rows.total;
    while let Some(row) = rows.next().await? {
        for event in ordered.admit(row, &mut report)? {
            seen += 1;
            if seen <= begun {
                if !before.next().await?.is_some_and(|stored| event.is(&stored)) {
                    return Err(ForeignError::NotEmpty);
                }
            } else {
                batch.push(event);
            }
        }
        if let Some((event, reason)) = report.problems.first() {
            return Err(ForeignError::Source(format!("{event}: {reason}")));
        }
        if batch.len() >= BATCH_EVENTS {
            append(opened, &batch).await?;
            batch.clear();
            progress(seen, total);
        }
    }
    ordered.end(&mut report);
    if let Some((event, reason)) = report.problems.first() {
        return Err(ForeignError::Source(format!("{event}: {reason}")));
    }
    if seen < begun {
        // More than the other log has: another history, even where it begins the same.
        return Err(ForeignError::NotEmpty);
    }
    if !batch.is_empty() {
        append(opened, &batch).await?;
    }
    progress(seen, total);
    Ok(opened.head)
}

async fn append(opened: &mut Opened, events: &[Foreign]) -> Result<(), ForeignError> {
    let mut tree = opened.write.look(&[], &[]).await.map_err(failed)?.head.frontier;
    let from = tree.size();
    if from != opened.head.position {
        return Err(ForeignError::NotEmpty);
    }
    let recorded_at = opened.last_recorded_at.max(now());
    let mut recorded = Vec::with_capacity(events.len());
    for (position, event) in (from + 1..).zip(events) {
        let mut event = RecordedEvent {
            partition: PARTITION,
            position,
            event_id: Uuid::now_v7().to_string(),
            stream: event.stream.clone(),
            sequence: event.sequence,
            event_type: event.event_type.clone(),
            event_version: event.event_version,
            payload: event.payload.clone(),
            metadata: event.metadata.clone(),
            recorded_at,
            leaf_hash: Hash::default(),
        };
        event.leaf_hash = event.expected_leaf_hash();
        tree.push(event.leaf_hash);
        recorded.push(Arc::new(event));
    }
    let head = HeadRow { root: tree.root(), frontier: tree };
    let batch = Batch { events: &recorded, keys: &[], snapshots: &[], from, head: &head };
    opened.write.store(&batch).await.map_err(failed)?;
    opened.last_recorded_at = recorded_at;
    opened.head = Head { position: head.frontier.size(), root: head.root };
    Ok(())
}

fn failed(failure: Failure) -> ForeignError {
    match failure {
        Failure::Before(error) => ForeignError::Ledger(error),
        Failure::Moved => ForeignError::NotEmpty,
        Failure::Data(reason) => ForeignError::Storage(reason),
        // Run again, the import finds what is stored and goes on from there.
        Failure::AtCommit(error) => ForeignError::Storage(error.to_string()),
    }
}

/// What the ledger holds already, one by one.
struct Stored {
    log: Arc<dyn ReadLog>,
    after: u64,
    page: VecDeque<RecordedEvent>,
}

impl Stored {
    async fn next(&mut self) -> Result<Option<RecordedEvent>, ForeignError> {
        if self.page.is_empty() {
            let page = self.log.page(self.after, MAX_PAGE_EVENTS).await;
            let page = page.map_err(|error| LedgerError::from_sqlx(self.log.place(), "read events", &error))?;
            for stored in page {
                self.after = stored.position;
                self.page.push_back(stored.event.map_err(ForeignError::Storage)?);
            }
        }
        Ok(self.page.pop_front())
    }
}

/// Holds an event back until those before it in its stream have come: a table reuses the room of rows that went.
#[derive(Default)]
struct Ordered {
    /// The next sequence number of every stream.
    next: HashMap<StreamId, u64>,
    held: HashMap<StreamId, BTreeMap<u64, Foreign>>,
    held_events: usize,
}

impl Ordered {
    /// The events that can follow now, in order.
    fn admit(&mut self, row: ForeignRow, report: &mut ForeignReport) -> Result<Vec<Foreign>, ForeignError> {
        let (stream, sequence) = (row.stream.clone(), row.sequence);
        let event = match translate(row) {
            Ok(event) => event,
            Err(reason) => {
                report.problem(&stream, sequence, reason);
                // It takes its place in the stream all the same: what follows it is no second problem.
                Foreign::placeholder(stream.clone(), sequence)
            }
        };
        let next = self.next.entry(stream.clone()).or_insert(1);
        if sequence != *next {
            if sequence < *next {
                report.problem(&stream, sequence, format!("event {next} of its stream was expected"));
                return Ok(Vec::new());
            }
            self.held_events += 1;
            if self.held_events > MAX_HELD_EVENTS {
                return Err(ForeignError::Source(format!("{stream} lacks its event {next}, as others lack theirs")));
            }
            self.held.entry(stream).or_default().insert(sequence, event);
            return Ok(Vec::new());
        }
        let mut ready = vec![event];
        *next += 1;
        if let Some(held) = self.held.get_mut(&stream) {
            while let Some(event) = held.remove(next) {
                self.held_events -= 1;
                *next += 1;
                ready.push(event);
            }
            if held.is_empty() {
                self.held.remove(&stream);
            }
        }
        Ok(ready)
    }

    /// What still waits at the end has a gap before it.
    fn end(self, report: &mut ForeignReport) {
        for (stream, held) in self.held {
            let missing = self.next.get(&stream).copied().unwrap_or(1);
            for sequence in held.into_keys().take(1) {
                report.problem(&stream, sequence, format!("event {missing} of its stream is missing"));
            }
        }
    }
}
