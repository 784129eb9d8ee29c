//! Writing the database: a look, then one statement that stores the whole batch and commits by itself.
//!
//! The statement begins by moving the head's row, only from the size and generation that were looked
//! at. Its lock orders the processes; a process that was overtaken stores nothing and looks again,
//! from then on inside a transaction that holds the lock, so that it is not overtaken for ever. A
//! commit in doubt is settled by raising the generation: what has not arrived by then never will.

use super::error::{before, lost_connection, of_store};
use super::news::{Announcer, CHANNEL};
use super::partition;
use crate::append::Idempotency;
use crate::error::LedgerError;
use crate::filed::Filed;
use crate::limits::{COMMIT_WAIT, CONNECT_WAIT, DOUBT_WAIT, RECONNECT_PAUSE};
use crate::place::PostgresUrl;
use crate::store::rows::{COLUMNS, stored_event};
use crate::store::{Batch, CommitError, Failure, HeadRow, KeyRow, Look, SNAPSHOT, Seen, WriteLog, as_i64};
use devmind_domain::Timestamp;
use devmind_domain::event::{RecordedEvent, StreamId};
use sqlx::postgres::{PgConnection, PgHasArrayType};
use sqlx::{Connection, Encode, Executor, Postgres, QueryBuilder, Row, Type};
use std::future::Future;
use std::sync::Arc;
use tokio::time::{Instant, timeout};

/// Settings of the session; the statements' own limits end what would hang (milliseconds). Each statement is
/// planned once, maybe on empty tables, and must stay right when they are large: by their indexes.
const SESSION: &str = "SET default_transaction_isolation = 'read committed'; SET lock_timeout = 8000; \
     SET statement_timeout = 20000; SET idle_in_transaction_session_timeout = 20000; \
     SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off";

/// The connection that writes; made when it is needed, and anew when it was lost.
#[derive(Debug)]
pub(crate) struct PgWriter {
    url: PostgresUrl,
    place: String,
    announcer: Arc<Announcer>,
    connection: Option<PgConnection>,
    /// The head's generation at the last look.
    generation: i64,
    /// Whether another process was faster the last time: then the lock is taken first.
    overtaken: bool,
    /// Whether the look holds the lock, in a transaction.
    locked: bool,
    #[cfg(test)]
    faults: crate::store::faults::Faults,
}

impl PgWriter {
    pub fn new(url: &PostgresUrl, announcer: Arc<Announcer>) -> Self {
        Self {
            url: url.clone(),
            place: url.to_string(),
            announcer,
            connection: None,
            generation: 0,
            overtaken: false,
            locked: false,
            #[cfg(test)]
            faults: crate::store::faults::Faults::default(),
        }
    }

    async fn connection(&mut self) -> Result<&mut PgConnection, sqlx::Error> {
        if self.connection.is_none() {
            let connecting = async {
                let mut connection = PgConnection::connect_with(self.url.options()).await?;
                connection.execute(SESSION).await?;
                Ok(connection)
            };
            self.connection = Some(bounded(CONNECT_WAIT, connecting).await?);
            self.locked = false;
        }
        self.connection.as_mut().ok_or(sqlx::Error::PoolClosed)
    }

    async fn run(&mut self, sql: &str) -> Result<(), sqlx::Error> {
        self.connection().await?.execute(sql).await.map(drop)
    }

    /// Forgets a connection that may not answer any more.
    fn drop_lost(&mut self, error: &sqlx::Error) -> bool {
        let lost = lost_connection(error);
        if lost {
            self.connection = None;
            self.locked = false;
        }
        lost
    }

