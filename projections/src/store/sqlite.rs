//! The views as a SQLite file: made, migrated, checked, and thrown away when it cannot be used.
//!
//! Views are disposable. A file that is damaged, newer than this program, or made from another log
//! is set aside or emptied with a warning, and the runner fills it again from the log.

use super::{Projections, Store, begin_all, begin_kept, can_be_continued, settle};
use crate::beside::remove_left;
use crate::db::{Pool, sqlite_code};
use crate::error::ViewError;
use devmind_ledger::LedgerReader;
use sqlx::SqlitePool;
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

static MIGRATIONS: Migrator = sqlx::migrate!("../migrations/sqlite/views");

/// What serves whoever reads or searches the views and no change of a row: rows that are under way do without it, those
/// that are swapped in are indexed then.
const WITHOUT_READERS: &str = "DROP INDEX IF EXISTS conversations_of_user; \
    DROP INDEX IF EXISTS turns_of_conversation; DROP INDEX IF EXISTS runs_of_turn; \
    DROP INDEX IF EXISTS messages_of_conversation; DROP INDEX IF EXISTS interrupts_overdue; \
    DROP INDEX IF EXISTS tool_calls_of_conversation; DROP INDEX IF EXISTS tool_calls_of_run; \
    DROP INDEX IF EXISTS tool_calls_of_turn; DROP TRIGGER IF EXISTS search_texts_added; \
    DROP TRIGGER IF EXISTS search_texts_removed; DROP TABLE IF EXISTS search_index";
/// Connections that read at once, at most.
const READERS: u32 = 4;
/// A statement waits this long for another process's transaction (milliseconds).
const BUSY_MS: u64 = 5_000;
/// Larger files are not read through at the start: it would take longer than it is worth.
const MAX_CHECKED_BYTES: u64 = 256 << 20;

impl Store {
    /// Opens the file; makes it where it is missing, replaces it where it is of no use.
    pub(super) async fn open_file(
        file: &Path,
        ledger: &LedgerReader,
        projections: &Projections,
    ) -> Result<Self, ViewError> {
        if let Some(folder) = file.parent() {
            tokio::fs::create_dir_all(folder).await?;
        }
        // What a check was killed beside holds what people wrote, and much room.
        if let Err(error) = remove_left(file) {
            tracing::warn!(%error, "it is not known whether a process left something beside the views");
        }
        // Two processes that start at once must not both create, migrate or replace the file.
        let _lock = lock(file).await?;
        let write = match connect(file, ledger, projections).await {
            Ok(write) => write,
            Err(error) if is_of_no_use(&error) => {
                let aside = set_aside(file).await?;
                tracing::warn!(
                    error = %error, file = %file.display(), aside = %aside.display(),
                    "the views' file cannot be used; it was set aside and is being rebuilt from the log"
                );
                connect(file, ledger, projections).await?
            }
            Err(error) => return Err(error),
        };
        let read =
            SqlitePoolOptions::new().max_connections(READERS).connect_with(options(file).read_only(true)).await?;
        Ok(Self { write: Pool::Sqlite(write), read: Pool::Sqlite(read) })
    }

    /// An empty store in memory, gone when it is dropped.
    pub async fn in_memory(projections: &Projections) -> Result<Self, ViewError> {
        Self::scratch(private_pool(SqliteConnectOptions::new().in_memory(true)).await?, projections).await
    }

    /// An empty store that goes to a file where it grows: one without a name, which nobody else sees and which is gone
    /// when it is dropped, however the process ends (<https://www.sqlite.org/inmemorydb.html#temp_db>).
    pub async fn unnamed(projections: &Projections) -> Result<Self, ViewError> {
        Self::scratch(private_pool(SqliteConnectOptions::new().filename("")).await?, projections).await
    }

