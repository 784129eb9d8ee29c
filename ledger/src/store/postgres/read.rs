//! Reading the database: pages in order, streams, filters, keys, the head.

use super::connections::PgConnections;
use super::error::is_of_data;
use super::news::Announcer;
use super::partition;
use super::versions::Versions;
use crate::append::Head;
use crate::limits::MAX_APPEND_EVENTS;
use crate::place::PostgresUrl;
use crate::reader::EventFilter;
use crate::store::rows::{COLUMNS, page};
use crate::store::{
    FiledRow, Integrity, KeyRow, ReadLog, SNAPSHOT, Snapshot, SnapshotRow, StoredEvent, as_i64, head_of, holes_sql,
    out_of_reach_sql, why_out_of_reach,
};
use devmind_domain::canonical::Hash;
use devmind_domain::event::StreamId;
use devmind_domain::upcast;
use sqlx::{Postgres, QueryBuilder, Row};
use std::sync::Arc;

/// The triggers that every ledger has; without them a row could be changed by mistake.
const TRIGGERS: [&str; 12] = [
    "events_no_delete",
    "events_no_truncate",
    "events_no_update",
    "head_no_delete",
    "head_no_truncate",
    "head_only_grows",
    "idempotency_no_delete",
    "idempotency_no_truncate",
    "idempotency_no_update",
    "ledger_meta_no_delete",
    "ledger_meta_no_truncate",
    "ledger_meta_no_update",
];

/// The connections that read a database.
#[derive(Debug)]
pub(crate) struct PgLog {
    place: String,
    pub(super) connections: PgConnections,
    /// The writer of the same process, where there is one.
    pub(super) announcer: Option<Arc<Announcer>>,
    versions: Versions,
}

impl PgLog {
    pub(super) fn new(url: &PostgresUrl, connections: PgConnections, announcer: Option<Arc<Announcer>>) -> Self {
        Self { place: url.to_string(), connections, announcer, versions: Versions::new(url) }
    }

    pub async fn ledger_id(&self) -> Result<String, sqlx::Error> {
        let mut connection = self.connections.take().await?;
        let id = sqlx::query_scalar("SELECT ledger_id FROM ledger.ledger_meta").fetch_one(&mut *connection).await?;
        connection.give_back();
        Ok(id)
    }

    /// The events that a query finds; where a payload of theirs is no JSON, those that the tolerant one finds.
    async fn passing<'q>(
        &self,
        filter: &EventFilter,
        query: impl Fn(Payloads) -> QueryBuilder<'q, Postgres>,
    ) -> Result<Vec<StoredEvent>, sqlx::Error> {
        let found = self.fetched(query(Payloads::Json)).await;
        match found {
            Err(error) if filter.tool_call_id.is_some() && is_of_data(&error) => {
                self.fetched(query(Payloads::Damaged)).await
            }
            found => found,
        }
    }

    async fn fetched(&self, mut query: QueryBuilder<'_, Postgres>) -> Result<Vec<StoredEvent>, sqlx::Error> {
        let mut connection = self.connections.take().await?;
        let events = page(query.build().fetch(&mut *connection)).await?;
        connection.give_back();
        Ok(events)
    }
}

#[async_trait::async_trait]
impl ReadLog for PgLog {
    fn place(&self) -> &str {
        &self.place
    }

    async fn head(&self) -> Result<Head, sqlx::Error> {
        let row = sqlx::query("SELECT size, root FROM ledger.head WHERE partition = $1").bind(partition());
        let mut connection = self.connections.take().await?;
        let row = row.fetch_one(&mut *connection).await?;
        connection.give_back();
        head_of(row.try_get(0)?, row.try_get(1)?)
    }

    async fn page(&self, after: u64, limit: u32) -> Result<Vec<StoredEvent>, sqlx::Error> {
        // Positions have no gaps, so a page is a range: that is planned well whatever the database knows of
        // the table. Only after the end, or in a damaged log, is a range empty.
        let range = self.range(after + 1, after.saturating_add(limit.into())).await?;
        if !range.is_empty() {
            return Ok(range);
        }
        let sql = format!(
            "SELECT {COLUMNS} FROM ledger.events WHERE partition = $1 AND position > $2 ORDER BY position LIMIT $3"
        );
        let query = sqlx::query(&sql).bind(partition()).bind(as_i64(after)).bind(i64::from(limit));
        let mut connection = self.connections.take().await?;
        let events = page(query.fetch(&mut *connection)).await?;
        connection.give_back();
        Ok(events)
    }

