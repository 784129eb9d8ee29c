//! Reading the file: pages in order, streams, filters, keys, the head.

use super::partition;
use crate::append::Head;
use crate::limits::MAX_APPEND_EVENTS;
use crate::reader::EventFilter;
use crate::store::rows::{COLUMNS, page};
use crate::store::{
    FiledRow, Integrity, KeyRow, ReadLog, SNAPSHOT, Snapshot, SnapshotRow, StoredEvent, as_i64, head_of, holes_sql,
    out_of_reach_sql, why_out_of_reach,
};
use devmind_domain::canonical::Hash;
use devmind_domain::event::StreamId;
use devmind_domain::upcast;
use sqlx::{QueryBuilder, Row, Sqlite, SqlitePool};
use std::path::Path;

/// The triggers that every ledger has; without them a row could be changed by mistake.
const TRIGGERS: [&str; 8] = [
    "events_no_delete",
    "events_no_update",
    "head_no_delete",
    "head_only_grows",
    "idempotency_no_delete",
    "idempotency_no_update",
    "ledger_meta_no_delete",
    "ledger_meta_no_update",
];

/// The connections that read a file.
#[derive(Debug)]
pub(crate) struct SqliteLog {
    place: String,
    pool: SqlitePool,
}

impl SqliteLog {
    pub fn new(file: &Path, pool: SqlitePool) -> Self {
        Self { place: file.display().to_string(), pool }
    }

    pub async fn ledger_id(&self) -> Result<String, sqlx::Error> {
        sqlx::query_scalar("SELECT ledger_id FROM ledger_meta").fetch_one(&self.pool).await
    }
}

#[async_trait::async_trait]
impl ReadLog for SqliteLog {
    fn place(&self) -> &str {
        &self.place
    }

    async fn head(&self) -> Result<Head, sqlx::Error> {
        let row = sqlx::query("SELECT size, root FROM head WHERE partition = ?").bind(partition());
        let row = row.fetch_one(&self.pool).await?;
        head_of(row.try_get(0)?, row.try_get(1)?)
    }

    async fn page(&self, after: u64, limit: u32) -> Result<Vec<StoredEvent>, sqlx::Error> {
        let sql =
            format!("SELECT {COLUMNS} FROM events WHERE partition = ? AND position > ? ORDER BY position LIMIT ?");
        page(sqlx::query(&sql).bind(partition()).bind(as_i64(after)).bind(limit).fetch(&self.pool)).await
    }

    async fn leaf_hashes(&self, after: u64, limit: u64) -> Result<Vec<(u64, Hash)>, sqlx::Error> {
        let sql =
            "SELECT position, leaf_hash FROM events WHERE partition = ? AND position > ? ORDER BY position LIMIT ?";
        let query = sqlx::query_as(sql).bind(partition()).bind(as_i64(after)).bind(as_i64(limit));
        let rows: Vec<(i64, Vec<u8>)> = query.fetch_all(&self.pool).await?;
        let sound = |(position, leaf): (i64, Vec<u8>)| Some((u64::try_from(position).ok()?, leaf.try_into().ok()?));
        Ok(rows.into_iter().filter_map(sound).collect())
    }

    async fn range(&self, first: u64, last: u64) -> Result<Vec<StoredEvent>, sqlx::Error> {
        let sql =
            format!("SELECT {COLUMNS} FROM events WHERE partition = ? AND position BETWEEN ? AND ? ORDER BY position");
        page(sqlx::query(&sql).bind(partition()).bind(as_i64(first)).bind(as_i64(last)).fetch(&self.pool)).await
    }

    async fn stream_page(&self, stream: &StreamId, after: u64, limit: u32) -> Result<Vec<StoredEvent>, sqlx::Error> {
        let sql = format!(
            "SELECT {COLUMNS} FROM events WHERE aggregate_type = ? AND aggregate_id = ? AND sequence > ? \
             ORDER BY sequence LIMIT ?"
        );
        let query = sqlx::query(&sql)
            .bind(stream.aggregate_type.as_str())
            .bind(stream.aggregate_id.as_str())
            .bind(as_i64(after))
            .bind(limit);
        page(query.fetch(&self.pool)).await
    }

    async fn filtered(&self, filter: &EventFilter, after: u64, limit: u32) -> Result<Vec<StoredEvent>, sqlx::Error> {
        let mut builder = filter_query(filter, after, limit);
        page(builder.build().fetch(&self.pool)).await
    }

