//! Room for rows beside the live ones: a file in the same folder, or a schema of the same database.
//!
//! Either is new and goes at the end, or it is kept where a process ends in the middle, and found by the next that
//! builds the same: then the rows go on where they stand. What is kept was made from this very log by this very
//! program, with the same events erased and passed over, or it is thrown away.

use crate::apply::{known_types, stored};
use crate::compare::Schemas;
use crate::db::Pool;
use crate::draft;
use crate::draft_folder::{self, DraftFolder};
use crate::error::ViewError;
use crate::projection::Projection;
use crate::store::{Projections, Store, existing, postgres};
use crate::views::named;
use devmind_domain::canonical::{hash_json, sha256_hex};
use devmind_ledger::{EventFilter, LedgerError, LedgerReader, MAX_PAGE_EVENTS, Place};
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;
use tempfile::TempDir;

/// What the folders of stores beside the live one begin with, and those that are kept.
const NEW: &str = "views-rebuild-";
const KEPT: &str = "views-rebuilding-";
/// Says on Linux which start of the computer this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The file in them that is locked by the process that uses it.
const LOCK: &str = "lock";
/// The store in such a folder.
const FILE: &str = "views.sqlite";

/// A store that nobody else writes, beside the live one.
pub(crate) struct Beside {
    pub store: Store,
    /// What live and rebuilt tables are called where both are seen.
    pub schemas: Schemas,
    kept: Kept,
}

