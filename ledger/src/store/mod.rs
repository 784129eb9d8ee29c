//! Where a log is kept, behind one small seam: [`ReadLog`] reads it, [`WriteLog`] appends batches.
//!
//! A store keeps rows and gives an order to those who write; what a command may do is left to the
//! writer, what readers are told to [`crate::LedgerReader`]. SQLite is the embedded store with one
//! writing process, PostgreSQL the one that several server processes share.

#[cfg(test)]
pub(crate) mod faults;
pub(crate) mod postgres;
mod rows;
pub(crate) mod sqlite;

use crate::append::{Head, Idempotency};
use crate::error::LedgerError;
use crate::merkle::Frontier;
use crate::place::Place;
use crate::reader::EventFilter;
use devmind_domain::Timestamp;
use devmind_domain::canonical::Hash;
use devmind_domain::event::{RecordedEvent, StreamId};
use std::fmt::Debug;
use std::sync::Arc;

/// The partition that everything lives in until the ledger is partitioned.
pub(crate) const PARTITION: u32 = 0;

/// A log that is open for writing.
pub(crate) struct Opened {
    pub write: Box<dyn WriteLog>,
    pub read: Arc<dyn ReadLog>,
    pub head: Head,
    pub ledger_id: String,
    pub last_recorded_at: Timestamp,
}

/// Opens a log for writing without a writer task, for what is no append.
pub(crate) async fn open_writable(place: &Place) -> Result<Opened, LedgerError> {
    match place {
        Place::File(file) => sqlite::open_writable(file).await,
        Place::Postgres(url) => postgres::open_writable(url).await.map(|(opened, _)| opened),
    }
}

/// Reading a log, also while it is written.
#[async_trait::async_trait]
pub(crate) trait ReadLog: Debug + Send + Sync {
    /// What a person calls it: a file, or a database without its password.
    fn place(&self) -> &str;

    async fn head(&self) -> Result<Head, sqlx::Error>;

    /// Events after a position, in order.
    async fn page(&self, after: u64, limit: u32) -> Result<Vec<StoredEvent>, sqlx::Error>;

    /// Events from one position to another, both included.
    async fn range(&self, first: u64, last: u64) -> Result<Vec<StoredEvent>, sqlx::Error>;

    /// Positions and recorded leaf hashes after a position, in order; a row without a sound one is left
    /// out. Fewer than asked for come at the end of the log, and may come before.
    async fn leaf_hashes(&self, after: u64, limit: u64) -> Result<Vec<(u64, Hash)>, sqlx::Error>;

    /// Events of a stream after a sequence number, in order.
    async fn stream_page(&self, stream: &StreamId, after: u64, limit: u32) -> Result<Vec<StoredEvent>, sqlx::Error>;

    /// The number of a stream's newest event, 0 where it has none; `None` where events cost no more to read.
    async fn version(&self, _stream: &StreamId) -> Result<Option<u64>, sqlx::Error> {
        Ok(None)
    }

    /// Events that pass a filter after a position, in order.
    async fn filtered(&self, filter: &EventFilter, after: u64, limit: u32) -> Result<Vec<StoredEvent>, sqlx::Error>;

    /// The last event before a position that passes a filter.
    async fn last_before(&self, filter: &EventFilter, before: u64) -> Result<Vec<StoredEvent>, sqlx::Error>;

    /// The stored state of a stream, if there is one.
    async fn snapshot(&self, stream: &StreamId) -> Result<Option<Snapshot>, sqlx::Error>;

    /// Streams with a stored state, in their order after one; a page of them.
    async fn snapshots(&self, after: Option<&StreamId>, limit: u32) -> Result<Vec<Snapshot>, sqlx::Error>;

    async fn idempotent(&self, scope: &str, key: &str) -> Result<Option<KeyRow>, sqlx::Error>;

    /// Keys whose positions touch those from `first` to `last`.
    async fn keys_of(&self, first: u64, last: u64) -> Result<Vec<KeyRow>, sqlx::Error>;

