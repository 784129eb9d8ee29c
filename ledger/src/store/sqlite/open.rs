//! Opening the file: the lock, the checks that come before anything is written, the migrations,
//! and the comparison of the head with the newest event.

use super::file::Writable;
use super::partition;
use super::read::SqliteLog;
use super::write::SqliteWriter;
use crate::error::LedgerError;
use crate::limits::{BUSY_TIMEOUT, LOCK_PAUSE, LOCK_WAIT, READ_CONNECTIONS};
use crate::store::rows::{COLUMNS, stored_event};
use crate::store::{HeadRow, Opened, ReadLog, as_i64};
use devmind_domain::Timestamp;
use devmind_domain::canonical::Hash;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{ConnectOptions, Connection, SqliteConnection, SqlitePool};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

static MIGRATIONS: Migrator = sqlx::migrate!("../migrations/sqlite/ledger");

/// `PRAGMA application_id` of a ledger, set by its first migration.
const APPLICATION_ID: i64 = 0x444d_4c47;

/// What every SQLite file begins with.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

const COMPARE: &str = "compare the head with the events";

/// The lock file's name, beside the log.
const LOCK_FILE: &str = "ledger.lock";

/// Locks, checks, migrates and opens the file.
pub(crate) async fn open_writable(file: &Path) -> Result<Opened, LedgerError> {
    let lock = lock_soon(file).await?;
    if looks_like_sqlite(file)? {
        inspect(file, false).await?;
    } else {
        create_private(file)?;
    }
    let writable = writable(file, lock).await?;
    let options = SqliteConnectOptions::new().filename(file).foreign_keys(true).busy_timeout(BUSY_TIMEOUT);
    let mut connection = options.connect().await.map_err(|error| fail(file, "open", &error))?;
    MIGRATIONS.run(&mut connection).await.map_err(|error| migration_error(file, error))?;
    let head_row = writable.head().map_err(|error| LedgerError::from_sqlite(&place(file), COMPARE, &error))?;
    let head_row = head_row.map_err(|reason| corrupt(file, reason))?;
    let last_recorded_at = check_head(file, head_row, &mut connection).await?;
    connection.close().await.map_err(|error| fail(file, "migrate", &error))?;
    let read = Arc::new(SqliteLog::new(file, read_pool(file, false).await?));
    let head = read.head().await.map_err(|error| fail(file, "read the head", &error))?;
    let ledger_id = read.ledger_id().await.map_err(|error| fail(file, "read the ledger's id", &error))?;
    let write = Box::new(SqliteWriter::new(file, writable, Arc::clone(&read)));
    Ok(Opened { write, read, head, ledger_id, last_recorded_at })
}

/// Opens an existing ledger for reading alone. The log is neither locked nor changed; beside a log at
/// rest SQLite leaves its empty companions (-wal, -shm), which the next writer takes over.
pub(crate) async fn open_reader(file: &Path) -> Result<(SqliteLog, String), LedgerError> {
    if !looks_like_sqlite(file)? {
        return Err(unavailable(file, "there is no ledger yet: start the server, or name another folder"));
    }
    let (found, immutable) = match inspect(file, false).await {
        // SQLite makes companions beside a log at rest, which it cannot on a disk that only reads: a copy for
        // an examination, a backup. What has none is used by nobody, and is read as it is.
        Err(LedgerError::Unavailable { .. }) if is_at_rest(file) => (inspect(file, true).await?, true),
        found => (found?, false),
    };
    let known = newest_known();
    if found < known {
        let reason = format!("it has schema {found}, this program reads {known}: start the server once");
        return Err(unavailable(file, reason));
    }
    let log = SqliteLog::new(file, read_pool(file, immutable).await?);
    let ledger_id = log.ledger_id().await.map_err(|error| fail(file, "read the ledger's id", &error))?;
    Ok((log, ledger_id))
}

