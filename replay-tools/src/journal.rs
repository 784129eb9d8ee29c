//! A device's journal, read beside the log: its rows as they stand, also while the device runs.

use crate::failure::Failure;
use devmind_domain::ErrorCode;
use sqlx::sqlite::{SqliteConnectOptions, SqliteRow};
use sqlx::{ConnectOptions, Executor, Row, SqliteConnection};
use std::path::{Path, PathBuf};

/// Rows read at once.
const PAGE: u32 = 500;
const COLUMNS: &str =
    "tool_call_id, call_hash, phase, status, output_sha256, started_at, delivery, delivery_note, server_id";

/// A journal, as it was when it was opened.
pub(crate) struct JournalFile {
    /// Its identity: a call is sent to one journal.
    pub id: String,
    /// Microseconds: calls created until then may have been forgotten.
    pub purged_through: i64,
    file: PathBuf,
    /// In a transaction: a journal that a running device moves on is read as of one moment.
    still: SqliteConnection,
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

impl JournalFile {
    /// Opens a journal without writing to it.
    ///
    /// # Errors
    /// When it is none, or cannot be read.
    pub async fn open(file: &Path) -> Result<Self, Failure> {
        let failed = |error| unreadable(file, &error);
        let options = SqliteConnectOptions::new().filename(file).read_only(true);
        let mut still = options.connect().await.map_err(failed)?;
        still.execute("BEGIN").await.map_err(failed)?;
        let read = sqlx::query_as("SELECT journal_id, purged_through FROM journal").fetch_one(&mut still);
        let (id, purged_through) = read.await.map_err(failed)?;
        Ok(Self { id, purged_through, file: file.to_owned(), still })
    }

    /// What it has of a call.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn row(&mut self, tool_call_id: &str) -> Result<Option<JournalRow>, Failure> {
        let sql = format!("SELECT {COLUMNS} FROM calls WHERE tool_call_id = $1");
        let found = sqlx::query(&sql).bind(tool_call_id).fetch_optional(&mut self.still).await;
        let found = found.and_then(|found| found.as_ref().map(row).transpose());
        Ok(found.map_err(|error| unreadable(&self.file, &error))?.map(|(_, row)| row))
    }

    /// Its rows after one, in the order of their ids; a page of them.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn rows_after(&mut self, tool_call_id: &str) -> Result<Vec<(String, JournalRow)>, Failure> {
        let sql = format!("SELECT {COLUMNS} FROM calls WHERE tool_call_id > $1 ORDER BY tool_call_id LIMIT $2");
        let found = sqlx::query(&sql).bind(tool_call_id).bind(PAGE).fetch_all(&mut self.still).await;
        found.and_then(|rows| rows.iter().map(row).collect()).map_err(|error| unreadable(&self.file, &error))
    }
}

fn unreadable(file: &Path, error: &sqlx::Error) -> Failure {
    Failure::new(ErrorCode::IoError, format!("the journal {} cannot be read: {error}", file.display()))
        .with_hint("it is journal.sqlite in the device's state folder")
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