    async fn last_before(&self, filter: &EventFilter, before: u64) -> Result<Vec<StoredEvent>, sqlx::Error> {
        let mut builder = filter_query_back(filter, before);
        page(builder.build().fetch(&self.pool)).await
    }

    async fn snapshot(&self, stream: &StreamId) -> Result<Option<Snapshot>, sqlx::Error> {
        let sql = format!("SELECT {SNAPSHOT} FROM snapshots WHERE aggregate_type = ? AND aggregate_id = ?");
        let query = sqlx::query_as::<_, SnapshotRow>(&sql).bind(&stream.aggregate_type).bind(&stream.aggregate_id);
        query.fetch_optional(&self.pool).await?.map(Snapshot::try_from).transpose()
    }

    async fn snapshots(&self, after: Option<&StreamId>, limit: u32) -> Result<Vec<Snapshot>, sqlx::Error> {
        let sql = format!(
            "SELECT {SNAPSHOT} FROM snapshots WHERE (aggregate_type, aggregate_id) > (?, ?) \
             ORDER BY aggregate_type, aggregate_id LIMIT ?"
        );
        let (kind, id) = after.map_or(("", ""), |stream| (&*stream.aggregate_type, &*stream.aggregate_id));
        let rows = sqlx::query_as::<_, SnapshotRow>(&sql).bind(kind).bind(id).bind(limit).fetch_all(&self.pool).await?;
        rows.into_iter().map(Snapshot::try_from).collect()
    }

    async fn idempotent(&self, scope: &str, key: &str) -> Result<Option<KeyRow>, sqlx::Error> {
        sqlx::query_as("SELECT * FROM idempotency WHERE scope = ? AND key = ?")
            .bind(scope)
            .bind(key)
            .fetch_optional(&self.pool)
            .await
    }

    async fn keys_of(&self, first: u64, last: u64) -> Result<Vec<KeyRow>, sqlx::Error> {
        // One command has at most so many events, so a key that reaches in cannot begin earlier.
        let earliest = first.saturating_sub(MAX_APPEND_EVENTS as u64);
        sqlx::query_as(
            "SELECT * FROM idempotency WHERE first_position BETWEEN ? AND ? \
             AND (first_position >= ? OR last_position >= ?) ORDER BY first_position",
        )
        .bind(as_i64(earliest))
        .bind(as_i64(last))
        .bind(as_i64(first))
        .bind(as_i64(first))
        .fetch_all(&self.pool)
        .await
    }

    async fn keys_beyond(&self, size: u64) -> Result<Vec<KeyRow>, sqlx::Error> {
        sqlx::query_as(
            "SELECT * FROM idempotency WHERE first_position > ? OR last_position > ? OR first_position < 1 LIMIT 100",
        )
        .bind(as_i64(size + 1))
        .bind(as_i64(size))
        .fetch_all(&self.pool)
        .await
    }

    async fn filed(&self, _first: u64, _last: u64) -> Result<Vec<FiledRow>, sqlx::Error> {
        // SQLite computes them from the metadata whenever they are read.
        Ok(Vec::new())
    }

    async fn out_of_reach(&self) -> Result<Vec<(i64, String)>, sqlx::Error> {
        let sql = out_of_reach_sql("events", "head");
        let rows = sqlx::query_as(&sql).fetch_all(&self.pool).await?;
        Ok(rows.into_iter().map(why_out_of_reach).collect())
    }

    async fn holes(&self) -> Result<Vec<i64>, sqlx::Error> {
        sqlx::query_scalar(&holes_sql("events", "head")).fetch_all(&self.pool).await
    }

