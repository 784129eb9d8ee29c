//! Where the ledger is: a folder with its files, or a database; checkpoints and keys are in the folder.

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
    /// A database's address counts before the files of a folder.
    pub fn new(folder: PathBuf, database_url: Option<String>) -> Result<Self, Failure> {
        let parse = |url: String| {
            url.parse().map_err(|error| Failure::new(ErrorCode::ConfigInvalid, format!("DATABASE_URL: {error}")))
        };
        Ok(Self { folder, database: database_url.map(parse).transpose()? })
    }

    /// The server's data folder, with the signed checkpoints and the public key.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Opens the log for reading.
    pub async fn open_ledger(&self) -> Result<LedgerReader, Failure> {
        let place = self.ledger();
        LedgerReader::open(&place).await.map_err(|error| match place {
            Place::File(file) if !file.exists() => {
                Failure::from(error).with_hint("name the ledger's folder with --data DIR or DEVMIND_DATA")
            }
            Place::File(_) | Place::Postgres(_) => error.into(),
        })
    }

    /// Where the log is.
    pub fn ledger(&self) -> Place {
        self.place("ledger.sqlite")
    }

    /// Where the views are.
    pub fn views(&self) -> Place {
        self.place("views.sqlite")
    }

    fn place(&self, file: &str) -> Place {
        match &self.database {
            None => Place::File(self.folder.join(file)),
            Some(url) => Place::from(url),
        }
    }
}
