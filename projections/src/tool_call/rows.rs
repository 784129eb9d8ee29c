//! What the tool_call view answers; a field that may be absent is always there, as `null`.

use devmind_domain::Timestamp;
use devmind_domain::ids::*;
use serde::Serialize;

/// Which calls are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolCallQuery {
    /// Those of a conversation.
    Conversation(ConversationId),
    /// Those that a run asked for first.
    Run(RunId),
    /// One.
    Call(ToolCallId),
}

/// One tool call.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolCallRow {
    /// The call.
    pub tool_call_id: ToolCallId,
    /// Its conversation.
    pub conversation_id: ConversationId,
    /// Its turn.
    pub turn_id: TurnId,
    /// The run that asked first.
    pub run_id: RunId,
    /// The conversation's owner.
    pub user_id: UserId,
    /// Its thread.
    pub graph_thread_id: ThreadId,
    /// The model's id of it.
    pub model_call_id: String,
    /// The call it is a part of.
    pub parent_tool_call_id: Option<ToolCallId>,
    /// The tool.
    pub tool: String,
    /// The version of its definition.
    pub tool_version: String,
    /// `server` or `device`.
    pub target: String,
    /// The device it runs on.
    pub device_id: Option<DeviceId>,
    /// The arguments, exactly.
    pub arguments: serde_json::Value,
    /// SHA-256 of tool, version and arguments.
    pub call_hash: String,
    /// `LOW`, `MEDIUM` or `HIGH`.
    pub risk: String,
    /// The arguments in one short line.
    pub summary: String,
    /// Settled: `succeeded`, `failed`, `rejected`, `cancelled`, `indeterminate`; provisional:
    /// `created`, `dispatched`, `timed_out`, `unknown`.
    pub status: String,
    /// Whether the status can never change again.
    pub settled: bool,
    /// Why it did not succeed, or why its outcome is not known.
    pub error_code: Option<String>,
    /// The same in words.
    pub error_message: Option<String>,
    /// The attempt that ran it.
    pub executed_attempt_no: Option<u32>,
    /// What it gave.
    pub output: Option<serde_json::Value>,
    /// SHA-256 of the output's canonical text.
    pub output_sha256: Option<String>,
    /// `live` or `redelivered`.
    pub origin: Option<String>,
    /// When it began, by the clock of what ran it.
    pub started_at: Option<Timestamp>,
    /// When it ended, by the clock of what ran it.
    pub finished_at: Option<Timestamp>,
    /// Why it was taken back.
    pub cancel_reason: Option<String>,
    /// The stage that changed what the model sees.
    pub revised_by: Option<String>,
    /// Why it did.
    pub revised_reason: Option<String>,
    /// Acknowledgements sent.
    pub acks: u32,
    /// Results that came after the one that counts.
    pub late_results: u32,
    /// When it was asked for.
    pub requested_at: Timestamp,
    /// When it was last sent.
    pub dispatched_at: Option<Timestamp>,
    /// When the wait for it ended without a result.
    pub wait_ended_at: Option<Timestamp>,
    /// When its outcome was recorded.
    pub settled_at: Option<Timestamp>,
    /// When the last acknowledgement was sent.
    pub acked_at: Option<Timestamp>,
    /// Every sending, oldest first.
    pub attempts: Vec<ToolAttemptRow>,
}

/// One sending of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolAttemptRow {
    /// 1, 2, 3 …
    pub attempt_no: u32,
    /// The run that sent it.
    pub run_id: RunId,
    /// The server process that sent it.
    pub node_id: NodeId,
    /// Which start of it.
    pub epoch: u64,
    /// The socket it was sent on.
    pub connection_id: Option<ConnectionId>,
    /// The device's journal.
    pub journal_id: Option<String>,
    /// `dispatched`, `timed_out`, `unknown`; of a settled call the outcome, or `superseded` where another attempt ran.
    pub status: String,
    /// Why, where it did not succeed.
    pub reason: Option<String>,
    /// `reserved`, `confirming` or `executing`: how far the device said to be.
    pub phase: Option<String>,
    /// How long the server waits (milliseconds).
    pub wait_ms: u64,
    /// How long the device may take to begin (milliseconds).
    pub ttl_ms: u64,
    /// When it was sent.
    pub dispatched_at: Timestamp,
    /// When its wait ended.
    pub ended_at: Option<Timestamp>,
}

/// The question to a person that a call waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpenApproval {
    /// The interrupt.
    pub interrupt_id: InterruptId,
    /// When silence ends it.
    pub expires_at: Option<Timestamp>,
}

/// A call whose outcome can still change.
#[derive(Clone, Debug, PartialEq)]
pub struct UnsettledCall {
    /// The event that asked for it.
    pub requested_position: u64,
    /// The call.
    pub call: ToolCallRow,
    /// The question to a person that it waits for.
    pub approval: Option<OpenApproval>,
}
