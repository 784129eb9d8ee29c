//! What a witness keeps: its key, the last head that it cosigned of each log, and what it refused. A head is
//! on the disk before anybody is given the cosignature.

use super::seconds;
use crate::failure::Failure;
use devmind_domain::canonical::sha256_hex;
use devmind_domain::proof::{
    Checkpoint, Note, NoteKey, NoteSignature, NoteSigner, Submission, Uncosigned, WatchedLog, cosignable, submitted,
};
use devmind_domain::{ErrorCode, Timestamp};
use devmind_ledger::proof::open_witness_key;
use serde_json::json;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

const KEY_FILE: &str = "witness.key";
const LOCK_FILE: &str = "lock";
const HEADS_FOLDER: &str = "heads";
const REFUSED_FILE: &str = "refused.jsonl";
/// Contradictions that are kept, at most: the first ones prove the most.
const MAX_KEPT_REFUSALS: usize = 1_000;

/// A witness and what it remembers.
#[derive(Debug)]
pub(super) struct Witness {
    folder: PathBuf,
    signer: NoteSigner,
    watched: Vec<WatchedLog>,
    /// The notes that were cosigned last, by the name of their log.
    heads: Mutex<HashMap<String, Head>>,
    /// Kept open: closing it gives the folder back.
    _lock: File,
}

#[derive(Clone, Debug)]
struct Head {
    checkpoint: Checkpoint,
    note: Note,
}

/// Why a head is not cosigned.
#[derive(Debug)]
pub(super) enum Refused {
    /// The protocol says so.
    Uncosigned(Uncosigned),
    /// It could not be kept.
    Unkept(io::Error),
}

impl From<Uncosigned> for Refused {
    fn from(error: Uncosigned) -> Self {
        Self::Uncosigned(error)
    }
}

