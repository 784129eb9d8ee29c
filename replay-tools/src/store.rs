//! Where the ledger is: a folder with its files, or a database.

use crate::failure::Failure;
use devmind_domain::ErrorCode;
use devmind_ledger::{LedgerReader, Place, PostgresUrl};
use std::path::PathBuf;

/// What the command line names.
#[derive(Debug)]
pub(crate) enum Source {
    Folder(PathBuf),
    Database(PostgresUrl),
}

impl Source {
    /// A database's address counts before a folder.
    pub fn new(data: PathBuf, database_url: Option<String>) -> Result<Self, Failure> {
        let Some(url) = database_url else { return Ok(Self::Folder(data)) };
        let url =
            url.parse().map_err(|error| Failure::new(ErrorCode::ConfigInvalid, format!("DATABASE_URL: {error}")))?;
        Ok(Self::Database(url))
    }

    /// Opens the log for reading.
    pub async fn open_ledger(&self) -> Result<LedgerReader, Failure> {
        let opened = match self {
            Self::Folder(data) => LedgerReader::open(&data.join("ledger.sqlite")).await,
            Self::Database(url) => LedgerReader::open(url).await,
        };
        opened.map_err(|error| match self {
            Self::Folder(data) if !data.join("ledger.sqlite").exists() => {
                Failure::from(error).with_hint("name the ledger's folder with --data DIR or DEVMIND_DATA")
            }
            Self::Folder(_) | Self::Database(_) => error.into(),
        })
    }

    /// Where the views are.
    pub fn views(&self) -> Place {
        match self {
            Self::Folder(data) => Place::File(data.join("views.sqlite")),
            Self::Database(url) => Place::from(url),
        }
    }
}
