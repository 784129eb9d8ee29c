//! The checkpoints that were published, one JSON line each, in a file beside the log.
//!
//! A file and not the log: a checkpoint that were an event would change the head it speaks of, and who
//! rewrites the database has not yet rewritten this file, or the copies of it elsewhere. It is
//! disposable: without it the log is what it is, and its past heads can no longer be compared.

use super::key::publish_key;
use super::prover::{ProveError, Prover};
use super::{KEY_FILE, KeyError, open_key, origin};
use crate::error::LedgerError;
use crate::reader::LedgerReader;
use devmind_domain::proof::{Checkpoint, Note, NoteKey, NoteSigner};
use devmind_domain::{ErrorCode, Timestamp};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use tokio::sync::Mutex;

/// The file's name in the data folder.
pub const CHECKPOINTS_FILE: &str = "checkpoints.jsonl";
/// The name of the file beside it with what witnesses cosigned.
pub const COSIGNED_FILE: &str = "cosignatures.jsonl";

/// A checkpoint as it was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedCheckpoint {
    /// When.
    pub at: Timestamp,
    /// The signed note.
    pub note: String,
    /// What it says.
    pub checkpoint: Checkpoint,
}

#[derive(Serialize, Deserialize)]
struct Line {
    at: Timestamp,
    note: String,
}

/// Why checkpoints cannot be published.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The file.
    #[error("{} cannot be used: {reason}", file.display())]
    File {
        /// Which.
        file: PathBuf,
        /// Why.
        reason: String,
    },
    /// The log is not the one of which a checkpoint was published.
    #[error("the ledger is not what it was when its checkpoint of {size} events was published: {reason}")]
    Forked {
        /// The checkpoint's size.
        size: u64,
        /// In which way.
        reason: String,
    },
    /// The log.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl RecordError {
    /// The stable code.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Key(_) => ErrorCode::ConfigInvalid,
            Self::File { .. } => ErrorCode::LedgerUnavailable,
            Self::Forked { .. } => ErrorCode::LedgerCorrupt,
            Self::Ledger(error) => error.code(),
        }
    }
}

/// Signs heads of one log and records what it signed.
#[derive(Debug)]
pub struct CheckpointRecord {
    reader: LedgerReader,
    prover: Prover,
    signer: NoteSigner,
    origin: String,
    file: PathBuf,
    newest: Mutex<Option<RecordedCheckpoint>>,
}

impl CheckpointRecord {
    /// Reads or makes the key, and compares the log with the newest checkpoint of it.
    ///
    /// `key` names a file of the caller's; without one the key of the data folder is used, made from
    /// `seed` at the first start.
    ///
    /// # Errors
    /// [`RecordError`]; [`RecordError::Forked`] when the log lost or changed what was published.
    pub async fn open(
        folder: &Path,
        key: Option<&Path>,
        reader: LedgerReader,
        seed: impl FnOnce() -> io::Result<[u8; 32]>,
    ) -> Result<Self, RecordError> {
        let origin = origin(reader.ledger_id());
        let signer = match key {
            Some(file) => open_key(file, &origin, None::<fn() -> _>)?,
            None => open_key(&folder.join(KEY_FILE), &origin, Some(seed))?,
        };
        publish_key(folder, &signer.public())?;
        let file = folder.join(CHECKPOINTS_FILE);
        let prover = Prover::new(reader.clone());
        // Another ledger was in this folder before: its checkpoints say nothing about this one.
        let newest = read_checkpoints(folder)?.into_iter().rfind(|recorded| recorded.checkpoint.origin == origin);
        if let Some(RecordedCheckpoint { checkpoint, .. }) = &newest {
            compare(&prover, checkpoint).await?;
        }
        Ok(Self { reader, prover, signer, origin, file, newest: Mutex::new(newest) })
    }

    /// The public key.
    pub fn key(&self) -> NoteKey {
        self.signer.public()
    }

    /// Makes proofs about the same log.
    pub fn prover(&self) -> &Prover {
        &self.prover
    }

    /// The log's name.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The size of the newest checkpoint; 0 before the first.
    pub async fn newest_size(&self) -> u64 {
        self.newest.lock().await.as_ref().map_or(0, |newest| newest.checkpoint.size)
    }

    /// The newest checkpoint; a log without any gets its first.
    ///
    /// # Errors
    /// As [`CheckpointRecord::publish`].
    pub async fn newest(&self, now: Timestamp) -> Result<RecordedCheckpoint, RecordError> {
        let newest = self.newest.lock().await.clone();
        match newest {
            Some(newest) => Ok(newest),
            None => self.publish(now).await,
        }
    }

    /// Everything that was published, oldest first.
    ///
    /// # Errors
    /// As [`read_checkpoints`].
    pub fn published(&self) -> Result<Vec<RecordedCheckpoint>, RecordError> {
        read_checkpoints(self.file.parent().unwrap_or(Path::new(".")))
    }

