//! The connection that writes the file, and what it does, each call blocking until it is done.
//!
//! One prepared statement a row: inside the process that is cheaper than any statement for many rows.

use super::partition;
use crate::append::Idempotency;
use crate::error::LedgerError;
use crate::limits::BUSY_TIMEOUT;
use crate::store::{HeadRow, Snapshot, as_i64};
use devmind_domain::event::{RecordedEvent, StreamId};
use rusqlite::{Connection, OpenFlags, OptionalExtension, Result, params};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// `PRAGMA synchronous = FULL`: a commit is on the disk when it returns.
const SYNCHRONOUS_FULL: i64 = 2;

/// A file open for writing, and the lock that makes this the only place where it is.
#[derive(Debug)]
pub(super) struct Writable {
    connection: Connection,
    /// Whether the batch's transaction has begun.
    begun: bool,
    _lock: File,
    #[cfg(test)]
    pub faults: crate::store::faults::Faults,
}

/// What is to be stored together, owned by the thread that stores it.
#[derive(Debug)]
pub(super) struct OwnBatch {
    pub events: Vec<Arc<RecordedEvent>>,
    /// Keys, each with its first and last position.
    pub keys: Vec<(Idempotency, u64, u64)>,
    pub snapshots: Vec<Snapshot>,
    pub from: u64,
    pub head: HeadRow,
}

/// A key that was stored before, and where its events are.
#[derive(Debug)]
pub(super) struct SeenAt {
    /// Which of the asked keys.
    pub index: usize,
    pub request_hash: String,
    pub first: i64,
    pub last: i64,
}

/// What the file says about a batch.
#[derive(Debug)]
pub(super) struct Found {
    pub head: HeadRow,
    pub versions: Vec<u64>,
    pub seen: Vec<SeenAt>,
}

/// How a batch ended.
#[derive(Debug)]
pub(super) enum Stored {
    Yes,
    /// Not: the head was not where it was looked at.
    Moved,
    /// Not.
    Refused(rusqlite::Error),
    /// The commit itself failed.
    InDoubt(rusqlite::Error),
}

impl Writable {
    /// Opens an existing file, with the settings that make commits durable.
    pub fn open(file: &Path, lock: File) -> std::result::Result<Self, LedgerError> {
        let place = file.display().to_string();
        let failed = |error: rusqlite::Error| LedgerError::from_sqlite(&place, "open", &error);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(file, flags).map_err(failed)?;
        connection.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
        connection
            .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON")
            .map_err(failed)?;
        check_durability(&place, &connection)?;
        Ok(Self {
            connection,
            begun: false,
            _lock: lock,
            #[cfg(test)]
            faults: crate::store::faults::Faults::default(),
        })
    }

    /// Begins the batch's transaction; no other process can write until it ends.
    pub fn look(&mut self, streams: &[StreamId], keys: &[Idempotency]) -> Result<std::result::Result<Found, String>> {
        self.begin()?;
        let found = self.found(streams, keys);
        if !matches!(found, Ok(Ok(_))) {
            self.rollback();
        }
        found
    }

    fn found(&self, streams: &[StreamId], keys: &[Idempotency]) -> Result<std::result::Result<Found, String>> {
        let head = match self.head()? {
            Ok(head) => head,
            Err(reason) => return Ok(Err(reason)),
        };
        let mut version = self.connection.prepare_cached(
            "SELECT coalesce(max(sequence), 0) FROM events WHERE aggregate_type = ? AND aggregate_id = ?",
        )?;
        let versions = streams.iter().map(|stream| {
            let found: i64 =
                version.query_row(params![stream.aggregate_type, stream.aggregate_id], |row| row.get(0))?;
            Ok(u64::try_from(found).unwrap_or(0))
        });
        let versions = versions.collect::<Result<_>>()?;
        let mut stored = self.connection.prepare_cached(
            "SELECT request_hash, first_position, last_position FROM idempotency WHERE scope = ? AND key = ?",
        )?;
        let mut seen = Vec::new();
        for (index, key) in keys.iter().enumerate() {
            let found = stored.query_row(params![key.scope, key.key], |row| {
                Ok(SeenAt { index, request_hash: row.get(0)?, first: row.get(1)?, last: row.get(2)? })
            });
            seen.extend(found.optional()?);
        }
        Ok(Ok(Found { head, versions, seen }))
    }

    /// The head row, or why it makes no sense.
    pub fn head(&self) -> Result<std::result::Result<HeadRow, String>> {
        let mut head = self.connection.prepare_cached("SELECT size, root, frontier FROM head WHERE partition = ?")?;
        let found = head.query_row([partition()], |row| {
            Ok(HeadRow::new(row.get(0)?, row.get_ref(1)?.as_blob()?, row.get_ref(2)?.as_blob()?))
        });
        Ok(found.optional()?.unwrap_or_else(|| Err("the head is missing".to_owned())))
    }

    /// Stores a batch in the transaction that has begun, or in one of its own.
    pub fn store(&mut self, batch: &OwnBatch) -> Stored {
        let written = self.begin().and_then(|()| self.write(batch));
        let refused = match written {
            Ok(true) => match self.commit() {
                Ok(()) => return Stored::Yes,
                Err(error) => return Stored::InDoubt(error),
            },
            Ok(false) => Stored::Moved,
            Err(error) => Stored::Refused(error),
        };
        self.rollback();
        refused
    }

    fn write(&self, batch: &OwnBatch) -> Result<bool> {
        if !batch.events.is_empty() {
            self.insert(&batch.events)?;
            if !self.advance(batch.from, &batch.head)? {
                return Ok(false);
            }
        }
        self.insert_keys(&batch.keys)?;
        self.keep(&batch.snapshots)?;
        Ok(true)
    }

