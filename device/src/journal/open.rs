//! Opening the journal: migrate, check, count the opening, and settle what the last start left.

use super::ballast::Ballast;
use super::commit::Commits;
use super::{Journal, PREPARED, Settlement, settling};
use crate::error::DeviceError;
use crate::state_dir::{JOURNAL_FILE, StateDir};
use devmind_domain::ErrorCode;
use devmind_domain::ids::ToolCallId;
use devmind_domain::tool_call::Phase;
use rusqlite::{Connection, OpenFlags};
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{Connection as _, SqliteConnection};
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");
/// So long a statement waits for another program that has the file.
const BUSY_WITHIN: Duration = Duration::from_secs(5);
/// After so many steps the write-ahead log, by then a few megabytes, is folded into the file.
const FOLD_EVERY: u64 = 500;

impl Journal {
    /// Opens (creates, migrates) the journal of a state folder for this start of the program.
    ///
    /// What an earlier start had reserved was not begun: it is settled as `cancelled/NOT_EXECUTED`.
    /// What it was executing may have happened: it is settled as `indeterminate/DEVICE_RESTARTED`.
    /// Neither is ever executed again; both are reported.
    ///
    /// # Errors
    /// `DEVICE_JOURNAL_FAILED` when the file is damaged or cannot be written, `LEDGER_SCHEMA_NEWER`
    /// when a newer version made it. Nothing is deleted.
    pub async fn open(state: StateDir, instance_id: &str) -> Result<Self, DeviceError> {
        Self::open_with(state, instance_id, FOLD_EVERY).await
    }

    /// The same with another number of steps between two folds.
    pub(super) async fn open_with(state: StateDir, instance_id: &str, fold_every: u64) -> Result<Self, DeviceError> {
        let file = state.journal_file();
        let shown = file.display().to_string();
        // SQLite gives its companion files the rights of the main file.
        let made = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&file);
        made.map_err(|error| unusable(&shown, &error))?;
        migrate(&file, &shown).await?;
        let connect = || connection(&file).map_err(|error| unusable(&shown, &error));
        let (mut connection, folding) = (connect()?, connect()?);
        let (journal_id, epoch) = start(&mut connection).map_err(|error| unusable(&shown, &error))?;
        let select = "SELECT coalesce(max(settled_no), 0) FROM calls";
        let settled = connection.query_row(select, [], |row| row.get(0)).map_err(|error| unusable(&shown, &error))?;
        // From here on commits are flushed, and the log is folded into the file, by `commit`; so far by SQLite.
        let wal = File::open(state.path().join(format!("{JOURNAL_FILE}-wal")));
        let wal = wal.map_err(|error| unusable(&shown, &error))?;
        let unhurried = connection.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0");
        unhurried.map_err(|error| unusable(&shown, &error))?;
        let connection = Arc::new(Mutex::new(connection));
        let journal = Self {
            commits: Commits::new(connection.clone(), wal, folding, fold_every),
            connection,
            told_up_to: AtomicI64::new(settled),
            poisoned: AtomicBool::new(false),
            ballast: Ballast::of(state.path()),
            state,
            journal_id,
            epoch,
            instance_id: instance_id.to_owned(),
        };
        journal
            .clean(crate::clock::now())
            .await
            .map_err(|error| DeviceError::new(error.code(), format!("{shown} cannot be written")).caused_by(error))?;
        Ok(journal)
    }
}

/// Damage is found before anything is decided from the file; then it gets the form of this version.
async fn migrate(file: &Path, shown: &str) -> Result<(), DeviceError> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .pragma("temp_store", "MEMORY")
        .pragma("fullfsync", "1")
        .foreign_keys(true);
    let failed = |error: sqlx::Error| unusable(shown, &error);
    let mut connection = SqliteConnection::connect_with(&options).await.map_err(failed)?;
    let found: String = sqlx::query_scalar("PRAGMA quick_check(1)").fetch_one(&mut connection).await.map_err(failed)?;
    if found != "ok" {
        return Err(unusable(shown, &found));
    }
    MIGRATIONS.run(&mut connection).await.map_err(|error| match error {
        MigrateError::VersionMissing(_) => DeviceError::new(
            ErrorCode::LedgerSchemaNewer,
            format!("{shown} was made by a newer version of this program"),
        ),
        other => unusable(shown, &other),
    })?;
    connection.close().await.map_err(failed)
}

/// How the journal's database is used. Nothing of it goes to a folder for temporary files, which the sandbox closes.
/// On macOS a flush must reach the disk, not only the drive's cache.
fn connection(file: &Path) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(BUSY_WITHIN)?;
    connection.set_prepared_statement_cache_capacity(PREPARED);
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA fullfsync = ON; PRAGMA temp_store = MEMORY; \
         PRAGMA foreign_keys = ON",
    )?;
    Ok(connection)
}

fn unusable(file: &str, error: &dyn Display) -> DeviceError {
    DeviceError::new(ErrorCode::DeviceJournalFailed, format!("the journal {file} cannot be used: {error}")).with_hint(
        "keep the file and restore a good copy, or move the whole state folder away to start as a new device; \
         nothing was changed",
    )
}

/// Counts the opening and settles what was left, in one durable step.
fn start(connection: &mut Connection) -> Result<(String, u64), rusqlite::Error> {
    let transaction = connection.transaction()?;
    let counted = "INSERT INTO journal (one, journal_id, epoch, purged_through) VALUES (1, ?, 1, -1)
                   ON CONFLICT (one) DO UPDATE SET epoch = epoch + 1 RETURNING journal_id, epoch";
    let new_id = uuid::Uuid::now_v7().to_string();
    let (journal_id, epoch) =
        transaction.query_row(counted, [new_id], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?;
    let left = "SELECT tool_call_id, phase FROM calls WHERE phase <> 'settled' ORDER BY reserved_at, rowid";
    let left = transaction
        .prepare(left)?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<Vec<(String, String)>, _>>()?;
    for (id, phase) in left {
        let left_at = if phase == "reserved" { Phase::Reserved } else { Phase::Executing };
        tracing::warn!(tool_call.id = %id, phase, "a call was left open by the last start; it is settled and not executed");
        settling(&ToolCallId(id), &Settlement::after_restart(left_at))(&transaction)?;
    }
    transaction.commit()?;
    Ok((journal_id, epoch.cast_unsigned()))
}
