//! Opening the database: the settings that durability needs, the migrations, and the comparison of the
//! head with the newest event.

use super::connections::PgConnections;
use super::news::Announcer;
use super::partition;
use super::read::PgLog;
use super::write::PgWriter;
use crate::error::LedgerError;
use crate::limits::{CONNECT_WAIT, READ_CONNECTIONS};
use crate::place::PostgresUrl;
use crate::store::rows::{COLUMNS, stored_event};
use crate::store::{HeadRow, Opened, ReadLog};
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::PgConnection;
use sqlx::{Connection, Executor, Row};
use std::sync::Arc;
use uuid::Uuid;

static MIGRATIONS: Migrator = sqlx::migrate!("../migrations/postgres/ledger");

/// Key of the advisory lock under which the schema is made: "DMLG".
const SCHEMA_LOCK: i64 = 0x444d_4c47;

/// Checks, migrates and opens the database.
pub(crate) async fn open_writable(url: &PostgresUrl) -> Result<(Opened, Arc<PgLog>), LedgerError> {
    let mut connection = connect(url).await?;
    check_server(url, &mut connection).await?;
    migrate(url, &mut connection).await?;
    let last_recorded_at = check_head(url, &mut connection).await?;
    // A failed close of a connection that is not needed any more changes nothing.
    let _ = connection.close().await;
    let announcer = Arc::new(Announcer::new(Uuid::now_v7().simple().to_string()));
    let read = Arc::new(PgLog::new(url, read_connections(url), Some(announcer.clone())));
    let head = read.head().await.map_err(|error| fail(url, "read the head", &error))?;
    let ledger_id = read.ledger_id().await.map_err(|error| fail(url, "read the ledger's id", &error))?;
    let write = Box::new(PgWriter::new(url, announcer));
    Ok((Opened { write, read: read.clone(), head, ledger_id, last_recorded_at }, read))
}

/// Opens an existing ledger for reading alone; nothing is migrated or written.
pub(crate) async fn open_reader(url: &PostgresUrl) -> Result<(PgLog, String), LedgerError> {
    let mut connection = connect(url).await?;
    let found = newest_applied(url, &mut connection).await?;
    let _ = connection.close().await;
    let known = newest_known();
    match found {
        None => return Err(unavailable(url, "there is no ledger yet: start the server, or name another database")),
        Some(found) if found > known => return Err(LedgerError::SchemaNewer { place: url.to_string(), found, known }),
        Some(found) if found < known => {
            let reason = format!("it has schema {found}, this program reads {known}: start the server once");
            return Err(unavailable(url, reason));
        }
        Some(_) => {}
    }
    let log = PgLog::new(url, read_connections(url), None);
    let ledger_id = log.ledger_id().await.map_err(|error| fail(url, "read the ledger's id", &error))?;
    Ok((log, ledger_id))
}

async fn connect(url: &PostgresUrl) -> Result<PgConnection, LedgerError> {
    let connecting = PgConnection::connect_with(url.options());
    match tokio::time::timeout(CONNECT_WAIT, connecting).await {
        Ok(connected) => connected.map_err(|error| fail(url, "connect", &error)),
        Err(_) => Err(unavailable(url, format!("no connection within {} s", CONNECT_WAIT.as_secs()))),
    }
}

fn read_connections(url: &PostgresUrl) -> PgConnections {
    // A statement may be planned while the tables are empty, and kept: by index it stays right.
    PgConnections::new(READ_CONNECTIONS, url, &[("enable_seqscan", "off"), ("jit", "off")])
}

/// An answered commit must be on the disk, so the settings that could prevent it are looked at.
async fn check_server(url: &PostgresUrl, connection: &mut PgConnection) -> Result<(), LedgerError> {
    let failed = |error| fail(url, "check its settings", &error);
    let row = sqlx::query(
        "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean, \
         current_setting('server_encoding'), \
         ARRAY(SELECT name || ' is ' || setting FROM pg_settings \
               WHERE name IN ('synchronous_commit', 'fsync', 'full_page_writes') AND setting = 'off' ORDER BY name)",
    )
    .fetch_one(connection)
    .await
    .map_err(failed)?;
    let column = |error| fail(url, "check its settings", &error);
    let (read_only, encoding): (bool, String) = (row.try_get(0).map_err(column)?, row.try_get(1).map_err(column)?);
    if read_only {
        return Err(unavailable(url, "it takes no writes (a standby, or read-only): name the primary server"));
    }
    if encoding != "UTF8" {
        return Err(unavailable(url, format!("its encoding is {encoding}: make the database with ENCODING 'UTF8'")));
    }
    let off: Vec<String> = row.try_get(2).map_err(column)?;
    if off.is_empty() {
        return Ok(());
    }
    let reason = off.join(", ");
    if url.accepts_data_loss() {
        tracing::error!(database = %url, reason, "acknowledged events can be LOST with a power cut; accepted by a setting");
        return Ok(());
    }
    Err(LedgerError::NotDurable { place: url.to_string(), reason })
}

