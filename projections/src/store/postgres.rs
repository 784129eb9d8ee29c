//! The views in the schema `views` of a PostgreSQL database, and schemas beside it for rebuilds.

use super::{Projections, Store, begin_all, begin_kept, can_be_continued, settle};
use crate::db::Pool;
use crate::error::ViewError;
use devmind_ledger::{LedgerReader, PgConnections, PostgresUrl};
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::PgConnection;
use sqlx::{Connection, Executor};

static MIGRATIONS: Migrator = sqlx::migrate!("../migrations/postgres/views");

/// The schema of the live views.
pub(crate) const SCHEMA: &str = "views";
/// What the schemas beside it begin with, and those that are kept where a process ends.
const BESIDE: &str = "views_rebuild_";
const KEPT: &str = "views_rebuilding_";
/// Connections that read at once, and those that write, at most.
const READERS: u32 = 4;
pub(crate) const WRITERS: u32 = 2;
/// Key of the advisory lock under which schemas are made and replaced: "DMVW".
const SCHEMA_LOCK: i64 = 0x444d_5657;

/// Connections that see one schema.
pub(crate) fn pool(url: &PostgresUrl, schema: &str, connections: u32) -> PgConnections {
    // Views need no fsync: position and rows are lost together, and come back from the log.
    // A process that is frozen in a transaction must not keep the others from their views for longer than this.
    let patience = ("idle_in_transaction_session_timeout", "2s");
    // A statement is planned once, maybe while the tables are as good as empty: row by row, each by its index, the plan
    // stays right. To plan a join of four tables for each run that is looked up would take longer than to look.
    let once = [("plan_cache_mode", "force_generic_plan"), ("jit", "off")];
    let by_index = [("enable_seqscan", "off"), ("enable_hashjoin", "off"), ("enable_mergejoin", "off")];
    let settings = [("search_path", schema), ("synchronous_commit", "off"), patience];
    PgConnections::new(connections, url, &[&settings[..], &once, &by_index].concat())
}

/// Opens the views; makes them where they are missing, replaces them where they are of no use.
pub(super) async fn open(
    url: &PostgresUrl,
    ledger: &LedgerReader,
    projections: &Projections,
) -> Result<Store, ViewError> {
    let mut connection = PgConnection::connect_with(&url.options().clone().options([("search_path", SCHEMA)])).await?;
    connection.execute(format!("SELECT pg_advisory_lock({SCHEMA_LOCK})").as_str()).await?;
    match migrate(&mut connection, SCHEMA).await {
        // Made by a newer program, or half migrated.
        Err(ViewError::Migrate(error)) if !speaks_of_the_server(&error) => {
            tracing::warn!(error = %error, database = %url, "the views cannot be used; they are rebuilt from the log");
            connection.execute(format!("DROP SCHEMA {SCHEMA} CASCADE").as_str()).await?;
            migrate(&mut connection, SCHEMA).await?;
        }
        done => done?,
    }
    let store =
        Store { write: Pool::Postgres(pool(url, SCHEMA, WRITERS)), read: Pool::Postgres(pool(url, SCHEMA, READERS)) };
    settle(&store.write, ledger, projections).await?;
    // What a check was killed beside holds what people wrote, and much room. Whose schemas they are is no reason not to
    // start.
    if let Err(error) = remove_left(&mut connection, BESIDE).await {
        tracing::warn!(%error, database = %url, "what an interrupted rebuild left behind stays");
    }
    // The lock goes with the connection.
    connection.close().await?;
    Ok(store)
}

/// Tables for rows that are under way. They are not searched there; the other indexes stay, as each sets a limit that a
/// value of an event may be beyond, which is to be told before the swap.
async fn migrate_beside(connection: &mut PgConnection, schema: &str) -> Result<(), ViewError> {
    migrate(connection, schema).await?;
    connection.execute("DROP INDEX IF EXISTS search_index").await?;
    Ok(())
}

async fn migrate(connection: &mut PgConnection, schema: &str) -> Result<(), ViewError> {
    // Asked first: a role that may not make schemas can use one that is there.
    let exists: bool =
        sqlx::query_scalar("SELECT to_regnamespace($1) IS NOT NULL").bind(schema).fetch_one(&mut *connection).await?;
    if !exists {
        connection.execute(format!("CREATE SCHEMA {schema}").as_str()).await?;
    }
    MIGRATIONS.run_direct(connection).await?;
    Ok(())
}

