//! What a witness decides (C2SP tlog-witness): whether a head of a log continues the one that was seen
//! before. Whoever keeps the last head it was shown can be one; where it is kept and how it is asked is
//! left to `devmind-replay witness` and to the device.

use super::checkpoint::{Checkpoint, CheckpointError, canonical_number};
use super::note::{MAX_NOTE_BYTES, Note, NoteError, NoteKey};
use super::tree::verify_consistency;
use crate::canonical::Hash;
use crate::error_code::ErrorCode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Hashes of a submitted proof, at most.
pub const MAX_SUBMITTED_HASHES: usize = 63;
/// Bytes of a submission, at most: the old size, the hashes, the note.
pub const MAX_SUBMISSION_BYTES: usize = MAX_NOTE_BYTES + MAX_SUBMITTED_HASHES * 45 + 64;

/// A head does not continue the one that was seen before: the log was rolled back, rewritten or replaced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Discontinuity {
    /// It is another log.
    #[error("the head is of the log {shown}, the one seen before of {seen}")]
    OtherLog {
        /// Its name then.
        seen: String,
        /// Its name now.
        shown: String,
    },
    /// Events are gone.
    #[error("the log had {seen} events when it was seen before, and has {shown} now")]
    Shrunk {
        /// Its size then.
        seen: u64,
        /// Its size now.
        shown: u64,
    },
    /// Two heads of one size.
    #[error("the log of {size} events has another root than the one seen before")]
    Forked {
        /// The size.
        size: u64,
    },
    /// Nothing shows that the log only grew.
    #[error("it is not shown that the log of {shown} events still holds the {seen} events that were seen before")]
    Unproved {
        /// The size of the head seen before.
        seen: u64,
        /// The size of this one.
        shown: u64,
    },
}

impl Discontinuity {
    /// The stable code.
    pub const fn code(&self) -> ErrorCode {
        ErrorCode::LedgerForked
    }
}

/// Whether a head continues the one seen before, by a consistency proof from that to this. The first head
/// of a log continues nothing, and needs no proof.
///
/// # Errors
/// [`Discontinuity`].
pub fn continues(seen: Option<&Checkpoint>, shown: &Checkpoint, proof: &[Hash]) -> Result<(), Discontinuity> {
    let unproved = |seen| Discontinuity::Unproved { seen, shown: shown.size };
    let Some(seen) = seen else {
        return if proof.is_empty() { Ok(()) } else { Err(unproved(0)) };
    };
    if seen.origin != shown.origin {
        return Err(Discontinuity::OtherLog { seen: seen.origin.clone(), shown: shown.origin.clone() });
    }
    if seen.size > shown.size {
        return Err(Discontinuity::Shrunk { seen: seen.size, shown: shown.size });
    }
    if seen.size == shown.size && seen.root != shown.root {
        return Err(Discontinuity::Forked { size: seen.size });
    }
    let held = verify_consistency((seen.size, &seen.root), (shown.size, &shown.root), proof);
    held.map_err(|_| unproved(seen.size))
}

/// What is sent to a witness (`add-checkpoint`): a signed head, and that it continues one of a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The size of the head that the witness cosigned last, as far as the sender knows; 0 for none.
    pub old: u64,
    /// The consistency proof from that size.
    pub proof: Vec<Hash>,
    /// The signed head, as it was sent.
    pub note: String,
}

impl Submission {
    /// The text that is sent.
    pub fn to_text(&self) -> String {
        let proof: String = self.proof.iter().map(|hash| STANDARD.encode(hash) + "\n").collect();
        format!("old {}\n{proof}\n{}", self.old, self.note)
    }

    /// Reads such a text.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_text(text: &str) -> Result<Self, &'static str> {
        let (head, note) = text.split_once("\n\n").ok_or("it has no empty line")?;
        let mut lines = head.split('\n');
        let old = lines.next().and_then(|line| canonical_number(line.strip_prefix("old ")?));
        let old = old.ok_or("its first line is no old size")?;
        let hash = |line: &str| STANDARD.decode(line).ok()?.try_into().ok();
        let proof: Option<Vec<Hash>> = lines.map(hash).collect();
        let proof = proof.ok_or("a line of its proof is no hash")?;
        if proof.len() > MAX_SUBMITTED_HASHES {
            return Err("its proof has more than 63 lines");
        }
        Ok(Self { old, proof, note: note.to_owned() })
    }
}