/// The newest migration that was applied; nothing where there is no ledger.
async fn newest_applied(url: &PostgresUrl, connection: &mut PgConnection) -> Result<Option<i64>, LedgerError> {
    let failed = |error| fail(url, "look for its schema", &error);
    let exists: bool = sqlx::query_scalar("SELECT to_regclass('ledger._sqlx_migrations') IS NOT NULL")
        .fetch_one(&mut *connection)
        .await
        .map_err(failed)?;
    if !exists {
        return Ok(None);
    }
    sqlx::query_scalar("SELECT max(version) FROM ledger._sqlx_migrations WHERE success")
        .fetch_one(connection)
        .await
        .map_err(failed)
}

/// Makes or upgrades the schema. A role that may not do so can use one that is up to date.
async fn migrate(url: &PostgresUrl, connection: &mut PgConnection) -> Result<(), LedgerError> {
    let known = newest_known();
    match newest_applied(url, connection).await? {
        Some(found) if found == known => return Ok(()),
        Some(found) if found > known => return Err(LedgerError::SchemaNewer { place: url.to_string(), found, known }),
        Some(_) | None => {}
    }
    let failed = |error| fail(url, "make the schema \"ledger\"", &error);
    // Two processes that start at once must not both make it.
    let make = format!(
        "SELECT pg_advisory_lock({SCHEMA_LOCK}); CREATE SCHEMA IF NOT EXISTS ledger; SET search_path TO ledger"
    );
    connection.execute(make.as_str()).await.map_err(failed)?;
    let migrated = MIGRATIONS.run_direct(&mut *connection).await.map_err(|error| migration_error(url, error));
    let end = format!("RESET search_path; SELECT pg_advisory_unlock({SCHEMA_LOCK})");
    let ended = connection.execute(end.as_str()).await.map_err(failed);
    migrated.and(ended.map(drop))
}

fn newest_known() -> i64 {
    MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// The head row must be what the newest event says; the rest is left to `verify`. One statement: other
/// processes may append.
async fn check_head(
    url: &PostgresUrl,
    connection: &mut PgConnection,
) -> Result<devmind_domain::Timestamp, LedgerError> {
    let failed = |error: sqlx::Error| fail(url, "compare the head with the events", &error);
    let sql = format!(
        "SELECT {COLUMNS}, size, root, frontier FROM (SELECT partition AS of, size, root, frontier FROM ledger.head) h \
         LEFT JOIN ledger.events ON partition = of WHERE of = $1 ORDER BY position DESC NULLS LAST LIMIT 1"
    );
    let row = sqlx::query(&sql).bind(partition()).fetch_optional(connection).await.map_err(failed)?;
    let Some(row) = row else { return Err(corrupt(url, "the head is missing")) };
    let (root, frontier): (Vec<u8>, Vec<u8>) =
        (row.try_get("root").map_err(failed)?, row.try_get("frontier").map_err(failed)?);
    let head = HeadRow::new(row.try_get("size").map_err(failed)?, &root, &frontier);
    let position: Option<i64> = row.try_get(1).map_err(failed)?;
    let newest = position.map(|_| stored_event(&row)).transpose().map_err(failed)?;
    head.and_then(|head| head.fits(newest)).map_err(|reason| corrupt(url, reason))
}

fn migration_error(url: &PostgresUrl, error: MigrateError) -> LedgerError {
    match error {
        MigrateError::VersionMissing(found) | MigrateError::VersionNotPresent(found) => {
            LedgerError::SchemaNewer { place: url.to_string(), found, known: newest_known() }
        }
        MigrateError::VersionMismatch(version) => {
            corrupt(url, format!("its migration {version} is not the one this program knows"))
        }
        MigrateError::Dirty(version) => corrupt(url, format!("its migration {version} was left half done")),
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => fail(url, "migrate", &error),
        other => unavailable(url, format!("migrate: {other}")),
    }
}

fn fail(url: &PostgresUrl, doing: &str, error: &sqlx::Error) -> LedgerError {
    LedgerError::from_sqlx(&url.to_string(), doing, error)
}

fn unavailable(url: &PostgresUrl, reason: impl Into<String>) -> LedgerError {
    LedgerError::Unavailable { place: url.to_string(), reason: reason.into() }
}

fn corrupt(url: &PostgresUrl, reason: impl Into<String>) -> LedgerError {
    LedgerError::Corrupt { place: url.to_string(), reason: reason.into() }
}