    /// Keys that cannot be right with so many events; the first hundred.
    async fn keys_beyond(&self, size: u64) -> Result<Vec<KeyRow>, sqlx::Error>;

    /// Copies of parts of the metadata that the store keeps in columns of their own, of the events from
    /// `first` to `last`; empty where it keeps none.
    async fn filed(&self, first: u64, last: u64) -> Result<Vec<FiledRow>, sqlx::Error>;

    /// Rows that no reader comes to, whatever it asks for: with their position, why. A few lookups in indexes.
    async fn out_of_reach(&self) -> Result<Vec<(i64, String)>, sqlx::Error>;

    /// Positions up to the head without a row, the first ones; every row is looked at.
    async fn holes(&self) -> Result<Vec<i64>, sqlx::Error>;

    /// What `verify` must know besides the events: one consistent look.
    async fn integrity(&self) -> Result<Integrity, sqlx::Error>;

    /// The first thing that the database itself finds wrong with what it keeps, where it can look.
    async fn integrity_check(&self) -> Result<Option<String>, sqlx::Error>;

    async fn close(&self);
}

/// Appending to a log. A batch is one [`WriteLog::look`], then one [`WriteLog::store`] or
/// [`WriteLog::leave`]; after a batch that was stored, [`WriteLog::store`] may come without a look.
#[async_trait::async_trait]
pub(crate) trait WriteLog: Debug + Send {
    fn place(&self) -> &str;

    /// What tests let go wrong.
    #[cfg(test)]
    fn faults(&self) -> faults::Faults;

    /// The head, and what the log says about the streams and keys of a batch, all of one moment.
    async fn look(&mut self, streams: &[&StreamId], keys: &[&Idempotency]) -> Result<Look, Failure>;

    /// Stores a batch, all or nothing and durably, if the log is still as it was looked at.
    async fn store(&mut self, batch: &Batch<'_>) -> Result<(), Failure>;

    /// Ends the look without a trace.
    async fn leave(&mut self);

    /// After [`Failure::AtCommit`] with this error: whether the batch with this event is stored. Once it
    /// has said no, the batch never will be; an `Err` says why it cannot be known. A batch without events
    /// counts as not stored: its keys do no harm.
    async fn settle(&mut self, event_id: Option<&str>, error: &CommitError) -> Result<bool, String>;

    /// Puts a marker in the place of a payload, as far as the triggers let it.
    async fn erase(&mut self, position: u64, marker: &str) -> Result<(), Failure>;

    /// Gives up whatever keeps other writers out.
    async fn close(self: Box<Self>) -> Result<(), LedgerError>;
}

/// The log as a batch finds it.
#[derive(Debug)]
pub(crate) struct Look {
    pub head: HeadRow,
    /// The newest moment in the log, where another process may have written it.
    pub recorded_at: Option<Timestamp>,
    /// The current version of each stream, in the order asked.
    pub versions: Vec<u64>,
    /// Those of the keys that were stored before.
    pub seen: Vec<Seen>,
}

/// What is to be stored together.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    pub events: &'a [Arc<RecordedEvent>],
    pub keys: &'a [NewKey<'a>],
    /// States to be kept instead of older ones of their streams.
    pub snapshots: &'a [Snapshot],
    /// The size of the log that the batch was planned on.
    pub from: u64,
    /// The head after the batch.
    pub head: &'a HeadRow,
}

/// Why a batch was not stored.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Certainly not stored, because of what it holds.
    Data(String),
    /// Certainly not stored: the store cannot be used now.
    Before(LedgerError),
    /// Certainly not stored: somebody else appended since the look.
    Moved,
    /// It is open whether it is stored: the connection or the commit itself failed.
    AtCommit(CommitError),
}

/// The error of a commit: it does not say whether the batch is stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommitError {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error(transparent)]
    Postgres(#[from] sqlx::Error),
}