/// Why a witness does not cosign a head.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Uncosigned {
    /// The request makes no sense.
    #[error("the request cannot be read: {0}")]
    Malformed(String),
    /// It is of a log that this witness does not watch.
    #[error("this witness does not watch the log {0}")]
    UnknownLog(String),
    /// The log's key did not sign it.
    #[error(transparent)]
    Unsigned(#[from] NoteError),
    /// The sender does not know what was cosigned last.
    #[error("the last head cosigned has {size} events")]
    Stale {
        /// The size of that.
        size: u64,
    },
    /// It does not continue what was cosigned last.
    #[error(transparent)]
    Discontinuous(#[from] Discontinuity),
}

impl From<CheckpointError> for Uncosigned {
    fn from(error: CheckpointError) -> Self {
        Self::Malformed(error.to_string())
    }
}

impl Uncosigned {
    /// The stable code.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Malformed(_) => ErrorCode::ValidationFailed,
            Self::UnknownLog(_) => ErrorCode::NotFound,
            Self::Unsigned(_) => ErrorCode::Forbidden,
            Self::Stale { .. } => ErrorCode::VersionConflict,
            Self::Discontinuous(error) => error.code(),
        }
    }

    /// The HTTP status that the protocol gives it.
    pub const fn http_status(&self) -> u16 {
        match self {
            Self::Malformed(_) => 400,
            Self::Unsigned(_) => 403,
            Self::UnknownLog(_) => 404,
            Self::Stale { .. } | Self::Discontinuous(Discontinuity::Forked { .. }) => 409,
            Self::Discontinuous(_) => 422,
        }
    }
}

/// A log that a witness watches, and a key of it. A log may have several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedLog {
    /// The log's name, as its heads begin with it.
    pub origin: String,
    /// The key that signs them.
    pub key: NoteKey,
}

impl From<NoteKey> for WatchedLog {
    /// The log that has the name of its key, as most have.
    fn from(key: NoteKey) -> Self {
        Self { origin: key.name().to_owned(), key }
    }
}

impl std::str::FromStr for WatchedLog {
    type Err = NoteError;

    /// `KEY`, or `ORIGIN=KEY` where the key has another name than the log.
    fn from_str(text: &str) -> Result<Self, NoteError> {
        let alone = NoteKey::parse(text.trim());
        // A key has 33 bytes in base64, and so no `=` at its end.
        match (alone, text.trim().rsplit_once('=')) {
            (Err(_), Some((origin, key))) if !origin.is_empty() => {
                Ok(Self { origin: origin.to_owned(), key: NoteKey::parse(key)? })
            }
            (alone, _) => alone.map(Self::from),
        }
    }
}

/// A head that a witness may cosign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acceptable {
    /// The head.
    pub checkpoint: Checkpoint,
    /// The note that says so.
    pub note: Note,
    /// The key of the log that signed it.
    pub key: NoteKey,
}

/// What a note that was sent speaks of: a head of a log that is watched, signed by a key of that log.
///
/// # Errors
/// [`Uncosigned`], but for the last two kinds.
pub fn submitted(text: &str, watched: &[WatchedLog]) -> Result<Acceptable, Uncosigned> {
    let note = Note::parse(text).map_err(|error| Uncosigned::Malformed(error.to_string()))?;
    let checkpoint = Checkpoint::from_text(&note.text)?;
    let mut refused = Uncosigned::UnknownLog(checkpoint.origin.clone());
    for WatchedLog { key, .. } in watched.iter().filter(|log| log.origin == checkpoint.origin) {
        match note.verify(key) {
            Ok(_) => return Ok(Acceptable { checkpoint, note, key: key.clone() }),
            Err(error) => refused = error.into(),
        }
    }
    Err(refused)
}

/// Whether a head that was sent may be cosigned after the one cosigned last; the order of the checks is the
/// protocol's.
///
/// # Errors
/// [`Uncosigned`].
pub fn cosignable(sent: &Submission, shown: &Checkpoint, seen: Option<&Checkpoint>) -> Result<(), Uncosigned> {
    if sent.old > shown.size {
        return Err(Uncosigned::Malformed("the old size is larger than the head's".to_owned()));
    }
    let size = seen.map_or(0, |seen| seen.size);
    if sent.old != size {
        return Err(Uncosigned::Stale { size });
    }
    Ok(continues(seen, shown, &sent.proof)?)
}

#[cfg(test)]
mod tests {
    use super::super::note::{NoteSigner, SignatureKind};
    use super::*;
    use crate::canonical::{node_hash, sha256};

    fn head(size: u64, root: Hash) -> Checkpoint {
        Checkpoint { origin: "log".to_owned(), size, root }
    }

    fn leaf(number: u8) -> Hash {
        sha256(&[0, number])
    }

