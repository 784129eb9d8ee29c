//! Events: what is appended, what is recorded, and how the one becomes the other.
//!
//! An event's payload is stored without its type name, as the exact canonical text that was
//! hashed; `event_type` and `event_version` stand in their own columns. [`DomainEvent::decode`] is
//! the only place where stored text becomes a typed event, so every reader (aggregates,
//! projections, export, replay) sees the same facts.

use crate::canonical::{self, Hash};
use crate::redaction::Redacted;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

mod metadata;

pub use metadata::{Actor, ActorKind, Metadata, Role};

/// The kinds of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AggregateType {
    /// One chat window: turns, runs, interrupts.
    Conversation,
    /// One journal of the agent loop.
    Thread,
    /// One intent of the model to use a tool.
    ToolCall,
    /// One device of one user.
    Device,
    /// One server process's name.
    Node,
    /// One event whose content was erased.
    Redaction,
    /// One read model, as far as operators decide about it.
    Projection,
    /// One session of another program, as it wrote it.
    History,
}

impl AggregateType {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::Conversation,
        Self::Thread,
        Self::ToolCall,
        Self::Device,
        Self::Node,
        Self::Redaction,
        Self::Projection,
        Self::History,
    ];

    /// The column value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Conversation => "conversation",
            Self::Thread => "thread",
            Self::ToolCall => "tool_call",
            Self::Device => "device",
            Self::Node => "node",
            Self::Redaction => "redaction",
            Self::Projection => "projection",
            Self::History => "history",
        }
    }
}

/// The name of one stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StreamId {
    /// The stream's kind; text, because a newer program may have written kinds unknown here.
    pub aggregate_type: String,
    /// The stream's id within its kind.
    pub aggregate_id: String,
}

impl StreamId {
    /// The stream of an aggregate.
    pub fn new(kind: AggregateType, id: impl Into<String>) -> Self {
        Self { aggregate_type: kind.as_str().to_owned(), aggregate_id: id.into() }
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.aggregate_type, self.aggregate_id)
    }
}

/// An event as it is handed to the ledger.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    /// UUIDv7, made by the caller.
    pub event_id: String,
    /// The event.
    pub event: DomainEvent,
    /// Who and why.
    pub metadata: Metadata,
}

/// An event as the ledger recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedEvent {
    /// The order it stands in; 0 unless the ledger is partitioned.
    pub partition: u32,
    /// 1, 2, 3 … without gaps, in commit order.
    pub position: u64,
    /// UUIDv7.
    pub event_id: String,
    /// Its stream.
    pub stream: StreamId,
    /// Its version within the stream: 1, 2, 3 …
    pub sequence: u64,
    /// For example `TurnPrepared`.
    pub event_type: String,
    /// The payload's shape.
    pub event_version: u32,
    /// The exact canonical JSON text that was hashed.
    pub payload: String,
    /// The exact canonical JSON text of the [`Metadata`].
    pub metadata: String,
    /// When the writer recorded it.
    pub recorded_at: Timestamp,
    /// The RFC 6962 leaf over the canonical header.
    pub leaf_hash: Hash,
}

impl RecordedEvent {
    /// The typed event.
    ///
    /// # Errors
    /// [`DecodeError`] when the type is unknown here or the payload does not have its shape.
    pub fn decode(&self) -> Result<DomainEvent, DecodeError> {
        DomainEvent::decode(&self.stream.aggregate_type, &self.event_type, self.event_version, &self.content())
    }

