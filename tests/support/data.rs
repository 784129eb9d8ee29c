//! Where a server keeps its log and views, and the checks that hold after every test: the log verifies, the views
//! equal what the log gives, every run replays to the decisions that it took, and what models were told of their calls
//! can be made anew.

use crate::log::Log;
use devmind_api::lifecycle::{LEDGER_FILE, VIEWS_FILE};
use devmind_domain::tools::{Registry, catalogue};
use devmind_ledger::verify::{Published, verify};
use devmind_ledger::{LedgerReader, Place};
use devmind_replay_tools::replay::{Outcome, Replayed, WhatIf, replay_all};
use devmind_replay_tools::told::check_told;
use devmind_test_postgres::{Cluster, Database};
use sqlx::postgres::PgConnection;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, Executor as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// Set to `postgres`, it makes every test keep ledger and views in a database of its own.
const STORE: &str = "DEVMIND_TEST_STORE";

/// Where a server keeps what is its own: a folder, and a database where the tests run on PostgreSQL. Goes
/// when its last clone goes.
#[derive(Clone, Debug)]
pub struct Data(Arc<Kept>);

#[derive(Debug)]
struct Kept {
    folder: TempDir,
    database: Option<Database>,
}

impl Data {
    /// An empty one, of the kind that the tests run on.
    #[allow(clippy::new_without_default, reason = "it makes a folder")]
    pub fn new() -> Self {
        match std::env::var(STORE).as_deref() {
            Err(_) | Ok("sqlite") => Self::sqlite(),
            Ok("postgres") => Self::postgres(),
            Ok(other) => panic!("{STORE} is {other:?}, not sqlite or postgres"),
        }
    }

    /// A folder for SQLite, whatever the tests run on: for tests of the files themselves.
    pub fn sqlite() -> Self {
        Self(Arc::new(Kept { folder: tempfile::tempdir().expect("a temporary folder"), database: None }))
    }

    /// A database.
    pub fn postgres() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self(Arc::new(Kept { folder, database: Some(Cluster::shared().database()) }))
    }

    /// The database's address, where there is one.
    pub fn database_url(&self) -> Option<&str> {
        self.0.database.as_ref().map(Database::url)
    }

    /// Where the log is.
    pub fn ledger_place(&self) -> Place {
        self.place(self.ledger_file())
    }

    /// Where the views are.
    pub fn views_place(&self) -> Place {
        self.place(self.views_file())
    }

    fn place(&self, file: PathBuf) -> Place {
        match self.database_url() {
            None => Place::File(file),
            Some(url) => Place::Postgres(url.parse().expect("a URL")),
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.0.folder.path()
    }

    /// The log's file.
    pub fn ledger_file(&self) -> PathBuf {
        self.path().join(LEDGER_FILE)
    }

    /// The views' file.
    pub fn views_file(&self) -> PathBuf {
        self.path().join(VIEWS_FILE)
    }

    /// Deletes the views of a server that has stopped.
    pub async fn delete_views(&self) {
        match self.views_place() {
            Place::File(file) => {
                for suffix in ["", "-wal", "-shm"] {
                    let mut file = file.clone().into_os_string();
                    file.push(suffix);
                    match std::fs::remove_file(file) {
                        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{error}"),
                        Ok(()) | Err(_) => {}
                    }
                }
            }
            Place::Postgres(url) => {
                let mut connection = PgConnection::connect_with(url.options()).await.expect("connected");
                connection.execute("DROP SCHEMA views CASCADE").await.expect("dropped");
            }
        }
    }

    /// Changes the log's file behind the server's back, and leaves no write-ahead log with the change beside it: of
    /// connections that are about to go, the last one would move it into the file, some time later.
    pub async fn change_ledger(&self, statements: &str) {
        let mut connection = SqliteConnectOptions::new()
            .filename(self.ledger_file())
            .create_if_missing(true)
            .connect()
            .await
            .expect("the log's file opens");
        connection.execute(statements).await.expect("statements that SQLite takes");
        let moved: Result<i64, _> =
            sqlx::query_scalar("PRAGMA wal_checkpoint(TRUNCATE)").fetch_one(&mut connection).await;
        assert_eq!(moved.expect("a checkpoint"), 0, "somebody reads an older state");
        connection.close().await.expect("closed");
    }

    /// The log, read from where it is kept, whoever writes it.
    pub async fn log(&self) -> Log {
        Log(LedgerReader::open(self.ledger_place()).await.expect("the log opens"))
    }

    /// Fails unless the log verifies, the views equal their rebuild, and the runs replay to the same decisions.
    pub async fn check(&self) {
        self.check_with(catalogue()).await;
    }

    /// The same where runs had these tools.
    pub async fn check_with(&self, tools: &Registry) {
        check(&self.views_place(), &self.log().await.0, tools).await;
    }
}

/// Fails unless the log verifies, the views equal their rebuild, the runs replay to the same decisions, and what models
/// were told of calls of these tools can be made anew from the log.
pub async fn check(views: &Place, reader: &LedgerReader, tools: &Registry) {
    let report = verify(reader, Published::default(), |_, _| {}).await.expect("the log can be verified");
    assert!(report.is_sound(), "the log does not verify: {:#?}", report.findings);
    let report = devmind_projections::check(views, reader, |_, _| {}).await.expect("the views can be checked");
    assert!(report.is_equal(), "the views differ from what the log gives:\n{report}");
    let mut differing = Vec::new();
    let each = |replayed: Replayed| {
        if matches!(replayed.outcome, Outcome::Differs(_)) {
            differing.push(replayed);
        }
    };
    replay_all(reader, tools, u64::MAX, &WhatIf::default(), each).await.expect("the runs can be replayed");
    assert!(differing.is_empty(), "runs replay to other decisions: {differing:#?}");
    let told = check_told(reader, tools).await.expect("the log can be read");
    assert!(told.differences.is_empty(), "models were told otherwise than the log gives: {:#?}", told.differences);
}
