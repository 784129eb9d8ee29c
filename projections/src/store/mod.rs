//! Where the views are kept: opened, migrated, checked, and made anew when they cannot be used.
//!
//! Views are disposable. What is damaged, newer than this program, or made from another log is set
//! aside or emptied with a warning, and the runner fills it again from the log.

pub(crate) mod postgres;
mod sqlite;

pub(crate) use sqlite::{draft_schema, existing};

use crate::apply::{known_types, reset};
use crate::db::{Pool, Work, values};
use crate::error::ViewError;
use crate::projection::Projection;
use crate::row::Columns;
use devmind_ledger::{LedgerReader, Place};

/// The projections of a store.
pub(crate) type Projections = Vec<&'static dyn Projection>;

/// Open views.
#[derive(Clone)]
pub(crate) struct Store {
    /// One connection on SQLite: writers of one process queue here rather than at the file's lock.
    pub write: Pool,
    /// Connections that only read.
    pub read: Pool,
}

impl Store {
    /// Opens the views; makes them where they are missing, replaces them where they are of no use.
    pub async fn open(place: &Place, ledger: &LedgerReader, projections: &Projections) -> Result<Self, ViewError> {
        match place {
            Place::File(file) => Self::open_file(file, ledger, projections).await,
            Place::Postgres(url) => postgres::open(url, ledger, projections).await,
        }
    }

    /// Closes all connections; a file's write-ahead log is folded into it.
    pub async fn close(&self) {
        self.read.close().await;
        // SQLite folds when the last connection closes, but not when that one can only read. Where it
        // cannot be done now, the next start does it.
        if let (Pool::Sqlite(_), Err(error)) = (&self.write, self.fold().await) {
            tracing::debug!(error = %error, "the views' write-ahead log was not folded into the file");
        }
        self.write.close().await;
    }

    async fn fold(&self) -> Result<(), sqlx::Error> {
        match &self.write {
            Pool::Sqlite(_) => self.write.script("PRAGMA wal_checkpoint(TRUNCATE)").await,
            Pool::Postgres(_) => Ok(()),
        }
    }
}

/// Puts every projection before the first event.
async fn begin_all(pool: &Pool, projections: &Projections) -> Result<(), ViewError> {
    let mut work = pool.begin().await?;
    for projection in projections {
        reset(&mut work, *projection).await?;
    }
    work.commit().await?;
    Ok(())
}

/// The same for a store that is kept, under what its rows depend on.
async fn begin_kept(pool: &Pool, projections: &Projections, identity: &str) -> Result<(), ViewError> {
    begin_all(pool, projections).await?;
    let mut work = pool.begin().await?;
    set_origin(&mut work, identity).await?;
    Ok(work.commit().await?)
}

/// Whether the rows of a store that was kept are what they would be if they were made now, as far as they go.
async fn can_be_continued(
    pool: &Pool,
    ledger: &LedgerReader,
    projections: &Projections,
    identity: &str,
) -> Result<bool, ViewError> {
    let mut work = pool.begin().await?;
    let mut same = origin(&mut work).await?.as_deref() == Some(identity);
    for projection in projections {
        same = same && unusable(&mut work, ledger, *projection).await?.is_none();
    }
    work.rollback().await?;
    Ok(same)
}

/// What the rows were made from.
async fn origin(work: &mut Work) -> Result<Option<String>, sqlx::Error> {
    let origin = work.row("SELECT ledger_id FROM views_origin", &[]).await?;
    origin.map(|row| Columns(&row).text("ledger_id")).transpose()
}

async fn set_origin(work: &mut Work, origin: &str) -> Result<(), sqlx::Error> {
    let sql = "INSERT INTO views_origin (only_row, ledger_id) VALUES (1, $1) \
         ON CONFLICT (only_row) DO UPDATE SET ledger_id = excluded.ledger_id";
    work.run(sql, &values![origin]).await
}

/// Empties every projection whose rows were not made from this very log. Those of another version stay, and
/// are served, until the runner has built its own beside them.
pub(crate) async fn settle(pool: &Pool, ledger: &LedgerReader, projections: &Projections) -> Result<(), ViewError> {
    let mut transaction = pool.begin().await?;
    if transaction.is_postgres() {
        // Processes that start at once settle one after the other.
        transaction.run("LOCK TABLE views_origin IN EXCLUSIVE MODE", &[]).await?;
    }
    let origin = origin(&mut transaction).await?;
    let same_log = origin.as_deref() == Some(ledger.ledger_id());
    set_origin(&mut transaction, ledger.ledger_id()).await?;
    for projection in projections {
        let reason = match unusable(&mut transaction, ledger, *projection).await? {
            Some(reason) => Some(reason),
            None if !same_log => Some("they were made from another log".to_owned()),
            None => None,
        };
        if let Some(reason) = reason {
            if origin.is_some() {
                tracing::warn!(projection.name = projection.name(), reason, "the view is rebuilt from the log");
            }
            reset(&mut transaction, *projection).await?;
        }
    }
    // From here on it is this program that skips what it does not know.
    transaction.run("UPDATE projection_position SET known_types = $1", &values![known_types()]).await?;
    transaction.commit().await?;
    Ok(())
}

/// Why a projection's rows cannot be continued.
async fn unusable(
    work: &mut Work,
    ledger: &LedgerReader,
    projection: &dyn Projection,
) -> Result<Option<String>, ViewError> {
    let row = work.row("SELECT * FROM projection_position WHERE name = $1", &values![projection.name()]).await?;
    let Some(row) = row else {
        return Ok(Some("there are none yet".to_owned()));
    };
    let row = Columns(&row);
    let (version, position) = (row.small("version")?, row.count("position")?);
    let same_version = version == projection.version();
    if same_version && row.count("skipped_unknown")? > 0 && row.text::<String>("known_types")? != known_types() {
        return Ok(Some("they lack events that another program did not know".to_owned()));
    }
    if position == 0 {
        return Ok(None);
    }
    let event = ledger.read(position - 1, 1).await?;
    let leaf = event.first().map(|event| hex::encode(event.leaf_hash));
    let same = leaf == row.maybe_text("leaf_hash")?;
    Ok((!same).then(|| format!("the log has another event at {position} than they were made from, or none")))
}
