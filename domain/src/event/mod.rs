//! Events: what is appended, what is recorded, and how the one becomes the other.
//!
//! An event's payload is stored without its type name, as the exact canonical text that was
//! hashed; `event_type` and `event_version` stand in their own columns. [`DomainEvent::decode`] and
//! [`RecordedEvent::decode_as`] share the only place where stored text becomes typed events, so every reader
//! (aggregates, projections, export, replay) sees the same facts, whatever version was stored.

use crate::canonical::{self, Hash};
use crate::error_code::ErrorCode;
use crate::redaction::Redacted;
use crate::time::Timestamp;
use crate::upcast;
use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
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
    /// A set of tools that models are offered.
    ToolSet,
}

impl AggregateType {
    /// Every kind.
    pub const ALL: [Self; 9] = [
        Self::Conversation,
        Self::Thread,
        Self::ToolCall,
        Self::Device,
        Self::Node,
        Self::Redaction,
        Self::Projection,
        Self::History,
        Self::ToolSet,
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
            Self::ToolSet => "tool_set",
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
    /// The facts that the event tells today; see [`DomainEvent::decode`].
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(&self) -> Result<Facts, DecodeError> {
        DomainEvent::decode(&self.stream.aggregate_type, &self.event_type, self.event_version, &self.content())
    }

    /// The same for one who knows whose event it is.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode_as<E: EventSet>(&self) -> Result<Facts<E>, DecodeError> {
        facts(&self.event_type, self.event_version, &self.content())
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
        self.leaf_hash_with(&payload_hash(&self.payload), &canonical::sha256_hex(self.metadata.as_bytes()))
    }

    /// [`RecordedEvent::expected_leaf_hash`] where the hashes of payload ([`payload_hash`]) and metadata (SHA-256 in
    /// hexadecimal) are known already.
    pub fn leaf_hash_with(&self, payload_hash: &str, metadata_hash: &str) -> Hash {
        canonical::leaf_hash(self.header(payload_hash, metadata_hash).as_bytes())
    }

    /// The RFC 8785 text of what the leaf commits to. The fields are sorted by name, and a text or a whole number has
    /// one form in JSON as serde writes it, so it is canonical as it is.
    fn header(&self, payload_hash: &str, metadata_hash: &str) -> String {
        // Payload and metadata enter by hash: a payload can later be erased with the proof intact.
        #[allow(clippy::expect_used)]
        serde_json::to_string(&Header {
            aggregate_id: &self.stream.aggregate_id,
            aggregate_type: &self.stream.aggregate_type,
            event_id: &self.event_id,
            event_type: &self.event_type,
            event_version: self.event_version,
            metadata_hash,
            partition: self.partition,
            payload_hash,
            position: self.position,
            recorded_at: self.recorded_at,
            sequence: self.sequence,
        })
        .expect("texts and numbers are JSON")
    }
}

/// The hash by which a payload enters its leaf: SHA-256 in hexadecimal, of an erased one the hash that its marker
/// names.
pub fn payload_hash(payload: &str) -> String {
    Redacted::parse(payload).map_or_else(|| canonical::sha256_hex(payload.as_bytes()), |redacted| redacted.payload_hash)
}

/// What a leaf commits to, sorted by name.
#[derive(Serialize)]
struct Header<'a> {
    aggregate_id: &'a str,
    aggregate_type: &'a str,
    event_id: &'a str,
    event_type: &'a str,
    event_version: u32,
    metadata_hash: &'a str,
    partition: u32,
    payload_hash: &'a str,
    position: u64,
    recorded_at: Timestamp,
    sequence: u64,
}

/// What one stored event tells, in order: one fact, or several where an older shape said more at once. All have
/// the position and the sequence of the stored event.
pub type Facts<E = DomainEvent> = SmallVec<[E; 1]>;

/// Stored text becomes events: the one place, with every step up from older shapes.
fn facts<E: EventSet>(event_type: &str, version: u32, payload: &str) -> Result<Facts<E>, DecodeError> {
    let Some(first) = upcast::step(E::KIND, event_type, version) else {
        return E::read(event_type, version, payload).map(|event| smallvec![event]);
    };
    let failed = |reason| DecodeError::Payload { event_type: event_type.to_owned(), version, reason };
    let payload = serde_json::from_str(payload).map_err(|error| failed(error.to_string()))?;
    let parts = upcast::climb(first, payload).map_err(failed)?;
    let read = |part: upcast::Part| {
        E::read(part.event_type, part.version, &part.payload.to_string()).map_err(|error| failed(error.to_string()))
    };
    parts.into_iter().map(read).collect()
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
    /// The type is known here and this version of it is not: a newer program gave it another meaning, so nothing can
    /// be decided or shown on the strength of it.
    #[error("version {version} of {event_type} is unknown to this program, which knows version {known}")]
    UnknownVersion {
        /// The type.
        event_type: String,
        /// The stored version.
        version: u32,
        /// The version that this program records.
        known: u32,
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

impl DecodeError {
    /// The stable code.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::UnknownType { .. } | Self::UnknownVersion { .. } => ErrorCode::LedgerSchemaNewer,
            Self::Payload { .. } => ErrorCode::LedgerCorrupt,
        }
    }
}