enum Kept {
    /// Removed when dropped, or by the next that is made where the process ends before: then nobody holds its lock.
    New(TempDir, #[allow(dead_code, reason = "dropped at the end")] File),
    /// Removed when it is swapped in; nobody else takes it as long as the lock is held.
    Folder(PathBuf, #[allow(dead_code, reason = "dropped at the end")] File),
    Schema(postgres::Schema, Option<DraftFolder>),
}

/// Where the rows of a store beside the live one are.
pub(crate) enum Room<'a> {
    /// In a file, and what a connection that writes it is to be told first.
    File(PathBuf, &'static str),
    /// In a schema, after drafts that may be kept.
    Schema(Option<&'a DraftFolder>),
}

impl Kept {
    fn folder(&self) -> Option<&Path> {
        match self {
            Self::New(folder, _) => Some(folder.path()),
            Self::Folder(folder, _) => Some(folder),
            Self::Schema(..) => None,
        }
    }
}

fn folder_of(views: &Path) -> &Path {
    views.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Beside {
    /// One that is empty.
    pub async fn new(views: &Place, projections: &Projections) -> Result<Self, ViewError> {
        match views {
            Place::File(file) => {
                remove_left(file)?;
                let (folder, lock) = match new_folder(folder_of(file)) {
                    // A disk that only reads can be looked at, too.
                    Err(ViewError::Io(error)) if takes_nothing(&error) => {
                        draft_folder::remove_left(NEW)?;
                        new_folder(&std::env::temp_dir())?
                    }
                    made => made?,
                };
                let store = Store::temporary(&folder.path().join(FILE), projections).await?;
                Ok(Self { store, schemas: files(), kept: Kept::New(folder, lock) })
            }
            Place::Postgres(url) => {
                let (store, schema) = postgres::beside(url, projections).await?;
                Ok(Self { store, schemas: schemas(&schema), kept: Kept::Schema(schema, None) })
            }
        }
    }

    /// One that an interrupted process may have begun: its rows go on where they stand. Where another process has it
    /// at this moment, a new one.
    pub async fn kept(views: &Place, ledger: &LedgerReader, projections: &Projections) -> Result<Self, ViewError> {
        let identity = identity(ledger, projections).await?;
        let names: Vec<_> = named(projections).into_iter().map(|(name, _)| name).collect();
        let of = sha256_hex(names.join(" ").as_bytes());
        let of = of.get(..16).unwrap_or_default();
        match views {
            Place::File(file) => {
                let folder = folder_of(file).join(format!("{KEPT}{of}"));
                private_folder(&folder)?;
                let lock = File::create(folder.join(LOCK))?;
                match lock.try_lock() {
                    Ok(()) => {}
                    Err(TryLockError::WouldBlock) => return Self::new(views, projections).await,
                    Err(TryLockError::Error(error)) => return Err(error.into()),
                }
                let store = Store::kept(&folder.join(FILE), ledger, projections, &identity).await?;
                Ok(Self { store, schemas: files(), kept: Kept::Folder(folder, lock) })
            }
            Place::Postgres(url) => match postgres::kept(url, of, ledger, projections, &identity).await? {
                Some((store, schema)) => {
                    let drafts = DraftFolder::open(&sha256_hex(format!("{of} {url}").as_bytes()), &identity);
                    Ok(Self { store, schemas: schemas(&schema), kept: Kept::Schema(schema, drafts) })
                }
                None => Self::new(views, projections).await,
            },
        }
    }

    /// Where a projection's rows stand, those of a draft that is kept among them.
    pub async fn stands(&self, projection: &'static dyn Projection) -> Result<u64, ViewError> {
        let (_, stands) = stored(&self.store.write, projection.name()).await?;
        match &self.kept {
            Kept::Schema(_, Some(drafts)) => {
                Ok(stands.position.max(drafts.draft(projection)?.position(projection.name())?))
            }
            Kept::New(..) | Kept::Folder(..) | Kept::Schema(_, None) => Ok(stands.position),
        }
    }

    /// Where its rows are.
    pub fn room(&self) -> Room<'_> {
        match &self.kept {
            Kept::New(folder, _) => Room::File(folder.path().join(FILE), draft::UNKEPT),
            Kept::Folder(folder, _) => Room::File(folder.join(FILE), draft::KEPT),
            Kept::Schema(_, drafts) => Room::Schema(drafts.as_ref()),
        }
    }

    /// Makes the rebuilt tables visible to the one connection of a pool.
    pub async fn attach(&self, live: &Pool) -> Result<(), ViewError> {
        if let (Some(folder), Pool::Sqlite(live)) = (self.kept.folder(), live) {
            let file = folder.join(FILE);
            sqlx::query("ATTACH DATABASE $1 AS rebuilt").bind(file.to_string_lossy()).execute(live).await?;
        }
        Ok(())
    }

    /// A connection that reads the live tables, with the rebuilt ones attached.
    pub async fn live_for_reading(&self, views: &Place) -> Result<Pool, ViewError> {
        let live = match views {
            Place::File(file) => existing(file, true).await?,
            Place::Postgres(url) => Pool::Postgres(postgres::pool(url, postgres::SCHEMA, 1)),
        };
        self.attach(&live).await?;
        Ok(live)
    }

    /// Leaves it as the end of the process does.
    #[cfg(test)]
    pub async fn let_go(self) {
        self.store.close().await;
        if let Kept::Schema(schema, _) = self.kept {
            schema.let_go().await;
        }
    }

    /// Removes it. Where this is not reached, a new file goes when it is dropped, a new schema with the next that is
    /// made; what is kept stays.
    pub async fn remove(self) -> Result<(), ViewError> {
        self.store.close().await;
        match self.kept {
            Kept::New(..) => Ok(()),
            Kept::Folder(folder, _lock) => Ok(std::fs::remove_dir_all(folder)?),
            Kept::Schema(schema, drafts) => {
                schema.remove().await?;
                Ok(drafts.map_or(Ok(()), DraftFolder::remove)?)
            }
        }
    }
}

/// Removes what interrupted rebuilds left: rows that may say what was erased meanwhile.
///
/// # Errors
/// When folder or database cannot be used.
pub async fn forget_unfinished(views: &Place) -> Result<(), ViewError> {
    let file = match views {
        Place::File(file) => file,
        Place::Postgres(url) => {
            postgres::forget_unfinished(url).await?;
            return Ok(DraftFolder::forget()?);
        }
    };
    for entry in std::fs::read_dir(folder_of(file))? {
        let entry = entry?;
        let name = entry.file_name();
        if [NEW, KEPT].iter().any(|begin| name.to_string_lossy().starts_with(begin)) {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Whether nothing can be made in a folder, whoever tries again.
fn takes_nothing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied)
}

/// A new folder, with its lock held.
fn new_folder(within: &Path) -> Result<(TempDir, File), ViewError> {
    loop {
        let folder = tempfile::Builder::new().prefix(NEW).tempdir_in(within)?;
        // Who removes what was left may come before the lock does: then another folder is made.
        let path = folder.path().join(LOCK);
        let lock = match File::create(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            lock => lock?,
        };
        match lock.try_lock() {
            Ok(()) if path.exists() => return Ok((folder, lock)),
            Ok(()) | Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
    }
}

/// Removes the folders that processes which ended left beside the views: those whose lock nobody holds.
///
/// # Errors
/// When the folder cannot be read.
pub(crate) fn remove_left(views: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder_of(views))? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with(NEW) {
            continue;
        }
        // One that goes meanwhile needs nobody else to remove it, one that cannot be removed is in nobody's way.
        let Ok(lock) = File::create(entry.path().join(LOCK)) else { continue };
        if lock.try_lock().is_ok() {
            match std::fs::remove_dir_all(entry.path()) {
                Ok(()) => tracing::info!(folder = %entry.path().display(), "removed what a process left behind"),
                Err(error) => tracing::warn!(%error, folder = %entry.path().display(), "left where it is"),
            }
        }
    }
    Ok(())
}

fn files() -> Schemas {
    Schemas { live: "main".to_owned(), rebuilt: "rebuilt".to_owned() }
}

fn schemas(beside: &postgres::Schema) -> Schemas {
    Schemas { live: postgres::SCHEMA.to_owned(), rebuilt: beside.name.clone() }
}

/// What rows depend on beside the events up to their position: the log, the program, what changes the meaning of events
/// afterwards, and the computer's start, because they are not flushed to its disk.
async fn identity(ledger: &LedgerReader, projections: &Projections) -> Result<String, ViewError> {
    let program = std::env::current_exe().and_then(|file| file.metadata())?;
    let built = program.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string();
    let (erased, skipped) =
        (positions(ledger, "PayloadRedacted").await?, positions(ledger, "ProjectionEventSkipped").await?);
    let started = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
    let of = (ledger.ledger_id(), (program.len(), built), named(projections), known_types(), erased, skipped, started);
    Ok(hash_json(&of))
}

async fn positions(ledger: &LedgerReader, event_type: &str) -> Result<Vec<u64>, LedgerError> {
    let filter = EventFilter { event_type: Some(event_type.to_owned()), ..EventFilter::default() };
    let mut positions = Vec::new();
    loop {
        let page = ledger.query(&filter, positions.last().copied().unwrap_or(0), MAX_PAGE_EVENTS).await?;
        if page.is_empty() {
            return Ok(positions);
        }
        positions.extend(page.iter().map(|event| event.position));
    }
}

/// Makes a folder for its owner alone: rows hold what people wrote.
pub(crate) fn private_folder(folder: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
