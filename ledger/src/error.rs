//! Why the ledger cannot be opened or read, and why it refuses a command. Every error has a stable
//! code; the code's help text says what to do.

use devmind_domain::ErrorCode;
use devmind_domain::event::{DecodeError, RecordedEvent, StreamId};
use sqlx::error::DatabaseError as _;
use sqlx::sqlite::SqliteError;
use std::path::PathBuf;
use std::sync::Arc;

/// The ledger cannot be opened or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// Another process writes this ledger.
    #[error("another process uses the ledger in {}: stop it, or choose another folder", folder.display())]
    Locked {
        /// The ledger's folder.
        folder: PathBuf,
    },
    /// The file is not what a ledger left behind. It is left exactly as it is.
    #[error("{place} is damaged or not a ledger: {reason}; it was left as it is")]
    Corrupt {
        /// The file or database.
        place: String,
        /// What is wrong, and where.
        reason: String,
    },
    /// A row holds no event.
    #[error("{place} is damaged: event {position} cannot be read: {reason}")]
    Damaged {
        /// The file or database.
        place: String,
        /// The row.
        position: u64,
        /// Which column, and what is wrong with it.
        reason: String,
    },
    /// A newer program made the file.
    #[error("{place} has schema {found}, this program knows {known}: upgrade this program")]
    SchemaNewer {
        /// The file or database.
        place: String,
        /// The newest migration in the file.
        found: i64,
        /// The newest migration of this program.
        known: i64,
    },
    /// The folder, the file or the disk does not do what is asked.
    #[error("the ledger {place} cannot be used: {reason}")]
    Unavailable {
        /// The file or database.
        place: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The database's settings let acknowledged events be lost.
    #[error("{place} can lose what it acknowledged: {reason}")]
    NotDurable {
        /// The database.
        place: String,
        /// The settings.
        reason: String,
    },
    /// An event cannot become what the reader needs.
    #[error("event {position} of {stream} cannot be read: {error}")]
    Undecodable {
        /// Its position.
        position: u64,
        /// Its stream.
        stream: StreamId,
        /// Why.
        error: DecodeError,
    },
    /// The ledger was closed.
    #[error("the ledger is closed")]
    Closed,
}

impl LedgerError {
    /// The stable code.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Locked { .. } => ErrorCode::StateLocked,
            Self::Corrupt { .. } | Self::Damaged { .. } => ErrorCode::LedgerCorrupt,
            Self::SchemaNewer { .. } => ErrorCode::LedgerSchemaNewer,
            Self::Unavailable { .. } => ErrorCode::LedgerUnavailable,
            Self::NotDurable { .. } => ErrorCode::LedgerNotDurable,
            Self::Undecodable { error, .. } => error.code(),
            Self::Closed => ErrorCode::ShuttingDown,
        }
    }

    /// What SQLite said while `doing` something with `place`.
    pub(crate) fn from_sqlite(place: &str, doing: &str, error: &rusqlite::Error) -> Self {
        let (place, reason) = (place.to_owned(), format!("{doing}: {error}"));
        match (result_code(error), error) {
            (Some(SQLITE_CORRUPT | SQLITE_NOTADB), _)
            | (None, rusqlite::Error::FromSqlConversionFailure(..) | rusqlite::Error::InvalidColumnType(..)) => {
                Self::Corrupt { place, reason }
            }
            _ => Self::Unavailable { place, reason },
        }
    }

    /// What the database or sqlx said while `doing` something with `place`.
    pub(crate) fn from_sqlx(place: &str, doing: &str, error: &sqlx::Error) -> Self {
        let place = place.to_owned();
        let reason = format!("{doing}: {error}");
        match error {
            sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => Self::Closed,
            sqlx::Error::Database(_) => match primary_result_code(error) {
                Some(SQLITE_CORRUPT | SQLITE_NOTADB) => Self::Corrupt { place, reason },
                _ => Self::Unavailable { place, reason },
            },
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_) => {
                Self::Corrupt { place, reason }
            }
            _ => Self::Unavailable { place, reason },
        }
    }
}

// https://www.sqlite.org/rescode.html
pub(crate) const SQLITE_IOERR: u32 = 10;
pub(crate) const SQLITE_CORRUPT: u32 = 11;
pub(crate) const SQLITE_NOTADB: u32 = 26;

/// SQLite's primary result code, where it is SQLite that said it.
pub(crate) fn result_code(error: &rusqlite::Error) -> Option<u32> {
    error.sqlite_error().map(|error| error.extended_code.cast_unsigned() & 0xff)
}

/// SQLite's primary result code: the low byte of the extended one.
pub(crate) fn primary_result_code(error: &sqlx::Error) -> Option<u32> {
    let error = error.as_database_error()?.try_downcast_ref::<SqliteError>()?;
    let code = error.code()?;
    code.parse::<u32>().ok().map(|extended| extended & 0xff)
}

/// A command was not appended, or it is not known whether it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Somebody else appended to the stream first. Nothing was stored.
    #[error("{stream} is at version {actual}, not {expected}")]
    Conflict {
        /// The stream.
        stream: StreamId,
        /// The version that the command was decided on.
        expected: u64,
        /// The stream's version.
        actual: u64,
    },
    /// The key was seen before, so nothing was stored now.
    #[error("the idempotency key was seen before, with {} request", if *same_request { "the same" } else { "another" })]
    KeySeen {
        /// Whether with the same request.
        same_request: bool,
        /// What that request caused then.
        events: Vec<Arc<RecordedEvent>>,
    },
    /// Too much waits for the writer. Nothing was stored.
    #[error("too many writes wait for the ledger")]
    Overloaded,
    /// The ledger is closed. Nothing was stored.
    #[error("the ledger is closed")]
    Closed,
    /// An event, or the command as a whole, is larger than it may be. Nothing was stored.
    #[error("{bytes} bytes are more than one append may have")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The command can never be stored. Nothing was.
    #[error("the append is not valid: {reason}")]
    Invalid {
        /// Why.
        reason: String,
    },
    /// The commit failed and the file could not be asked: it may or may not be stored.
    #[error("it is not known whether the append was stored: {0}")]
    InDoubt(String),
    /// The file refused. Nothing was stored.
    #[error("the append was not stored: {0}")]
    Storage(LedgerError),
}

impl AppendError {
    /// The stable code.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Conflict { .. } => ErrorCode::VersionConflict,
            Self::KeySeen { .. } => ErrorCode::IdempotencyConflict,
            Self::Overloaded => ErrorCode::LedgerOverloaded,
            Self::Closed => ErrorCode::ShuttingDown,
            Self::TooLarge { .. } => ErrorCode::EventTooLarge,
            Self::Invalid { .. } => ErrorCode::ValidationFailed,
            Self::InDoubt(_) => ErrorCode::LedgerInDoubt,
            Self::Storage(error) => error.code(),
        }
    }
}

/// A command was not executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExecuteError<E> {
    /// The aggregate's rules refused it.
    #[error(transparent)]
    Refused(E),
    /// Its events were not appended, or the idempotency key was seen.
    #[error(transparent)]
    Append(AppendError),
    /// The stream could not be read.
    #[error(transparent)]
    Ledger(LedgerError),
}