    async fn integrity(&self) -> Result<Integrity, sqlx::Error> {
        let row = sqlx::query(
            "SELECT size, root, frontier, \
             (SELECT coalesce(max(position), 0) FROM events WHERE partition = head.partition), \
             (SELECT count(*) FROM events WHERE partition <> head.partition) \
             FROM head WHERE partition = ?",
        )
        .bind(partition())
        .fetch_one(&self.pool)
        .await?;
        let triggers: Vec<String> =
            sqlx::query_scalar("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetch_all(&self.pool).await?;
        let missing = TRIGGERS.into_iter().filter(|name| !triggers.iter().any(|found| found == name));
        Ok(Integrity {
            size: row.try_get(0)?,
            root: row.try_get(1)?,
            frontier: row.try_get(2)?,
            newest: row.try_get(3)?,
            strays: row.try_get(4)?,
            missing_triggers: missing.map(str::to_owned).collect(),
        })
    }

    async fn integrity_check(&self) -> Result<Option<String>, sqlx::Error> {
        let answer: String = sqlx::query_scalar("PRAGMA integrity_check(1)").fetch_one(&self.pool).await?;
        Ok((answer != "ok").then(|| format!("SQLite's own check: {answer}")))
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}

fn filter_query(filter: &EventFilter, after: u64, limit: u32) -> QueryBuilder<'_, Sqlite> {
    let mut sql = passing(filter);
    sql.push(" AND position > ").push_bind(as_i64(after));
    sql.push(" ORDER BY position LIMIT ").push_bind(limit);
    sql
}

fn filter_query_back(filter: &EventFilter, before: u64) -> QueryBuilder<'_, Sqlite> {
    let mut sql = passing(filter);
    sql.push(" AND position < ").push_bind(as_i64(before)).push(" ORDER BY position DESC LIMIT 1");
    sql
}

/// The events that pass a filter, for a query that goes on with where and how many.
fn passing(filter: &EventFilter) -> QueryBuilder<'_, Sqlite> {
    let EventFilter { conversation_id, run_id, tool_call_id, stream, event_type, actor } = filter;
    let mut sql = QueryBuilder::new(format!("SELECT {COLUMNS} FROM events WHERE partition = "));
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
        sql.push(" AND position IN (SELECT position FROM events WHERE aggregate_type = ");
        sql.push_bind(stream.aggregate_type.as_str()).push(" AND aggregate_id = ");
        sql.push_bind(stream.aggregate_id.as_str()).push(")");
    }
    if let Some(id) = tool_call_id {
        let (thread, model_call_id) = id.as_str().split_once(':').unwrap_or((id.as_str(), ""));
        sql.push(
            " AND position IN (SELECT position FROM events WHERE aggregate_type = 'tool_call' AND aggregate_id = ",
        );
        sql.push_bind(id.as_str());
        sql.push(" UNION ALL SELECT position FROM events WHERE aggregate_type = 'thread' AND aggregate_id = ");
        sql.push_bind(thread)
            // An error about one payload that is no JSON would be one about them all; what nobody can read may be about any call.
            .push(" AND CASE WHEN event_type NOT IN ('ToolResultObserved', 'ModelResponded') THEN 0 WHEN NOT json_valid(payload) THEN 1 WHEN event_type = 'ToolResultObserved' THEN coalesce(payload ->> '$.tool_call_id', payload ->> '$.redacted.kept.tool_call_id') = ");
        sql.push_bind(id.as_str());
        sql.push(" ELSE EXISTS (SELECT 1 FROM json_each(coalesce(payload -> '$.tool_calls', payload -> '$.redacted.kept.tool_calls')) WHERE CASE type WHEN 'object' THEN value ->> '$.id' END = ");
        sql.push_bind(model_call_id).push(") END)");
    }
    sql
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::support::Folder;

    #[tokio::test]
    async fn no_filter_walks_the_whole_log() {
        let folder = Folder::new();
        folder.open().await.close().await;
        let mut sql = folder.sql().await;
        let any = EventFilter::default;
        for filter in [
            EventFilter { conversation_id: Some("x".into()), ..any() },
            EventFilter { run_id: Some("x".into()), ..any() },
            EventFilter { tool_call_id: Some("x:y".into()), ..any() },
            EventFilter { stream: Some(StreamId { aggregate_type: "x".into(), aggregate_id: "y".into() }), ..any() },
            EventFilter { event_type: Some("x".into()), ..any() },
            EventFilter { actor: Some("x".into()), ..any() },
        ] {
            for query in [filter_query(&filter, 0, 10), filter_query_back(&filter, 10)] {
                let explain = format!("EXPLAIN QUERY PLAN {}", query.sql());
                let plan: Vec<String> = sqlx::raw_sql(&explain)
                    .fetch_all(&mut sql)
                    .await
                    .expect("explained")
                    .iter()
                    .map(|row| row.get::<String, _>("detail"))
                    .collect();
                let plan = plan.join("; ");
                // The position alone would find every event after `after`.
                let by_position = ["(partition=? AND position>?)", "(partition=? AND position<?)"];
                let walks = plan.contains("SCAN events") || by_position.iter().any(|way| plan.contains(way));
                assert!(!walks, "{filter:?}: {plan}");
            }
        }
    }
}