    async fn look_once(
        &mut self,
        streams: &[&StreamId],
        keys: &[&Idempotency],
    ) -> Result<Result<Look, String>, sqlx::Error> {
        if self.overtaken && !self.locked {
            self.run(&format!("BEGIN; SELECT 1 FROM ledger.head WHERE partition = {} FOR UPDATE", partition())).await?;
            self.locked = true;
        }
        let kinds: Vec<&str> = streams.iter().map(|id| id.aggregate_type.as_str()).collect();
        let ids: Vec<&str> = streams.iter().map(|id| id.aggregate_id.as_str()).collect();
        let scopes: Vec<&str> = keys.iter().map(|key| key.scope.as_str()).collect();
        let names: Vec<&str> = keys.iter().map(|key| key.key.as_str()).collect();
        // One statement, so one moment; what the next ones read can only be the same while the head,
        // which the batch is stored against, has not moved. A key is looked up by a subquery of its own: a join
        // may be planned as a walk over all keys there ever were; ordering leaves one index for the newest event.
        let row = sqlx::query(
            "SELECT h.size, h.root, h.frontier, h.generation, \
             (SELECT e.recorded_at FROM ledger.events e WHERE e.partition = h.partition AND e.position <= h.size \
              ORDER BY e.position DESC LIMIT 1), \
             ARRAY(SELECT coalesce((SELECT max(e.sequence) FROM ledger.events e \
                   WHERE e.aggregate_type = asked.kind AND e.aggregate_id = asked.id), 0) \
                   FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS asked (kind, id, n) ORDER BY n), \
             ARRAY(SELECT (SELECT i.key FROM ledger.idempotency i WHERE i.scope = asked.scope AND i.key = asked.key) IS NOT NULL \
                   FROM unnest($4::text[], $5::text[]) WITH ORDINALITY AS asked (scope, key, n) ORDER BY n) \
             FROM ledger.head h WHERE h.partition = $1",
        )
        .bind(partition())
        .bind(kinds)
        .bind(ids)
        .bind(scopes)
        .bind(names)
        .fetch_optional(self.connection().await?)
        .await?;
        let Some(row) = row else { return Ok(Err("the head is missing".to_owned())) };
        let (root, frontier): (Vec<u8>, Vec<u8>) = (row.try_get(1)?, row.try_get(2)?);
        let head = match HeadRow::new(row.try_get(0)?, &root, &frontier) {
            Ok(head) => head,
            Err(reason) => return Ok(Err(reason)),
        };
        self.generation = row.try_get(3)?;
        let recorded_at: Option<String> = row.try_get(4)?;
        let recorded_at = recorded_at.and_then(|text| Timestamp::parse(&text).ok());
        let versions: Vec<i64> = row.try_get(5)?;
        let versions = versions.into_iter().map(|version| u64::try_from(version).unwrap_or(0)).collect();
        let mut seen = Vec::new();
        for (index, (key, found)) in keys.iter().zip(row.try_get::<Vec<bool>, _>(6)?).enumerate() {
            if found {
                seen.extend(self.seen(index, key).await?);
            }
        }
        Ok(Ok(Look { head, recorded_at, versions, seen }))
    }

    async fn seen(&mut self, index: usize, key: &Idempotency) -> Result<Option<Seen>, sqlx::Error> {
        let connection = self.connection().await?;
        let stored: Option<KeyRow> = sqlx::query_as("SELECT * FROM ledger.idempotency WHERE scope = $1 AND key = $2")
            .bind(&key.scope)
            .bind(&key.key)
            .fetch_optional(&mut *connection)
            .await?;
        let Some(stored) = stored else { return Ok(None) };
        let sql = format!(
            "SELECT {COLUMNS} FROM ledger.events WHERE partition = $1 AND position BETWEEN $2 AND $3 ORDER BY position"
        );
        let rows = sqlx::query(&sql)
            .bind(partition())
            .bind(stored.first_position)
            .bind(stored.last_position)
            .fetch_all(connection)
            .await?;
        let events: Result<Vec<_>, _> = rows.iter().map(|row| stored_event(row)?.sound()).collect();
        Ok(Some(Seen { index, request_hash: stored.request_hash, events: events? }))
    }

    /// The one statement; `false` when the head was not where it was looked at.
    async fn write(&mut self, batch: &Batch<'_>) -> Result<bool, sqlx::Error> {
        let filed: Vec<Filed> = batch.events.iter().map(|event| Filed::of(event)).collect();
        let (generation, announcer) = (self.generation, Arc::clone(&self.announcer));
        let told = announcer.is_heard().then_some(announcer.own.as_str());
        let mut statement = batch_statement(batch, &filed, generation, told);
        let moved = statement.build().fetch_optional(self.connection().await?).await?.is_some();
        if moved && self.locked {
            self.locked = false;
            self.run("COMMIT").await?;
        }
        Ok(moved)
    }

    /// Whether the event is stored; in a transaction that first makes sure that nothing older than it
    /// can be stored after it.
    async fn fence_and_look(&mut self, event_id: &str) -> Result<bool, sqlx::Error> {
        let mut transaction = self.connection().await?.begin().await?;
        sqlx::query("UPDATE ledger.head SET generation = generation + 1 WHERE partition = $1")
            .bind(partition())
            .execute(&mut *transaction)
            .await?;
        let found: Option<i64> = sqlx::query_scalar("SELECT position FROM ledger.events WHERE event_id = $1")
            .bind(event_id)
            .fetch_optional(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(found.is_some())
    }
}

#[async_trait::async_trait]
impl WriteLog for PgWriter {
    fn place(&self) -> &str {
        &self.place
    }

    #[cfg(test)]
    fn faults(&self) -> crate::store::faults::Faults {
        self.faults.clone()
    }

