//! A device's journal, read beside the log: its rows as they stand, also while the device runs.

use crate::failure::Failure;
use devmind_domain::ErrorCode;
use sqlx::sqlite::{SqliteConnectOptions, SqliteRow};
use sqlx::{ConnectOptions, Connection, Row};
use std::collections::BTreeMap;
use std::path::Path;

/// A journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalFile {
    /// Its identity: a call is sent to one journal.
    pub id: String,
    /// Microseconds: calls created until then may have been forgotten.
    pub purged_through: i64,
    /// Its rows by tool call.
    pub rows: BTreeMap<String, JournalRow>,
}

/// What the device knows of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalRow {
    pub call_hash: String,
    pub phase: String,
    pub status: Option<String>,
    pub output_sha256: Option<String>,
    pub started: bool,
    pub delivery: String,
    pub delivery_note: Option<String>,
    /// The ledger that asked.
    pub server_id: String,
}

/// Reads a journal without writing to it.
///
/// # Errors
/// When it is none, or cannot be read.
pub(crate) async fn read(file: &Path) -> Result<JournalFile, Failure> {
    let failed = |error: sqlx::Error| {
        Failure::new(ErrorCode::IoError, format!("the journal {} cannot be read: {error}", file.display()))
            .with_hint("it is journal.sqlite in the device's state folder")
    };
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let mut connection = options.connect().await.map_err(failed)?;
    // One transaction: a journal that a running device moves on is read as of one moment.
    let mut still = connection.begin().await.map_err(failed)?;
    let (id, purged_through) = sqlx::query_as("SELECT journal_id, purged_through FROM journal")
        .fetch_one(&mut *still)
        .await
        .map_err(failed)?;
    let rows = sqlx::query(
        "SELECT tool_call_id, call_hash, phase, status, output_sha256, started_at, delivery, delivery_note, server_id \
         FROM calls",
    )
    .fetch_all(&mut *still)
    .await
    .map_err(failed)?;
    still.commit().await.map_err(failed)?;
    connection.close().await.map_err(failed)?;
    let rows = rows.iter().map(row).collect::<Result<_, _>>().map_err(failed)?;
    Ok(JournalFile { id, purged_through, rows })
}

fn row(row: &SqliteRow) -> Result<(String, JournalRow), sqlx::Error> {
    Ok((
        row.try_get(0)?,
        JournalRow {
            call_hash: row.try_get(1)?,
            phase: row.try_get(2)?,
            status: row.try_get(3)?,
            output_sha256: row.try_get(4)?,
            started: row.try_get::<Option<i64>, _>(5)?.is_some(),
            delivery: row.try_get(6)?,
            delivery_note: row.try_get(7)?,
            server_id: row.try_get(8)?,
        },
    ))
}
