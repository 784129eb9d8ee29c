//! The log as a SQLite file: how it is opened, written and read. One process writes it; a lock file
//! keeps others out.

mod file;
mod open;
mod read;
mod write;

pub(crate) use open::{open_reader, open_writable, set_head};

use super::PARTITION;

const fn partition() -> i64 {
    PARTITION as i64
}