    /// A checkpoint of the head as it is now, recorded before it is given out. The head of the newest
    /// checkpoint is not signed again.
    ///
    /// # Errors
    /// [`RecordError`].
    pub async fn publish(&self, now: Timestamp) -> Result<RecordedCheckpoint, RecordError> {
        let mut newest = self.newest.lock().await;
        let head = self.reader.head().await?;
        if let Some(newest) = newest.as_ref().filter(|newest| newest.checkpoint.size == head.position) {
            if newest.checkpoint.root == head.root {
                return Ok(newest.clone());
            }
            let reason = "the head has another root".to_owned();
            return Err(RecordError::Forked { size: head.position, reason });
        }
        if let Some(newest) = newest.as_ref().filter(|newest| newest.checkpoint.size > head.position) {
            let reason = format!("it now ends at {}", head.position);
            return Err(RecordError::Forked { size: newest.checkpoint.size, reason });
        }
        let checkpoint = Checkpoint { origin: self.origin.clone(), size: head.position, root: head.root };
        let seconds = u64::try_from(now.as_micros() / 1_000_000).unwrap_or(0);
        let note = Note::signed(checkpoint.to_text(), &self.signer, seconds).to_string();
        append(&self.file, &Line { at: now, note: note.clone() })
            .map_err(|error| RecordError::File { file: self.file.clone(), reason: error.to_string() })?;
        let recorded = RecordedCheckpoint { at: now, note, checkpoint };
        *newest = Some(recorded.clone());
        Ok(recorded)
    }
}

async fn compare(prover: &Prover, checkpoint: &Checkpoint) -> Result<(), RecordError> {
    let forked = |reason: String| RecordError::Forked { size: checkpoint.size, reason };
    match prover.root(checkpoint.size).await {
        Ok(root) if root == checkpoint.root => Ok(()),
        Ok(_) => Err(forked("its events up to there have another root".to_owned())),
        Err(ProveError::OutOfRange { size }) => Err(forked(format!("it now ends at {size}"))),
        Err(ProveError::Ledger(error)) => Err(error.into()),
    }
}

/// The checkpoints that were published for a ledger, oldest first; none where the file is missing. A
/// last line that was not written to its end counts as not written.
///
/// # Errors
/// [`RecordError::File`] when the file cannot be read, or a line of it is no checkpoint.
pub fn read_checkpoints(folder: &Path) -> Result<Vec<RecordedCheckpoint>, RecordError> {
    read_notes(folder.join(CHECKPOINTS_FILE))
}

/// The checkpoints that witnesses cosigned, as they were recorded beside a ledger; none where the file is
/// missing.
///
/// # Errors
/// As [`read_checkpoints`].
pub fn read_cosigned(folder: &Path) -> Result<Vec<RecordedCheckpoint>, RecordError> {
    read_notes(folder.join(COSIGNED_FILE))
}

/// Records a checkpoint with the cosignature of a witness beside its ledger.
///
/// # Errors
/// [`RecordError::File`].
pub fn record_cosigned(folder: &Path, at: Timestamp, note: &Note) -> Result<(), RecordError> {
    let file = folder.join(COSIGNED_FILE);
    let recorded = append(&file, &Line { at, note: note.to_string() });
    recorded.map_err(|error| RecordError::File { file, reason: error.to_string() })
}

fn read_notes(file: PathBuf) -> Result<Vec<RecordedCheckpoint>, RecordError> {
    let failed = |reason: String| RecordError::File { file: file.clone(), reason };
    let opened = match File::open(&file) {
        Ok(opened) => opened,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error.to_string())),
    };
    let (mut lines, mut text, mut found) = (BufReader::new(opened), String::new(), Vec::new());
    loop {
        text.clear();
        lines.read_line(&mut text).map_err(|error| failed(error.to_string()))?;
        if !text.ends_with('\n') {
            return Ok(found);
        }
        let number = found.len() + 1;
        let wrong = |reason: &dyn std::fmt::Display| failed(format!("line {number}: {reason}"));
        let Line { at, note } = serde_json::from_str(&text).map_err(|error| wrong(&error))?;
        let parsed = Note::parse(&note).map_err(|error| wrong(&error))?;
        let checkpoint = Checkpoint::from_text(&parsed.text).map_err(|error| wrong(&error))?;
        found.push(RecordedCheckpoint { at, note, checkpoint });
    }
}

/// Adds a line, after cutting off one that was not written to its end.
fn append(file: &Path, line: &Line) -> io::Result<()> {
    let mut opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(file)?;
    let mut end = opened.seek(SeekFrom::End(0))?;
    let complete = complete_lines(&mut opened, end)?;
    if complete < end {
        opened.set_len(complete)?;
        end = complete;
    }
    opened.seek(SeekFrom::Start(end))?;
    let text = serde_json::to_string(line).map_err(io::Error::other)?;
    opened.write_all(format!("{text}\n").as_bytes())?;
    opened.sync_data()
}

/// How far the file consists of whole lines.
fn complete_lines(file: &mut File, end: u64) -> io::Result<u64> {
    use std::io::Read;
    // A line is much shorter than this.
    const LOOK_BACK: u64 = 64 << 10;
    let start = end.saturating_sub(LOOK_BACK);
    file.seek(SeekFrom::Start(start))?;
    let mut tail = Vec::new();
    file.take(LOOK_BACK).read_to_end(&mut tail)?;
    Ok(tail.iter().rposition(|byte| *byte == b'\n').map_or(start, |at| start + at as u64 + 1))
}
