//! Where the ledger is: a folder with its files, or a database beside the folder with its checkpoints.

use crate::failure::Failure;
use devmind_domain::ErrorCode;
use devmind_ledger::{LedgerReader, Place, PostgresUrl};
use std::path::{Path, PathBuf};

/// What the command line names.
#[derive(Debug)]
pub(crate) struct Source {
    folder: PathBuf,
    database: Option<PostgresUrl>,
}

impl Source {
    pub fn new(folder: PathBuf, database_url: Option<String>) -> Result<Self, Failure> {
        let database = database_url.map(|url| url.parse()).transpose();
        let database = database
            .map_err(|error: String| Failure::new(ErrorCode::ConfigInvalid, format!("DATABASE_URL: {error}")))?;
        Ok(Self { folder, database })
    }

    /// The folder of what is published of the log, and of its files where no database is named.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Opens the log for reading.
    pub async fn open_ledger(&self) -> Result<LedgerReader, Failure> {
        let Some(url) = &self.database else {
            let file = self.folder.join("ledger.sqlite");
            return LedgerReader::open(&file).await.map_err(|error| match file.exists() {
                true => error.into(),
                false => Failure::from(error).with_hint(
                    "name the ledger's folder with --data DIR or DEVMIND_DATA, or its database with DATABASE_URL",
                ),
            });
        };
        Ok(LedgerReader::open(url).await?)
    }

    /// Where the views are.
    pub fn views(&self) -> Place {
        match &self.database {
            None => Place::File(self.folder.join("views.sqlite")),
            Some(url) => Place::from(url),
        }
    }
}