    fn insert(&self, events: &[Arc<RecordedEvent>]) -> Result<()> {
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO events (partition, position, event_id, aggregate_type, aggregate_id, sequence, event_type, \
             event_version, payload, metadata, recorded_at, leaf_hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?;
        for event in events {
            insert.execute(params![
                event.partition,
                as_i64(event.position),
                event.event_id,
                event.stream.aggregate_type,
                event.stream.aggregate_id,
                as_i64(event.sequence),
                event.event_type,
                event.event_version,
                event.payload,
                event.metadata,
                event.recorded_at.to_string(),
                event.leaf_hash,
            ])?;
        }
        Ok(())
    }

    fn insert_keys(&self, keys: &[(Idempotency, u64, u64)]) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO idempotency (scope, key, request_hash, first_position, last_position) VALUES (?, ?, ?, ?, ?)",
        )?;
        for (Idempotency { scope, key, request_hash }, first, last) in keys {
            insert.execute(params![scope, key, request_hash, as_i64(*first), as_i64(*last)])?;
        }
        Ok(())
    }

    /// Keeps states; a newer one that is there stays.
    fn keep(&self, snapshots: &[Snapshot]) -> Result<()> {
        if snapshots.is_empty() {
            return Ok(());
        }
        let mut keep = self.connection.prepare_cached(
            "INSERT INTO snapshots (aggregate_type, aggregate_id, sequence, state_version, state) VALUES (?, ?, ?, ?, ?) \
             ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET sequence = excluded.sequence, \
             state_version = excluded.state_version, state = excluded.state \
             WHERE excluded.sequence > sequence OR excluded.state_version <> state_version",
        )?;
        for Snapshot { stream, sequence, state_version, state } in snapshots {
            let (kind, id) = (&stream.aggregate_type, &stream.aggregate_id);
            keep.execute(params![kind, id, as_i64(*sequence), state_version, state])?;
        }
        Ok(())
    }

    /// Moves the head; `false` when it was not where it was read.
    fn advance(&self, from: u64, to: &HeadRow) -> Result<bool> {
        let mut advance = self
            .connection
            .prepare_cached("UPDATE head SET size = ?, root = ?, frontier = ? WHERE partition = ? AND size = ?")?;
        let (size, frontier) = (as_i64(to.frontier.size()), to.frontier.to_bytes());
        Ok(advance.execute(params![size, to.root, frontier, partition(), as_i64(from)])? == 1)
    }

    fn begin(&mut self) -> Result<()> {
        if !self.begun {
            self.run("BEGIN IMMEDIATE")?;
            self.begun = true;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        self.begun = false;
        #[cfg(test)]
        if let Some((sql, error)) = self.faults.instead_of_commit() {
            self.run(sql)?;
            return Err(error);
        }
        self.run("COMMIT")
    }

    /// Ends the transaction without a trace. It may have ended by itself, so nothing is reported.
    pub fn rollback(&mut self) {
        self.begun = false;
        if let Err(error) = self.run("ROLLBACK") {
            tracing::debug!(%error, "the transaction had ended already");
        }
    }

    fn run(&self, sql: &str) -> Result<()> {
        self.connection.prepare_cached(sql)?.execute([]).map(drop)
    }

    /// Whether an event is stored.
    pub fn contains(&self, event_id: &str) -> Result<bool> {
        #[cfg(test)]
        if self.faults.unreadable() {
            return Err(crate::store::faults::bad_disk());
        }
        let mut found = self.connection.prepare_cached("SELECT 1 FROM events WHERE event_id = ?")?;
        found.exists([event_id])
    }

    /// Puts a marker in the place of a payload; `false` when there is no such event.
    pub fn erase(&self, position: u64, marker: &str) -> Result<bool> {
        // Freed pages are overwritten; closing empties the write-ahead log, which holds the old page.
        self.connection.execute_batch("PRAGMA secure_delete = ON")?;
        let position = as_i64(position);
        // A stored state may hold what is erased; it comes back from the events.
        self.connection.execute(
            "DELETE FROM snapshots WHERE (aggregate_type, aggregate_id) IN \
             (SELECT aggregate_type, aggregate_id FROM events WHERE partition = ? AND position = ?)",
            params![partition(), position],
        )?;
        let updated = self.connection.execute(
            "UPDATE events SET payload = ? WHERE partition = ? AND position = ?",
            params![marker, partition(), position],
        )?;
        Ok(updated == 1)
    }

    /// Empties the write-ahead log, closes the file and gives up the lock.
    pub fn close(self) -> Result<()> {
        let checkpointed = self.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
        let closed = self.connection.close().map_err(|(_, error)| error);
        checkpointed.and(closed)
    }
}

/// SQLite falls back in silence where a file system cannot do what the settings ask for.
fn check_durability(place: &str, connection: &Connection) -> std::result::Result<(), LedgerError> {
    let sql = "SELECT journal_mode, synchronous FROM pragma_journal_mode, pragma_synchronous";
    let (journal, synchronous): (String, i64) = connection
        .query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))
        .map_err(|error| LedgerError::from_sqlite(place, "check its settings", &error))?;
    if journal == "wal" && synchronous >= SYNCHRONOUS_FULL {
        return Ok(());
    }
    let reason = format!(
        "its file system does not allow a write-ahead log with full synchronisation \
         (journal_mode {journal}, synchronous {synchronous}): use a local disk"
    );
    Err(LedgerError::Unavailable { place: place.to_owned(), reason })
}
