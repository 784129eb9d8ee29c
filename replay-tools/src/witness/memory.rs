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

#[cfg(test)]
mod tests {
    use super::*;
    use devmind_domain::proof::SignatureKind;
    use tempfile::TempDir;

    const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    fn signer(name: &str, kind: SignatureKind) -> NoteSigner {
        NoteSigner::from_seed(name, kind, &[7; 32]).expect("a key")
    }

    fn open(folder: &TempDir) -> Result<Witness, Failure> {
        let watched = ["a", "b"].map(|name| WatchedLog::from(signer(name, SignatureKind::Ed25519).public()));
        Witness::open(folder.path(), "w", watched.to_vec())
    }

    /// A head that is the log's first for whoever has seen nothing of it.
    fn submission(log: &str, size: u64, root: u8, old: u64) -> String {
        let checkpoint = Checkpoint { origin: log.to_owned(), size, root: [root; 32] };
        let note = Note::signed(checkpoint.to_text(), &signer(log, SignatureKind::Ed25519), 0);
        Submission { old, proof: Vec::new(), note: note.to_string() }.to_text()
    }

    fn refusals(folder: &TempDir) -> usize {
        fs::read_to_string(folder.path().join(REFUSED_FILE)).map_or(0, |text| text.lines().count())
    }

    #[test]
    fn a_contradiction_is_kept_once_a_stale_request_never_and_so_many_are_kept_and_no_more() {
        let folder = tempfile::tempdir().expect("a folder");
        let witness = open(&folder).expect("opened");
        witness.cosign(&submission("a", 5, 1, 0), NOW).expect("the first head");
        for (root, kept) in [(2, 1), (2, 1), (3, 2)] {
            witness.cosign(&submission("a", 5, root, 5), NOW).expect_err("another head of the same size");
            assert_eq!(refusals(&folder), kept);
        }
        witness.cosign(&submission("a", 6, 4, 0), NOW).expect_err("it has seen more than nothing");
        assert_eq!(refusals(&folder), 2);
        fs::write(folder.path().join(REFUSED_FILE), "{}\n".repeat(MAX_KEPT_REFUSALS - 1)).expect("written");
        for root in [5, 6] {
            witness.cosign(&submission("a", 5, root, 5), NOW).expect_err("another head of the same size");
            assert_eq!(refusals(&folder), MAX_KEPT_REFUSALS);
        }
    }

    #[test]
    fn of_other_witnesses_nothing_is_kept_and_what_is_kept_is_this_users_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let witness = open(&folder).expect("opened");
        let sent = Submission::from_text(&submission("a", 5, 1, 0)).expect("a request");
        let mut note = Note::parse(&sent.note).expect("a note");
        note.signatures.push(signer("other", SignatureKind::Cosignature).sign(&note.text, 1));
        witness.cosign(&Submission { note: note.to_string(), ..sent }.to_text(), NOW).expect("cosigned");
        let kept = Note::parse(&fs::read_to_string(head_file(folder.path(), "a")).expect("kept")).expect("a note");
        let names: Vec<_> = kept.signatures.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["a", "w"]);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(folder.path().join(HEADS_FOLDER)).expect("a folder").permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
        }
    }

    #[test]
    fn a_head_of_another_log_one_that_it_did_not_sign_and_one_that_cannot_be_read_are_not_taken_for_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let witness = open(&folder).expect("opened");
        witness.cosign(&submission("a", 5, 1, 0), NOW).expect("cosigned");
        drop(witness);
        let (own, other) = (head_file(folder.path(), "a"), head_file(folder.path(), "b"));
        let sound = fs::read_to_string(&own).expect("kept");
        let refused = |why: &str| match open(&folder) {
            Err(Failure::Error { code, message, .. }) => {
                assert!(code == ErrorCode::LedgerCorrupt && message.contains(why), "{message}");
            }
            opened => panic!("{why}: {opened:?}"),
        };
        fs::write(&other, &sound).expect("written");
        refused("it is of the log a");
        fs::remove_file(&other).expect("removed");
        fs::write(&own, sound.replacen("\n5\n", "\n6\n", 1)).expect("written");
        refused("no head that this witness cosigned");
        fs::remove_file(&own).expect("removed");
        fs::create_dir(&own).expect("made");
        refused("no head that this witness cosigned");
        fs::remove_dir(&own).expect("removed");
        assert_eq!(open(&folder).expect("opened").watched(), [("a".to_owned(), 0), ("b".to_owned(), 0)]);
    }
}