    async fn look(&mut self, streams: &[&StreamId], keys: &[&Idempotency]) -> Result<Look, Failure> {
        #[cfg(test)]
        self.faults.note_look();
        let mut again = self.connection.is_some();
        loop {
            let error = match bounded(COMMIT_WAIT, self.look_once(streams, keys)).await {
                Ok(Ok(look)) => return Ok(look),
                Ok(Err(reason)) => {
                    self.leave().await;
                    return Err(Failure::Before(LedgerError::Corrupt { place: self.place.clone(), reason }));
                }
                Err(error) => error,
            };
            // The connection may have been lost long ago; nothing was stored yet, so a new one is tried.
            if self.drop_lost(&error) && again {
                again = false;
                continue;
            }
            self.leave().await;
            return Err(before(&self.place, &error));
        }
    }

    async fn store(&mut self, batch: &Batch<'_>) -> Result<(), Failure> {
        #[cfg(test)]
        if let Some(error) = self.faults.before_store() {
            return Err(Failure::AtCommit(error.into()));
        }
        let stored = bounded(COMMIT_WAIT, self.write(batch)).await;
        #[cfg(test)]
        let stored = self.faults.after_store(stored);
        let failure = match stored {
            Ok(true) => {
                self.overtaken = false;
                return Ok(());
            }
            Ok(false) => {
                self.overtaken = true;
                Failure::Moved
            }
            Err(error) => {
                self.drop_lost(&error);
                of_store(&self.place, error)
            }
        };
        self.leave().await;
        Err(failure)
    }

    async fn leave(&mut self) {
        if !std::mem::take(&mut self.locked) {
            return;
        }
        if let Err(error) = self.run("ROLLBACK").await {
            tracing::debug!(%error, "the transaction had ended already");
            self.connection = None;
        }
    }

    async fn settle(&mut self, event_id: Option<&str>, error: &CommitError) -> Result<bool, String> {
        tracing::warn!(%error, database = self.place, "a commit is in doubt; asking the database");
        // Whatever state the old connection is in, it is not asked.
        self.connection = None;
        self.locked = false;
        let Some(event_id) = event_id else { return Ok(false) };
        #[cfg(test)]
        if self.faults.unreadable() {
            return Err("the test's database is gone".to_owned());
        }
        let deadline = Instant::now() + DOUBT_WAIT;
        loop {
            match bounded(COMMIT_WAIT, self.fence_and_look(event_id)).await {
                Ok(stored) => {
                    tracing::warn!(stored, "the commit in doubt is settled");
                    #[cfg(test)]
                    self.faults.note_settled(stored);
                    return Ok(stored);
                }
                Err(error) if Instant::now() < deadline => {
                    self.connection = None;
                    tracing::debug!(%error, "the database does not answer yet");
                    tokio::time::sleep(RECONNECT_PAUSE).await;
                }
                Err(error) => return Err(format!("for {} s: {error}", DOUBT_WAIT.as_secs())),
            }
        }
    }

    async fn erase(&mut self, position: u64, marker: &str) -> Result<(), Failure> {
        // What was there stays in a dead row until the database's VACUUM takes it.
        // A stored state may hold it as well; it comes back from the events.
        let sql = "WITH forgotten AS (DELETE FROM ledger.snapshots s USING ledger.events e \
             WHERE e.partition = $2 AND e.position = $3 \
             AND s.aggregate_type = e.aggregate_type AND s.aggregate_id = e.aggregate_id) \
             UPDATE ledger.events SET payload = $1 WHERE partition = $2 AND position = $3";
        let query = sqlx::query(sql).bind(marker).bind(partition()).bind(as_i64(position));
        let place = self.place.clone();
        let connection = self.connection().await.map_err(|error| before(&place, &error))?;
        match query.execute(connection).await {
            Ok(done) if done.rows_affected() == 1 => Ok(()),
            Ok(_) => Err(Failure::Data(format!("there is no event {position}"))),
            Err(error) => Err(of_store(&place, error)),
        }
    }

