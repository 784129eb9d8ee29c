//! What an error of PostgreSQL says about the batch it answered.

use crate::error::LedgerError;
use crate::store::Failure;
use sqlx::postgres::PgDatabaseError;

/// Whether the connection is of no use any more, or may be.
pub(super) fn lost_connection(error: &sqlx::Error) -> bool {
    match sqlstate(error) {
        // Connection exceptions, the server's own end, and internal errors.
        Some(state) => ["08", "57P", "58", "XX"].iter().any(|class| state.starts_with(class)),
        None => matches!(error, sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::Tls(_)),
    }
}

/// Whether it is about a value, such as a text that is no JSON.
pub(super) fn is_of_data(error: &sqlx::Error) -> bool {
    sqlstate(error).is_some_and(|state| state.starts_with("22"))
}

/// What an error means for a statement that commits by itself: what the server refused is not stored;
/// where the connection was lost nobody has said so.
pub(super) fn of_store(place: &str, error: sqlx::Error) -> Failure {
    match sqlstate(&error) {
        Some(_) if lost_connection(&error) => Failure::AtCommit(error.into()),
        // Data exceptions, integrity violations, limits: https://www.postgresql.org/docs/15/errcodes-appendix.html
        Some(state) if ["22", "23", "54"].iter().any(|class| state.starts_with(class)) => {
            Failure::Data(error.to_string())
        }
        Some(_) => before(place, &error),
        None if matches!(error, sqlx::Error::Encode(_)) => Failure::Data(error.to_string()),
        None => Failure::AtCommit(error.into()),
    }
}

pub(super) fn before(place: &str, error: &sqlx::Error) -> Failure {
    Failure::Before(LedgerError::from_sqlx(place, "append", error))
}

fn sqlstate(error: &sqlx::Error) -> Option<&str> {
    error.as_database_error()?.try_downcast_ref::<PgDatabaseError>().map(PgDatabaseError::code)
}
