//! What is handed to the ledger and what comes back. Checking against the log is left to the
//! writer; what can be judged without it is judged here, in the caller's own task.

use crate::error::AppendError;
use crate::limits::{MAX_APPEND_BYTES, MAX_APPEND_EVENTS, MAX_ID_BYTES, MAX_METADATA_BYTES};
use devmind_domain::canonical::{Hash, sha256_hex};
use devmind_domain::event::{NewEvent, RecordedEvent, StreamId, payload_hash};
use devmind_domain::limits::MAX_PAYLOAD_BYTES;
use std::sync::Arc;
use uuid::Uuid;

/// One command's events for one or more streams: all are stored, or none.
#[derive(Clone, Debug, Default)]
pub struct Append {
    /// The events, stream by stream.
    pub streams: Vec<StreamAppend>,
    /// The request's key, where it has one. Stored with the events, in the same transaction.
    pub idempotency: Option<Idempotency>,
}

/// Events for one stream.
#[derive(Clone, Debug)]
pub struct StreamAppend {
    /// The stream.
    pub stream: StreamId,
    /// The version the events were decided on; 0 for a stream that does not exist.
    pub expected_version: u64,
    /// The events; none where the append only rests on the version of a stream that it does not write to.
    pub events: Vec<NewEvent>,
}

/// A request that is carried out once, however often it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// Whose keys these are, for example a user.
    pub scope: String,
    /// The client's key.
    pub key: String,
    /// SHA-256 of the request, to tell a repetition from another request under the same key.
    pub request_hash: String,
}

/// What was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The events with their positions.
    pub events: Vec<Arc<RecordedEvent>>,
    pub(crate) head: u64,
}

impl Appended {
    /// The position of the last event, or the ledger's head where nothing had to be stored: who
    /// waits for a view to pass it sees this append.
    pub fn position(&self) -> u64 {
        self.events.last().map_or(self.head, |event| event.position)
    }
}

/// How far the log goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The newest event's position; 0 in an empty log.
    pub position: u64,
    /// The Merkle root (RFC 6962) over all leaf hashes.
    pub root: Hash,
}

/// An [`Append`] with its texts made and its limits checked.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub streams: Vec<PreparedStream>,
    pub idempotency: Option<Idempotency>,
    pub bytes: usize,
}

#[derive(Debug)]
pub(crate) struct PreparedStream {
    pub stream: StreamId,
    pub expected_version: u64,
    pub events: Vec<PreparedEvent>,
}

#[derive(Debug)]
pub(crate) struct PreparedEvent {
    pub event_id: String,
    pub event_type: &'static str,
    pub event_version: u32,
    pub payload: String,
    pub metadata: String,
    /// How the texts enter the leaf: hashed here, because there are many callers and one writer.
    pub payload_hash: String,
    pub metadata_hash: String,
}

impl Prepared {
    /// Makes the canonical texts and refuses what can never be stored.
    pub fn new(append: Append) -> Result<Self, AppendError> {
        let Append { streams, idempotency } = append;
        if let Some(Idempotency { scope, key, request_hash }) = &idempotency {
            check_id("idempotency scope", scope)?;
            check_id("idempotency key", key)?;
            check_id("request hash", request_hash)?;
        }
        let count: usize = streams.iter().map(|stream| stream.events.len()).sum();
        if count > MAX_APPEND_EVENTS {
            return Err(AppendError::Invalid {
                reason: format!("{count} events are more than one append may have ({MAX_APPEND_EVENTS})"),
            });
        }
        let mut bytes = 0;
        let mut prepared = Vec::with_capacity(streams.len());
        for StreamAppend { stream, expected_version, events } in streams {
            check_id("stream's kind", &stream.aggregate_type)?;
            check_id("stream's id", &stream.aggregate_id)?;
            let events = events
                .into_iter()
                .map(|event| PreparedEvent::new(event, idempotency.as_ref()))
                .collect::<Result<Vec<_>, _>>()?;
            bytes += events.iter().map(|event| event.payload.len() + event.metadata.len()).sum::<usize>();
            prepared.push(PreparedStream { stream, expected_version, events });
        }
        if bytes > MAX_APPEND_BYTES {
            return Err(AppendError::TooLarge { bytes });
        }
        Ok(Self { streams: prepared, idempotency, bytes })
    }
}

impl PreparedEvent {
    fn new(event: NewEvent, idempotency: Option<&Idempotency>) -> Result<Self, AppendError> {
        let NewEvent { event_id, event, mut metadata } = event;
        if !is_event_id(&event_id) {
            return Err(AppendError::Invalid {
                reason: format!("the event id {event_id:.64?} is no UUID in lower case"),
            });
        }
        if let Some(Idempotency { key, request_hash, .. }) = idempotency {
            // The key is in the log itself, so that the table of keys can be checked against it.
            metadata.idempotency_key = Some(key.clone());
            metadata.request_hash = Some(request_hash.clone());
        }
        let (payload, metadata) = (event.payload(), metadata.text());
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Err(AppendError::TooLarge { bytes: payload.len() });
        }
        if metadata.len() > MAX_METADATA_BYTES {
            return Err(AppendError::TooLarge { bytes: metadata.len() });
        }
        Ok(Self {
            event_id,
            event_type: event.type_name(),
            event_version: event.version(),
            payload_hash: payload_hash(&payload),
            metadata_hash: sha256_hex(metadata.as_bytes()),
            payload,
            metadata,
        })
    }
}

/// Whether it is a UUID as events have it: one spelling, so that one id is one text.
pub(crate) fn is_event_id(text: &str) -> bool {
    let mut spelled = Uuid::encode_buffer();
    Uuid::try_parse(text).is_ok_and(|id| id.hyphenated().encode_lower(&mut spelled) == text)
}

/// SQLite cuts a text at a NUL in some of its functions, so none may contain one.
fn check_id(what: &str, id: &str) -> Result<(), AppendError> {
    if id.is_empty() || id.len() > MAX_ID_BYTES || id.contains('\0') {
        let reason = format!("the {what} must be 1 to {MAX_ID_BYTES} bytes long and without NUL");
        return Err(AppendError::Invalid { reason });
    }
    Ok(())
}
