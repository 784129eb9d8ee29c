//! What a projection's state hashes to at a position, so that two people can tell whether they look at
//! the same rows without showing them to each other. The root of the log at that position, which
//! completes the statement, is left to the caller.
//!
//! The hash is SHA-256 over the tables in their order: the table's name, then each row by its key as a
//! JSON object (as SQLite writes it, columns in their order), each with a line break.

use crate::apply::stored;
use crate::error::ViewError;
use crate::projection::Projection;
use crate::rebuild::{Beside, Counter, fill, named};
use crate::registry::PROJECTIONS;
use crate::row::Columns;
use crate::store::Projections;
use devmind_ledger::LedgerReader;
use futures::TryStreamExt;
use sha2::{Digest, Sha256};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, Row, SqliteConnection};
use std::path::Path;

/// The state of one projection at one position of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attestation {
    /// Its name.
    pub projection: &'static str,
    /// Its version.
    pub version: u32,
    /// The log's size that its rows were made of.
    pub position: u64,
    /// The hash of its rows.
    pub state_hash: [u8; 32],
}

/// The live rows as they are, of all projections or one. Each may stand at a position of its own.
///
/// # Errors
/// When the file cannot be used, or was made by another version of the program.
pub async fn attest(views: &Path, projection: Option<&str>) -> Result<Vec<Attestation>, ViewError> {
    let options = SqliteConnectOptions::new().filename(views).read_only(true);
    let mut live = SqliteConnection::connect_with(&options).await?;
    // One look: rows and position of the same moment.
    let mut still = live.begin().await?;
    let mut attested = Vec::new();
    for projection in these(projection)? {
        attested.push(state_of(&mut still, projection).await?);
    }
    still.commit().await?;
    live.close().await?;
    Ok(attested)
}

/// The rows that the log up to a position gives, rebuilt beside `views`, which need not be there.
///
/// # Errors
/// When the log cannot be read or does not go so far, or a projection fails on an event.
pub async fn attest_at(
    views: &Path,
    ledger: &LedgerReader,
    position: u64,
    projection: Option<&str>,
    progress: impl FnMut(u64, u64) + Send,
) -> Result<Vec<Attestation>, ViewError> {
    let projections = these(projection)?;
    let beside = Beside::new(views, &projections).await?;
    let mut counter = Counter::new(position * projections.len() as u64, progress);
    let mut attested = Vec::new();
    for projection in projections {
        let built = fill(&beside.store, projection, ledger, 0, position, &mut |events| counter.add(events)).await?;
        if built != position {
            let reason = format!("the log ends at {built}, before {position}");
            return Err(ViewError::NotReady { projection: projection.name(), reason });
        }
        let mut connection = beside.store.write.acquire().await?;
        attested.push(state_of(&mut connection, projection).await?);
    }
    Ok(attested)
}

fn these(projection: Option<&str>) -> Result<Projections, ViewError> {
    projection.map_or_else(|| Ok(PROJECTIONS.to_vec()), |name| Ok(vec![named(name)?]))
}

async fn state_of(connection: &mut SqliteConnection, projection: &dyn Projection) -> Result<Attestation, ViewError> {
    let (version, progress) = stored(connection, projection.name()).await?;
    if version != projection.version() {
        let reason = format!("its rows are of version {version}, this program has {}", projection.version());
        return Err(ViewError::NotReady { projection: projection.name(), reason });
    }
    let mut hash = Sha256::new();
    for table in projection.tables() {
        hash.update(table);
        hash.update("\n");
        let columns =
            sqlx::query("SELECT name, pk FROM pragma_table_info($1)").bind(table).fetch_all(&mut *connection).await?;
        let (mut all, mut key) = (Vec::new(), Vec::new());
        for column in &columns {
            let column = Columns(column);
            let name: String = column.text("name")?;
            all.push(format!("'{name}', {name}"));
            if column.count("pk")? > 0 {
                key.push(name);
            }
        }
        // Names come from our own migrations, never from a request.
        let sql = format!("SELECT json_object({}) FROM {table} ORDER BY {}", all.join(", "), key.join(", "));
        let mut rows = sqlx::query(&sql).fetch(&mut *connection);
        while let Some(row) = rows.try_next().await? {
            hash.update(row.try_get::<String, _>(0)?);
            hash.update("\n");
        }
    }
    let (projection, position) = (projection.name(), progress.position);
    Ok(Attestation { projection, version, position, state_hash: hash.finalize().into() })
}