    /// An empty store in a new file that nobody needs after a crash.
    pub async fn temporary(file: &Path, projections: &Projections) -> Result<Self, ViewError> {
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Memory)
            .synchronous(SqliteSynchronous::Off)
            .busy_timeout(Duration::from_millis(BUSY_MS));
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await?;
        let store = Self::scratch(pool, projections).await?;
        store.write.script(WITHOUT_READERS).await?;
        Ok(store)
    }

    /// A store that an earlier process may have begun for the same, and that survives the end of this one.
    pub async fn kept(
        file: &Path,
        ledger: &LedgerReader,
        projections: &Projections,
        identity: &str,
    ) -> Result<Self, ViewError> {
        let begun = match file.exists() {
            true => continued(file, ledger, projections, identity).await,
            false => Ok(None),
        };
        match begun {
            Ok(Some(store)) => return Ok(store),
            Ok(None) => {}
            Err(error) if is_of_no_use(&error) => tracing::info!(%error, "an unfinished rebuild begins anew"),
            Err(error) => return Err(error),
        }
        for suffix in ["", "-wal", "-shm"] {
            match tokio::fs::remove_file(beside(file, suffix)).await {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
                Ok(()) | Err(_) => {}
            }
        }
        tokio::fs::OpenOptions::from(private()).open(file).await?;
        let pool = one_connection(file).await?;
        MIGRATIONS.run(&pool).await?;
        let pool = Pool::Sqlite(pool);
        pool.script(WITHOUT_READERS).await?;
        begin_kept(&pool, projections, identity).await?;
        Ok(Self { write: pool.clone(), read: pool })
    }

    async fn scratch(pool: SqlitePool, projections: &Projections) -> Result<Self, ViewError> {
        MIGRATIONS.run(&pool).await?;
        let pool = Pool::Sqlite(pool);
        begin_all(&pool, projections).await?;
        Ok(Self { write: pool.clone(), read: pool })
    }
}

/// What makes the tables of a draft.
pub(crate) fn draft_schema() -> String {
    MIGRATIONS.iter().map(|migration| &*migration.sql).chain([WITHOUT_READERS]).collect::<Vec<_>>().join(";\n")
}

/// One connection that is never replaced: another one would be another, empty database.
async fn private_pool(options: SqliteConnectOptions) -> Result<SqlitePool, sqlx::Error> {
    SqlitePoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None).connect_with(options).await
}

fn options(file: &Path) -> SqliteConnectOptions {
    // NORMAL: after a power cut the last transactions may be missing, never half there. The
    // position is missing with them, so the runner goes on from where the rows are.
    SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(false)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(Duration::from_millis(BUSY_MS))
}

/// A store that was begun for the same, if its rows can be continued.
async fn continued(
    file: &Path,
    ledger: &LedgerReader,
    projections: &Projections,
    identity: &str,
) -> Result<Option<Store>, ViewError> {
    let pool = one_connection(file).await?;
    let looked = async {
        check(&pool).await?;
        MIGRATIONS.run(&pool).await?;
        can_be_continued(&Pool::Sqlite(pool.clone()), ledger, projections, identity).await
    };
    match looked.await {
        Ok(true) => Ok(Some(Store { write: Pool::Sqlite(pool.clone()), read: Pool::Sqlite(pool) })),
        Ok(false) => {
            pool.close().await;
            Ok(None)
        }
        Err(error) => {
            pool.close().await;
            Err(error)
        }
    }
}

/// The connection to a file that is kept: the end of the process leaves what was committed, that of the computer may
/// leave anything, and is noticed by what the rows depend on.
async fn one_connection(file: &Path) -> Result<SqlitePool, sqlx::Error> {
    let options = options(file).journal_mode(SqliteJournalMode::Truncate).synchronous(SqliteSynchronous::Off);
    SqlitePoolOptions::new().max_connections(1).connect_with(options).await
}

async fn check(pool: &SqlitePool) -> Result<(), ViewError> {
    let verdict: String = sqlx::query_scalar("PRAGMA quick_check(1)").fetch_one(pool).await?;
    if verdict == "ok" { Ok(()) } else { Err(ViewError::Damaged { finding: verdict }) }
}

