//! The journal as a person reads it: what was asked, who allowed it, what came of it.
//!
//! Read-only, and beside a running device: SQLite's write-ahead log lets readers see the last commit
//! without holding up the writer.

use crate::error::DeviceError;
use devmind_domain::limits::{MAX_UNACKED_RESULTS, OUTPUT_QUOTA_BYTES};
use devmind_domain::{ErrorCode, Timestamp};
use serde::Serialize;
use sqlx::sqlite::{SqliteConnectOptions, SqliteRow};
use sqlx::{Connection as _, Row as _, SqliteConnection};
use std::path::Path;
use std::time::Duration;

/// A reader waits so long for the moment in which the log is folded into the file.
const BUSY_WITHIN: Duration = Duration::from_secs(5);

/// One call.
#[derive(Clone, Debug, Serialize)]
pub struct PastCall {
    /// The call.
    pub tool_call_id: String,
    /// When it came.
    pub asked_at: Timestamp,
    /// What its conversation is about.
    pub conversation_title: String,
    /// The tool.
    pub tool: String,
    /// Its arguments as JSON text; only the beginning of very long ones.
    pub arguments: String,
    /// `reserved`, `executing`, `settled`.
    pub phase: String,
    /// Who allowed or denied it; absent: nobody was asked, or nobody answered.
    pub decided_by: Option<String>,
    /// How it ended.
    pub status: Option<String>,
    /// Why it did not succeed.
    pub error_code: Option<String>,
    /// When it began and ended.
    pub started_at: Option<Timestamp>,
    /// See `started_at`.
    pub finished_at: Option<Timestamp>,
    /// Bytes of what was given to the server; 0 once it is no longer kept.
    pub output_bytes: u64,
    /// SHA-256 of that, kept as long as the call.
    pub output_sha256: Option<String>,
    /// Whether the server has it: `open`, `pending`, `acked`, `parked`.
    pub delivery: String,
}

/// The journal's own state.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Its random name.
    pub journal_id: String,
    /// How often it was opened.
    pub epoch: i64,
    /// Calls it remembers.
    pub calls: i64,
    /// Results that the server has not acknowledged, and their bytes.
    pub unacked: i64,
    /// See `unacked`.
    pub unacked_bytes: i64,
    /// Unacknowledged results there may be.
    pub max_unacked: u32,
    /// Bytes of outputs that are kept.
    pub output_bytes: i64,
    /// Bytes of outputs that may be kept.
    pub max_output_bytes: u64,
    /// Calls made before this moment may be forgotten, and are refused; absent: none was forgotten.
    pub purged_before: Option<Timestamp>,
}

/// A journal, open for reading.
pub struct History(SqliteConnection);

impl History {
    /// Opens a journal beside the device that may be writing it.
    ///
    /// # Errors
    /// `DEVICE_JOURNAL_FAILED`; `CONFIG_INVALID` when there is none yet, or an older program made it.
    pub async fn open(file: &Path) -> Result<Self, DeviceError> {
        if !file.exists() {
            let message = format!("there is no journal {}", file.display());
            return Err(DeviceError::new(ErrorCode::ConfigInvalid, message)
                .with_hint("name the device's folder with --state; a journal is made at its first start"));
        }
        let options = SqliteConnectOptions::new().filename(file).read_only(true).busy_timeout(BUSY_WITHIN);
        let mut connection = SqliteConnection::connect_with(&options).await.map_err(unreadable)?;
        let columns = "SELECT count(*) FROM pragma_table_info('calls') WHERE name = 'decided_by'";
        let known: i64 = sqlx::query_scalar(columns).fetch_one(&mut connection).await.map_err(unreadable)?;
        if known == 0 {
            let message = "the journal was made by an older version of this program";
            return Err(DeviceError::new(ErrorCode::ConfigInvalid, message).with_hint("start the device once"));
        }
        Ok(Self(connection))
    }

    /// The latest calls, newest first.
    ///
    /// # Errors
    /// `DEVICE_JOURNAL_FAILED`.
    pub async fn latest(&mut self, limit: u32) -> Result<Vec<PastCall>, DeviceError> {
        let select = "SELECT tool_call_id, reserved_at, conversation_title, tool, arguments, phase, decided_by, status,
                             error_code, started_at, finished_at, output_bytes, output_sha256, delivery
                      FROM calls ORDER BY reserved_at DESC, rowid DESC LIMIT ?";
        let rows = sqlx::query(select).bind(limit).fetch_all(&mut self.0).await.map_err(unreadable)?;
        rows.iter().map(past_call).collect::<Result<_, _>>().map_err(unreadable)
    }

    /// The journal's own state.
    ///
    /// # Errors
    /// `DEVICE_JOURNAL_FAILED`.
    pub async fn summary(&mut self) -> Result<Summary, DeviceError> {
        let select = "SELECT journal_id, epoch, purged_through, count(c.tool_call_id) AS calls,
                             coalesce(sum(delivery = 'pending'), 0) AS unacked,
                             coalesce(sum(output_bytes) FILTER (WHERE delivery = 'pending'), 0) AS unacked_bytes,
                             coalesce(sum(output_bytes), 0) AS output_bytes
                      FROM journal LEFT JOIN calls AS c ON TRUE GROUP BY one";
        let row = sqlx::query(select).fetch_one(&mut self.0).await.map_err(unreadable)?;
        let read = |row: &SqliteRow| -> Result<Summary, sqlx::Error> {
            let purged: i64 = row.try_get("purged_through")?;
            Ok(Summary {
                journal_id: row.try_get("journal_id")?,
                epoch: row.try_get("epoch")?,
                calls: row.try_get("calls")?,
                unacked: row.try_get("unacked")?,
                unacked_bytes: row.try_get("unacked_bytes")?,
                max_unacked: MAX_UNACKED_RESULTS,
                output_bytes: row.try_get("output_bytes")?,
                max_output_bytes: OUTPUT_QUOTA_BYTES,
                purged_before: (purged >= 0).then(|| Timestamp::from_micros(purged + 1)),
            })
        };
        read(&row).map_err(unreadable)
    }
}

fn past_call(row: &SqliteRow) -> Result<PastCall, sqlx::Error> {
    let moment = |column: &str| -> Result<Option<Timestamp>, sqlx::Error> {
        Ok(row.try_get::<Option<i64>, _>(column)?.map(Timestamp::from_micros))
    };
    Ok(PastCall {
        tool_call_id: row.try_get("tool_call_id")?,
        asked_at: Timestamp::from_micros(row.try_get("reserved_at")?),
        conversation_title: row.try_get("conversation_title")?,
        tool: row.try_get("tool")?,
        arguments: row.try_get("arguments")?,
        phase: row.try_get("phase")?,
        decided_by: row.try_get("decided_by")?,
        status: row.try_get("status")?,
        error_code: row.try_get("error_code")?,
        started_at: moment("started_at")?,
        finished_at: moment("finished_at")?,
        output_bytes: row.try_get::<i64, _>("output_bytes")?.cast_unsigned(),
        output_sha256: row.try_get("output_sha256")?,
        delivery: row.try_get("delivery")?,
    })
}

fn unreadable(error: sqlx::Error) -> DeviceError {
    DeviceError::new(ErrorCode::DeviceJournalFailed, "the journal cannot be read").caused_by(error)
}
