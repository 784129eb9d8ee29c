//! Writing the file: one transaction for each batch, on the one connection that may write.

use super::partition;
use crate::append::Idempotency;
use crate::error::{LedgerError, SQLITE_IOERR, primary_result_code};
use crate::store::rows::{COLUMNS, stored_event};
use crate::store::{Batch, Failure, HeadRow, KeyRow, Look, NewKey, Seen, Snapshot, WriteLog, as_i64};
use devmind_domain::canonical::Hash;
use devmind_domain::event::{RecordedEvent, StreamId};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, Row, SqliteConnection};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// SQLite's result codes that speak of what a statement was given, not of the file or the disk:
/// ERROR, TOOBIG, CONSTRAINT, MISMATCH, RANGE.
const DATA_ERRORS: [u32; 5] = [1, 18, 19, 20, 25];

/// Rows stored with one statement, at most: SQLite takes 32,766 values.
const MAX_ROWS: usize = 512;

/// The connection that writes, and the lock that makes it the only one.
#[derive(Debug)]
pub(crate) struct SqliteWriter {
    place: String,
    connection: SqliteConnection,
    lock: File,
    /// Whether the batch's transaction has begun.
    begun: bool,
    #[cfg(test)]
    faults: crate::store::faults::Faults,
}

impl SqliteWriter {
    pub fn new(file: &Path, connection: SqliteConnection, lock: File) -> Self {
        Self {
            place: file.display().to_string(),
            connection,
            lock,
            begun: false,
            #[cfg(test)]
            faults: crate::store::faults::Faults::default(),
        }
    }

    async fn run(&mut self, sql: &'static str) -> Result<(), sqlx::Error> {
        sqlx::query(sql).execute(&mut self.connection).await.map(drop)
    }

    async fn begin(&mut self) -> Result<(), Failure> {
        if !self.begun {
            self.run("BEGIN IMMEDIATE").await.map_err(|error| self.before(&error))?;
            self.begun = true;
        }
        Ok(())
    }

    async fn commit(&mut self) -> Result<(), sqlx::Error> {
        self.begun = false;
        #[cfg(test)]
        if let Some((sql, error)) = self.faults.instead_of_commit() {
            self.run(sql).await?;
            return Err(error);
        }
        self.run("COMMIT").await
    }

    /// Ends the transaction without a trace. It may have ended by itself, so nothing is reported.
    async fn rollback(&mut self) {
        self.begun = false;
        if let Err(error) = self.run("ROLLBACK").await {
            tracing::debug!(%error, "the transaction had ended already");
        }
    }

    fn before(&self, error: &sqlx::Error) -> Failure {
        match speaks_of_data(error) {
            true => Failure::Data(error.to_string()),
            false => Failure::Before(LedgerError::from_sqlx(&self.place, "append", error)),
        }
    }

    async fn look_inside(
        &mut self,
        streams: &[&StreamId],
        keys: &[&Idempotency],
    ) -> Result<Result<Look, String>, sqlx::Error> {
        let head = match read_head(&mut self.connection).await? {
            Ok(head) => head,
            Err(reason) => return Ok(Err(reason)),
        };
        let versions = if streams.is_empty() { Vec::new() } else { self.versions(streams).await? };
        let seen = if keys.is_empty() { Vec::new() } else { self.seen(keys).await? };
        // Nobody else writes: the writer knows the newest moment itself.
        Ok(Ok(Look { head, recorded_at: None, versions, seen }))
    }

    async fn versions(&mut self, streams: &[&StreamId]) -> Result<Vec<u64>, sqlx::Error> {
        let asked: Vec<_> = streams.iter().map(|id| (&id.aggregate_type, &id.aggregate_id)).collect();
        let rows = sqlx::query(
            "SELECT coalesce((SELECT max(sequence) FROM events \
               WHERE aggregate_type = asked.value ->> 0 AND aggregate_id = asked.value ->> 1), 0) \
             FROM json_each(?) AS asked ORDER BY asked.key",
        )
        .bind(json(&asked)?)
        .fetch_all(&mut self.connection)
        .await?;
        rows.iter().map(|row| row.try_get::<i64, _>(0).map(|version| u64::try_from(version).unwrap_or(0))).collect()
    }

    async fn seen(&mut self, keys: &[&Idempotency]) -> Result<Vec<Seen>, sqlx::Error> {
        let asked: Vec<_> = keys.iter().map(|key| (&key.scope, &key.key)).collect();
        let rows = sqlx::query(
            "SELECT asked.key, stored.key, stored.request_hash, stored.first_position, stored.last_position \
             FROM json_each(?) AS asked JOIN idempotency AS stored \
             ON stored.scope = asked.value ->> 0 AND stored.key = asked.value ->> 1",
        )
        .bind(json(&asked)?)
        .fetch_all(&mut self.connection)
        .await?;
        let mut seen = Vec::with_capacity(rows.len());
        for row in rows {
            let index = usize::try_from(row.try_get::<i64, _>(0)?).unwrap_or(usize::MAX);
            let stored = KeyRow {
                scope: keys.get(index).map(|asked| asked.scope.clone()).unwrap_or_default(),
                key: row.try_get(1)?,
                request_hash: row.try_get(2)?,
                first_position: row.try_get(3)?,
                last_position: row.try_get(4)?,
            };
            let events = self.range(&stored).await?;
            seen.push(Seen { index, request_hash: stored.request_hash, events });
        }
        Ok(seen)
    }

