//! Room for rows beside the live ones: a temporary file in the same folder, or a schema of the same
//! database.

use crate::compare::Schemas;
use crate::db::Pool;
use crate::error::ViewError;
use crate::store::{Projections, Store, postgres};
use devmind_ledger::Place;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use std::path::Path;
use tempfile::TempDir;

/// A store that nobody else writes, beside the live one.
pub(crate) struct Beside {
    pub store: Store,
    /// What live and rebuilt tables are called where both are seen.
    pub schemas: Schemas,
    kept: Kept,
}

enum Kept {
    /// Removed when dropped.
    Folder(TempDir),
    Schema(postgres::Schema),
}

impl Beside {
    pub async fn new(views: &Place, projections: &Projections) -> Result<Self, ViewError> {
        match views {
            Place::File(file) => {
                let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
                let folder = tempfile::Builder::new().prefix("views-rebuild-").tempdir_in(parent)?;
                let store = Store::temporary(&folder.path().join("views.sqlite"), projections).await?;
                let schemas = Schemas { live: "main".to_owned(), rebuilt: "rebuilt".to_owned() };
                Ok(Self { store, schemas, kept: Kept::Folder(folder) })
            }
            Place::Postgres(url) => {
                let (store, schema) = postgres::beside(url, projections).await?;
                let schemas = Schemas { live: postgres::SCHEMA.to_owned(), rebuilt: schema.name.clone() };
                Ok(Self { store, schemas, kept: Kept::Schema(schema) })
            }
        }
    }

    /// Makes the rebuilt tables visible to the one connection of a pool.
    pub async fn attach(&self, live: &Pool) -> Result<(), ViewError> {
        if let (Kept::Folder(folder), Pool::Sqlite(live)) = (&self.kept, live) {
            let file = folder.path().join("views.sqlite");
            sqlx::query("ATTACH DATABASE $1 AS rebuilt").bind(file.to_string_lossy()).execute(live).await?;
        }
        Ok(())
    }

    /// A connection that reads the live tables, with the rebuilt ones attached.
    pub async fn live_for_reading(&self, views: &Place) -> Result<Pool, ViewError> {
        let live = match views {
            Place::File(file) => {
                let options = SqliteConnectOptions::new().filename(file).read_only(true);
                Pool::Sqlite(SqlitePoolOptions::new().max_connections(1).connect_with(options).await?)
            }
            Place::Postgres(url) => Pool::Postgres(postgres::pool(url, postgres::SCHEMA, 1)),
        };
        self.attach(&live).await?;
        Ok(live)
    }

    /// Removes it. Where this is not reached, a file goes when it is dropped, a schema with the next
    /// rebuild.
    pub async fn remove(self) -> Result<(), ViewError> {
        self.store.close().await;
        match self.kept {
            Kept::Folder(_) => Ok(()),
            Kept::Schema(schema) => schema.remove().await,
        }
    }
}