impl CommitError {
    /// As it is told once it is known that nothing is stored.
    pub fn not_stored(&self, place: &str) -> LedgerError {
        match self {
            Self::Sqlite(error) => LedgerError::from_sqlite(place, "commit", error),
            Self::Postgres(error) => LedgerError::from_sqlx(place, "commit", error),
        }
    }
}

/// The head of the log.
#[derive(Clone, Debug)]
pub(crate) struct HeadRow {
    pub frontier: Frontier,
    pub root: Hash,
}

impl HeadRow {
    /// The row as stored, or why it makes no sense.
    pub fn new(size: i64, root: &[u8], frontier: &[u8]) -> Result<Self, String> {
        let size = u64::try_from(size).unwrap_or(u64::MAX);
        match Frontier::from_bytes(size, frontier) {
            Some(frontier) if frontier.root().as_slice() == root => Ok(Self { root: frontier.root(), frontier }),
            Some(_) | None => Err("the head's size, root and frontier do not fit together".to_owned()),
        }
    }

    /// What must hold between the head and the newest event; the rest is left to `verify`.
    pub fn fits(&self, newest: Option<StoredEvent>) -> Result<Timestamp, String> {
        let size = self.frontier.size();
        let Some(stored) = newest else {
            return match size {
                0 => Ok(Timestamp::default()),
                _ => Err(format!("the head is at position {size}, but there are no events")),
            };
        };
        let position = stored.position;
        let event = stored.event.map_err(|reason| format!("event {position}: {reason}"))?;
        if size != position {
            return Err(format!("the head is at position {size}, the newest event at {position}"));
        }
        if event.leaf_hash != event.expected_leaf_hash() {
            return Err(format!("event {position} does not have the hash that was recorded for it"));
        }
        if self.frontier.lone_leaf().is_some_and(|leaf| *leaf != event.leaf_hash) {
            return Err(format!("the head does not end with event {position}"));
        }
        Ok(event.recorded_at)
    }
}

/// A state as stored: derived from the events of its stream, and disposable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub stream: StreamId,
    /// The sequence number of the last event that is in the state.
    pub sequence: u64,
    /// [`devmind_domain::Decider::STATE_VERSION`] of the program that folded it.
    pub state_version: u32,
    pub state: String,
}

/// The columns of a [`Snapshot`].
pub(crate) const SNAPSHOT: &str = "aggregate_type, aggregate_id, sequence, state_version, state";

/// [`SNAPSHOT`] as read.
pub(crate) type SnapshotRow = (String, String, i64, i64, String);

impl TryFrom<SnapshotRow> for Snapshot {
    type Error = sqlx::Error;

    fn try_from(row: SnapshotRow) -> Result<Self, sqlx::Error> {
        let (aggregate_type, aggregate_id, sequence, state_version, state) = row;
        let sequence = u64::try_from(sequence).map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
        let state_version = u32::try_from(state_version).map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
        Ok(Self { stream: StreamId { aggregate_type, aggregate_id }, sequence, state_version, state })
    }
}

/// A key to be stored with the positions its request filled.
#[derive(Debug)]
pub(crate) struct NewKey<'a> {
    pub idempotency: &'a Idempotency,
    pub first: u64,
    pub last: u64,
}

/// A key that was stored before.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Which of the asked keys.
    pub index: usize,
    pub request_hash: String,
    pub events: Vec<Arc<RecordedEvent>>,
}

/// One row: where it stands, and the event or why the row holds none.
#[derive(Debug)]
pub(crate) struct StoredEvent {
    pub position: u64,
    /// Within its stream; 0 where it is none.
    pub sequence: u64,
    pub event: Result<RecordedEvent, String>,
}

impl StoredEvent {
    /// The event, or an error about a row that holds none.
    pub fn sound(self) -> Result<Arc<RecordedEvent>, sqlx::Error> {
        let position = self.position;
        self.event.map(Arc::new).map_err(|reason| sqlx::Error::Decode(format!("event {position}: {reason}").into()))
    }
}