    async fn range(&mut self, key: &KeyRow) -> Result<Vec<Arc<RecordedEvent>>, sqlx::Error> {
        let sql =
            format!("SELECT {COLUMNS} FROM events WHERE partition = ? AND position BETWEEN ? AND ? ORDER BY position");
        let query = sqlx::query(&sql).bind(partition()).bind(key.first_position).bind(key.last_position);
        let rows = query.fetch_all(&mut self.connection).await?;
        rows.iter().map(|row| stored_event(row)?.sound()).collect()
    }

    async fn write(&mut self, batch: &Batch<'_>) -> Result<bool, sqlx::Error> {
        if !batch.events.is_empty() {
            for events in batch.events.chunks(MAX_ROWS) {
                self.insert(events).await?;
            }
            if !self.advance(batch.from, batch.head).await? {
                return Ok(false);
            }
        }
        for keys in batch.keys.chunks(MAX_ROWS) {
            self.insert_keys(keys).await?;
        }
        if !batch.snapshots.is_empty() {
            self.keep(batch.snapshots).await?;
        }
        Ok(true)
    }

    /// Stores at most [`MAX_ROWS`] events with one statement.
    async fn insert(&mut self, events: &[Arc<RecordedEvent>]) -> Result<(), sqlx::Error> {
        let sql = format!("INSERT INTO events ({COLUMNS}) {}", rows_of(12, events.len()));
        let query = events.iter().fold(sqlx::query(&sql), |query, event| {
            query
                .bind(event.partition)
                .bind(as_i64(event.position))
                .bind(event.event_id.as_str())
                .bind(event.stream.aggregate_type.as_str())
                .bind(event.stream.aggregate_id.as_str())
                .bind(as_i64(event.sequence))
                .bind(event.event_type.as_str())
                .bind(event.event_version)
                .bind(event.payload.as_str())
                .bind(event.metadata.as_str())
                .bind(event.recorded_at.to_string())
                .bind(event.leaf_hash.as_slice())
        });
        query.execute(&mut self.connection).await.map(drop)
    }

    /// Stores at most [`MAX_ROWS`] keys with one statement.
    async fn insert_keys(&mut self, keys: &[NewKey<'_>]) -> Result<(), sqlx::Error> {
        let sql = format!(
            "INSERT INTO idempotency (scope, key, request_hash, first_position, last_position) {}",
            rows_of(5, keys.len())
        );
        let query = keys.iter().fold(sqlx::query(&sql), |query, NewKey { idempotency, first, last }| {
            query
                .bind(idempotency.scope.as_str())
                .bind(idempotency.key.as_str())
                .bind(idempotency.request_hash.as_str())
                .bind(as_i64(*first))
                .bind(as_i64(*last))
        });
        query.execute(&mut self.connection).await.map(drop)
    }

    /// Keeps states with one statement; a newer one that is there stays.
    async fn keep(&mut self, snapshots: &[Snapshot]) -> Result<(), sqlx::Error> {
        let rows: Vec<_> = snapshots
            .iter()
            .map(|Snapshot { stream, sequence, state_version, state }| {
                (&stream.aggregate_type, &stream.aggregate_id, sequence, state_version, state)
            })
            .collect();
        sqlx::query(
            "INSERT INTO snapshots (aggregate_type, aggregate_id, sequence, state_version, state) \
             SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 FROM json_each(?) WHERE true \
             ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET sequence = excluded.sequence, \
             state_version = excluded.state_version, state = excluded.state \
             WHERE excluded.sequence > sequence OR excluded.state_version <> state_version",
        )
        .bind(json(&rows)?)
        .execute(&mut self.connection)
        .await
        .map(drop)
    }

    /// Moves the head; `false` when it was not where it was read.
    async fn advance(&mut self, from: u64, to: &HeadRow) -> Result<bool, sqlx::Error> {
        sqlx::query("UPDATE head SET size = ?, root = ?, frontier = ? WHERE partition = ? AND size = ?")
            .bind(as_i64(to.frontier.size()))
            .bind(to.root.as_slice())
            .bind(to.frontier.to_bytes())
            .bind(partition())
            .bind(as_i64(from))
            .execute(&mut self.connection)
            .await
            .map(|done| done.rows_affected() == 1)
    }

    async fn contains(&mut self, event_id: &str) -> Result<bool, sqlx::Error> {
        #[cfg(test)]
        if self.faults.unreadable() {
            return Err(crate::store::faults::disk_error());
        }
        let found: Option<i64> = sqlx::query_scalar("SELECT 1 FROM events WHERE event_id = ?")
            .bind(event_id)
            .fetch_optional(&mut self.connection)
            .await?;
        Ok(found.is_some())
    }
}

#[async_trait::async_trait]
impl WriteLog for SqliteWriter {
    fn place(&self) -> &str {
        &self.place
    }

