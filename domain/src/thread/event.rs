//! What can happen in a thread.

use crate::event::event_set;
use crate::ids::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The journal began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadStarted {
    /// Its conversation.
    pub conversation_id: ConversationId,
    /// Its turn.
    pub turn_id: TurnId,
    /// The run that began it.
    pub run_id: RunId,
    /// Whose conversation it is.
    pub user_id: UserId,
}

/// The model is being asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelRequested {
    /// The run that asks.
    pub run_id: RunId,
    /// 1, 2, 3 … within the thread.
    pub round: u32,
    /// Who serves the model.
    pub provider: String,
    /// The model.
    pub model: String,
    /// What it is asked with, besides messages and tools.
    pub parameters: Value,
    /// SHA-256 of the messages.
    pub request_hash: String,
    /// SHA-256 of the offered tools.
    pub tools_hash: String,
    /// The set of tools, where it is not what the program brings along: the id of a `tool_set`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_set: Option<String>,
}

/// A piece of the streamed answer, recorded so that a crash loses little.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AnswerProgressed {
    /// The run.
    pub run_id: RunId,
    /// The answer's message.
    pub message_id: MessageId,
    /// What came since the last such event.
    pub text: String,
}

/// A tool call as the model wrote it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelToolCall {
    /// Unique within the thread: the model's id, with `~<round>.<index>` where it gave none or one
    /// that was used before.
    pub id: String,
    /// The name the model used.
    pub name: String,
    /// The arguments, verbatim.
    pub arguments: String,
}

/// Tokens, as the provider counts them; absent means unknown, never 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUsage {
    /// In the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<u64>,
    /// In the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<u64>,
    /// Of the prompt, those served from a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<u64>,
    /// Of the answer, those spent on reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<u64>,
}

impl TokenUsage {
    /// The counts that canonical JSON keeps exactly; one beyond 2^53 - 1 is no count but nonsense,
    /// and could not be read back as an integer.
    pub(super) fn without_inexact(self) -> Self {
        let exact = |count: Option<u64>| count.filter(|count| *count <= crate::json::MAX_SAFE_INTEGER);
        Self {
            input: exact(self.input),
            output: exact(self.output),
            cached: exact(self.cached),
            reasoning: exact(self.reasoning),
        }
    }
}

/// The model answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelResponded {
    /// The run.
    pub run_id: RunId,
    /// The round it answers.
    pub round: u32,
    /// The answer's message, the one its text was streamed under.
    pub message_id: MessageId,
    /// The text.
    pub content: String,
    /// The model's reasoning, where it shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// The calls, in the model's order.
    pub tool_calls: Vec<ModelToolCall>,
    /// Why it ended, in the provider's word.
    pub finish_reason: String,
    /// Tokens.
    pub usage: TokenUsage,
    /// The model that really answered.
    pub served_model: String,
    /// From request to end.
    pub latency_ms: u64,
}

/// The model did not answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelFailed {
    /// The run.
    pub run_id: RunId,
    /// The round.
    pub round: u32,
    /// A stable code.
    pub code: String,
    /// What a person can read.
    pub message: String,
    /// Whether the same request may succeed later.
    pub retriable: bool,
}

/// What the model is told of one tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolResultObserved {
    /// The call.
    pub tool_call_id: ToolCallId,
    /// Whether it succeeded.
    pub ok: bool,
    /// What the model sees.
    pub content: String,
    /// The stable code of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A tool's success has something to tell the model, after all results of its message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContextDeferred {
    /// The call.
    pub tool_call_id: ToolCallId,
    /// What the model is told, as a message of its own.
    pub message: String,
}

/// A tool's success ends the turn: once all results of its message are there, the model is not asked again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnConcluded {
    /// The call.
    pub tool_call_id: ToolCallId,
}

event_set! {
    /// What can happen in a thread.
    ThreadEvent of Thread {
        ThreadStarted = 1,
        ModelRequested = 1,
        AnswerProgressed = 1,
        ModelResponded = 1,
        ModelFailed = 1,
        ToolResultObserved = 1,
        ContextDeferred = 1,
        TurnConcluded = 1,
    }
}