    async fn leaf_hashes(&self, after: u64, limit: u64) -> Result<Vec<(u64, Hash)>, sqlx::Error> {
        let sql = "SELECT position, leaf_hash FROM ledger.events \
            WHERE partition = $1 AND position > $2 AND position <= $2 + $3 ORDER BY position";
        let query = sqlx::query_as(sql).bind(partition()).bind(as_i64(after)).bind(as_i64(limit));
        let mut connection = self.connections.take().await?;
        let rows: Vec<(i64, Vec<u8>)> = query.fetch_all(&mut *connection).await?;
        connection.give_back();
        let sound = |(position, leaf): (i64, Vec<u8>)| Some((u64::try_from(position).ok()?, leaf.try_into().ok()?));
        Ok(rows.into_iter().filter_map(sound).collect())
    }

    async fn range(&self, first: u64, last: u64) -> Result<Vec<StoredEvent>, sqlx::Error> {
        let sql = format!(
            "SELECT {COLUMNS} FROM ledger.events WHERE partition = $1 AND position BETWEEN $2 AND $3 ORDER BY position"
        );
        let query = sqlx::query(&sql).bind(partition()).bind(as_i64(first)).bind(as_i64(last));
        let mut connection = self.connections.take().await?;
        let events = page(query.fetch(&mut *connection)).await?;
        connection.give_back();
        Ok(events)
    }

    async fn stream_page(&self, stream: &StreamId, after: u64, limit: u32) -> Result<Vec<StoredEvent>, sqlx::Error> {
        let sql = format!(
            "SELECT {COLUMNS} FROM ledger.events WHERE aggregate_type = $1 AND aggregate_id = $2 AND sequence > $3 \
             ORDER BY sequence LIMIT $4"
        );
        let query = sqlx::query(&sql)
            .bind(stream.aggregate_type.as_str())
            .bind(stream.aggregate_id.as_str())
            .bind(as_i64(after))
            .bind(i64::from(limit));
        let mut connection = self.connections.take().await?;
        let events = page(query.fetch(&mut *connection)).await?;
        connection.give_back();
        Ok(events)
    }

    async fn version(&self, stream: &StreamId) -> Result<Option<u64>, sqlx::Error> {
        self.versions.of(stream).await.map(Some)
    }

    async fn filtered(&self, filter: &EventFilter, after: u64, limit: u32) -> Result<Vec<StoredEvent>, sqlx::Error> {
        self.passing(filter, |payloads| filter_query(filter, payloads, after, limit)).await
    }

    async fn last_before(&self, filter: &EventFilter, before: u64) -> Result<Vec<StoredEvent>, sqlx::Error> {
        self.passing(filter, |payloads| filter_query_back(filter, payloads, before)).await
    }

    async fn snapshot(&self, stream: &StreamId) -> Result<Option<Snapshot>, sqlx::Error> {
        let sql = format!("SELECT {SNAPSHOT} FROM ledger.snapshots WHERE aggregate_type = $1 AND aggregate_id = $2");
        let query = sqlx::query_as::<_, SnapshotRow>(&sql).bind(&stream.aggregate_type).bind(&stream.aggregate_id);
        let mut connection = self.connections.take().await?;
        let row = query.fetch_optional(&mut *connection).await?;
        connection.give_back();
        row.map(Snapshot::try_from).transpose()
    }

    async fn snapshots(&self, after: Option<&StreamId>, limit: u32) -> Result<Vec<Snapshot>, sqlx::Error> {
        let sql = format!(
            "SELECT {SNAPSHOT} FROM ledger.snapshots WHERE (aggregate_type, aggregate_id) > ($1, $2) \
             ORDER BY aggregate_type, aggregate_id LIMIT $3"
        );
        let (kind, id) = after.map_or(("", ""), |stream| (&*stream.aggregate_type, &*stream.aggregate_id));
        let query = sqlx::query_as::<_, SnapshotRow>(&sql).bind(kind).bind(id).bind(i64::from(limit));
        let mut connection = self.connections.take().await?;
        let rows = query.fetch_all(&mut *connection).await?;
        connection.give_back();
        rows.into_iter().map(Snapshot::try_from).collect()
    }