    #[cfg(test)]
    fn faults(&self) -> crate::store::faults::Faults {
        self.faults.clone()
    }

    /// Begins the batch's transaction; no other process can write until it ends.
    async fn look(&mut self, streams: &[&StreamId], keys: &[&Idempotency]) -> Result<Look, Failure> {
        #[cfg(test)]
        self.faults.note_look();
        self.begin().await?;
        let failure = match self.look_inside(streams, keys).await {
            Ok(Ok(look)) => return Ok(look),
            Ok(Err(reason)) => Failure::Before(LedgerError::Corrupt { place: self.place.clone(), reason }),
            Err(error) => self.before(&error),
        };
        self.rollback().await;
        Err(failure)
    }

    async fn store(&mut self, batch: &Batch<'_>) -> Result<(), Failure> {
        self.begin().await?;
        let failure = match self.write(batch).await {
            Ok(true) => return self.commit().await.map_err(Failure::AtCommit),
            Ok(false) => Failure::Moved,
            Err(error) => self.before(&error),
        };
        self.rollback().await;
        Err(failure)
    }

    async fn leave(&mut self) {
        self.rollback().await;
    }

    async fn settle(&mut self, event_id: Option<&str>, error: &sqlx::Error) -> Result<bool, String> {
        self.rollback().await;
        let Some(event_id) = event_id else { return Ok(false) };
        match self.contains(event_id).await {
            Ok(true) => Ok(true),
            // The frames of a commit whose flush failed may lie in the write-ahead log all the same,
            // and be found there after a crash.
            Ok(false) if speaks_of_the_disk(error) => Err("it may come back after a crash".to_owned()),
            Ok(false) => Ok(false),
            Err(unreadable) => Err(format!("then {unreadable}")),
        }
    }

    async fn erase(&mut self, position: u64, marker: &str) -> Result<(), Failure> {
        // Freed pages are overwritten; closing empties the write-ahead log, which holds the old page.
        self.run("PRAGMA secure_delete = ON").await.map_err(|error| self.before(&error))?;
        // A stored state may hold what is erased; it comes back from the events.
        sqlx::query(
            "DELETE FROM snapshots WHERE (aggregate_type, aggregate_id) IN \
             (SELECT aggregate_type, aggregate_id FROM events WHERE partition = ? AND position = ?)",
        )
        .bind(partition())
        .bind(as_i64(position))
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.before(&error))?;
        let updated = sqlx::query("UPDATE events SET payload = ? WHERE partition = ? AND position = ?")
            .bind(marker)
            .bind(partition())
            .bind(as_i64(position))
            .execute(&mut self.connection)
            .await
            .map_err(|error| self.before(&error))?;
        match updated.rows_affected() {
            1 => Ok(()),
            _ => Err(Failure::Data(format!("there is no event {position}"))),
        }
    }

    /// Empties the write-ahead log, closes the file and gives up the lock.
    async fn close(mut self: Box<Self>) -> Result<(), LedgerError> {
        let checkpointed = self.run("PRAGMA wal_checkpoint(TRUNCATE)").await;
        let closed = self.connection.close().await;
        drop(self.lock);
        checkpointed.and(closed).map_err(|error| LedgerError::from_sqlx(&self.place, "close", &error))
    }
}

/// The head row, or why it makes no sense.
pub(super) async fn read_head(connection: &mut SqliteConnection) -> Result<Result<HeadRow, String>, sqlx::Error> {
    let row = sqlx::query("SELECT size, root, frontier FROM head WHERE partition = ?")
        .bind(partition())
        .fetch_optional(connection)
        .await?;
    let Some(row) = row else { return Ok(Err("the head is missing".to_owned())) };
    Ok(HeadRow::new(row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
}

/// Says how long a log is of which a file holds a part: for reading alone, as nothing can be appended to it.
pub(crate) async fn set_head(file: &Path, size: u64, root: &Hash) -> Result<(), sqlx::Error> {
    let mut connection = SqliteConnectOptions::new().filename(file).connect().await?;
    sqlx::query("UPDATE head SET size = ?, root = ? WHERE partition = ?")
        .bind(as_i64(size))
        .bind(root.as_slice())
        .bind(partition())
        .execute(&mut connection)
        .await?;
    connection.close().await
}

fn speaks_of_data(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Encode(_))
        || primary_result_code(error).is_some_and(|code| DATA_ERRORS.contains(&code))
}

fn speaks_of_the_disk(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Io(_)) || primary_result_code(error) == Some(SQLITE_IOERR)
}

/// So many rows of values, rounded up to a power of two so that there are few statements, each prepared once; the rows
/// too many are NULL, as all values that are not bound, and left out. Half the work of `json_each`, which parses each value again and again.
fn rows_of(columns: usize, rows: usize) -> String {
    let row = format!("({})", vec!["?"; columns].join(", "));
    let rows = vec![row.as_str(); rows.next_power_of_two()].join(", ");
    format!("SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL")
}

fn json<T: serde::Serialize>(rows: &T) -> Result<String, sqlx::Error> {
    serde_json::to_string(rows).map_err(|error| sqlx::Error::Encode(Box::new(error)))
}
