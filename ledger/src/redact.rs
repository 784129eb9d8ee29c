//! Erasing a payload, past the triggers and in the open: first an event that says so, then the text.
//!
//! A crash between the two leaves an event that `verify` reports as not carried out, and the same order
//! given again carries it out. A file is needed for itself.

use crate::error::{ExecuteError, LedgerError};
use crate::execute::execute;
use crate::ledger::Ledger;
use crate::load::load;
use crate::place::Place;
use crate::store::{Failure, open_writable};
use devmind_domain::event::{DecodeError, Metadata, RecordedEvent, StreamId};
use devmind_domain::redaction::{
    PayloadRedacted, Redacted, Redaction, RedactionCommand, RedactionError, without_content,
};
use devmind_domain::upcast;
use std::sync::Arc;

/// Why nothing was erased.
#[derive(Debug, thiserror::Error)]
pub enum RedactError {
    /// There is no such event.
    #[error("the log has no event {0}")]
    NoSuchEvent(u64),
    /// There is nothing to erase in it.
    #[error("event {position} is a {event_type}, which holds nothing that people, models or tools said")]
    NoContent {
        /// Its position.
        position: u64,
        /// Its type.
        event_type: String,
    },
    /// The event cannot be understood, so that nobody knows what of it the rules need.
    #[error("event {position} cannot be read: {error}")]
    Unreadable {
        /// Its position.
        position: u64,
        /// Why.
        error: DecodeError,
    },
    /// It is not the event that was recorded: erasing it would hide that.
    #[error("event {0} is not what was recorded: `devmind-replay verify` says more")]
    Tampered(u64),
    /// The log, or the rules.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// It could not be recorded.
    #[error(transparent)]
    Record(#[from] ExecuteError<RedactionError>),
}

/// What an erasure would leave, or has left.
#[derive(Clone, Debug, PartialEq)]
pub struct Erasure {
    /// The event.
    pub position: u64,
    /// Its type.
    pub event_type: String,
    /// What stays of its payload.
    pub kept: String,
    /// The event that says so; `None` while it was not done.
    pub by: Option<u64>,
}

/// What erasing the payload of an event would leave. Changes nothing.
///
/// # Errors
/// [`RedactError`].
pub async fn plan_redaction(reader: &crate::LedgerReader, position: u64) -> Result<Erasure, RedactError> {
    let event = event_at(reader, position).await?;
    if let Some(done) = Redacted::parse(&event.payload) {
        let kept = done.readable();
        return Ok(Erasure { position, event_type: event.event_type.clone(), kept, by: Some(done.by) });
    }
    let kept = kept(&event)?;
    Ok(Erasure { position, event_type: event.event_type.clone(), kept: kept.to_string(), by: None })
}

/// Erases the payload of an event of the log in this place. A file must be no other process's.
///
/// What was erased before stays as it is.
///
/// # Errors
/// [`RedactError`].
pub async fn redact(
    place: impl Into<Place>,
    position: u64,
    reason: &str,
    metadata: &Metadata,
) -> Result<Erasure, RedactError> {
    let place = place.into();
    let ledger = Ledger::open(&place).await?;
    let recorded = record(&ledger, position, reason, metadata).await;
    ledger.close().await;
    let (event, kept, by) = recorded?;
    let redacted = match Redacted::parse(&event.payload) {
        Some(done) => done,
        None => {
            let payload_hash = devmind_domain::canonical::sha256_hex(event.payload.as_bytes());
            let redacted = Redacted { by, kept, payload_hash };
            erase(&place, position, &redacted).await?;
            redacted
        }
    };
    Ok(Erasure { position, event_type: event.event_type.clone(), kept: redacted.readable(), by: Some(redacted.by) })
}

/// The event, what is kept of it, and the event that says so.
async fn record(
    ledger: &Ledger,
    position: u64,
    reason: &str,
    metadata: &Metadata,
) -> Result<(Arc<RecordedEvent>, serde_json::Value, u64), RedactError> {
    let event = event_at(ledger.reader(), position).await?;
    if let Some(Redacted { by, kept, .. }) = Redacted::parse(&event.payload) {
        return Ok((event, kept, by));
    }
    let kept = kept(&event)?;
    let id = position.to_string();
    // The record belongs to what was erased, so that its owner sees it.
    let mut metadata = metadata.clone();
    if let Ok(own) = event.metadata() {
        (metadata.conversation_id, metadata.correlation_id) = (own.conversation_id, own.correlation_id);
    }
    let asked = PayloadRedacted {
        position,
        event_id: event.event_id.clone(),
        event_type: event.event_type.clone(),
        payload_hash: devmind_domain::canonical::sha256_hex(event.payload.as_bytes()),
        kept_hash: devmind_domain::canonical::hash_json(&kept),
        reason: reason.to_owned(),
    };
    execute::<Redaction>(ledger, &id, &metadata, RedactionCommand::Redact(asked), None).await?;
    let stream = devmind_domain::event::StreamId::new(devmind_domain::event::AggregateType::Redaction, id.as_str());
    let (state, _) = load::<Redaction>(ledger.reader(), &id).await?;
    let told = ledger.reader().read_stream(&stream, 0).await?.first().map(|event| event.position);
    match (&state.done, told) {
        (Some(done), Some(by)) if done.kept_hash == devmind_domain::canonical::hash_json(&kept) => {
            Ok((event, kept, by))
        }
        // Recorded by a program that kept something else of such events, and not carried out.
        (_, _) => Err(RedactError::Tampered(position)),
    }
}

async fn event_at(reader: &crate::LedgerReader, position: u64) -> Result<Arc<RecordedEvent>, RedactError> {
    let found = reader.read(position.saturating_sub(1), 1).await?;
    let event = found.into_iter().find(|event| event.position == position);
    let event = event.ok_or(RedactError::NoSuchEvent(position))?;
    match event.leaf_hash == event.expected_leaf_hash() {
        true => Ok(event),
        false => Err(RedactError::Tampered(position)),
    }
}

fn kept(event: &RecordedEvent) -> Result<serde_json::Value, RedactError> {
    let position = event.position;
    let decoded = event.decode().map_err(|error| RedactError::Unreadable { position, error })?;
    // What is kept has the shape that was stored: its version says so, and it is read by the same steps.
    let StreamId { aggregate_type, .. } = &event.stream;
    if let Some(old) = upcast::without_content(aggregate_type, &event.event_type, event.event_version, &event.payload) {
        return Ok(old);
    }
    let today = decoded.into_iter().next().filter(|fact| fact.type_name() == event.event_type);
    let without = today
        .and_then(without_content)
        .ok_or_else(|| RedactError::NoContent { position, event_type: event.event_type.clone() })?;
    serde_json::from_str(&without.payload()).map_err(|error| RedactError::Unreadable {
        position,
        error: DecodeError::Payload {
            event_type: event.event_type.clone(),
            version: event.event_version,
            reason: error.to_string(),
        },
    })
}

async fn erase(place: &Place, position: u64, redacted: &Redacted) -> Result<(), LedgerError> {
    let mut opened = open_writable(place).await?;
    let opened_place = opened.write.place().to_owned();
    let erased = opened.write.erase(position, &redacted.to_text()).await;
    opened.read.close().await;
    let closed = opened.write.close().await;
    match erased {
        Ok(()) => closed,
        Err(Failure::Before(error)) => Err(error),
        Err(other) => Err(LedgerError::Unavailable {
            place: opened_place,
            reason: format!("the payload of event {position} was not erased: {other:?}"),
        }),
    }
}
