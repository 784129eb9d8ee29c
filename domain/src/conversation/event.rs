//! What can happen in a conversation.

use super::grant::GrantScope;
use crate::event::{Role, event_set};
use crate::ids::*;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The first question came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConversationStarted {
    /// The owner.
    pub user_id: UserId,
    /// The first 50 characters of the first question.
    pub title: String,
}

/// Where a title came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TitleSource {
    /// From the first question.
    Derived,
    /// A person wrote it.
    Manual,
}

/// The title changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConversationRenamed {
    /// The new title.
    pub title: String,
    /// Where it came from.
    pub source: TitleSource,
}

/// The owner removed it; the log keeps it, views hide it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConversationDeleted {}

/// A question was asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnPrepared {
    /// The new turn.
    pub turn_id: TurnId,
    /// 1, 2, 3 … within the conversation.
    pub sequence_no: u32,
    /// The question's message.
    pub message_id: MessageId,
    /// The question.
    pub content: String,
    /// The device whose tools may be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_id: Option<DeviceId>,
}

/// The latest turn is to be answered anew.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnRerunPrepared {
    /// The turn.
    pub turn_id: TurnId,
    /// The question's message now.
    pub message_id: MessageId,
    /// The question now.
    pub content: String,
    /// The question's message before.
    pub previous_message_id: MessageId,
    /// Whether the question was changed.
    pub edited: bool,
    /// Messages that no longer count.
    pub replaced_message_ids: Vec<MessageId>,
}

/// What a run continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunKind {
    /// A new question.
    Normal,
    /// An interrupted run, after its decisions.
    Resume,
    /// The latest turn once more.
    Retry,
}

impl RunKind {
    /// As in events and answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Resume => "resume",
            Self::Retry => "retry",
        }
    }
}

/// What a person did to cause a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunTrigger {
    /// Asked.
    Ask,
    /// Answered an approval.
    Approval,
    /// Edited the question.
    Edit,
    /// Asked for another answer.
    Retry,
}

/// A run waits to be claimed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunPrepared {
    /// The run.
    pub run_id: RunId,
    /// The turn it answers.
    pub turn_id: TurnId,
    /// What it continues.
    pub kind: RunKind,
    /// What caused it.
    pub trigger: RunTrigger,
    /// 1, 2, 3 … within the turn.
    pub run_seq: u32,
    /// The journal of its agent loop.
    pub graph_thread_id: ThreadId,
    /// The run it continues or replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
    /// The device whose tools it may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_id: Option<DeviceId>,
}

/// A server process took the run: once, ever.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunClaimed {
    /// The run.
    pub run_id: RunId,
    /// The process's name.
    pub node_id: NodeId,
    /// Which start of that process.
    pub epoch: u64,
    /// SHA-256 of the exact messages the model will see.
    pub context_hash: String,
}

/// What an interrupt waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InterruptKind {
    /// A person's approval of one tool call.
    ToolApproval,
}

/// A person's decision is needed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InterruptRaised {
    /// The interrupt.
    pub interrupt_id: InterruptId,
    /// The run that paused.
    pub run_id: RunId,
    /// Its turn.
    pub turn_id: TurnId,
    /// What it waits for.
    pub kind: InterruptKind,
    /// The one call it is bound to.
    pub tool_call_id: ToolCallId,
    /// The tool.
    pub tool: String,
    /// The arguments, exactly.
    pub arguments: Value,
    /// Their hash; an approval holds for these alone.
    pub arguments_hash: String,
    /// What the person is asked.
    pub message: String,
    /// When silence ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// Somebody wants the run to end that a server process executes: it is that process that ends it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunStopRequested {
    /// The run.
    pub run_id: RunId,
}

/// The run paused; its interrupts are open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunInterrupted {
    /// The run.
    pub run_id: RunId,
}

/// A person decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InterruptResolved {
    /// The interrupt.
    pub interrupt_id: InterruptId,
    /// The decision.
    pub approved: bool,
    /// Who decided.
    pub resolved_by: UserId,
    /// The hash of the arguments that were shown.
    pub arguments_hash: String,
}

/// Why an interrupt ended without a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum InterruptCancelReason {
    /// The question was edited.
    Edited,
    /// The run was stopped.
    RunStopped,
    /// The conversation was removed.
    ConversationDeleted,
}

/// An interrupt ended without a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InterruptCancelled {
    /// The interrupt.
    pub interrupt_id: InterruptId,
    /// Why.
    pub reason: InterruptCancelReason,
}

/// Nobody decided in time; silence is not a refusal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InterruptExpired {
    /// The interrupt.
    pub interrupt_id: InterruptId,
}

/// With the answer to an approval, a person allowed more calls of the tool, as long as the conversation lasts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolGrantGiven {
    /// The grant.
    pub grant_id: GrantId,
    /// The approval that was answered.
    pub interrupt_id: InterruptId,
    /// The call that was shown.
    pub tool_call_id: ToolCallId,
    /// The tool.
    pub tool: String,
    /// The version of its definition; another one is another tool.
    pub tool_version: String,
    /// Which of its calls.
    pub scope: GrantScope,
    /// Who allows it.
    pub given_by: UserId,
}

/// A grant counts no more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolGrantRevoked {
    /// The grant.
    pub grant_id: GrantId,
    /// Who revoked it.
    pub revoked_by: UserId,
}

/// The run answered the turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSucceeded {
    /// The run.
    pub run_id: RunId,
    /// The answer's message.
    pub message_id: MessageId,
    /// The answer.
    pub answer: String,
}

/// The run ended with an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunFailed {
    /// The run.
    pub run_id: RunId,
    /// A stable code.
    pub error_code: String,
    /// What a person can read.
    pub error_message: String,
    /// The partial answer's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// What had been streamed.
    pub partial_text: String,
}

/// Why a run was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum RunCancelReason {
    /// The client went away.
    ClientDisconnected,
    /// A person stopped it.
    Stopped,
    /// A newer question came before it was claimed.
    Abandoned,
    /// Its turn was rerun before it was claimed.
    ReplacedByRerun,
}

impl RunCancelReason {
    /// As in events and answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClientDisconnected => "CLIENT_DISCONNECTED",
            Self::Stopped => "STOPPED",
            Self::Abandoned => "ABANDONED",
            Self::ReplacedByRerun => "REPLACED_BY_RERUN",
        }
    }
}

/// The run was stopped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunCancelled {
    /// The run.
    pub run_id: RunId,
    /// Why.
    pub error_code: RunCancelReason,
    /// The partial answer's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// What had been streamed.
    pub partial_text: String,
}

/// Somebody with a role read what belongs to another: recorded before the answer is sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConversationRead {
    /// Who read.
    pub by: UserId,
    /// By which right.
    pub role: Role,
    /// What was asked for, for example `turns`.
    pub what: String,
}

event_set! {
    /// What can happen in a conversation.
    ConversationEvent of Conversation {
        ConversationStarted = 1,
        ConversationRenamed = 1,
        ConversationDeleted = 1,
        TurnPrepared = 1,
        TurnRerunPrepared = 1,
        RunPrepared = 1,
        RunClaimed = 1,
        RunStopRequested = 1,
        InterruptRaised = 1,
        RunInterrupted = 1,
        InterruptResolved = 1,
        InterruptCancelled = 1,
        InterruptExpired = 1,
        ToolGrantGiven = 1,
        ToolGrantRevoked = 1,
        RunSucceeded = 1,
        RunFailed = 1,
        RunCancelled = 1,
        ConversationRead = 1,
    }
}
