//! Tests of the ledger over real files.

mod append;
mod bundle;
mod cache;
mod cases;
mod cqrs;
mod damage;
mod doubt;
mod execute;
mod follow;
mod foreign;
mod idempotency;
mod kill;
mod open;
mod proofs;
mod read;
mod redact;
mod restarts;
mod shared;
pub(crate) mod support;
mod verify_file;
mod verify_rules;
