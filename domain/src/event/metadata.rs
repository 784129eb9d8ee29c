//! What is known about an event besides its payload: who caused it, in what, and why.

use crate::ids::{ConversationId, NodeId, RunId};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Who caused an event.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Actor {
    /// The actor's id within its kind.
    pub id: String,
    /// What kind of actor.
    pub kind: ActorKind,
}

/// The kinds of actors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActorKind {
    /// A person.
    User,
    /// A person's device program.
    Device,
    /// A server process.
    Server,
    /// A person who runs the server.
    Operator,
}

impl Actor {
    /// A person.
    pub fn user(id: impl fmt::Display) -> Self {
        Self { kind: ActorKind::User, id: id.to_string() }
    }
    /// A device program.
    pub fn device(id: impl fmt::Display) -> Self {
        Self { kind: ActorKind::Device, id: id.to_string() }
    }
    /// A person who runs the server.
    pub fn operator(id: impl fmt::Display) -> Self {
        Self { kind: ActorKind::Operator, id: id.to_string() }
    }
    /// A server process.
    pub fn server(id: &NodeId) -> Self {
        Self { kind: ActorKind::Server, id: id.to_string() }
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ActorKind::User => "user",
            ActorKind::Device => "device",
            ActorKind::Server => "server",
            ActorKind::Operator => "operator",
        };
        write!(f, "{kind}:{}", self.id)
    }
}

/// What an authenticated person may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads and changes what is theirs.
    #[default]
    User,
    /// Reads everything and changes nothing; what they read of others is recorded.
    Auditor,
    /// Changes what is theirs and reads everything; what they read of others is recorded.
    Operator,
}

impl Role {
    /// As in events and settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Auditor => "auditor",
            Self::Operator => "operator",
        }
    }

    /// Whether what belongs to others may be read.
    pub const fn reads_all(self) -> bool {
        match self {
            Self::User => false,
            Self::Auditor | Self::Operator => true,
        }
    }

    /// Whether anything may be changed.
    pub const fn changes(self) -> bool {
        match self {
            Self::User | Self::Operator => true,
            Self::Auditor => false,
        }
    }
}

/// What is known about an event besides its payload. The fields are sorted by name, which [`Metadata::text`] rests on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// Who caused it.
    pub actor: Actor,
    /// The event that led to it, by `event_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub causation_id: Option<String>,
    /// The conversation it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<ConversationId>,
    /// The run it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<RunId>,
    /// The client's key for the request that caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// The server process that appended it.
    pub node_id: NodeId,
    /// When it happened, where that was long before it was recorded: in the history of another program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub occurred_at: Option<Timestamp>,
    /// SHA-256 of that request, so that the index of keys can be rebuilt from the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_hash: Option<String>,
    /// W3C trace context of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

impl Metadata {
    /// Metadata with the two fields that are always there.
    pub fn new(actor: Actor, node_id: NodeId) -> Self {
        Self {
            actor,
            correlation_id: None,
            causation_id: None,
            conversation_id: None,
            idempotency_key: None,
            request_hash: None,
            node_id,
            traceparent: None,
            occurred_at: None,
        }
    }

    /// Of this run.
    #[must_use]
    pub fn run(mut self, run_id: &RunId) -> Self {
        self.correlation_id = Some(run_id.clone());
        self
    }

    /// Of this conversation.
    #[must_use]
    pub fn conversation(mut self, conversation_id: &ConversationId) -> Self {
        self.conversation_id = Some(conversation_id.clone());
        self
    }

    /// Its RFC 8785 text, as it is stored and hashed. Every event has some, so it is written without a canonicaliser:
    /// the fields are sorted by name, and a text has one form in JSON as serde writes it.
    pub fn text(&self) -> String {
        #[allow(clippy::expect_used)]
        serde_json::to_string(self).expect("texts are JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canonical::canonical_json;
    use proptest::option::of;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_text_of_metadata_is_canonical(
            (actor, correlation, causation) in (any::<String>(), of(any::<String>()), of(any::<String>())),
            (conversation, key, hash) in (of(any::<String>()), of(any::<String>()), of(any::<String>())),
            (node, trace, micros) in (any::<String>(), of(any::<String>()), of(0..i64::from(u32::MAX))),
        ) {
            let mut metadata = Metadata::new(Actor::user(actor), node.as_str().into());
            metadata.correlation_id = correlation.map(|id| id.as_str().into());
            metadata.causation_id = causation;
            metadata.conversation_id = conversation.map(|id| id.as_str().into());
            metadata.idempotency_key = key;
            metadata.request_hash = hash;
            metadata.traceparent = trace;
            metadata.occurred_at = micros.map(Timestamp::from_micros);
            prop_assert_eq!(metadata.text(), canonical_json(&metadata));
        }
    }
}
