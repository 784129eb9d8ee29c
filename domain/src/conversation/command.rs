//! What can be asked of a conversation.

use super::event::RunCancelReason;
use crate::ids::*;

/// A command; ids are made by the caller.
#[derive(Clone, Debug)]
pub enum ConversationCommand {
    /// Asks a question: a new turn with a queued run.
    Ask(Ask),
    /// Takes a queued run for a server process.
    ClaimRun {
        /// The run.
        run_id: RunId,
        /// Who claims.
        claim: Claim,
        /// SHA-256 of the messages the model will see.
        context_hash: String,
    },
    /// Ends a run with its answer.
    CompleteRun {
        /// The run.
        run_id: RunId,
        /// The claim it was executed under.
        claim: Claim,
        /// The answer's message.
        message_id: MessageId,
        /// The answer.
        answer: String,
    },
    /// Ends a run with an error.
    FailRun {
        /// The run.
        run_id: RunId,
        /// The claim it was executed under.
        claim: Claim,
        /// A stable code.
        error_code: String,
        /// What a person can read.
        error_message: String,
        /// The partial answer's message, when there is some.
        message_id: Option<MessageId>,
        /// What had been streamed.
        partial_text: String,
    },
    /// Ends a running run because it was stopped.
    CancelRun {
        /// The run.
        run_id: RunId,
        /// The claim it was executed under.
        claim: Claim,
        /// Why.
        reason: RunCancelReason,
        /// The partial answer's message, when there is some.
        message_id: Option<MessageId>,
        /// What had been streamed.
        partial_text: String,
    },
}

/// A question.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Who asks.
    pub user_id: UserId,
    /// Whether the caller named an existing conversation, rather than starting one.
    pub existing: bool,
    /// The new turn's id.
    pub turn_id: TurnId,
    /// The question's message id.
    pub message_id: MessageId,
    /// The run's id.
    pub run_id: RunId,
    /// The thread's id.
    pub graph_thread_id: ThreadId,
    /// The question.
    pub content: String,
    /// The device whose tools may be used.
    pub device_id: Option<DeviceId>,
}

/// One start of one server process: what a run is owned by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Claim {
    /// The process's name.
    pub node_id: NodeId,
    /// Which start of it.
    pub epoch: u64,
}
