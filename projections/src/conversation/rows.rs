//! What the conversation view answers: the fields of specification 01, by the same names.
//!
//! A field that may be absent is always there, as `null`: clients see one shape. What only the pages show is not
//! serialised.

use devmind_domain::Timestamp;
use devmind_domain::ids::*;
use serde::Serialize;

/// One line of `GET /api/conversations`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ConversationRow {
    /// The conversation.
    pub id: ConversationId,
    /// Its title.
    pub title: String,
    /// When it began.
    pub created_at: Timestamp,
    /// When its last turn was asked, or asked again.
    pub updated_at: Timestamp,
    /// `pending`, `running`, `interrupted`, `completed`, `failed` or `cancelled`.
    pub latest_turn_status: Option<String>,
}

/// One turn of `GET /api/turns`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TurnRow {
    /// The turn.
    pub id: TurnId,
    /// 1, 2, 3 … within the conversation.
    pub sequence_no: u32,
    /// `pending`, `running`, `interrupted`, `completed`, `failed` or `cancelled`.
    pub status: String,
    /// The question as it stands now.
    pub question: String,
    /// The answer, or what there is of it.
    pub answer: Option<String>,
    /// Whether the answer was cut off.
    pub partial: bool,
    /// The stable code, where the turn failed or was cancelled.
    pub error_code: Option<String>,
    /// Why it failed.
    pub error_message: Option<String>,
    /// What waits for a person's decision, oldest first.
    pub pending_approvals: Vec<PendingApproval>,
    /// The tool calls of all runs of this turn, oldest first.
    pub tool_calls: Vec<TurnToolCall>,
    /// Whether it is the conversation's latest turn.
    pub is_latest: bool,
    /// Whether it may be asked again: the latest turn, unless it is running.
    pub can_rerun: bool,
    /// The run that counts for the turn, ended or not.
    pub active_run: Option<ActiveRunRow>,
}

/// An open interrupt.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PendingApproval {
    /// The interrupt.
    pub interrupt_id: InterruptId,
    /// The call that waits for it; for pages.
    #[serde(skip)]
    pub tool_call_id: ToolCallId,
    /// The tool.
    pub tool: String,
    /// Its arguments, exactly.
    pub arguments: serde_json::Value,
    /// What the person is asked.
    pub message: String,
    /// When silence ends it.
    pub expires_at: Option<Timestamp>,
}

/// An open interrupt, with where it belongs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InboxRow {
    /// What is asked.
    pub approval: PendingApproval,
    /// SHA-256 of tool, version and arguments: the answer counts for these alone.
    pub arguments_hash: String,
    /// When it was asked.
    pub raised_at: Timestamp,
    /// The event that asked it.
    pub raised_position: u64,
    /// The call it would let go.
    pub tool_call_id: ToolCallId,
    /// The run that waits.
    pub run_id: RunId,
    /// The conversation.
    pub conversation_id: ConversationId,
    /// Its title.
    pub title: String,
    /// Whose it is.
    pub user_id: UserId,
}

/// A tool call as a turn shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TurnToolCall {
    /// The call.
    pub tool_call_id: ToolCallId,
    /// The tool.
    pub tool: String,
    /// `server` or `device`; for pages.
    #[serde(skip)]
    pub target: String,
    /// As in the tool_call view.
    pub status: String,
    /// `reserved`, `confirming` or `executing`: how far the device said to be with the last sending; for pages.
    #[serde(skip)]
    pub phase: Option<String>,
    /// `live`, or `redelivered` where the result came on a later connection than the call was sent on; for pages.
    #[serde(skip)]
    pub origin: Option<String>,
    /// Why it did not succeed, or why its outcome is not known.
    pub error_code: Option<String>,
    /// The arguments in one short line.
    pub summary: String,
}

/// The run that counts for a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ActiveRunRow {
    /// The run.
    pub run_id: RunId,
    /// `normal`, `resume` or `retry`.
    pub kind: String,
    /// `queued`, `running`, `interrupted`, `succeeded`, `failed` or `cancelled`.
    pub status: String,
}

/// A run with what is needed to execute it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunRow {
    /// The run.
    pub run_id: RunId,
    /// Its conversation.
    pub conversation_id: ConversationId,
    /// Its turn.
    pub turn_id: TurnId,
    /// The turn's number.
    pub sequence_no: u32,
    /// The conversation's owner.
    pub user_id: UserId,
    /// The journal of its agent loop.
    pub graph_thread_id: ThreadId,
    /// `normal`, `resume` or `retry`.
    pub kind: String,
    /// The run it continues or replaces.
    pub parent_run_id: Option<RunId>,
    /// `queued`, `running`, `interrupted`, `succeeded`, `failed` or `cancelled`.
    pub status: String,
    /// The device whose tools it may use.
    pub device_id: Option<DeviceId>,
    /// The question's message when the run was prepared.
    pub user_message_id: MessageId,
    /// The question when the run was prepared.
    pub content: String,
    /// The conversation's title.
    pub title: String,
    /// The server process that claimed it.
    pub node_id: Option<NodeId>,
    /// Which start of that process.
    pub epoch: Option<u64>,
}
