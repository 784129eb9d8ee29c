//! Rows of the table `events`, the same in every store, and the events they hold.

use super::{StoredEvent, as_i64};
use crate::append::is_event_id;
use crate::limits::MAX_PAGE_BYTES;
use crate::ring::weight;
use devmind_domain::Timestamp;
use devmind_domain::event::{RecordedEvent, StreamId};
use futures::{Stream, TryStreamExt};
use sqlx::{ColumnIndex, Database, Decode, Row, Type};
use std::pin::pin;

/// The columns, in the order [`stored_event`] reads them.
pub(super) const COLUMNS: &str = "partition, position, event_id, aggregate_type, aggregate_id, sequence, event_type, \
     event_version, payload, metadata, recorded_at, leaf_hash";

/// A row of either database: integers are 64 bits wide, hashes are bytes, the rest is text.
pub(super) trait EventRow: Row<Database = Self::Db> {
    type Db: Database<Row = Self>;

    fn text(&self, index: usize) -> Result<String, sqlx::Error>;
    fn integer(&self, index: usize) -> Result<i64, sqlx::Error>;
    fn bytes(&self, index: usize) -> Result<Vec<u8>, sqlx::Error>;
}

impl<R> EventRow for R
where
    R: Row,
    R::Database: Database<Row = R>,
    usize: ColumnIndex<R>,
    String: for<'r> Decode<'r, R::Database> + Type<R::Database>,
    i64: for<'r> Decode<'r, R::Database> + Type<R::Database>,
    Vec<u8>: for<'r> Decode<'r, R::Database> + Type<R::Database>,
{
    type Db = R::Database;

    fn text(&self, index: usize) -> Result<String, sqlx::Error> {
        self.try_get(index)
    }
    fn integer(&self, index: usize) -> Result<i64, sqlx::Error> {
        self.try_get(index)
    }
    fn bytes(&self, index: usize) -> Result<Vec<u8>, sqlx::Error> {
        self.try_get(index)
    }
}

/// Reads rows of [`COLUMNS`] until they end or have brought more than [`MAX_PAGE_BYTES`].
pub(super) async fn page<R: EventRow>(
    rows: impl Stream<Item = Result<R, sqlx::Error>>,
) -> Result<Vec<StoredEvent>, sqlx::Error> {
    let mut page = Vec::new();
    let mut bytes = 0;
    let mut rows = pin!(rows);
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

pub(super) fn stored_event<R: EventRow>(row: &R) -> Result<StoredEvent, sqlx::Error> {
    let found = row.integer(1)?;
    let position = u64::try_from(found).unwrap_or(0);
    let event = match position {
        0 => Err(format!("position: {found} is outside of the log")),
        _ => recorded_event(row, position),
    };
    let sequence = event.as_ref().map_or_else(|_| row.integer(5), |event| Ok(as_i64(event.sequence)))?;
    Ok(StoredEvent { position, sequence: u64::try_from(sequence).unwrap_or(0), event })
}

/// The event; else the name of the column that cannot be read, and why.
fn recorded_event<R: EventRow>(row: &R, position: u64) -> Result<RecordedEvent, String> {
    let text = |name: &str, index: usize| row.text(index).map_err(|error| format!("{name}: {}", cause(error)));
    let integer = |name: &str, index: usize| row.integer(index).map_err(|error| format!("{name}: {}", cause(error)));
    let recorded_text = text("recorded_at", 10)?;
    let recorded_at = Timestamp::parse(&recorded_text).map_err(|reason| format!("recorded_at: {reason}"))?;
    // Another spelling of the same moment would hash to the same leaf, unseen.
    if recorded_at.to_string() != recorded_text {
        return Err(format!("recorded_at is {recorded_text:?}, which is not how the ledger writes a moment"));
    }
    let event_id = text("event_id", 2)?;
    if !is_event_id(&event_id) {
        return Err(format!("event_id: {event_id:.64?} is no UUID"));
    }
    let leaf_hash = row.bytes(11).map_err(|error| format!("leaf_hash: {}", cause(error)))?;
    Ok(RecordedEvent {
        partition: u32::try_from(integer("partition", 0)?).map_err(|error| format!("partition: {error}"))?,
        position,
        event_id,
        stream: StreamId { aggregate_type: text("aggregate_type", 3)?, aggregate_id: text("aggregate_id", 4)? },
        sequence: u64::try_from(integer("sequence", 5)?).map_err(|error| format!("sequence: {error}"))?,
        event_type: text("event_type", 6)?,
        event_version: u32::try_from(integer("event_version", 7)?)
            .map_err(|error| format!("event_version: {error}"))?,
        payload: text("payload", 8)?,
        metadata: text("metadata", 9)?,
        recorded_at,
        leaf_hash: leaf_hash.try_into().map_err(|_| "leaf_hash is not 32 bytes long".to_owned())?,
    })
}

/// What is wrong, without the number of the column: its name says more.
fn cause(error: sqlx::Error) -> String {
    match error {
        sqlx::Error::ColumnDecode { source, .. } => source.to_string(),
        other => other.to_string(),
    }
}