    async fn idempotent(&self, scope: &str, key: &str) -> Result<Option<KeyRow>, sqlx::Error> {
        let query =
            sqlx::query_as("SELECT * FROM ledger.idempotency WHERE scope = $1 AND key = $2").bind(scope).bind(key);
        let mut connection = self.connections.take().await?;
        let rows = query.fetch_optional(&mut *connection).await?;
        connection.give_back();
        Ok(rows)
    }

    async fn keys_of(&self, first: u64, last: u64) -> Result<Vec<KeyRow>, sqlx::Error> {
        // One command has at most so many events, so a key that reaches in cannot begin earlier.
        let earliest = first.saturating_sub(MAX_APPEND_EVENTS as u64);
        let query = sqlx::query_as(
            "SELECT * FROM ledger.idempotency WHERE first_position BETWEEN $1 AND $2 \
             AND (first_position >= $3 OR last_position >= $3) ORDER BY first_position",
        )
        .bind(as_i64(earliest))
        .bind(as_i64(last))
        .bind(as_i64(first));
        let mut connection = self.connections.take().await?;
        let rows = query.fetch_all(&mut *connection).await?;
        connection.give_back();
        Ok(rows)
    }

    async fn keys_beyond(&self, size: u64) -> Result<Vec<KeyRow>, sqlx::Error> {
        let query = sqlx::query_as(
            "SELECT * FROM ledger.idempotency WHERE first_position > $1 OR last_position > $2 OR first_position < 1 \
             LIMIT 100",
        )
        .bind(as_i64(size + 1))
        .bind(as_i64(size));
        let mut connection = self.connections.take().await?;
        let rows = query.fetch_all(&mut *connection).await?;
        connection.give_back();
        Ok(rows)
    }

    async fn filed(&self, first: u64, last: u64) -> Result<Vec<FiledRow>, sqlx::Error> {
        let query = sqlx::query_as(
            "SELECT position, conversation_id, run_id, actor FROM ledger.events \
             WHERE partition = $1 AND position BETWEEN $2 AND $3 ORDER BY position",
        )
        .bind(partition())
        .bind(as_i64(first))
        .bind(as_i64(last));
        let mut connection = self.connections.take().await?;
        let rows = query.fetch_all(&mut *connection).await?;
        connection.give_back();
        Ok(rows)
    }

    async fn out_of_reach(&self) -> Result<Vec<(i64, String)>, sqlx::Error> {
        let sql = out_of_reach_sql("ledger.events", "ledger.head");
        let mut connection = self.connections.take().await?;
        let rows: Vec<(i64, i64, i32)> = sqlx::query_as(&sql).fetch_all(&mut *connection).await?;
        connection.give_back();
        let why = |(position, partition, misplaced)| why_out_of_reach((position, partition, i64::from(misplaced)));
        Ok(rows.into_iter().map(why).collect())
    }

    async fn holes(&self) -> Result<Vec<i64>, sqlx::Error> {
        let sql = holes_sql("ledger.events", "ledger.head");
        let mut connection = self.connections.take().await?;
        let holes = sqlx::query_scalar(&sql).fetch_all(&mut *connection).await?;
        connection.give_back();
        Ok(holes)
    }

    async fn integrity(&self) -> Result<Integrity, sqlx::Error> {
        let mut connection = self.connections.take().await?;
        let row = sqlx::query(
            "SELECT size, root, frontier, \
             (SELECT coalesce(max(position), 0) FROM ledger.events e WHERE e.partition = h.partition), \
             (SELECT count(*) FROM ledger.events e WHERE e.partition <> h.partition), \
             ARRAY(SELECT wanted FROM unnest($2::text[]) AS wanted WHERE NOT EXISTS (SELECT 1 FROM pg_trigger t \
                   JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
                   WHERE n.nspname = 'ledger' AND t.tgname = wanted AND t.tgenabled IN ('O', 'A'))) \
             FROM ledger.head h WHERE partition = $1",
        )
        .bind(partition())
        .bind(TRIGGERS.map(str::to_owned).to_vec())
        .fetch_one(&mut *connection)
        .await?;
        connection.give_back();
        Ok(Integrity {
            size: row.try_get(0)?,
            root: row.try_get(1)?,
            frontier: row.try_get(2)?,
            newest: row.try_get(3)?,
            strays: row.try_get(4)?,
            missing_triggers: row.try_get(5)?,
        })
    }

    async fn integrity_check(&self) -> Result<Option<String>, sqlx::Error> {
        // Page checksums and `pg_amcheck` are the database operator's.
        Ok(None)
    }

    async fn close(&self) {
        self.versions.close().await;
        self.connections.close().await;
    }
}