    /// The payload as readers get it: the stored text, or, where its content was erased, what is left
    /// of it, which says so. Only hashing and showing the row itself use the stored text.
    pub fn content(&self) -> Cow<'_, str> {
        Redacted::parse(&self.payload)
            .map_or(Cow::Borrowed(self.payload.as_str()), |redacted| Cow::Owned(redacted.readable()))
    }

    /// The metadata.
    ///
    /// # Errors
    /// [`DecodeError::Payload`] when the stored text is not [`Metadata`].
    pub fn metadata(&self) -> Result<Metadata, DecodeError> {
        serde_json::from_str(&self.metadata).map_err(|error| DecodeError::Payload {
            event_type: "metadata".to_owned(),
            version: self.event_version,
            reason: error.to_string(),
        })
    }

    /// When it happened: as its metadata says, where it was recorded later, else when it was recorded.
    pub fn happened_at(&self) -> Timestamp {
        self.metadata().ok().and_then(|metadata| metadata.occurred_at).unwrap_or(self.recorded_at)
    }

    /// The leaf hash that the stored columns should have.
    ///
    /// An erased payload counts with the hash that its marker names; that the erasure is lawful is for
    /// `verify` to see.
    pub fn expected_leaf_hash(&self) -> Hash {
        // Payload and metadata enter by hash: a payload can later be erased with the proof intact.
        canonical::leaf_hash(
            canonical::canonical_json(&Header {
                partition: self.partition,
                position: self.position,
                event_id: &self.event_id,
                aggregate_type: &self.stream.aggregate_type,
                aggregate_id: &self.stream.aggregate_id,
                sequence: self.sequence,
                event_type: &self.event_type,
                event_version: self.event_version,
                recorded_at: self.recorded_at,
                metadata_hash: canonical::sha256_hex(self.metadata.as_bytes()),
                payload_hash: Redacted::parse(&self.payload)
                    .map_or_else(|| canonical::sha256_hex(self.payload.as_bytes()), |redacted| redacted.payload_hash),
            })
            .as_bytes(),
        )
    }
}

/// What a leaf commits to.
#[derive(Serialize)]
struct Header<'a> {
    partition: u32,
    position: u64,
    event_id: &'a str,
    aggregate_type: &'a str,
    aggregate_id: &'a str,
    sequence: u64,
    event_type: &'a str,
    event_version: u32,
    recorded_at: Timestamp,
    metadata_hash: String,
    payload_hash: String,
}

/// Why stored text did not become an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A newer program wrote it. Readers carry it on or skip it on purpose; never silently.
    #[error("event type {event_type} version {version} of {aggregate_type} is unknown to this program")]
    UnknownType {
        /// The stream's kind.
        aggregate_type: String,
        /// The type.
        event_type: String,
        /// Its version.
        version: u32,
    },
    /// The type is known, its payload is not what it should be.
    #[error("payload of {event_type} version {version} cannot be read: {reason}")]
    Payload {
        /// The type.
        event_type: String,
        /// Its version.
        version: u32,
        /// What serde said.
        reason: String,
    },
}

/// The events of one aggregate.
pub trait EventSet: cqrs_es::DomainEvent + Into<DomainEvent> {
    /// Every type with its current version.
    const TYPES: &'static [(&'static str, u32)];
    /// The type's name, the column `event_type`.
    fn type_name(&self) -> &'static str;
    /// The payload's version, the column `event_version`.
    fn version(&self) -> u32;
    /// The canonical payload text.
    fn payload(&self) -> String;
    /// Reads a stored payload.
    ///
    /// # Errors
    /// [`DecodeError`].
    fn decode(event_type: &str, version: u32, payload: &str) -> Result<Self, DecodeError>;
}

/// Makes the enum of an aggregate's events from its payload structs.
macro_rules! event_set {
    ($(#[$doc:meta])* $name:ident of $kind:ident { $($event:ident = $version:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[allow(missing_docs, reason = "each variant is its payload struct, documented there")]
        pub enum $name { $($event($event)),* }

        impl $crate::event::EventSet for $name {
            const TYPES: &'static [(&'static str, u32)] = &[$((stringify!($event), $version)),*];

            fn type_name(&self) -> &'static str {
                match self { $(Self::$event(_) => stringify!($event)),* }
            }
            fn version(&self) -> u32 {
                match self { $(Self::$event(_) => $version),* }
            }
            fn payload(&self) -> String {
                match self { $(Self::$event(payload) => $crate::canonical::canonical_json(payload)),* }
            }
            fn decode(event_type: &str, version: u32, payload: &str) -> Result<Self, $crate::event::DecodeError> {
                match (event_type, version) {
                    $((stringify!($event), $version) => serde_json::from_str(payload).map(Self::$event).map_err(|error| {
                        $crate::event::DecodeError::Payload {
                            event_type: event_type.to_owned(), version, reason: error.to_string(),
                        }
                    }),)*
                    _ => Err($crate::event::DecodeError::UnknownType {
                        aggregate_type: $crate::event::AggregateType::$kind.as_str().to_owned(),
                        event_type: event_type.to_owned(),
                        version,
                    }),
                }
            }
        }
        impl cqrs_es::DomainEvent for $name {
            fn event_type(&self) -> String {
                $crate::event::EventSet::type_name(self).to_owned()
            }
            fn event_version(&self) -> String {
                $crate::event::EventSet::version(self).to_string()
            }
        }
        impl From<$name> for $crate::event::DomainEvent {
            fn from(event: $name) -> Self {
                Self::$kind(event)
            }
        }
        $(impl From<$event> for $name {
            fn from(payload: $event) -> Self {
                Self::$event(payload)
            }
        })*
    };
}
pub(crate) use event_set;

