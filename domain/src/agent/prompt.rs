//! The messages a model sees.

use crate::canonical::hash_json;
use crate::thread::{ModelToolCall, Thread};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// One message of a prompt; the shape is that of the chat-completion APIs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    /// The instructions.
    System {
        /// Text.
        content: String,
    },
    /// The user's words.
    User {
        /// Text.
        content: String,
    },
    /// The model's words.
    Assistant {
        /// Text.
        content: String,
        /// Its calls.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ModelToolCall>,
    },
    /// A call's result.
    Tool {
        /// The model's id of the call.
        tool_call_id: String,
        /// What it is told.
        content: String,
    },
}

impl Message {
    /// The text.
    pub fn content(&self) -> &str {
        match self {
            Self::System { content }
            | Self::User { content }
            | Self::Assistant { content, .. }
            | Self::Tool { content, .. } => content,
        }
    }

    /// The message of a request to an endpoint that speaks
    /// [chat completions](https://platform.openai.com/docs/api-reference/chat).
    pub fn chat_completion(&self) -> Value {
        match self {
            Self::System { content } => json!({ "role": "system", "content": content }),
            Self::User { content } => json!({ "role": "user", "content": content }),
            Self::Tool { tool_call_id, content } => {
                json!({ "role": "tool", "tool_call_id": tool_call_id, "content": content })
            }
            Self::Assistant { content, tool_calls } if tool_calls.is_empty() => {
                json!({ "role": "assistant", "content": content })
            }
            Self::Assistant { content, tool_calls } => {
                let call = |call: &ModelToolCall| {
                    let function = json!({ "name": call.name, "arguments": call.arguments });
                    json!({ "id": call.id, "type": "function", "function": function })
                };
                json!({ "role": "assistant", "content": content, "tool_calls": tool_calls.iter().map(call).collect::<Vec<_>>() })
            }
        }
    }
}

/// What the next question to the model holds: the context, then every answer of this thread, each
/// call followed by exactly one result, in the model's order; after all results of an answer, what its calls left.
pub fn prompt(context: &[Message], thread: &Thread) -> Vec<Message> {
    let mut messages = context.to_vec();
    for exchange in &thread.exchanges {
        messages.push(Message::Assistant { content: exchange.content.clone(), tool_calls: exchange.calls.clone() });
        for call in &exchange.calls {
            if let Some(result) = exchange.result_of(&call.id) {
                messages.push(Message::Tool { tool_call_id: call.id.clone(), content: result.content.clone() });
            }
        }
        if exchange.unanswered().next().is_none() {
            messages.extend(exchange.contexts().map(|message| Message::User { content: message.to_owned() }));
        }
    }
    messages
}

/// SHA-256 of the exact messages.
pub fn context_hash(messages: &[Message]) -> String {
    hash_json(messages)
}
