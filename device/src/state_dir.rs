//! The folder of one device: its name, its lock and its journal.
//!
//! One folder is one device. The lock is held for the life of the process, so that two programs
//! never share a journal; the operating system drops it when the process dies, however it dies.

use crate::error::DeviceError;
use devmind_domain::ErrorCode;
use devmind_domain::ids::DeviceId;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

const LOCK_FILE: &str = "lock";
const DEVICE_ID_FILE: &str = "device-id";
pub(crate) const JOURNAL_FILE: &str = "journal.sqlite";
/// How often a taken lock is tried again, and how long between.
const LOCK_TRIES: u32 = 3;
const BETWEEN_LOCK_TRIES: Duration = Duration::from_millis(20);
/// Characters of a device's id, at most.
const MAX_DEVICE_ID_CHARS: usize = 64;

/// Where the journal of a state folder lies.
pub(crate) fn journal_file(folder: &Path) -> PathBuf {
    folder.join(JOURNAL_FILE)
}

/// Whether a device program is running with this folder.
pub(crate) fn is_in_use(folder: &Path) -> bool {
    let Ok(lock) = File::open(folder.join(LOCK_FILE)) else { return false };
    matches!(fs4::FileExt::try_lock_shared(&lock), Err(fs4::TryLockError::WouldBlock))
}

/// Makes the folder, for its user alone.
///
/// # Errors
/// `CONFIG_INVALID` when it cannot be used.
pub(crate) fn make_state_folder(path: &Path) -> Result<(), DeviceError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| unusable(path, &error))?;
    make_private(path)
}

fn unusable(path: &Path, error: &io::Error) -> DeviceError {
    let message = format!("the state folder {} cannot be used: {error}", path.display());
    DeviceError::new(ErrorCode::ConfigInvalid, message).with_hint("name a folder that you may write to with --state")
}

/// A state folder, locked.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    /// Kept open: closing it gives the lock back.
    _lock: File,
}

