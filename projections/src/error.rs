//! Why a view could not be read or kept.

use crate::registry::PROJECTIONS;
use devmind_domain::ErrorCode;
use devmind_ledger::LedgerError;

/// An error of the views. Views are disposable: none of these loses anything.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// A projection has not applied a position in time, or cannot.
    #[error("the view {projection} is not up to date: {reason}")]
    NotReady {
        /// The projection.
        projection: &'static str,
        /// What it waits for, or why it stopped.
        reason: String,
    },
    /// The views' file could not be used.
    #[error("the views' file cannot be used: {0}")]
    Storage(#[from] sqlx::Error),
    /// Rows under way could not be written.
    #[error("the rows cannot be built: {0}")]
    Draft(#[from] rusqlite::Error),
    /// The views' file is not what was written.
    #[error("the views' file is damaged: {finding}")]
    Damaged {
        /// What SQLite found.
        finding: String,
    },
    /// The views' tables could not be made.
    #[error("the views' tables cannot be made: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// A file beside the views could not be used.
    #[error("the views' folder cannot be used: {0}")]
    Io(#[from] std::io::Error),
    /// The log could not be read.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A projection failed on an event while it was rebuilt.
    #[error("the view {projection} cannot be built: event {position}: {reason}")]
    Failed {
        /// The projection.
        projection: &'static str,
        /// The event.
        position: u64,
        /// What happened.
        reason: String,
    },
    /// A rebuild or check was asked of something that is not in the list.
    #[error("there is no view {name}; there are: {known}")]
    UnknownProjection {
        /// What was asked for.
        name: String,
        /// The names in the list.
        known: String,
    },
    /// Somebody else's hand was in the file while it was checked or rebuilt.
    #[error("the view {projection} changed under the rebuild ({reason}); try again")]
    Contended {
        /// The projection.
        projection: &'static str,
        /// What happened.
        reason: String,
    },
}

impl ViewError {
    pub(crate) fn unknown_projection(name: &str) -> Self {
        let known = PROJECTIONS.iter().map(|projection| projection.name()).collect::<Vec<_>>().join(", ");
        Self::UnknownProjection { name: name.to_owned(), known }
    }

    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotReady { .. } | Self::Contended { .. } => ErrorCode::NotReady,
            Self::Storage(_) | Self::Draft(_) | Self::Io(_) => ErrorCode::LedgerUnavailable,
            Self::Migrate(_) | Self::Damaged { .. } | Self::Failed { .. } => ErrorCode::Internal,
            Self::Ledger(error) => error.code(),
            Self::UnknownProjection { .. } => ErrorCode::NotFound,
        }
    }
}