/// What the payloads are that a query looks into.
#[derive(Clone, Copy)]
enum Payloads {
    /// JSON; another is an error.
    Json,
    /// Perhaps none: slower.
    Damaged,
}

fn filter_query(filter: &EventFilter, payloads: Payloads, after: u64, limit: u32) -> QueryBuilder<'_, Postgres> {
    let mut sql = passing(filter, payloads);
    sql.push(" AND position > ").push_bind(as_i64(after));
    sql.push(" ORDER BY position LIMIT ").push_bind(i64::from(limit));
    sql
}

fn filter_query_back(filter: &EventFilter, payloads: Payloads, before: u64) -> QueryBuilder<'_, Postgres> {
    let mut sql = passing(filter, payloads);
    sql.push(" AND position < ").push_bind(as_i64(before)).push(" ORDER BY position DESC LIMIT 1");
    sql
}

/// The events that pass a filter, for a query that goes on with where and how many.
fn passing(filter: &EventFilter, payloads: Payloads) -> QueryBuilder<'_, Postgres> {
    let EventFilter { conversation_id, run_id, tool_call_id, stream, event_type, actor } = filter;
    let mut sql = QueryBuilder::new(format!("SELECT {COLUMNS} FROM ledger.events WHERE partition = "));
    sql.push_bind(partition());
    if let Some(id) = conversation_id {
        sql.push(" AND conversation_id = ").push_bind(id.as_str());
    }
    if let Some(id) = run_id {
        sql.push(" AND run_id = ").push_bind(id.as_str());
    }
    if let Some(event_type) = event_type {
        let names = upcast::stored_as(event_type);
        sql.push(" AND event_type IN (");
        let mut list = sql.separated(", ");
        for name in names {
            list.push_bind(name.to_owned());
        }
        sql.push(")");
    }
    if let Some(actor) = actor {
        sql.push(" AND actor = ").push_bind(actor.as_str());
    }
    // Streams are short: their positions are looked up first, so that no log is walked for them.
    if let Some(stream) = stream {
        sql.push(" AND position IN (SELECT position FROM ledger.events WHERE aggregate_type = ");
        sql.push_bind(stream.aggregate_type.as_str()).push(" AND aggregate_id = ");
        sql.push_bind(stream.aggregate_id.as_str()).push(")");
    }
    if let Some(id) = tool_call_id {
        let (thread, model_call_id) = id.as_str().split_once(':').unwrap_or((id.as_str(), ""));
        sql.push(
            " AND position IN (SELECT position FROM ledger.events WHERE aggregate_type = 'tool_call' \
             AND aggregate_id = ",
        );
        sql.push_bind(id.as_str());
        sql.push(" UNION ALL SELECT position FROM ledger.events WHERE aggregate_type = 'thread' AND aggregate_id = ");
        sql.push_bind(thread);
        match payloads {
            Payloads::Json => {
                sql.push(" AND CASE event_type WHEN 'ToolResultObserved' THEN coalesce(ledger.readable(payload) ->> 'tool_call_id', ledger.readable(payload) #>> '{redacted,kept,tool_call_id}') = ");
                sql.push_bind(id.as_str());
                sql.push(
                    " WHEN 'ModelResponded' THEN EXISTS (SELECT 1 FROM json_array_elements(coalesce(ledger.readable(payload) -> 'tool_calls', ledger.readable(payload) #> '{redacted,kept,tool_calls}')) \
                     AS call WHERE call ->> 'id' = ",
                );
                sql.push_bind(model_call_id).push(") ELSE FALSE END)");
            }
            Payloads::Damaged => {
                sql.push(" AND ledger.may_tell_of(event_type, payload, ").push_bind(id.as_str());
                sql.push(", ").push_bind(model_call_id).push("))");
            }
        }
    }
    sql
}
