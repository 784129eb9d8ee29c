//! Bundles: events with everything that somebody elsewhere needs to check them, in one file, one JSON
//! object a line.
//!
//! The first line is the header: what was selected, and the signed checkpoint with its public key. Then
//! come the events by position, each with its inclusion proof under that checkpoint, or, where the bundle
//! is the whole log, none, for the root follows from all of them; and of the whole log the idempotency
//! keys, each before the first event it caused. The last line is the SHA-256 of everything before it, so
//! that no byte changes unseen. Texts that were hashed stand as strings, byte for byte.

mod check;
mod export;
mod import;
mod open;

pub use check::{BundleReport, check_bundle, read_bundle};
pub use export::{Export, Selection, export_bundle};
pub use import::{Imported, Importing, import_bundle};
pub use open::open_bundle;

use crate::append::is_event_id;
use crate::error::LedgerError;
use crate::proof::ProveError;
use devmind_domain::canonical::Hash;
use devmind_domain::event::{RecordedEvent, StreamId};
use devmind_domain::proof::{Checkpoint, Note, NoteKey};
use devmind_domain::{ErrorCode, Timestamp};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead};

/// The format's name and version.
const FORMAT: &str = "devmind-bundle/1";
/// Bytes of one line, at most: an event's texts, escaped.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// Why a bundle cannot be written, read or taken in.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// A line is not what it must be.
    #[error("line {line}: {reason}")]
    Line {
        /// Counted from 1.
        line: u64,
        /// What is wrong.
        reason: String,
    },
    /// There is nothing to prove with.
    #[error("the ledger has no checkpoint of an event that was asked for")]
    NoCheckpoint,
    /// It holds a part of a log, which cannot become a ledger.
    #[error("the bundle holds a part of a log: only a whole one can be imported")]
    Partial,
    /// The ledger holds another history.
    #[error(
        "the ledger holds other events: a bundle is imported into an empty one, or goes on where it was interrupted"
    )]
    NotEmpty,
    /// The file.
    #[error("the bundle cannot be read or written: {0}")]
    Io(#[from] io::Error),
    /// The log.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A proof.
    #[error(transparent)]
    Prove(#[from] ProveError),
}

impl BundleError {
    /// Whether trying again ends the same: it is about what is in the log, not about a disk or a connection.
    fn is_refusal(&self) -> bool {
        match self {
            Self::Line { .. } | Self::NoCheckpoint | Self::Partial | Self::NotEmpty => true,
            Self::Ledger(error) | Self::Prove(ProveError::Ledger(error)) => error.code() == ErrorCode::LedgerCorrupt,
            Self::Prove(ProveError::OutOfRange { .. }) => true,
            Self::Io(_) => false,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Bundle(Header),
    Key(KeyLine),
    Event(Box<EventLine>),
    End(End),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: String,
    /// In words, for people.
    selection: String,
    /// Whether these are all events up to the checkpoint.
    complete: bool,
    /// The signed note.
    checkpoint: String,
    /// The public key.
    key: String,
    /// SHA-256 of the public key.
    fingerprint: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyLine {
    scope: String,
    key: String,
    request_hash: String,
    first: u64,
    last: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventLine {
    partition: u32,
    position: u64,
    event_id: String,
    aggregate_type: String,
    aggregate_id: String,
    sequence: u64,
    event_type: String,
    event_version: u32,
    payload: String,
    metadata: String,
    recorded_at: String,
    leaf_hash: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    proof: Option<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    events: u64,
    sha256: String,
}

impl EventLine {
    fn of(event: &RecordedEvent, proof: Option<&[Hash]>) -> Self {
        Self {
            partition: event.partition,
            position: event.position,
            event_id: event.event_id.clone(),
            aggregate_type: event.stream.aggregate_type.clone(),
            aggregate_id: event.stream.aggregate_id.clone(),
            sequence: event.sequence,
            event_type: event.event_type.clone(),
            event_version: event.event_version,
            payload: event.payload.clone(),
            metadata: event.metadata.clone(),
            recorded_at: event.recorded_at.to_string(),
            leaf_hash: hex::encode(event.leaf_hash),
            proof: proof.map(|path| path.iter().map(hex::encode).collect()),
        }
    }

    fn event(self) -> Result<(RecordedEvent, Option<Vec<Hash>>), String> {
        let recorded_at = Timestamp::parse(&self.recorded_at)?;
        // Another spelling of the same moment would hash to the same leaf.
        if recorded_at.to_string() != self.recorded_at {
            return Err(format!("recorded_at is {:?}", self.recorded_at));
        }
        if !is_event_id(&self.event_id) {
            return Err(format!("event_id is {:.64?}", self.event_id));
        }
        let proof = self.proof.map(|path| path.iter().map(|text| hash(text)).collect::<Result<_, _>>()).transpose()?;
        let event = RecordedEvent {
            partition: self.partition,
            position: self.position,
            event_id: self.event_id,
            stream: StreamId { aggregate_type: self.aggregate_type, aggregate_id: self.aggregate_id },
            sequence: self.sequence,
            event_type: self.event_type,
            event_version: self.event_version,
            payload: self.payload,
            metadata: self.metadata,
            recorded_at,
            leaf_hash: hash(&self.leaf_hash)?,
        };
        Ok((event, proof))
    }
}

impl Header {
    /// The key and the signed head; an error says what does not hold.
    fn checked(&self) -> Result<(NoteKey, Note, Checkpoint), String> {
        if self.format != FORMAT {
            return Err(format!("its format is {:?}, this program reads {FORMAT}", self.format));
        }
        let key = NoteKey::parse(&self.key).map_err(|error| error.to_string())?;
        if key.fingerprint() != self.fingerprint {
            return Err("the fingerprint is not the key's".to_owned());
        }
        let note = Note::parse(&self.checkpoint).map_err(|error| error.to_string())?;
        note.verify(&key).map_err(|error| error.to_string())?;
        let checkpoint = Checkpoint::from_text(&note.text).map_err(|error| error.to_string())?;
        Ok((key, note, checkpoint))
    }
}

fn hash(text: &str) -> Result<Hash, String> {
    let bytes = hex::decode(text).ok().and_then(|bytes| bytes.try_into().ok());
    bytes.filter(|hash| hex::encode(hash) == text).ok_or_else(|| format!("{text:.80} is no hash"))
}

/// The lines of a bundle, counted.
struct Lines<R> {
    input: R,
    number: u64,
    text: String,
}

impl<R: BufRead> Lines<R> {
    fn new(input: R) -> Self {
        Self { input, number: 0, text: String::new() }
    }

    /// The next line, or `None` at the end.
    fn next(&mut self) -> Result<Option<Line>, BundleError> {
        self.text.clear();
        self.number += 1;
        let read = io::Read::take(&mut self.input, MAX_LINE_BYTES).read_line(&mut self.text);
        match read {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(self.wrong("it is no text")),
            Err(error) => return Err(error.into()),
        }
        let whole = self.text.strip_suffix('\n').ok_or_else(|| self.wrong("it was not written to its end"))?;
        let line: Line = serde_json::from_str(whole).map_err(|error| self.wrong(error))?;
        // The one spelling that is written.
        if serde_json::to_string(&line).ok().as_deref() != Some(whole) {
            return Err(self.wrong("it is not written as this program writes it"));
        }
        Ok(Some(line))
    }

    fn wrong(&self, reason: impl std::fmt::Display) -> BundleError {
        BundleError::Line { line: self.number, reason: reason.to_string() }
    }
}