/// Any event of any aggregate.
#[derive(Clone, Debug, PartialEq)]
pub enum DomainEvent {
    /// Of a conversation.
    Conversation(crate::conversation::ConversationEvent),
    /// Of a thread.
    Thread(crate::thread::ThreadEvent),
    /// Of a tool call.
    ToolCall(crate::tool_call::ToolCallEvent),
    /// Of a device.
    Device(crate::device::DeviceEvent),
    /// Of a node.
    Node(crate::node::NodeEvent),
    /// Of a redaction.
    Redaction(crate::redaction::RedactionEvent),
    /// Of a projection.
    Projection(crate::projection::ProjectionEvent),
    /// Of another program's history.
    History(crate::history::HistoryEvent),
}

macro_rules! each_kind {
    ($event:expr, $inner:ident => $body:expr) => {
        match $event {
            DomainEvent::Conversation($inner) => $body,
            DomainEvent::Thread($inner) => $body,
            DomainEvent::ToolCall($inner) => $body,
            DomainEvent::Device($inner) => $body,
            DomainEvent::Node($inner) => $body,
            DomainEvent::Redaction($inner) => $body,
            DomainEvent::Projection($inner) => $body,
            DomainEvent::History($inner) => $body,
        }
    };
}

impl DomainEvent {
    /// Reads a stored event.
    ///
    /// # Errors
    /// [`DecodeError`] when the type is unknown here or the payload does not have its shape.
    pub fn decode(aggregate_type: &str, event_type: &str, version: u32, payload: &str) -> Result<Self, DecodeError> {
        let kind = AggregateType::ALL.into_iter().find(|kind| kind.as_str() == aggregate_type);
        match kind {
            Some(AggregateType::Conversation) => EventSet::decode(event_type, version, payload).map(Self::Conversation),
            Some(AggregateType::Thread) => EventSet::decode(event_type, version, payload).map(Self::Thread),
            Some(AggregateType::ToolCall) => EventSet::decode(event_type, version, payload).map(Self::ToolCall),
            Some(AggregateType::Device) => EventSet::decode(event_type, version, payload).map(Self::Device),
            Some(AggregateType::Node) => EventSet::decode(event_type, version, payload).map(Self::Node),
            Some(AggregateType::Redaction) => EventSet::decode(event_type, version, payload).map(Self::Redaction),
            Some(AggregateType::Projection) => EventSet::decode(event_type, version, payload).map(Self::Projection),
            Some(AggregateType::History) => EventSet::decode(event_type, version, payload).map(Self::History),
            None => Err(DecodeError::UnknownType {
                aggregate_type: aggregate_type.to_owned(),
                event_type: event_type.to_owned(),
                version,
            }),
        }
    }

    /// Every event type of every aggregate, with its current version.
    pub fn all_types() -> Vec<(AggregateType, &'static str, u32)> {
        let of = |kind, types: &'static [(&'static str, u32)]| {
            types.iter().map(move |(name, version)| (kind, *name, *version))
        };
        of(AggregateType::Conversation, crate::conversation::ConversationEvent::TYPES)
            .chain(of(AggregateType::Thread, crate::thread::ThreadEvent::TYPES))
            .chain(of(AggregateType::ToolCall, crate::tool_call::ToolCallEvent::TYPES))
            .chain(of(AggregateType::Device, crate::device::DeviceEvent::TYPES))
            .chain(of(AggregateType::Node, crate::node::NodeEvent::TYPES))
            .chain(of(AggregateType::Redaction, crate::redaction::RedactionEvent::TYPES))
            .chain(of(AggregateType::Projection, crate::projection::ProjectionEvent::TYPES))
            .chain(of(AggregateType::History, crate::history::HistoryEvent::TYPES))
            .collect()
    }

    /// The type's name.
    pub fn type_name(&self) -> &'static str {
        each_kind!(self, event => EventSet::type_name(event))
    }

    /// The payload's version.
    pub fn version(&self) -> u32 {
        each_kind!(self, event => EventSet::version(event))
    }

    /// The canonical payload text.
    pub fn payload(&self) -> String {
        each_kind!(self, event => EventSet::payload(event))
    }
}
