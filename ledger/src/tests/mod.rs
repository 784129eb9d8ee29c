//! Tests of the ledger over real files.

mod append;
mod support;