impl Witness {
    /// Opens (makes) the folder: one process has it, and the key is made at the first start.
    pub fn open(folder: &Path, name: &str, watched: Vec<WatchedLog>) -> Result<Self, Failure> {
        let unusable = |error: io::Error| {
            Failure::new(ErrorCode::ConfigInvalid, format!("{} cannot be used: {error}", folder.display()))
                .with_hint("name a folder that you may write to with --state")
        };
        make_private(&folder.join(HEADS_FOLDER)).map_err(unusable)?;
        let lock = File::create(folder.join(LOCK_FILE)).map_err(unusable)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                Failure::new(ErrorCode::StateLocked, format!("another witness uses {}", folder.display()))
            }
            TryLockError::Error(error) => unusable(error),
        })?;
        let seed = || {
            let mut seed = [0; 32];
            getrandom::fill(&mut seed).map_err(io::Error::other)?;
            Ok(seed)
        };
        let signer = open_witness_key(&folder.join(KEY_FILE), name, seed);
        let signer = signer.map_err(|error| Failure::new(ErrorCode::ConfigInvalid, error.to_string()))?;
        let mut heads = HashMap::new();
        for WatchedLog { origin, .. } in &watched {
            let file = head_file(folder, origin);
            if let Some(head) = read_head(&file, origin, &signer.public())? {
                heads.insert(origin.clone(), head);
            }
        }
        Ok(Self { folder: folder.to_owned(), signer, watched, heads: Mutex::new(heads), _lock: lock })
    }

    /// The public key, by which others check its cosignatures.
    pub fn key(&self) -> NoteKey {
        self.signer.public()
    }

    /// The logs that it watches, and how much of each it has seen.
    pub fn watched(&self) -> Vec<(String, u64)> {
        let heads = self.heads.lock().unwrap_or_else(PoisonError::into_inner);
        let size = |name: &str| heads.get(name).map_or(0, |head| head.checkpoint.size);
        let mut found: Vec<_> = self.watched.iter().map(|log| (log.origin.clone(), size(&log.origin))).collect();
        found.dedup();
        found
    }

    /// Cosigns a head that continues the last one. One is judged at a time, and kept before the next.
    pub fn cosign(&self, request: &str, now: Timestamp) -> Result<NoteSignature, Refused> {
        let sent = Submission::from_text(request).map_err(|reason| Uncosigned::Malformed(reason.to_owned()))?;
        let accepted = submitted(&sent.note, &self.watched)?;
        let shown = accepted.checkpoint;
        let mut heads = self.heads.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = heads.get(&shown.origin);
        if let Err(refused) = cosignable(&sent, &shown, seen.map(|head| &head.checkpoint)) {
            if let (Uncosigned::Discontinuous(_), Some(seen)) = (&refused, seen) {
                self.keep_contradiction(&refused, seen, &sent, now).map_err(Refused::Unkept)?;
            }
            return Err(refused.into());
        }
        let signature = self.signer.sign(&accepted.note.text, seconds(now));
        let note = Note { text: accepted.note.text, signatures: vec![signature.clone()] };
        let mut signatures = accepted.note.signatures;
        // Those of other witnesses are theirs to keep.
        signatures.retain(|one| one.name == accepted.key.name());
        signatures.extend(note.signatures);
        let note = Note { text: note.text, signatures };
        write_durably(&head_file(&self.folder, &shown.origin), &note.to_string()).map_err(Refused::Unkept)?;
        heads.insert(shown.origin.clone(), Head { checkpoint: shown, note });
        Ok(signature)
    }

    /// Two heads that its log signed and that cannot both be true are a proof against it.
    fn keep_contradiction(
        &self,
        refused: &Uncosigned,
        seen: &Head,
        sent: &Submission,
        now: Timestamp,
    ) -> io::Result<()> {
        let file = self.folder.join(REFUSED_FILE);
        let mut options = OpenOptions::new();
        let mut opened = options.read(true).append(true).create(true).open(file)?;
        let mut kept = 0;
        for line in BufReader::new(&opened).lines() {
            // The same one again says nothing new.
            if line?.contains(&json!(sent.note).to_string()) {
                return Ok(());
            }
            kept += 1;
        }
        if kept >= MAX_KEPT_REFUSALS {
            return Ok(());
        }
        let line = json!({
            "at": now, "code": refused.code(), "reason": refused.to_string(), "seen": seen.note.to_string(),
            "shown": sent.note,
        });
        opened.write_all(format!("{line}\n").as_bytes())?;
        opened.sync_data()
    }
}

/// A name that any file system takes, for a log of any name.
fn head_file(folder: &Path, origin: &str) -> PathBuf {
    folder.join(HEADS_FOLDER).join(sha256_hex(origin.as_bytes()))
}

/// The last head cosigned of a log. One that was tampered with is worse than none: nothing is cosigned after it.
fn read_head(file: &Path, origin: &str, own: &NoteKey) -> Result<Option<Head>, Failure> {
    let damaged = |reason: String| {
        let message = format!("{} is no head that this witness cosigned: {reason}", file.display());
        Failure::new(ErrorCode::LedgerCorrupt, message)
            .with_hint("restore it from a copy; without it, the log is new here")
    };
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(damaged(error.to_string())),
    };
    let note = Note::parse(&text).map_err(|error| damaged(error.to_string()))?;
    note.verify(own).map_err(|error| damaged(error.to_string()))?;
    let checkpoint = Checkpoint::from_text(&note.text).map_err(|error| damaged(error.to_string()))?;
    match checkpoint.origin == origin {
        true => Ok(Some(Head { checkpoint, note })),
        false => Err(damaged(format!("it is of the log {}", checkpoint.origin))),
    }
}

/// Replaces a file as a whole, durably.
fn write_durably(file: &Path, text: &str) -> io::Result<()> {
    let temporary = file.with_extension("new");
    let mut opened = File::create(&temporary)?;
    opened.write_all(text.as_bytes())?;
    opened.sync_all()?;
    fs::rename(&temporary, file)?;
    match file.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

fn make_private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}