/// Says how long a log is of which a file holds a part: for reading alone, as nothing can be appended to it.
pub(crate) async fn set_head(file: &Path, size: u64, root: &Hash) -> Result<(), LedgerError> {
    let failed = |error| fail(file, "set the head", &error);
    let mut connection = SqliteConnectOptions::new().filename(file).connect().await.map_err(failed)?;
    let head = sqlx::query("UPDATE head SET size = ?, root = ? WHERE partition = ?");
    let head = head.bind(as_i64(size)).bind(root.as_slice()).bind(partition());
    head.execute(&mut connection).await.map_err(failed)?;
    connection.close().await.map_err(failed)
}

/// Looks at an existing file without writing: is it a ledger, and of which schema?
async fn inspect(file: &Path, immutable: bool) -> Result<i64, LedgerError> {
    let options = SqliteConnectOptions::new().filename(file).read_only(true).busy_timeout(BUSY_TIMEOUT);
    let options = options.immutable(immutable);
    let mut connection = options.connect().await.map_err(|error| fail(file, "open", &error))?;
    let looked = look(file, &mut connection).await;
    // A failed close of a connection that only read changes nothing about what was seen.
    let _ = connection.close().await;
    looked
}

async fn look(file: &Path, connection: &mut SqliteConnection) -> Result<i64, LedgerError> {
    let failed = |error| fail(file, "look into it", &error);
    let (tables, application): (i64, i64) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM sqlite_schema), (SELECT application_id FROM pragma_application_id)",
    )
    .fetch_one(&mut *connection)
    .await
    .map_err(failed)?;
    if tables == 0 {
        // Made by a process that ended before its first migration was committed.
        return Ok(0);
    }
    // The table of migrations is made before the first one runs.
    let newest: Option<(Option<i64>,)> = sqlx::query_as("SELECT max(version) FROM _sqlx_migrations")
        .fetch_optional(&mut *connection)
        .await
        .ok()
        .flatten();
    match newest {
        Some((None,)) if tables == 1 || application == APPLICATION_ID => Ok(0),
        Some((Some(found),)) if application == APPLICATION_ID => {
            let known = newest_known();
            if found > known { Err(LedgerError::SchemaNewer { place: place(file), found, known }) } else { Ok(found) }
        }
        Some(_) | None => Err(corrupt(file, "it is the SQLite file of another program")),
    }
}

fn newest_known() -> i64 {
    MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// The connection that writes, opened on a thread that may block.
async fn writable(file: &Path, lock: File) -> Result<Writable, LedgerError> {
    let path = file.to_owned();
    let opened = tokio::task::spawn_blocking(move || Writable::open(&path, lock)).await;
    opened.unwrap_or_else(|error| Err(unavailable(file, error.to_string())))
}

/// The head row must be what the newest event says; the rest is left to `verify`.
async fn check_head(file: &Path, head: HeadRow, connection: &mut SqliteConnection) -> Result<Timestamp, LedgerError> {
    let failed = |error| fail(file, COMPARE, &error);
    let newest = format!("SELECT {COLUMNS} FROM events WHERE partition = ? ORDER BY position DESC LIMIT 1");
    let row = sqlx::query(&newest).bind(partition()).fetch_optional(&mut *connection).await.map_err(failed)?;
    let newest = row.as_ref().map(stored_event).transpose().map_err(failed)?;
    head.fits(newest).map_err(|reason| corrupt(file, reason))
}

/// Whether nobody has the log open.
fn is_at_rest(file: &Path) -> bool {
    ["-wal", "-shm"].iter().all(|suffix| {
        let mut name = file.as_os_str().to_owned();
        name.push(suffix);
        !Path::new(&name).exists()
    })
}

async fn read_pool(file: &Path, immutable: bool) -> Result<SqlitePool, LedgerError> {
    let options =
        SqliteConnectOptions::new().filename(file).read_only(true).foreign_keys(true).busy_timeout(BUSY_TIMEOUT);
    let options = options.immutable(immutable);
    SqlitePoolOptions::new()
        .max_connections(READ_CONNECTIONS)
        .connect_with(options)
        .await
        .map_err(|error| fail(file, "open for reading", &error))
}

/// A process that starts another shares its locks with it for the moment between the two system calls, so
/// the lock of a ledger that was just closed may still seem to be held.
async fn lock_soon(file: &Path) -> Result<File, LedgerError> {
    let until = tokio::time::Instant::now() + LOCK_WAIT;
    loop {
        match lock_folder(file) {
            Err(LedgerError::Locked { .. }) if tokio::time::Instant::now() < until => {
                tokio::time::sleep(LOCK_PAUSE).await;
            }
            locked => return locked,
        }
    }
}

fn lock_folder(file: &Path) -> Result<File, LedgerError> {
    let folder = folder_of(file);
    if !folder.is_dir() {
        return Err(unavailable(file, format!("the folder {} does not exist: create it", folder.display())));
    }
    let path = folder.join(LOCK_FILE);
    let lock = private().create(true).truncate(false).open(&path).map_err(|error| {
        unavailable(file, format!("{} cannot be written ({error}): check the folder's permissions", path.display()))
    })?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(LedgerError::Locked { folder }),
        Err(TryLockError::Error(error)) => Err(unavailable(file, format!("{}: {error}", path.display()))),
    }
}

