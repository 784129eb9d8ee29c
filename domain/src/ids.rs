//! The names of things: one type per kind of id, so that a run cannot be passed for a turn.
//!
//! Ids that the server makes are UUIDv7 text (RFC 9562), which keeps indexed ids in time order.
//! They are made outside this crate and arrive in commands.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl $name {
            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }
        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }
    )*};
}

ids! {
    /// A person, as the authenticated identity names them.
    UserId,
    /// One chat window; also AG-UI's `threadId`.
    ConversationId,
    /// One question and the one answer the user sees.
    TurnId,
    /// One execution of the agent for a turn; also AG-UI's `runId`.
    RunId,
    /// A user question or an assistant answer.
    MessageId,
    /// The journal the agent loop resumes from (`graph_thread_id`).
    ThreadId,
    /// A pause for a person's decision.
    InterruptId,
    /// What a person allowed for the whole of a conversation.
    GrantId,
    /// One intent of the model to use a tool: `graph_thread_id + ":" + model call id`.
    ToolCallId,
    /// One installed device program on one computer.
    DeviceId,
    /// One socket of a device.
    ConnectionId,
    /// One server process's name, kept across its restarts.
    NodeId,
}

/// Between the model's id of a call and the number of a call that its execution made; no model's id has it.
pub const SUB_CALL_MARK: char = '/';

impl ToolCallId {
    /// The id of a model's call within its thread; the same call has the same id in every replay.
    pub fn of(thread: &ThreadId, model_call_id: &str) -> Self {
        Self(format!("{thread}:{model_call_id}"))
    }
}
