//! Drafts that survive the end of the process: rows for PostgreSQL are made on this computer, and an interrupted rebuild
//! goes on with them. They lie where the operating system keeps temporary files, for their owner alone.

use crate::beside::private_folder;
use crate::draft::Draft;
use crate::projection::Projection;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// What the folders begin with.
const BEGIN: &str = "devmind-views-rebuilding-";
/// The file that whoever uses a folder holds.
const LOCK: &str = "lock";

/// A folder that is this process's as long as it is held.
pub(crate) struct DraftFolder {
    folder: PathBuf,
    /// What the rows depend on.
    origin: String,
    _lock: File,
}

impl DraftFolder {
    /// The folder of a rebuild; nothing where another process has it, or where it is not this user's alone.
    pub fn open(of: &str, identity: &str) -> Option<Self> {
        let folder = std::env::temp_dir().join(format!("{BEGIN}{of}"));
        let lock = held(&folder).inspect_err(|error| {
            tracing::info!(folder = %folder.display(), %error, "an interruption of this rebuild will not be gone on from");
        });
        Some(Self { folder, origin: identity.to_owned(), _lock: lock.ok()? })
    }

    fn file(&self, projection: &dyn Projection) -> PathBuf {
        self.folder.join(format!("{}.sqlite", projection.name()))
    }

    /// A projection's draft, where it stands; an empty one where there is none that can be gone on with.
    pub fn draft(&self, projection: &'static dyn Projection) -> rusqlite::Result<Draft> {
        let file = self.file(projection);
        match Draft::kept(&file, projection, &self.origin) {
            Ok(Some(draft)) => return Ok(draft),
            Ok(None) => {}
            Err(error) => tracing::info!(%error, "an unfinished draft is thrown away"),
        }
        for suffix in ["", "-journal"] {
            // Where it cannot be removed, it cannot be made either, and that says why.
            fs::remove_file(crate::store::suffixed(&file, suffix)).ok();
        }
        Draft::new_kept(&file, projection, &self.origin)
    }

    /// Removes it.
    pub fn remove(self) -> io::Result<()> {
        fs::remove_dir_all(self.folder)
    }

    /// Removes all that this user left, except what is in use.
    pub fn forget() -> io::Result<()> {
        remove_left(BEGIN)
    }
}

/// Removes the folders among temporary files that begin so, are this user's, and are in nobody's use.
pub(crate) fn remove_left(begin: &str) -> io::Result<()> {
    for entry in fs::read_dir(std::env::temp_dir())?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(begin)
            && let Ok(_lock) = held(&entry.path())
        {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Makes the folder where it is missing, and holds it. In a place where everybody can make folders it is looked at whose
/// it is before anything is done in it: one that another user had made, or led elsewhere, would show them the rows.
fn held(folder: &Path) -> io::Result<File> {
    private_folder(folder)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let (found, own) = (fs::symlink_metadata(folder)?, tempfile::tempfile()?.metadata()?);
        if !found.is_dir() || found.uid() != own.uid() || found.mode() & 0o077 != 0 {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the folder is not this user's alone"));
        }
    }
    let lock = File::create(folder.join(LOCK))?;
    lock.try_lock()?;
    Ok(lock)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_folder_that_leads_elsewhere_or_that_others_can_open_is_not_used_and_nothing_is_done_in_it() {
        let within = tempfile::tempdir().expect("a folder");
        let (own, link) = (within.path().join("own"), within.path().join("link"));
        let lock = held(&own).expect("it is this user's alone");
        held(&own).expect_err("it is in use");
        drop(lock);
        fs::write(own.join(LOCK), "somebody's").expect("written");
        symlink(&own, &link).expect("linked");
        held(&link).expect_err("it leads elsewhere");
        fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).expect("opened");
        held(&own).expect_err("others can open it");
        assert_eq!(fs::read_to_string(own.join(LOCK)).expect("read"), "somebody's");
    }
}