/// What is known of a request: its hash and the positions it filled.
#[derive(Clone, Debug, sqlx::FromRow)]
pub(crate) struct KeyRow {
    pub scope: String,
    pub key: String,
    pub request_hash: String,
    pub first_position: i64,
    pub last_position: i64,
}

impl KeyRow {
    /// The positions; a damaged row counts as empty.
    pub fn range(&self) -> (u64, u64) {
        (u64::try_from(self.first_position).unwrap_or(1), u64::try_from(self.last_position).unwrap_or(0))
    }
}

/// What `verify` must know besides the events.
#[derive(Debug)]
pub(crate) struct Integrity {
    pub size: i64,
    pub root: Vec<u8>,
    pub frontier: Vec<u8>,
    pub newest: i64,
    pub strays: i64,
    /// Triggers that every ledger of this kind has, and this one lacks.
    pub missing_triggers: Vec<String>,
}

/// What the filters find an event by, where that is stored beside it.
#[derive(Debug, sqlx::FromRow)]
pub(crate) struct FiledRow {
    pub position: i64,
    pub conversation_id: Option<String>,
    pub run_id: Option<String>,
    pub actor: Option<String>,
}

/// Rows that are named of what is out of reach, at most.
pub(crate) const MAX_OUT_OF_REACH: u32 = 100;

/// The query of [`ReadLog::out_of_reach`] on a table: what stands in no place of the log, and what no filter finds, as
/// every sound row has an actor. `(position, partition, 1 where it is the place that is wrong)`.
pub(crate) fn out_of_reach_sql(events: &str, head: &str) -> String {
    let beyond = format!("position > (SELECT size FROM {head} WHERE partition = {PARTITION})");
    let parts = [
        format!("partition < {PARTITION}"),
        format!("partition > {PARTITION}"),
        format!("partition = {PARTITION} AND position < 1"),
        format!("partition = {PARTITION} AND {beyond}"),
    ];
    let found = |condition: &str, misplaced: u8| {
        format!(
            "SELECT * FROM (SELECT position, partition, {misplaced} FROM {events} WHERE {condition} LIMIT {MAX_OUT_OF_REACH}) AS r"
        )
    };
    let mut queries: Vec<String> = parts.iter().map(|condition| found(condition, 1)).collect();
    queries.push(found(&format!("partition = {PARTITION} AND actor IS NULL"), 0));
    queries.join(" UNION ALL ")
}

/// The query of [`ReadLog::holes`].
pub(crate) fn holes_sql(events: &str, head: &str) -> String {
    let size = format!("(SELECT size FROM {head} WHERE partition = {PARTITION})");
    // What comes before the first row, and after every other one.
    format!(
        "SELECT place FROM (SELECT 1 AS place UNION ALL SELECT position + 1 FROM {events} WHERE partition = {PARTITION}) \
         AS places WHERE place <= {size} AND NOT EXISTS (SELECT 1 FROM {events} WHERE partition = {PARTITION} \
         AND position = place) ORDER BY place LIMIT {MAX_OUT_OF_REACH}"
    )
}

/// A row of [`out_of_reach_sql`], in words.
pub(crate) fn why_out_of_reach((position, partition, misplaced): (i64, i64, i64)) -> (i64, String) {
    let reason = match misplaced {
        0 => "metadata: it is no JSON text, or names no actor: no filter finds the event".to_owned(),
        _ if partition != i64::from(PARTITION) => format!("partition: it is {partition}, where no event stands"),
        _ => format!("position: {position} is outside of the log"),
    };
    (position, reason)
}

/// `(size, root)` as stored.
pub(crate) fn head_of(size: i64, root: Vec<u8>) -> Result<Head, sqlx::Error> {
    let position = u64::try_from(size).map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
    let root = root.try_into().map_err(|_| sqlx::Error::Decode("the head's root is not 32 bytes long".into()))?;
    Ok(Head { position, root })
}

pub(crate) fn as_i64(number: u64) -> i64 {
    // Positions and versions are counted up from 1: the end of the range is out of reach.
    i64::try_from(number).unwrap_or(i64::MAX)
}