/// `false` when there is no file, or an empty one, which is the same to SQLite.
fn looks_like_sqlite(file: &Path) -> Result<bool, LedgerError> {
    let mut start = Vec::new();
    let read = match File::open(file) {
        Ok(opened) => opened.take(MAGIC.len() as u64).read_to_end(&mut start),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    };
    read.map_err(|error| unavailable(file, format!("{error}: check its permissions")))?;
    if start.is_empty() {
        // SQLite would throw away a write-ahead log that has lost its file.
        let mut log = file.as_os_str().to_owned();
        log.push("-wal");
        return match std::fs::metadata(PathBuf::from(log)) {
            Ok(found) if found.len() > 0 => Err(corrupt(file, "it is gone, but its write-ahead log (-wal) is there")),
            Ok(_) | Err(_) => Ok(false),
        };
    }
    if start == MAGIC { Ok(true) } else { Err(corrupt(file, "it is not a SQLite file")) }
}

/// Makes the empty file, readable by its owner alone; SQLite gives its companions the same mode.
fn create_private(file: &Path) -> Result<(), LedgerError> {
    private().create(true).truncate(false).open(file).map(drop).map_err(|error| {
        unavailable(file, format!("it cannot be created ({error}): check the folder's permissions and free space"))
    })
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        Some(_) | None => PathBuf::from("."),
    }
}

fn migration_error(file: &Path, error: MigrateError) -> LedgerError {
    match error {
        MigrateError::VersionMissing(found) | MigrateError::VersionNotPresent(found) => {
            LedgerError::SchemaNewer { place: place(file), found, known: newest_known() }
        }
        MigrateError::VersionMismatch(version) => {
            corrupt(file, format!("its migration {version} is not the one this program knows"))
        }
        MigrateError::Dirty(version) => corrupt(file, format!("its migration {version} was left half done")),
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => fail(file, "migrate", &error),
        other => unavailable(file, format!("migrate: {other}")),
    }
}

fn place(file: &Path) -> String {
    file.display().to_string()
}

fn fail(file: &Path, doing: &str, error: &sqlx::Error) -> LedgerError {
    LedgerError::from_sqlx(&place(file), doing, error)
}

fn unavailable(file: &Path, reason: impl Into<String>) -> LedgerError {
    LedgerError::Unavailable { place: place(file), reason: reason.into() }
}

fn corrupt(file: &Path, reason: impl Into<String>) -> LedgerError {
    LedgerError::Corrupt { place: place(file), reason: reason.into() }
}
