//! Rows of the table `events` and the events they hold.

use crate::limits::MAX_PAGE_BYTES;
use crate::ring::weight;
use crate::store::StoredEvent;
use devmind_domain::Timestamp;
use devmind_domain::event::{RecordedEvent, StreamId};
use futures::TryStreamExt;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Row, Sqlite, SqlitePool, query::Query};

/// The columns, in the order [`stored_event`] reads them.
pub(super) const COLUMNS: &str = "partition, position, event_id, aggregate_type, aggregate_id, sequence, event_type, \
     event_version, payload, metadata, recorded_at, leaf_hash";

/// Runs a query for [`COLUMNS`] until it ends or has brought more than [`MAX_PAGE_BYTES`].
pub(super) async fn fetch_page<'q>(
    pool: &SqlitePool,
    query: Query<'q, Sqlite, SqliteArguments<'q>>,
) -> Result<Vec<StoredEvent>, sqlx::Error> {
    let mut page = Vec::new();
    let mut bytes = 0;
    let mut rows = query.fetch(pool);
    while let Some(row) = rows.try_next().await? {
        let stored = stored_event(&row)?;
        bytes += stored.event.as_ref().map_or(0, weight);
        page.push(stored);
        if bytes > MAX_PAGE_BYTES {
            break;
        }
    }
    Ok(page)
}

pub(super) fn stored_event(row: &SqliteRow) -> Result<StoredEvent, sqlx::Error> {
    let position: i64 = row.try_get(1)?;
    let position = u64::try_from(position).map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
    Ok(StoredEvent { position, event: recorded_event(row, position) })
}

fn recorded_event(row: &SqliteRow, position: u64) -> Result<RecordedEvent, String> {
    let text = |index: usize| row.try_get::<String, _>(index).map_err(|error| error.to_string());
    let integer = |index: usize| row.try_get::<i64, _>(index).map_err(|error| error.to_string());
    let recorded_text = text(10)?;
    let recorded_at = Timestamp::parse(&recorded_text)?;
    // Another spelling of the same moment would hash to the same leaf, unseen.
    if recorded_at.to_string() != recorded_text {
        return Err(format!("recorded_at is {recorded_text:?}, which is not how the ledger writes a moment"));
    }
    let leaf_hash = row.try_get::<Vec<u8>, _>(11).map_err(|error| error.to_string())?;
    Ok(RecordedEvent {
        partition: u32::try_from(integer(0)?).map_err(|error| format!("partition: {error}"))?,
        position,
        event_id: text(2)?,
        stream: StreamId { aggregate_type: text(3)?, aggregate_id: text(4)? },
        sequence: u64::try_from(integer(5)?).map_err(|error| format!("sequence: {error}"))?,
        event_type: text(6)?,
        event_version: u32::try_from(integer(7)?).map_err(|error| format!("event_version: {error}"))?,
        payload: text(8)?,
        metadata: text(9)?,
        recorded_at,
        leaf_hash: leaf_hash.try_into().map_err(|_| "leaf_hash is not 32 bytes long".to_owned())?,
    })
}
