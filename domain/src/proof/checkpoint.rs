//! Checkpoints (C2SP tlog-checkpoint): which log, how many events, which root; the text of a signed
//! note.

use crate::canonical::Hash;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The name of a ledger's log in its checkpoints. A ledger's id is random, so the name is unique in the world.
pub fn log_name(ledger_id: &str) -> String {
    format!("{LEDGERS}{ledger_id}")
}

/// The id of the ledger that a log of this name is of; nothing where it is another program's.
pub fn ledger_of(origin: &str) -> Option<&str> {
    origin.strip_prefix(LEDGERS)
}

const LEDGERS: &str = "devmind-ledger/";

/// The text is no checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the note is no checkpoint: {0}")]
pub struct CheckpointError(pub &'static str);

/// A log's size and root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The log's name, unique in the world.
    pub origin: String,
    /// The number of events.
    pub size: u64,
    /// The Merkle root over their leaf hashes.
    pub root: Hash,
}

impl Checkpoint {
    /// The text that is signed.
    pub fn to_text(&self) -> String {
        format!("{}\n{}\n{}\n", self.origin, self.size, STANDARD.encode(self.root))
    }

    /// Reads the text of a note. Extension lines are allowed and left alone.
    ///
    /// # Errors
    /// [`CheckpointError`] names what is wrong.
    pub fn from_text(text: &str) -> Result<Self, CheckpointError> {
        let body = text.strip_suffix('\n').ok_or(CheckpointError("it does not end with a line break"))?;
        let mut lines = body.split('\n');
        let origin = lines.next().filter(|line| !line.is_empty()).ok_or(CheckpointError("it names no log"))?;
        let size = lines.next().and_then(canonical_number).ok_or(CheckpointError("its second line is no size"))?;
        let root = lines.next().and_then(|line| STANDARD.decode(line).ok()).and_then(|root| root.try_into().ok());
        let root = root.ok_or(CheckpointError("its third line is no root"))?;
        if lines.any(str::is_empty) {
            return Err(CheckpointError("it has an empty line"));
        }
        Ok(Self { origin: origin.to_owned(), size, root })
    }
}

/// A number in the one spelling that the format allows: digits without a leading zero.
pub(super) fn canonical_number(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}
