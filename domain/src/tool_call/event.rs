//! What can happen to a tool call.

use crate::ErrorCode;
use crate::event::event_set;
use crate::ids::*;
use crate::time::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Where a tool runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// In the server.
    Server,
    /// On the user's device.
    Device,
}

/// How much harm a tool can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "UPPERCASE")]
pub enum Risk {
    /// Shows names; nobody is asked.
    Low,
    /// Shows contents; a person is asked.
    Medium,
    /// Changes something.
    High,
}

impl Risk {
    /// As in events and frames.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Low => "LOW",
            Self::Medium => "MEDIUM",
            Self::High => "HIGH",
        }
    }
}

/// The model wants a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCallRequested {
    /// Its conversation.
    pub conversation_id: ConversationId,
    /// Its turn.
    pub turn_id: TurnId,
    /// The run that asked first.
    pub run_id: RunId,
    /// Whose conversation it is.
    pub user_id: UserId,
    /// Its thread.
    pub graph_thread_id: ThreadId,
    /// The model's id of the call.
    pub model_call_id: String,
    /// The call it is a part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_tool_call_id: Option<ToolCallId>,
    /// The tool, for example `workspace.read_file`.
    pub tool: String,
    /// The version of its definition.
    pub tool_version: String,
    /// Where it runs.
    pub target: Target,
    /// The device it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_id: Option<DeviceId>,
    /// The arguments; text that was no JSON object is kept as a string.
    pub arguments: Value,
    /// SHA-256 of tool, version and arguments.
    pub call_hash: String,
    /// How much harm it can do.
    pub risk: Risk,
}

/// What a stage of the pipeline decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// It may go on.
    Allow,
    /// It is refused.
    Deny,
    /// A person must decide.
    Ask,
}

/// A stage decided about the call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCallDecided {
    /// The stage: `resolve`, `validate`, `limit`, `device` …
    pub stage: String,
    /// What it decided.
    pub decision: Decision,
    /// A stable code.
    pub code: String,
    /// Who decided: a policy, a person, a clock.
    pub by: String,
    /// Why, in the words that the model was told, or the person who was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl ToolCallDecided {
    /// A refusal, with the code and the words that the model is told.
    pub fn deny(stage: impl Into<String>, error: &ToolError, by: impl Into<String>) -> Self {
        let ToolError { code, message } = error.clone();
        let reason = Some(message).filter(|words| !words.is_empty());
        Self { stage: stage.into(), decision: Decision::Deny, code, by: by.into(), reason }
    }

    /// What the model is told of a refusal. Logs from before reasons were recorded have the words of the code alone.
    pub fn error(&self) -> ToolError {
        let help = || ErrorCode::parse(&self.code).map_or("a policy refuses this call", ErrorCode::help).to_owned();
        ToolError { code: self.code.clone(), message: self.reason.clone().unwrap_or_else(help) }
    }
}

/// The call was sent (to the device) or begun (in the server).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolDispatched {
    /// 1, 2, 3 …
    pub attempt_no: u32,
    /// The run that sent it.
    pub run_id: RunId,
    /// The server process that sent it.
    pub node_id: NodeId,
    /// Which start of it.
    pub epoch: u64,
    /// The socket it was sent on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_id: Option<ConnectionId>,
    /// The device journal that must know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal_id: Option<String>,
    /// How long the server waits.
    pub wait_ms: u64,
    /// How long the device may take to begin.
    pub ttl_ms: u64,
}

/// How far the device has got: within one attempt only ever forward, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// In the journal.
    Reserved,
    /// A person is being asked.
    Confirming,
    /// Running.
    Executing,
}

impl Phase {
    /// As in events and frames.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Confirming => "confirming",
            Self::Executing => "executing",
        }
    }
}

/// The device said how far it has got; never a result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolReceived {
    /// The attempt.
    pub attempt_no: u32,
    /// How far.
    pub phase: Phase,
}

/// Why a call is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum CancelReason {
    /// Its run was stopped.
    RunCancelled,
    /// The server gave up waiting.
    WaitTimedOut,
}

/// The server took the call back; the device's report decides what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCancelRequested {
    /// This attempt and earlier ones.
    pub attempt_no: u32,
    /// Why.
    pub reason: CancelReason,
}

/// The server gave up waiting; a late result is still recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolWaitTimedOut {
    /// The attempt.
    pub attempt_no: u32,
    /// How long it had waited.
    pub after_ms: u64,
}

/// The device will not run the attempt; this does not settle the call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolAttemptRefused {
    /// The attempt.
    pub attempt_no: u32,
    /// A stable code.
    pub code: String,
}

/// How a call ended. Only the one that ran it can say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultStatus {
    /// It ran and gave an output.
    Succeeded,
    /// It ran and failed.
    Failed,
    /// It was refused and did not run.
    Rejected,
    /// It was taken back and did not run.
    Cancelled,
    /// It began; whether it took effect cannot be known.
    Indeterminate,
}

impl ResultStatus {
    /// As in events and frames.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
            Self::Cancelled => "cancelled",
            Self::Indeterminate => "indeterminate",
        }
    }
}

/// A failure: a stable code and words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolError {
    /// A stable code.
    pub code: String,
    /// What a person or a model can read.
    pub message: String,
}

impl ToolError {
    /// A code in its own words.
    pub fn of(code: ErrorCode) -> Self {
        Self { code: code.as_str().to_owned(), message: code.help().to_owned() }
    }
}

/// How a result reached the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultOrigin {
    /// On the connection the call was sent on.
    Live,
    /// On a later connection.
    Redelivered,
}

/// The call is settled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolResultRecorded {
    /// The attempt that ran it.
    pub executed_attempt_no: u32,
    /// How it ended.
    pub status: ResultStatus,
    /// What it gave; `null` is a value.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub output: Option<Value>,
    /// SHA-256 of the output's canonical text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_sha256: Option<String>,
    /// Why it did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ToolError>,
    /// When it began, by the device's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended, by the device's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// How the result came.
    pub origin: ResultOrigin,
    /// The socket it came on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_id: Option<ConnectionId>,
}

/// A field that is there holds a value, whatever it is.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// A later stage changed what the model sees of a settled call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolOutcomeRevised {
    /// The stage.
    pub by: String,
    /// Why.
    pub reason: String,
    /// SHA-256 of what the model sees.
    pub content_hash: String,
}

/// What an acknowledgement says about a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Disposition {
    /// It is the call's result.
    Stored,
    /// The same result was stored before.
    Duplicate,
    /// Another result was stored before.
    Superseded,
    /// The server does not know the call.
    UnknownCall,
}

/// The device was told that its result is safe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolResultAcked {
    /// The socket.
    pub connection_id: ConnectionId,
    /// What was said.
    pub disposition: Disposition,
}

event_set! {
    /// What can happen to a tool call.
    ToolCallEvent of ToolCall {
        ToolCallRequested = 1,
        ToolCallDecided = 1,
        ToolDispatched = 1,
        ToolReceived = 1,
        ToolCancelRequested = 1,
        ToolWaitTimedOut = 1,
        ToolAttemptRefused = 1,
        ToolResultRecorded = 1,
        ToolOutcomeRevised = 1,
        ToolResultAcked = 1,
    }
}