    #[test]
    fn a_head_continues_another_only_where_it_is_shown_to_hold_all_of_it() {
        let two = head(2, node_hash(&leaf(1), &leaf(2)));
        let three = head(3, node_hash(&two.root, &leaf(3)));
        assert_eq!(continues(None, &two, &[]), Ok(()));
        assert_eq!(continues(Some(&two), &two, &[]), Ok(()));
        assert_eq!(continues(Some(&two), &three, &[leaf(3)]), Ok(()));
        assert_eq!(continues(Some(&three), &two, &[]), Err(Discontinuity::Shrunk { seen: 3, shown: 2 }));
        let fork = head(2, node_hash(&leaf(1), &leaf(9)));
        assert_eq!(continues(Some(&two), &fork, &[]), Err(Discontinuity::Forked { size: 2 }));
        let grown = head(3, node_hash(&fork.root, &leaf(3)));
        let unproved = Err(Discontinuity::Unproved { seen: 2, shown: 3 });
        assert_eq!(continues(Some(&two), &grown, &[leaf(3)]), unproved);
        assert_eq!(continues(Some(&two), &three, &[]), unproved);
        let other = Checkpoint { origin: "other".to_owned(), ..three };
        assert!(matches!(continues(Some(&two), &other, &[leaf(3)]), Err(Discontinuity::OtherLog { .. })));
        assert!(continues(None, &two, &[leaf(1)]).is_err(), "a proof of nothing");
    }

    #[test]
    fn a_submission_reads_back_and_anything_else_is_refused() {
        let sent = Submission { old: 7, proof: vec![leaf(1), leaf(2)], note: "log\n\n— log AAAA\n".to_owned() };
        assert_eq!(Submission::from_text(&sent.to_text()), Ok(sent.clone()));
        let first = Submission { old: 0, proof: Vec::new(), ..sent.clone() };
        assert_eq!(Submission::from_text(&first.to_text()), Ok(first));
        let long = Submission { proof: vec![leaf(1); MAX_SUBMITTED_HASHES + 1], ..sent };
        for wrong in
            [long.to_text().as_str(), "old 07\n\nx", "old -1\n\nx", "new 1\n\nx", "old 1\nAAAA\n\nx", "old 1\n"]
        {
            assert!(Submission::from_text(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_log_is_watched_by_its_own_name_whatever_its_key_is_called() {
        let signer = NoteSigner::from_seed("ours", SignatureKind::Ed25519, &[1; 32]).expect("a key");
        let head = head(2, leaf(1));
        let note = Note::signed(head.to_text(), &signer, 0).to_string();
        let watched = |text: &str| text.parse::<WatchedLog>().expect("a log");
        let key = signer.public();
        assert_eq!(watched(&format!("log={key}")), WatchedLog { origin: "log".to_owned(), key: key.clone() });
        assert_eq!(watched(&key.to_string()), key.clone().into());
        assert_eq!(submitted(&note, &[watched(&format!("log={key}"))]).map(|found| found.checkpoint), Ok(head));
        for others in [key.to_string(), format!("logs={key}")] {
            assert_eq!(submitted(&note, &[watched(&others)]), Err(Uncosigned::UnknownLog("log".to_owned())));
        }
        for wrong in ["", "log", "log=", "log=nonsense", &format!("={key}")] {
            assert!(wrong.parse::<WatchedLog>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_witness_answers_with_the_statuses_of_the_protocol() {
        let signer = NoteSigner::from_seed("log", SignatureKind::Ed25519, &[1; 32]).expect("a key");
        let stranger = NoteSigner::from_seed("log", SignatureKind::Ed25519, &[2; 32]).expect("a key");
        let two = head(2, node_hash(&leaf(1), &leaf(2)));
        let signed = |signer: &NoteSigner| Note::signed(two.to_text(), signer, 0).to_string();
        let status = |text: &str, keys: &[NoteKey]| {
            let watched: Vec<_> = keys.iter().cloned().map(WatchedLog::from).collect();
            submitted(text, &watched).map_err(|error| error.http_status())
        };
        assert_eq!(status("nonsense", &[signer.public()]), Err(400));
        assert_eq!(status(&signed(&signer), &[]), Err(404));
        assert_eq!(status(&signed(&stranger), &[signer.public()]), Err(403));
        let both = [stranger.public(), signer.public()];
        assert_eq!(status(&signed(&signer), &both).map(|found| found.checkpoint), Ok(two.clone()));

        let asked = |old, shown: &Checkpoint, seen: Option<&Checkpoint>| {
            let sent = Submission { old, proof: Vec::new(), note: String::new() };
            cosignable(&sent, shown, seen).map_err(|error| error.http_status())
        };
        assert_eq!(asked(0, &two, None), Ok(()));
        assert_eq!(asked(3, &two, None), Err(400));
        assert_eq!(asked(0, &two, Some(&two)), Err(409), "it must say what was cosigned last");
        assert_eq!(asked(2, &head(2, leaf(1)), Some(&two)), Err(409));
        assert_eq!(asked(2, &head(3, leaf(1)), Some(&two)), Err(422));
        assert_eq!(asked(2, &two, Some(&two)), Ok(()), "the same head once more");
    }
}