/// The events of one aggregate.
pub trait EventSet: cqrs_es::DomainEvent + Into<DomainEvent> {
    /// The kind of its streams.
    const KIND: AggregateType;
    /// Every type with its current version.
    const TYPES: &'static [(&'static str, u32)];
    /// The type's name, the column `event_type`.
    fn type_name(&self) -> &'static str;
    /// The payload's version, the column `event_version`.
    fn version(&self) -> u32;
    /// The canonical payload text.
    fn payload(&self) -> String;
    /// Reads a payload of the shape of today; stored ones go through [`RecordedEvent::decode_as`].
    ///
    /// # Errors
    /// [`DecodeError`].
    fn read(event_type: &str, version: u32, payload: &str) -> Result<Self, DecodeError>;
}

/// What is not known of an event: its type, or this version of it.
pub(crate) fn unknown<E: EventSet>(event_type: &str, version: u32) -> DecodeError {
    let event_type = event_type.to_owned();
    match E::TYPES.iter().find(|(name, _)| *name == event_type).map(|(_, known)| *known) {
        Some(known) => DecodeError::UnknownVersion { event_type, version, known },
        None => DecodeError::UnknownType { aggregate_type: E::KIND.as_str().to_owned(), event_type, version },
    }
}

/// Makes the enum of an aggregate's events from its payload structs.
macro_rules! event_set {
    ($(#[$doc:meta])* $name:ident of $kind:ident { $($event:ident = $version:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[allow(missing_docs, reason = "each variant is its payload struct, documented there")]
        pub enum $name { $($event($event)),* }

        impl $crate::event::EventSet for $name {
            const KIND: $crate::event::AggregateType = $crate::event::AggregateType::$kind;
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
            fn read(event_type: &str, version: u32, payload: &str) -> Result<Self, $crate::event::DecodeError> {
                match (event_type, version) {
                    $((stringify!($event), $version) => serde_json::from_str(payload).map(Self::$event).map_err(|error| {
                        $crate::event::DecodeError::Payload {
                            event_type: event_type.to_owned(), version, reason: error.to_string(),
                        }
                    }),)*
                    _ => Err($crate::event::unknown::<Self>(event_type, version)),
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
    /// Of a set of tools.
    ToolSet(crate::tool_set::ToolSetEvent),
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
            DomainEvent::ToolSet($inner) => $body,
        }
    };
}

impl DomainEvent {
    /// Reads a stored event: what it tells today, through every step up from its version ([`crate::upcast`]).
    ///
    /// # Errors
    /// [`DecodeError`] when type or version are unknown here or the payload does not have its shape.
    pub fn decode(aggregate_type: &str, event_type: &str, version: u32, payload: &str) -> Result<Facts, DecodeError> {
        fn of<E: EventSet>(event_type: &str, version: u32, payload: &str) -> Result<Facts, DecodeError> {
            Ok(facts::<E>(event_type, version, payload)?.into_iter().map(Into::into).collect())
        }
        let kind = AggregateType::ALL.into_iter().find(|kind| kind.as_str() == aggregate_type);
        match kind {
            Some(AggregateType::Conversation) => {
                of::<crate::conversation::ConversationEvent>(event_type, version, payload)
            }
            Some(AggregateType::Thread) => of::<crate::thread::ThreadEvent>(event_type, version, payload),
            Some(AggregateType::ToolCall) => of::<crate::tool_call::ToolCallEvent>(event_type, version, payload),
            Some(AggregateType::Device) => of::<crate::device::DeviceEvent>(event_type, version, payload),
            Some(AggregateType::Node) => of::<crate::node::NodeEvent>(event_type, version, payload),
            Some(AggregateType::Redaction) => of::<crate::redaction::RedactionEvent>(event_type, version, payload),
            Some(AggregateType::Projection) => of::<crate::projection::ProjectionEvent>(event_type, version, payload),
            Some(AggregateType::History) => of::<crate::history::HistoryEvent>(event_type, version, payload),
            Some(AggregateType::ToolSet) => of::<crate::tool_set::ToolSetEvent>(event_type, version, payload),
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
            .chain(of(AggregateType::ToolSet, crate::tool_set::ToolSetEvent::TYPES))
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
