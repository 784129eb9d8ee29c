//! The key that signs checkpoints: a file in the form that tools for signed notes share, made at the
//! first start for the ledger's owner alone, with its public half beside it for everybody.

use devmind_domain::proof::{NoteError, NoteKey, NoteSigner, SignatureKind};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The private key's name in the data folder.
pub const KEY_FILE: &str = "checkpoint.key";
/// The public key's name in the data folder.
pub const PUBLIC_KEY_FILE: &str = "checkpoint.pub";

/// The key cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the checkpoint key {} cannot be used: {reason}", file.display())]
pub struct KeyError {
    /// Its file.
    pub file: PathBuf,
    /// Why.
    pub reason: String,
    /// Whether there is no such file.
    pub missing: bool,
}

/// Reads the private key, or makes one under `name` where `make_with` gives 32 random bytes.
///
/// # Errors
/// [`KeyError`]. A file that is there is never replaced.
pub fn open_key(
    file: &Path,
    name: &str,
    make_with: Option<impl FnOnce() -> io::Result<[u8; 32]>>,
) -> Result<NoteSigner, KeyError> {
    open_key_of(SignatureKind::Ed25519, file, name, make_with)
}

/// The same for the key of a witness, which signs that it saw a head of another's log.
///
/// # Errors
/// As [`open_key`].
pub fn open_witness_key(
    file: &Path,
    name: &str,
    make_with: impl FnOnce() -> io::Result<[u8; 32]>,
) -> Result<NoteSigner, KeyError> {
    open_key_of(SignatureKind::Cosignature, file, name, Some(make_with))
}

fn open_key_of(
    kind: SignatureKind,
    file: &Path,
    name: &str,
    make_with: Option<impl FnOnce() -> io::Result<[u8; 32]>>,
) -> Result<NoteSigner, KeyError> {
    match (fs::read_to_string(file), make_with) {
        (Ok(text), _) => {
            let signer = NoteSigner::parse(&text).map_err(|error| unusable(file, error))?;
            match (signer.public().kind(), kind) {
                (found, wanted) if found == wanted => Ok(signer),
                (SignatureKind::Ed25519, _) => Err(unusable(file, "it is the key of a log")),
                (SignatureKind::Cosignature, _) => Err(unusable(file, "it is the key of a witness")),
            }
        }
        (Err(error), Some(seed)) if error.kind() == ErrorKind::NotFound => {
            let made = seed().map_err(|error| unusable(file, error))?;
            let signer = NoteSigner::from_seed(name, kind, &made).map_err(|error| unusable(file, error))?;
            write_new(file, 0o600, &signer.secret_text()).map_err(|error| unusable(file, error))?;
            Ok(signer)
        }
        (Err(error), _) => Err(KeyError { missing: error.kind() == ErrorKind::NotFound, ..unusable(file, error) }),
    }
}

/// Puts the public key beside the ledger, unless it is there.
///
/// # Errors
/// [`KeyError`] when the folder cannot be written.
pub(crate) fn publish_key(folder: &Path, key: &NoteKey) -> Result<(), KeyError> {
    let file = folder.join(PUBLIC_KEY_FILE);
    let text = key.to_string();
    if fs::read_to_string(&file).is_ok_and(|found| found.trim_end() == text) {
        return Ok(());
    }
    let temporary = folder.join(format!("{PUBLIC_KEY_FILE}.new"));
    // What is left of a process that was killed here is of no use.
    drop(fs::remove_file(&temporary));
    write_new(&temporary, 0o644, &text)
        .and_then(|()| fs::rename(&temporary, &file))
        .map_err(|error| unusable(&file, error))
}

/// The public key beside a ledger.
///
/// # Errors
/// [`KeyError`], with `missing` where no server with a key has started yet.
pub fn read_public_key(folder: &Path) -> Result<NoteKey, KeyError> {
    let file = folder.join(PUBLIC_KEY_FILE);
    match fs::read_to_string(&file) {
        Ok(text) => NoteKey::parse(text.trim_end()).map_err(|error: NoteError| unusable(&file, error)),
        Err(error) => Err(KeyError { missing: error.kind() == ErrorKind::NotFound, ..unusable(&file, error) }),
    }
}

/// Writes a file that was not there, durably.
fn write_new(file: &Path, mode: u32, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    let mut opened = options.open(file)?;
    writeln!(opened, "{text}")?;
    opened.sync_all()
}

fn unusable(file: &Path, reason: impl std::fmt::Display) -> KeyError {
    KeyError { file: file.to_owned(), reason: reason.to_string(), missing: false }
}
