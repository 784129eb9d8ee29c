//! Reading the table `events` of the cqrs-es family, row by row, without writing to it.

use super::ForeignError;
use crate::place::PostgresUrl;
use devmind_domain::event::StreamId;
use futures::StreamExt;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};
use std::path::PathBuf;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// The family's own name of its table.
const TABLE: &str = "events";
/// Rows that are read ahead.
const READ_AHEAD: usize = 256;

/// Where another store keeps its log.
#[derive(Clone, Debug)]
pub struct ForeignSource {
    place: ForeignPlace,
    table: String,
}

#[derive(Clone, Debug)]
enum ForeignPlace {
    File(PathBuf),
    Postgres(PostgresUrl),
}

/// An event as it stands there.
#[derive(Debug)]
pub(super) struct ForeignRow {
    pub stream: StreamId,
    pub sequence: u64,
    pub event_type: String,
    pub event_version: String,
    pub payload: String,
    pub metadata: String,
}

type Columns = (String, String, i64, String, String, String, String);

impl ForeignSource {
    /// A SQLite file, or a database's address `postgres://…`; `table` is the name of the events' table, where it is
    /// not the family's own.
    ///
    /// # Errors
    /// When the address is none, or the table's name has other characters than letters, digits, `_` and `.`.
    pub fn new(place: &str, table: Option<&str>) -> Result<Self, String> {
        let table = table.unwrap_or(TABLE);
        // It becomes a part of a statement.
        if table.is_empty() || !table.chars().all(|char| char.is_ascii_alphanumeric() || "_.".contains(char)) {
            return Err(format!("{table:?} is no name of a table: letters, digits, _ and . are allowed"));
        }
        let is_url = place.starts_with("postgres://") || place.starts_with("postgresql://");
        let place =
            if is_url { ForeignPlace::Postgres(place.parse()?) } else { ForeignPlace::File(PathBuf::from(place)) };
        Ok(Self { place, table: table.to_owned() })
    }

    pub(super) async fn open(&self) -> Result<Rows, ForeignError> {
        let table = &self.table;
        let count = format!("SELECT COUNT(*) FROM {table}");
        let (send, rows) = mpsc::channel(READ_AHEAD);
        // Rows are appended: their place in the table is the order of appending, as far as the table keeps it.
        let (total, reading) = match &self.place {
            ForeignPlace::File(file) => {
                let options = SqliteConnectOptions::new().filename(file).read_only(true);
                let mut sql = options.connect().await.map_err(failed)?;
                let total = sqlx::query_scalar(&count).fetch_one(&mut sql).await.map_err(failed)?;
                let select = format!(
                    "SELECT aggregate_type, aggregate_id, sequence, event_type, CAST(event_version AS TEXT), \
                     CAST(payload AS TEXT), CAST(metadata AS TEXT) FROM {table} ORDER BY rowid"
                );
                let reading = tokio::spawn(async move { pump(sqlx::query_as(&select).fetch(&mut sql), &send).await });
                (total, reading)
            }
            ForeignPlace::Postgres(url) => {
                let mut sql = PgConnection::connect_with(url.options()).await.map_err(failed)?;
                let total = sqlx::query_scalar(&count).fetch_one(&mut sql).await.map_err(failed)?;
                let select = format!(
                    "SELECT aggregate_type::text, aggregate_id::text, sequence, event_type::text, event_version::text, \
                     payload::text, metadata::text FROM {table} ORDER BY ctid"
                );
                let reading = tokio::spawn(async move { pump(sqlx::query_as(&select).fetch(&mut sql), &send).await });
                (total, reading)
            }
        };
        let total: i64 = total;
        Ok(Rows { total: total.unsigned_abs(), rows, reading: Some(reading) })
    }
}

/// Hands rows on until somebody has had enough.
async fn pump(
    mut rows: impl futures::Stream<Item = Result<Columns, sqlx::Error>> + Unpin,
    send: &mpsc::Sender<Columns>,
) -> Result<(), sqlx::Error> {
    while let Some(row) = rows.next().await {
        if send.send(row?).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// The rows of one reading.
pub(super) struct Rows {
    /// How many there were at its beginning.
    pub total: u64,
    rows: mpsc::Receiver<Columns>,
    reading: Option<JoinHandle<Result<(), sqlx::Error>>>,
}

impl Rows {
    /// The next row; `None` only after the last one was read.
    pub async fn next(&mut self) -> Result<Option<ForeignRow>, ForeignError> {
        if let Some(row) = self.rows.recv().await {
            let (aggregate_type, aggregate_id, sequence, event_type, event_version, payload, metadata) = row;
            // The family begins with 1; a negative number would be refused as out of order.
            let sequence = u64::try_from(sequence).unwrap_or(0);
            let stream = StreamId { aggregate_type, aggregate_id };
            return Ok(Some(ForeignRow { stream, sequence, event_type, event_version, payload, metadata }));
        }
        // A connection that broke must not look like the end of the log.
        match self.reading.take() {
            Some(reading) => match reading.await {
                Ok(done) => done.map(|()| None).map_err(failed),
                Err(error) => Err(ForeignError::Source(error.to_string())),
            },
            None => Ok(None),
        }
    }
}

fn failed(error: sqlx::Error) -> ForeignError {
    ForeignError::Source(error.to_string())
}
