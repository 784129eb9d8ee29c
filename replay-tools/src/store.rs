//! Where the ledger is: a folder with its files, or a database, with checkpoints and keys in the folder; or a bundle,
//! which is all that is there.

use crate::at::{self, At};
use crate::bundle::{Told, named};
use crate::failure::Failure;
use crate::output::{Progress, escaped, say};
use devmind_domain::ErrorCode;
use devmind_ledger::bundle::{BundleError, BundleReport, open_bundle};
use devmind_ledger::proof::{ProveError, Prover};
use devmind_ledger::{Damage, DamagedRow, LedgerReader, Place, PostgresUrl};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

/// What the command line names.
#[derive(Debug)]
pub(crate) struct Source {
    folder: PathBuf,
    database: Option<PostgresUrl>,
    bundle: Option<Bundle>,
    /// Rows that commands passed over.
    damage: Damage,
    /// How far the log is looked at; 0 where no command said.
    until: AtomicU64,
}

/// A bundle that was read through and holds.
#[derive(Debug)]
struct Bundle {
    reader: LedgerReader,
    report: BundleReport,
    /// Keeps its events as long as they are read.
    _folder: TempDir,
}

impl Source {
    /// A database's address counts before the files of a folder.
    pub fn new(folder: PathBuf, database_url: Option<String>) -> Result<Self, Failure> {
        let parse = |url: String| {
            url.parse().map_err(|error| Failure::new(ErrorCode::ConfigInvalid, format!("DATABASE_URL: {error}")))
        };
        Ok(Self {
            folder,
            database: database_url.map(parse).transpose()?,
            bundle: None,
            damage: Damage::default(),
            until: AtomicU64::new(0),
        })
    }

    /// A bundle, with nothing but itself.
    pub async fn of_bundle(file: &Path) -> Result<Self, Failure> {
        let folder = tempfile::tempdir().map_err(BundleError::from)?;
        let opened = {
            let mut told = Told::of(file, || Progress::new("opening", "events"));
            open_bundle(file, folder.path(), |now| told.tell(now)).await.map_err(|error| named(file, error))?
        };
        let (reader, report) = match opened {
            Ok(opened) => opened,
            Err(report) => {
                let (total, file) = (report.findings_total, file.display());
                let first = report.findings.first().map(|(line, _, reason)| format!("line {line}: {reason}"));
                let message =
                    format!("the bundle {file} does not hold: {total} findings, {}", first.unwrap_or_default());
                return Err(Failure::new(ErrorCode::LedgerCorrupt, message)
                    .with_hint("`devmind-replay verify BUNDLE` lists them; get it again from where it came"));
            }
        };
        let BundleReport { selection, events, size, fingerprint, .. } = &report;
        say(escaped(&format!("a bundle of {selection}: {events} of {size} events, signed by the key {fingerprint}")));
        if !report.complete {
            say("what it does not have is not shown: other conversations, and what became of devices and servers");
        }
        let at = folder.path().to_owned();
        Ok(Self {
            folder: at,
            database: None,
            bundle: Some(Bundle { reader, report, _folder: folder }),
            damage: Damage::default(),
            until: AtomicU64::new(0),
        })
    }

    /// Makes proofs; nothing where there is a part of a log, whose events are proved by the bundle that they are in.
    pub fn prover(&self, reader: &LedgerReader) -> Option<Prover> {
        let is_part = self.bundle.as_ref().is_some_and(|bundle| !bundle.report.complete);
        (!is_part).then(|| Prover::new(reader.clone()))
    }

    /// The root at a size of the log; nothing where a part of it does not say, or a damaged log cannot, which is told.
    pub async fn root(&self, reader: &LedgerReader, size: u64) -> Result<Option<String>, Failure> {
        if let Some(prover) = self.prover(reader) {
            return match prover.root(size).await {
                Ok(root) => Ok(Some(hex::encode(root))),
                Err(ProveError::Ledger(error)) if error.code() == ErrorCode::LedgerCorrupt => {
                    say(escaped(&format!("nothing of it can be proved: {error}")));
                    Ok(None)
                }
                Err(error) => Err(error.into()),
            };
        }
        let signed = self.bundle.as_ref().filter(|bundle| bundle.report.size == size);
        Ok(signed.map(|bundle| hex::encode(bundle.report.root)))
    }

    /// The server's data folder, with the signed checkpoints and the public key.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Opens the log for a look at it: rows that hold no event are passed over, and told at the end ([`Self::damaged`]).
    pub async fn open_ledger(&self) -> Result<LedgerReader, Failure> {
        let whole = self.bundle.as_ref().is_none_or(|bundle| bundle.report.complete);
        Ok(self.open_whole_ledger().await?.passing_over(&self.damage, whole).await?)
    }

    /// The position that is meant; what is damaged after it is not told.
    ///
    /// # Errors
    /// When the log does not go so far, or cannot be read.
    pub async fn position(&self, reader: &LedgerReader, at: Option<At>) -> Result<u64, Failure> {
        let position = at::position(reader, at).await?;
        self.until.fetch_max(at.map_or(u64::MAX, |_| position), Ordering::Relaxed);
        Ok(position)
    }

    /// The rows that were passed over.
    pub fn damaged(&self) -> Vec<DamagedRow> {
        let until = self.until.load(Ordering::Relaxed);
        self.damage.between(0, if until == 0 { u64::MAX } else { until })
    }

    /// Those of them from one position to another, both included.
    pub fn damaged_between(&self, first: u64, last: u64) -> Vec<DamagedRow> {
        self.damage.between(first, last)
    }

    /// How many more there are than can be named.
    pub fn unnamed_damage(&self) -> Option<u64> {
        self.damage.count().checked_sub(self.damage.rows().len() as u64).filter(|more| *more > 0)
    }

    /// Opens the log for what must not lack an event: a row that holds none is an error.
    pub async fn open_whole_ledger(&self) -> Result<LedgerReader, Failure> {
        if let Some(bundle) = &self.bundle {
            return Ok(bundle.reader.clone());
        }
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
