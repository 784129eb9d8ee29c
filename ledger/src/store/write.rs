//! Writing the file: one transaction for each batch, on the one connection that may write.

use super::read::KeyRow;
use super::rows::{COLUMNS, as_i64, partition, stored_event};
use crate::append::Idempotency;
use crate::error::LedgerError;
use crate::merkle::Frontier;
use devmind_domain::canonical::Hash;
use devmind_domain::event::{RecordedEvent, StreamId};
use sqlx::{Connection, Row, SqliteConnection};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The connection that writes, and the lock that makes it the only one.
#[derive(Debug)]
pub(crate) struct WriteStore {
    file: PathBuf,
    connection: SqliteConnection,
    lock: File,
    #[cfg(test)]
    pub faults: super::faults::Faults,
}

/// The head of the log.
#[derive(Clone, Debug)]
pub(crate) struct HeadRow {
    pub frontier: Frontier,
    pub root: Hash,
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

impl WriteStore {
    pub fn new(file: PathBuf, connection: SqliteConnection, lock: File) -> Self {
        Self {
            file,
            connection,
            lock,
            #[cfg(test)]
            faults: super::faults::Faults::default(),
        }
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Begins the batch's transaction; no other process can write until it ends.
    pub async fn begin(&mut self) -> Result<(), sqlx::Error> {
        self.run("BEGIN IMMEDIATE").await
    }

    pub async fn commit(&mut self) -> Result<(), sqlx::Error> {
        #[cfg(test)]
        if let Some((sql, error)) = self.faults.instead_of_commit() {
            self.run(sql).await?;
            return Err(error);
        }
        self.run("COMMIT").await
    }

    /// Ends the transaction without a trace. It may have ended by itself, so nothing is reported.
    pub async fn rollback(&mut self) {
        if let Err(error) = self.run("ROLLBACK").await {
            tracing::debug!(%error, "the transaction had ended already");
        }
    }

    async fn run(&mut self, sql: &'static str) -> Result<(), sqlx::Error> {
        sqlx::query(sql).execute(&mut self.connection).await.map(drop)
    }

    pub async fn head(&mut self) -> Result<Result<HeadRow, String>, sqlx::Error> {
        read_head(&mut self.connection).await
    }

    /// The current version of each stream, in the order asked.
    pub async fn versions(&mut self, streams: &[&StreamId]) -> Result<Vec<u64>, sqlx::Error> {
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

    /// Those of the keys that were stored before, with what their requests caused.
    pub async fn seen(&mut self, keys: &[&Idempotency]) -> Result<Vec<Seen>, sqlx::Error> {
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
            let stored = KeyRow {
                key: row.try_get(1)?,
                request_hash: row.try_get(2)?,
                first_position: row.try_get(3)?,
                last_position: row.try_get(4)?,
            };
            let index = usize::try_from(row.try_get::<i64, _>(0)?).unwrap_or(usize::MAX);
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
        let decode = |row| stored_event(row)?.event.map(Arc::new).map_err(|reason| sqlx::Error::Decode(reason.into()));
        rows.iter().map(decode).collect()
    }

    /// Stores events with one statement, however many they are.
    pub async fn insert(&mut self, events: &[Arc<RecordedEvent>]) -> Result<(), sqlx::Error> {
        let rows: Vec<_> = events
            .iter()
            .map(|event| {
                (
                    event.partition,
                    event.position,
                    &event.event_id,
                    &event.stream.aggregate_type,
                    &event.stream.aggregate_id,
                    event.sequence,
                    &event.event_type,
                    event.event_version,
                    &event.payload,
                    &event.metadata,
                    event.recorded_at,
                    hex::encode(event.leaf_hash),
                )
            })
            .collect();
        let sql = format!(
            "INSERT INTO events ({COLUMNS}) SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, \
             value ->> 5, value ->> 6, value ->> 7, value ->> 8, value ->> 9, value ->> 10, unhex(value ->> 11) \
             FROM json_each(?)"
        );
        sqlx::query(&sql).bind(json(&rows)?).execute(&mut self.connection).await.map(drop)
    }

    /// Stores keys with one statement.
    pub async fn insert_keys(&mut self, keys: &[NewKey<'_>]) -> Result<(), sqlx::Error> {
        let rows: Vec<_> = keys
            .iter()
            .map(|NewKey { idempotency, first, last }| {
                (&idempotency.scope, &idempotency.key, &idempotency.request_hash, first, last)
            })
            .collect();
        sqlx::query(
            "INSERT INTO idempotency (scope, key, request_hash, first_position, last_position) \
             SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 FROM json_each(?)",
        )
        .bind(json(&rows)?)
        .execute(&mut self.connection)
        .await
        .map(drop)
    }

    /// Moves the head; `false` when it was not where it was read.
    pub async fn advance(&mut self, from: u64, to: &HeadRow) -> Result<bool, sqlx::Error> {
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

    /// Whether an event is stored.
    pub async fn contains(&mut self, event_id: &str) -> Result<bool, sqlx::Error> {
        #[cfg(test)]
        if self.faults.unreadable() {
            return Err(super::faults::disk_error());
        }
        let found: Option<i64> = sqlx::query_scalar("SELECT 1 FROM events WHERE event_id = ?")
            .bind(event_id)
            .fetch_optional(&mut self.connection)
            .await?;
        Ok(found.is_some())
    }

    /// Empties the write-ahead log, closes the file and gives up the lock.
    pub async fn close(mut self) -> Result<(), LedgerError> {
        let checkpointed = self.run("PRAGMA wal_checkpoint(TRUNCATE)").await;
        let closed = self.connection.close().await;
        drop(self.lock);
        checkpointed.and(closed).map_err(|error| LedgerError::from_sqlx(&self.file, "close", &error))
    }
}

/// The head row, or why it makes no sense.
pub(super) async fn read_head(connection: &mut SqliteConnection) -> Result<Result<HeadRow, String>, sqlx::Error> {
    let row = sqlx::query("SELECT size, root, frontier FROM head WHERE partition = ?")
        .bind(partition())
        .fetch_optional(connection)
        .await?;
    let Some(row) = row else { return Ok(Err("the head is missing".to_owned())) };
    let size = u64::try_from(row.try_get::<i64, _>(0)?).unwrap_or(u64::MAX);
    let (root, frontier): (Vec<u8>, Vec<u8>) = (row.try_get(1)?, row.try_get(2)?);
    Ok(match Frontier::from_bytes(size, &frontier) {
        Some(frontier) if frontier.root().as_slice() == root => Ok(HeadRow { root: frontier.root(), frontier }),
        Some(_) | None => Err("the head's size, root and frontier do not fit together".to_owned()),
    })
}

fn json<T: serde::Serialize>(rows: &T) -> Result<String, sqlx::Error> {
    serde_json::to_string(rows).map_err(|error| sqlx::Error::Encode(Box::new(error)))
}
