//! What a client posts to start a run. Unknown members are accepted and ignored; the history in
//! `messages` is never trusted, only checked for the one question it must hold.

use crate::http::ClientId;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use utoipa::ToSchema;

/// `RunAgentInput`, as far as this server reads it.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunAgentInput {
    /// The conversation; at `POST /api/agui` any id of the client's.
    #[serde(deserialize_with = "client_id")]
    #[schema(value_type = ClientId)]
    pub thread_id: String,
    /// The prepared run; at `POST /api/agui` any id of the client's.
    #[serde(deserialize_with = "client_id")]
    #[schema(value_type = ClientId)]
    pub run_id: String,
    /// Present for clients of 1.0; older ones take no cancelled outcome.
    #[serde(default)]
    pub protocol_version: Option<String>,
    /// The client's copy of the conversation.
    pub messages: Vec<InputMessage>,
    /// Answers to interrupts.
    #[serde(default)]
    pub resume: Vec<ResumeEntry>,
}

/// An answer to an interrupt.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResumeEntry {
    /// Which one.
    #[serde(deserialize_with = "client_id")]
    #[schema(value_type = ClientId)]
    pub interrupt_id: String,
    /// `resolved`, or `cancelled`: abandoned without an answer.
    #[serde(default)]
    pub status: String,
    /// What was answered.
    #[serde(default)]
    pub payload: Value,
}

/// A message of the client's copy.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct InputMessage {
    /// Its id.
    #[serde(default)]
    pub id: String,
    /// Who wrote it.
    pub role: String,
    /// Text or parts.
    #[serde(default)]
    pub content: Value,
}

fn client_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    ClientId::deserialize(deserializer).map(String::from)
}

impl RunAgentInput {
    /// The text of the client's last message, where that is a user's.
    pub fn question(&self) -> Option<String> {
        let last = self.messages.last().filter(|message| message.role == "user")?;
        match &last.content {
            Value::String(text) => Some(text.clone()),
            Value::Array(parts) => {
                let texts = parts.iter().filter(|part| part["type"] == "text").filter_map(|part| part["text"].as_str());
                Some(texts.collect::<Vec<_>>().join("\n"))
            }
            _ => None,
        }
    }

    /// Whether the client's latest user message is the prepared question.
    pub fn asks(&self, user_message_id: &str) -> bool {
        let last_user = self.messages.iter().rev().find(|message| message.role == "user");
        last_user.is_some_and(|message| message.id == user_message_id)
    }
}
