//! A data folder, and the two checks that hold after every test: the log verifies, and the views
//! equal what the log gives.

use crate::log::Log;
use devmind_api::lifecycle::{LEDGER_FILE, VIEWS_FILE};
use devmind_ledger::LedgerReader;
use devmind_ledger::verify::{Published, verify};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, Executor as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// The folder of a server's files; goes when its last clone goes.
#[derive(Clone, Debug)]
pub struct Data(Arc<TempDir>);

impl Data {
    /// An empty one.
    #[allow(clippy::new_without_default, reason = "it makes a folder")]
    pub fn new() -> Self {
        Self(Arc::new(tempfile::tempdir().expect("a temporary folder")))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The log's file.
    pub fn ledger_file(&self) -> PathBuf {
        self.path().join(LEDGER_FILE)
    }

    /// The views' file.
    pub fn views_file(&self) -> PathBuf {
        self.path().join(VIEWS_FILE)
    }

    /// Changes the log's file behind the server's back.
    pub async fn change_ledger(&self, statements: &str) {
        let mut connection = SqliteConnectOptions::new()
            .filename(self.ledger_file())
            .create_if_missing(true)
            .connect()
            .await
            .expect("the log's file opens");
        connection.execute(statements).await.expect("statements that SQLite takes");
        connection.close().await.expect("closed");
    }

    /// The log, read from the file, whoever writes it.
    pub async fn log(&self) -> Log {
        Log(LedgerReader::open(&self.ledger_file()).await.expect("the log's file opens"))
    }

    /// Fails unless the log verifies and the views equal their rebuild.
    pub async fn check(&self) {
        check(&self.views_file(), &self.log().await.0).await;
    }
}

/// Fails unless the log verifies and the views equal their rebuild.
pub async fn check(views: &Path, reader: &LedgerReader) {
    let report = verify(reader, Published::default(), |_, _| {}).await.expect("the log can be verified");
    assert!(report.is_sound(), "the log does not verify: {:#?}", report.findings);
    let report = devmind_projections::check(views, reader, |_, _| {}).await.expect("the views can be checked");
    assert!(report.is_equal(), "the views differ from what the log gives:\n{report}");
}