/// One connection to a file that is there; nothing is made, migrated or replaced.
pub(crate) async fn existing(file: &Path, read_only: bool) -> Result<Pool, ViewError> {
    let one = |options| SqlitePoolOptions::new().max_connections(1).connect_with(options);
    if !read_only {
        return Ok(Pool::Sqlite(one(options(file)).await?));
    }
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let looked = async {
        let pool = one(options.clone()).await?;
        sqlx::query("SELECT count(*) FROM sqlite_schema").execute(&pool).await?;
        Ok::<_, sqlx::Error>(pool)
    };
    Ok(Pool::Sqlite(match looked.await {
        // SQLite makes companions beside a file at rest, which it cannot on a disk that only reads. What has none is
        // used by nobody, and is read as it is.
        Err(_) if ["-wal", "-shm"].iter().all(|suffix| !beside(file, suffix).exists()) => {
            one(options.immutable(true)).await?
        }
        pool => pool?,
    }))
}

/// Holds `<file>.lock` until dropped; the operating system frees it when the process dies.
async fn lock(file: &Path) -> Result<File, ViewError> {
    let path = beside(file, ".lock");
    let locked = tokio::task::spawn_blocking(move || {
        let handle = private().open(path)?;
        handle.lock()?;
        Ok::<_, std::io::Error>(handle)
    });
    Ok(locked.await.map_err(std::io::Error::other)??)
}

/// Makes a missing file, or opens the one there is. A new one is readable by its owner alone, for it
/// holds what people wrote; SQLite gives its companions (-wal, -shm) the same mode.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

async fn connect(file: &Path, ledger: &LedgerReader, projections: &Projections) -> Result<SqlitePool, ViewError> {
    tokio::fs::OpenOptions::from(private()).open(file).await?;
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options(file)).await?;
    match prepare(&pool, file, ledger, projections).await {
        Ok(()) => Ok(pool),
        Err(error) => {
            pool.close().await;
            Err(error)
        }
    }
}

async fn prepare(
    pool: &SqlitePool,
    file: &Path,
    ledger: &LedgerReader,
    projections: &Projections,
) -> Result<(), ViewError> {
    if tokio::fs::metadata(file).await?.len() <= MAX_CHECKED_BYTES {
        check(pool).await?;
    }
    MIGRATIONS.run(pool).await?;
    settle(&Pool::Sqlite(pool.clone()), ledger, projections).await
}

/// Whether another file would do better. A full disk or a lock would fail there, too.
fn is_of_no_use(error: &ViewError) -> bool {
    const ERROR: u32 = 1;
    const CORRUPT: u32 = 11;
    const NOTADB: u32 = 26;
    let of_no_use = |error: &sqlx::Error| {
        sqlite_code(error)
            .map_or(matches!(error, sqlx::Error::ColumnDecode { .. }), |code| [ERROR, CORRUPT, NOTADB].contains(&code))
    };
    match error {
        ViewError::Damaged { .. } => true,
        ViewError::Storage(error) => of_no_use(error),
        ViewError::Migrate(sqlx::migrate::MigrateError::Execute(error)) => of_no_use(error),
        ViewError::Migrate(sqlx::migrate::MigrateError::ExecuteMigration(error, _)) => of_no_use(error),
        // Made by a newer program, or half migrated.
        ViewError::Migrate(_) => true,
        _ => false,
    }
}

/// Moves the file away, over the one that was set aside before; its journal belongs to it and goes.
async fn set_aside(file: &Path) -> Result<PathBuf, ViewError> {
    let aside = beside(file, ".set-aside");
    tokio::fs::rename(file, &aside).await?;
    for suffix in ["-wal", "-shm"] {
        match tokio::fs::remove_file(beside(file, suffix)).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(aside)
}

pub(crate) fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
