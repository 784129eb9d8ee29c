//! The log as a SQLite file: how it is opened, written and read. What a command may do is left to
//! the writer; another store stands beside this module behind the same functions.

#[cfg(test)]
pub(crate) mod faults;
mod open;
mod read;
mod rows;
mod write;

pub(crate) use open::{open_reader, open_writable};
pub(crate) use read::{
    KeyRow, filtered, head, idempotent, integrity, integrity_check, keys_beyond, keys_of, leaf_hashes, page, range,
    stream_page,
};
pub(crate) use rows::StoredEvent;
pub(crate) use write::{HeadRow, NewKey, WriteStore};

/// The partition that everything lives in until the ledger is partitioned.
pub(crate) const PARTITION: u32 = 0;