    async fn close(mut self: Box<Self>) -> Result<(), LedgerError> {
        match self.connection.take() {
            Some(connection) => {
                connection.close().await.map_err(|error| LedgerError::from_sqlx(&self.place, "close", &error))
            }
            None => Ok(()),
        }
    }
}

/// What stores a batch and moves the head, or does neither. It holds what the batch has and no more: what a statement
/// begins and ends with is most of its cost until the rows are many. `told` is who other processes hear it from.
fn batch_statement<'b>(
    batch: &'b Batch<'_>,
    filed: &'b [Filed],
    generation: i64,
    told: Option<&'b str>,
) -> QueryBuilder<'b, Postgres> {
    let mut sql = QueryBuilder::new("WITH moved AS (UPDATE ledger.head SET size = ");
    sql.push_bind(as_i64(batch.head.frontier.size()));
    sql.push(", root = ").push_bind(batch.head.root.as_slice());
    sql.push(", frontier = ").push_bind(batch.head.frontier.to_bytes());
    sql.push(" WHERE partition = ").push_bind(partition());
    sql.push(" AND size = ").push_bind(as_i64(batch.from));
    sql.push(" AND generation = ").push_bind(generation).push(" RETURNING partition)");
    if !batch.events.is_empty() {
        let into = format!("stored AS (INSERT INTO ledger.events ({COLUMNS}, conversation_id, run_id, actor)");
        let events: Vec<(&RecordedEvent, &Filed)> = batch.events.iter().map(Arc::as_ref).zip(filed).collect();
        Rows::of(&events, &mut sql, &into, "moved.partition, ")
            .column(|(event, _)| as_i64(event.position))
            .column(|(event, _)| event.event_id.as_str())
            .column(|(event, _)| event.stream.aggregate_type.as_str())
            .column(|(event, _)| event.stream.aggregate_id.as_str())
            .column(|(event, _)| as_i64(event.sequence))
            .column(|(event, _)| event.event_type.as_str())
            .column(|(event, _)| i64::from(event.event_version))
            .column(|(event, _)| event.payload.as_str())
            .column(|(event, _)| event.metadata.as_str())
            .column(|(event, _)| event.recorded_at.to_string())
            .column(|(event, _)| event.leaf_hash.as_slice())
            .column(|(_, filed)| filed.conversation_id.as_deref())
            .column(|(_, filed)| filed.correlation_id.as_deref())
            .column(|(_, filed)| filed.actor())
            .end("");
    }
    if !batch.keys.is_empty() {
        let into = "kept AS (INSERT INTO ledger.idempotency (scope, key, request_hash, first_position, last_position)";
        Rows::of(batch.keys, &mut sql, into, "")
            .column(|key| key.idempotency.scope.as_str())
            .column(|key| key.idempotency.key.as_str())
            .column(|key| key.idempotency.request_hash.as_str())
            .column(|key| as_i64(key.first))
            .column(|key| as_i64(key.last))
            .end("");
    }
    if !batch.snapshots.is_empty() {
        let into = format!("remembered AS (INSERT INTO ledger.snapshots AS s ({SNAPSHOT})");
        Rows::of(batch.snapshots, &mut sql, &into, "")
            .column(|snapshot| snapshot.stream.aggregate_type.as_str())
            .column(|snapshot| snapshot.stream.aggregate_id.as_str())
            .column(|snapshot| as_i64(snapshot.sequence))
            .column(|snapshot| i64::from(snapshot.state_version))
            .column(|snapshot| snapshot.state.as_str())
            .end(
                " ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET sequence = excluded.sequence, \
                 state_version = excluded.state_version, state = excluded.state \
                 WHERE excluded.sequence > s.sequence OR excluded.state_version <> s.state_version",
            );
    }
    match told {
        Some(by) => sql.push(format_args!(" SELECT pg_notify('{CHANNEL}', ")).push_bind(by).push(") FROM moved"),
        None => sql.push(" SELECT 1 FROM moved"),
    };
    sql
}

/// A part of a statement that inserts rows once the head has moved: one row as plain values, several by their columns.
struct Rows<'q, 's, 'b, R> {
    rows: &'s [R],
    sql: &'q mut QueryBuilder<'b, Postgres>,
    between: &'static str,
}

impl<'q, 's, 'b, R> Rows<'q, 's, 'b, R> {
    /// Begins it, with what comes before the columns of each row.
    fn of(rows: &'s [R], sql: &'q mut QueryBuilder<'b, Postgres>, into: &str, first: &str) -> Self {
        sql.push(format_args!(", {into} SELECT {first}"));
        if rows.len() != 1 {
            sql.push("r.* FROM moved, unnest(");
        }
        Self { rows, sql, between: "" }
    }

    fn column<T>(mut self, of: impl Fn(&'s R) -> T) -> Self
    where
        T: Encode<'b, Postgres> + Type<Postgres> + PgHasArrayType + Send + 'b,
        Vec<T>: Encode<'b, Postgres>,
    {
        self.sql.push(std::mem::replace(&mut self.between, ", "));
        match self.rows {
            [row] => self.sql.push_bind(of(row)),
            rows => self.sql.push_bind(rows.iter().map(of).collect::<Vec<_>>()),
        };
        self
    }

    /// Ends it, with what comes after the rows.
    fn end(self, then: &str) {
        self.sql.push(if self.rows.len() == 1 { " FROM moved" } else { ") AS r" });
        self.sql.push(format_args!("{then})"));
    }
}

/// A peer that does not answer in time counts as a lost connection.
async fn bounded<T>(
    limit: std::time::Duration,
    asked: impl Future<Output = Result<T, sqlx::Error>> + Send,
) -> Result<T, sqlx::Error> {
    timeout(limit, asked).await.unwrap_or_else(|_| {
        Err(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, "the database did not answer in time")))
    })
}