/// A connection that was lost, or a disk that is full, would be so for new views, too.
fn speaks_of_the_server(error: &MigrateError) -> bool {
    let error = match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => error,
        _ => return false,
    };
    !crate::db::is_the_statements_fault(error)
}

/// A schema that is this process's as long as its connection holds the lock of its name.
pub(crate) struct Schema {
    pub name: String,
    holder: PgConnection,
}

impl Schema {
    #[cfg(test)]
    pub async fn let_go(self) {
        self.holder.close().await.expect("closed");
    }

    pub async fn remove(mut self) -> Result<(), ViewError> {
        self.holder.execute(format!("DROP SCHEMA {} CASCADE", self.name).as_str()).await?;
        self.holder.close().await?;
        Ok(())
    }
}

/// A store in a schema of its own. Schemas that a process left behind when it died are removed.
pub(crate) async fn beside(url: &PostgresUrl, projections: &Projections) -> Result<(Store, Schema), ViewError> {
    let name = format!("{BESIDE}{}", uuid::Uuid::now_v7().simple());
    let options = url.options().clone().options([("search_path", name.as_str())]);
    let mut holder = PgConnection::connect_with(&options).await?;
    sqlx::query("SELECT pg_advisory_lock(hashtextextended($1, 0))").bind(&name).execute(&mut holder).await?;
    remove_left(&mut holder, BESIDE).await?;
    migrate_beside(&mut holder, &name).await?;
    let pool = Pool::Postgres(pool(url, &name, WRITERS));
    begin_all(&pool, projections).await?;
    Ok((Store { write: pool.clone(), read: pool }, Schema { name, holder }))
}

/// A store in a schema that an earlier process may have begun for the same, and that survives the end of this one;
/// nothing where another process has it at this moment. What a process left behind that was to be removed at its end is removed.
pub(crate) async fn kept(
    url: &PostgresUrl,
    of: &str,
    ledger: &LedgerReader,
    projections: &Projections,
    identity: &str,
) -> Result<Option<(Store, Schema)>, ViewError> {
    let name = format!("{KEPT}{of}");
    let options = url.options().clone().options([("search_path", name.as_str())]);
    let mut holder = PgConnection::connect_with(&options).await?;
    let locked: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock(hashtextextended($1, 0))")
        .bind(&name)
        .fetch_one(&mut holder)
        .await?;
    if !locked {
        holder.close().await?;
        return Ok(None);
    }
    remove_left(&mut holder, BESIDE).await?;
    let pool = Pool::Postgres(pool(url, &name, WRITERS));
    let continued = match migrate_beside(&mut holder, &name).await {
        Ok(()) => can_be_continued(&pool, ledger, projections, identity).await?,
        Err(ViewError::Migrate(error)) if !speaks_of_the_server(&error) => false,
        Err(error) => return Err(error),
    };
    if !continued {
        holder.execute(format!("DROP SCHEMA IF EXISTS {name} CASCADE").as_str()).await?;
        migrate_beside(&mut holder, &name).await?;
        begin_kept(&pool, projections, identity).await?;
    }
    Ok(Some((Store { write: pool.clone(), read: pool }, Schema { name, holder })))
}

/// Removes what interrupted rebuilds left.
pub(crate) async fn forget_unfinished(url: &PostgresUrl) -> Result<(), ViewError> {
    let mut holder = PgConnection::connect_with(url.options()).await?;
    remove_left(&mut holder, BESIDE).await?;
    remove_left(&mut holder, KEPT).await?;
    holder.close().await?;
    Ok(())
}

/// Removes schemas that no process holds.
async fn remove_left(holder: &mut PgConnection, begin: &str) -> Result<(), ViewError> {
    let left: Vec<String> = sqlx::query_scalar(
        "SELECT nspname::text FROM pg_namespace WHERE starts_with(nspname::text, $1) \
         AND pg_try_advisory_lock(hashtextextended(nspname::text, 0))",
    )
    .bind(begin)
    .fetch_all(&mut *holder)
    .await?;
    for schema in left {
        tracing::info!(schema, "removing what an interrupted rebuild left behind");
        holder.execute(format!("DROP SCHEMA IF EXISTS {schema} CASCADE").as_str()).await?;
        sqlx::query("SELECT pg_advisory_unlock(hashtextextended($1, 0))").bind(schema).execute(&mut *holder).await?;
    }
    Ok(())
}
