//! The log in a PostgreSQL database, schema `ledger`, where several server processes share it: how it
//! is opened, written, read and followed.
//!
//! What orders the processes is the lock of the head's row: the one statement that appends begins by
//! moving that row, and only from where its plan began.

mod connections;
mod error;
mod news;
mod open;
mod read;
mod versions;
mod write;

pub use connections::{PgConnections, Taken};
pub(crate) use news::spawn_news;
pub(crate) use open::{open_reader, open_writable};

use super::PARTITION;

const fn partition() -> i64 {
    PARTITION as i64
}
