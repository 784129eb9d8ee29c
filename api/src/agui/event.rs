//! The events, in the protocol's casing.

use devmind_domain::thread::TokenUsage;
use serde::Serialize;
use utoipa::ToSchema;

/// The version that a producer declares in `RUN_STARTED`.
pub const PROTOCOL_VERSION: &str = "1.0";

/// One event of a run's stream.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "SCREAMING_SNAKE_CASE")]
#[allow(missing_docs, reason = "fields are the protocol's own")]
pub enum AgUiEvent {
    /// The first event.
    #[serde(rename_all = "camelCase")]
    RunStarted { thread_id: String, run_id: String, protocol_version: &'static str },
    /// The last event of a run that did not fail.
    #[serde(rename_all = "camelCase")]
    RunFinished {
        thread_id: String,
        run_id: String,
        outcome: Outcome,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        usage: Vec<Usage>,
    },
    /// The last event of a run that failed.
    #[serde(rename_all = "camelCase")]
    RunError { message: String, code: String },
    /// A message begins.
    #[serde(rename_all = "camelCase")]
    TextMessageStart { message_id: String, role: &'static str },
    /// A piece of it.
    #[serde(rename_all = "camelCase")]
    TextMessageContent { message_id: String, delta: String },
    /// It ends.
    #[serde(rename_all = "camelCase")]
    TextMessageEnd { message_id: String },
    /// A call begins, under the message it belongs to.
    #[serde(rename_all = "camelCase")]
    ToolCallStart { tool_call_id: String, tool_call_name: String, parent_message_id: String },
    /// A piece of its arguments.
    #[serde(rename_all = "camelCase")]
    ToolCallArgs { tool_call_id: String, delta: String },
    /// Its arguments are complete.
    #[serde(rename_all = "camelCase")]
    ToolCallEnd { tool_call_id: String },
    /// Its result.
    #[serde(rename_all = "camelCase")]
    ToolCallResult { message_id: String, tool_call_id: String, content: String, role: &'static str },
}

/// How a run finished.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Outcome {
    /// With an answer.
    Success,
    /// With questions to a person.
    Interrupt {
        /// What is asked; never empty.
        interrupts: Vec<Interrupt>,
    },
    /// It was stopped; only for peers that declared a protocol version.
    Cancelled,
}

/// One question to a person.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "fields are the protocol's own")]
pub struct Interrupt {
    pub id: String,
    pub reason: &'static str,
    pub message: String,
    pub tool_call_id: String,
    /// Exactly what an answer holds.
    pub response_schema: serde_json::Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

/// Tokens of one model; absent means unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "fields are the protocol's own")]
pub struct Usage {
    pub provider: String,
    pub model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_input_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
}

impl Usage {
    /// The tokens of one answer; `None` where nothing is known.
    pub fn of(provider: &str, model: &str, tokens: &TokenUsage) -> Option<Self> {
        if *tokens == TokenUsage::default() {
            return None;
        }
        Some(Self {
            provider: provider.to_owned(),
            model: model.to_owned(),
            input_tokens: tokens.input,
            output_tokens: tokens.output,
            total_tokens: tokens.input.zip(tokens.output).map(|(input, output)| input.saturating_add(output)),
            cached_input_tokens: tokens.cached,
            reasoning_tokens: tokens.reasoning,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_have_the_protocols_casing_and_no_nulls() {
        let event = AgUiEvent::RunFinished {
            thread_id: "t".into(),
            run_id: "r".into(),
            outcome: Outcome::Success,
            usage: Usage::of("p", "m", &TokenUsage { input: Some(3), ..TokenUsage::default() }).into_iter().collect(),
        };
        assert_eq!(
            serde_json::to_value(&event).expect("serialises"),
            json!({"type": "RUN_FINISHED", "threadId": "t", "runId": "r", "outcome": {"type": "success"},
                   "usage": [{"provider": "p", "model": "m", "inputTokens": 3}]})
        );
        let event = AgUiEvent::ToolCallStart {
            tool_call_id: "c".into(),
            tool_call_name: "add".into(),
            parent_message_id: "m".into(),
        };
        assert_eq!(
            serde_json::to_value(&event).expect("serialises"),
            json!({"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "add", "parentMessageId": "m"})
        );
    }
}
