//! The files of a ledger's folder.

use crate::failure::Failure;
use devmind_ledger::LedgerReader;
use std::path::{Path, PathBuf};

/// Opens the log for reading.
pub(crate) async fn open_ledger(data: &Path) -> Result<LedgerReader, Failure> {
    LedgerReader::open(&data.join("ledger.sqlite")).await.map_err(|error| {
        let failure = Failure::from(error);
        if data.join("ledger.sqlite").exists() {
            failure
        } else {
            failure.with_hint("name the ledger's folder with --data DIR or DEVMIND_DATA")
        }
    })
}

/// The file of the views.
pub(crate) fn views_file(data: &Path) -> PathBuf {
    data.join("views.sqlite")
}

/// The file of the log.
pub(crate) fn ledger_file(data: &Path) -> PathBuf {
    data.join("ledger.sqlite")
}
