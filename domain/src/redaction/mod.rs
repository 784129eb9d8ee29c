//! Erasing what an event says about people, lawfully and in the open.
//!
//! A log commits to payloads by hash, so a payload can go and every proof still holds. What stays in
//! its place is a [`Redacted`] marker: the erased text's hash, and the event without its content, so
//! that every rule and view loads as before. That it was erased is itself an event; a marker that no
//! event speaks of is tampering. Carrying the erasure out is left to `devmind-ledger`.

mod content;
mod marker;

pub use content::{REDACTED_TEXT, without_content};
pub(crate) use content::{redacted_arguments, redacted_text};
pub use marker::Redacted;

use crate::aggregate::{Decider, adapt_to_cqrs_es};
use crate::event::{AggregateType, event_set};
use serde::{Deserialize, Serialize};

/// The payload of an event was erased. Its stream is the erased event's position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PayloadRedacted {
    /// The erased event's position.
    pub position: u64,
    /// Its id.
    pub event_id: String,
    /// Its type.
    pub event_type: String,
    /// SHA-256 of the text that was erased, hexadecimal: what the event's leaf commits to.
    pub payload_hash: String,
    /// SHA-256 of the text that is kept in its place, hexadecimal.
    pub kept_hash: String,
    /// Why, in the operator's words.
    pub reason: String,
}

event_set! {
    /// What can happen to an event's payload.
    RedactionEvent of Redaction {
        PayloadRedacted = 1,
    }
}

/// What can be asked.
#[derive(Clone, Debug)]
pub enum RedactionCommand {
    /// Erase a payload.
    Redact(PayloadRedacted),
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedactionError {
    /// No reason is given.
    #[error("a redaction needs a reason")]
    NoReason,
}

/// Whether an event's payload was erased.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Redaction {
    /// What was recorded of it.
    pub done: Option<PayloadRedacted>,
}

impl Decider for Redaction {
    const TYPE: AggregateType = AggregateType::Redaction;
    const STATE_VERSION: u32 = 1;
    type Command = RedactionCommand;
    type Event = RedactionEvent;
    type Error = RedactionError;

    fn decide(&self, command: RedactionCommand) -> Result<Vec<RedactionEvent>, RedactionError> {
        match command {
            RedactionCommand::Redact(_) if self.done.is_some() => Ok(vec![]),
            RedactionCommand::Redact(asked) if asked.reason.trim().is_empty() => Err(RedactionError::NoReason),
            RedactionCommand::Redact(asked) => Ok(vec![asked.into()]),
        }
    }

    fn evolve(&mut self, event: &RedactionEvent) {
        match event {
            RedactionEvent::PayloadRedacted(e) => self.done = Some(e.clone()),
        }
    }
}

adapt_to_cqrs_es!(Redaction, "redaction");
