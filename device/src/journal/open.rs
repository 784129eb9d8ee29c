//! Opening the journal: migrate, check, count the opening, and settle what the last start left.

use super::ballast::Ballast;
use super::flush::Flush;
use super::{Journal, Settlement, settle};
use crate::error::DeviceError;
use crate::state_dir::{JOURNAL_FILE, StateDir};
use devmind_domain::ErrorCode;
use devmind_domain::ids::ToolCallId;
use devmind_domain::tool_call::Phase;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{Connection as _, SqliteConnection};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::atomic::{AtomicBool, AtomicI64};
use tokio::sync::Mutex;

static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

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
        let options = options(&state);
        Self::open_with(state, instance_id, options).await
    }

    /// The same with other settings of the database: tests show what they are good for.
    pub(super) async fn open_with(
        state: StateDir,
        instance_id: &str,
        options: SqliteConnectOptions,
    ) -> Result<Self, DeviceError> {
        let file = state.journal_file();
        let shown = file.display().to_string();
        // SQLite gives its companion files the rights of the main file.
        let made = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&file);
        made.map_err(|error| unusable(&shown, &sqlx::Error::Io(error)))?;
        let mut connection =
            SqliteConnection::connect_with(&options).await.map_err(|error| unusable(&shown, &error))?;
        check(&mut connection).await.map_err(|error| unusable(&shown, &error))?;
        MIGRATIONS.run(&mut connection).await.map_err(|error| match error {
            MigrateError::VersionMissing(_) => DeviceError::new(
                ErrorCode::LedgerSchemaNewer,
                format!("{shown} was made by a newer version of this program"),
            ),
            other => unusable(&shown, &sqlx::Error::Migrate(Box::new(other))),
        })?;
        let (journal_id, epoch) = start(&mut connection).await.map_err(|error| unusable(&shown, &error))?;
        let settled =
            sqlx::query_scalar("SELECT coalesce(max(settled_no), 0) FROM calls").fetch_one(&mut connection).await;
        let settled = settled.map_err(|error| unusable(&shown, &error))?;
        // From here on commits are flushed by `flush`; so far each was by SQLite.
        let wal = File::open(state.path().join(format!("{JOURNAL_FILE}-wal")));
        let wal = wal.map_err(|error| unusable(&shown, &sqlx::Error::Io(error)))?;
        let unhurried = sqlx::raw_sql("PRAGMA synchronous = NORMAL").execute(&mut connection).await;
        unhurried.map_err(|error| unusable(&shown, &error))?;
        let journal = Self {
            connection: Mutex::new(connection),
            flush: Flush::of(wal),
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

/// How the journal's database is used.
pub(super) fn options(state: &StateDir) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(state.journal_file())
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        // Nothing of it goes to a folder for temporary files, which the sandbox closes.
        .pragma("temp_store", "MEMORY")
        // macOS: a flush must reach the disk, not only the drive's cache.
        .pragma("fullfsync", "1")
        .foreign_keys(true)
}

fn unusable(file: &str, error: &sqlx::Error) -> DeviceError {
    DeviceError::new(ErrorCode::DeviceJournalFailed, format!("the journal {file} cannot be used: {error}")).with_hint(
        "keep the file and restore a good copy, or move the whole state folder away to start as a new device; \
         nothing was changed",
    )
}

/// Damage is found before anything is decided from the file.
async fn check(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    let found: String = sqlx::query_scalar("PRAGMA quick_check(1)").fetch_one(connection).await?;
    if found == "ok" { Ok(()) } else { Err(sqlx::Error::Protocol(found)) }
}

/// Counts the opening and settles what was left, in one durable step.
async fn start(connection: &mut SqliteConnection) -> Result<(String, u64), sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let counted = "INSERT INTO journal (one, journal_id, epoch, purged_through) VALUES (1, ?, 1, -1)
                   ON CONFLICT (one) DO UPDATE SET epoch = epoch + 1 RETURNING journal_id, epoch";
    let (journal_id, epoch): (String, i64) =
        sqlx::query_as(counted).bind(uuid::Uuid::now_v7().to_string()).fetch_one(&mut *transaction).await?;
    let left = "SELECT tool_call_id, phase FROM calls WHERE phase <> 'settled' ORDER BY reserved_at, rowid";
    let left: Vec<(String, String)> = sqlx::query_as(left).fetch_all(&mut *transaction).await?;
    for (id, phase) in left {
        let left_at = if phase == "reserved" { Phase::Reserved } else { Phase::Executing };
        tracing::warn!(tool_call.id = %id, phase, "a call was left open by the last start; it is settled and not executed");
        settle(&mut transaction, &ToolCallId(id), &Settlement::after_restart(left_at)).await?;
    }
    transaction.commit().await?;
    Ok((journal_id, epoch.cast_unsigned()))
}