impl StateDir {
    /// Opens (makes) the folder and takes its lock.
    ///
    /// # Errors
    /// `STATE_LOCKED` when another process has it; `CONFIG_INVALID` when it cannot be used.
    pub fn open(path: &Path) -> Result<Self, DeviceError> {
        make_state_folder(path)?;
        let unusable = |error: io::Error| unusable(path, &error);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(path.join(LOCK_FILE)).map_err(unusable)?;
        let mut locked = fs4::FileExt::try_lock(&lock);
        for _ in 0..LOCK_TRIES {
            // Somebody may only be looking whether a device is running.
            if matches!(locked, Err(fs4::TryLockError::WouldBlock)) {
                std::thread::sleep(BETWEEN_LOCK_TRIES);
                locked = fs4::FileExt::try_lock(&lock);
            }
        }
        match locked {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(fs4::TryLockError::WouldBlock) => Err(DeviceError::new(
                ErrorCode::StateLocked,
                format!("a device program is already running with the state folder {}", path.display()),
            )),
            Err(fs4::TryLockError::Error(error)) => Err(unusable(error)),
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the journal lies.
    pub fn journal_file(&self) -> PathBuf {
        journal_file(&self.path)
    }

    /// Bytes that may still be written to its disk.
    pub fn free_bytes(&self) -> io::Result<u64> {
        fs4::available_space(&self.path)
    }

    /// The device's id: made on the first start, the same ever after. `wanted` names a new device,
    /// and must agree with an old one.
    ///
    /// # Errors
    /// `CONFIG_INVALID` when the file is unreadable or names another device.
    pub fn device_id(&self, wanted: Option<DeviceId>) -> Result<DeviceId, DeviceError> {
        let file = self.path.join(DEVICE_ID_FILE);
        let invalid = |why: String| DeviceError::new(ErrorCode::ConfigInvalid, format!("{}: {why}", file.display()));
        match fs::read_to_string(&file) {
            Ok(text) => {
                let kept = DeviceId(text.trim().to_owned());
                if !is_device_id(kept.as_str()) {
                    return Err(invalid("is not a device's id".to_owned())
                        .with_hint("restore the file, or move the state folder away to start as a new device"));
                }
                match wanted {
                    Some(wanted) if wanted != kept => Err(invalid(format!("this is the device {kept}, not {wanted}"))
                        .with_hint("use another state folder for another device")),
                    _ => Ok(kept),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = wanted.unwrap_or_else(|| DeviceId(uuid::Uuid::now_v7().to_string()));
                if !is_device_id(made.as_str()) {
                    return Err(invalid(format!("{made} is not a device's id: letters, digits, - and _ only")));
                }
                write_durably(&self.path, &file, made.as_str()).map_err(|error| invalid(error.to_string()))?;
                Ok(made)
            }
            Err(error) => Err(invalid(error.to_string())),
        }
    }
}

fn is_device_id(text: &str) -> bool {
    (1..=MAX_DEVICE_ID_CHARS).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

/// Shuts the folder to everybody else, unless it is somebody else's folder given by mistake:
/// closing a folder that everybody uses would harm the whole computer.
fn make_private(path: &Path) -> Result<(), DeviceError> {
    let refused = |why: String| {
        DeviceError::new(ErrorCode::ConfigInvalid, format!("the state folder {} {why}", path.display()))
            .with_hint("name an empty or a new folder with --state")
    };
    let mode = fs::metadata(path).map_err(|error| refused(error.to_string()))?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    let is_empty = fs::read_dir(path).map_err(|error| refused(error.to_string()))?.next().is_none();
    if !is_empty && !path.join(LOCK_FILE).exists() {
        return Err(refused("holds other files and is open to other users".to_owned()));
    }
    fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(|error| refused(error.to_string()))
}

/// A crash leaves the whole file or none.
pub(crate) fn write_durably(folder: &Path, file: &Path, text: &str) -> io::Result<()> {
    replace(file, text, true)?;
    File::open(folder)?.sync_all()
}

/// A reader sees the whole file, old or new; a crash may lose it.
pub(crate) fn write_private(file: &Path, text: &str) -> io::Result<()> {
    replace(file, text, false)
}

fn replace(file: &Path, text: &str, durably: bool) -> io::Result<()> {
    let fresh = file.with_extension("new");
    let mut writing = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    writing.write_all(text.as_bytes())?;
    if durably {
        writing.sync_all()?;
    }
    fs::rename(&fresh, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_program_is_told_that_one_is_running_and_the_lock_ends_with_the_first() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("state");
        let first = StateDir::open(&path).expect("first");
        assert_eq!(StateDir::open(&path).err().map(|error| error.code()), Some(ErrorCode::StateLocked));
        drop(first);
        assert!(StateDir::open(&path).is_ok());
    }

    #[test]
    fn a_device_keeps_its_id_and_its_folder_is_its_own() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("a/state");
        let id = StateDir::open(&path).and_then(|state| state.device_id(None)).expect("made");
        let state = StateDir::open(&path).expect("again");
        assert_eq!(state.device_id(None).expect("kept"), id);
        assert_eq!(
            state.device_id(Some("other".into())).err().map(|error| error.code()),
            Some(ErrorCode::ConfigInvalid)
        );
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&path.join(DEVICE_ID_FILE)), 0o600);
    }

    #[test]
    fn a_shared_folder_given_by_mistake_is_refused_and_left_as_it_was() {
        let folder = tempfile::tempdir().expect("folder");
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("open to all");
        fs::write(folder.path().join("somebody's"), "x").expect("file");
        assert_eq!(StateDir::open(folder.path()).err().map(|error| error.code()), Some(ErrorCode::ConfigInvalid));
        assert_eq!(fs::metadata(folder.path()).expect("there").permissions().mode() & 0o777, 0o755);
    }
}
