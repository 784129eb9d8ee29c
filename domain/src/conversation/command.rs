//! What can be asked of a conversation.

use super::event::RunCancelReason;
use super::grant::NewGrant;
use crate::event::Role;
use crate::ids::*;
use crate::time::Timestamp;
use serde_json::Value;

/// A command; ids are made by the caller.
#[derive(Clone, Debug)]
pub enum ConversationCommand {
    /// Asks a question: a new turn with a queued run.
    Ask(Ask),
    /// Answers the latest turn anew, with the same question or an edited one.
    Rerun(Rerun),
    /// Pauses a running run for a person's decisions.
    Interrupt {
        /// The run.
        run_id: RunId,
        /// The claim it was executed under.
        claim: Claim,
        /// What is asked; never empty.
        interrupts: Vec<NewInterrupt>,
    },
    /// Answers open interrupts; the last answer prepares the run that goes on.
    Answer(Answer),
    /// Takes back what was allowed for the whole conversation.
    RevokeGrant {
        /// Who revokes.
        user_id: UserId,
        /// The grant.
        grant_id: GrantId,
    },
    /// Ends open interrupts whose time is over; the last one prepares the run that goes on.
    Expire {
        /// The time.
        now: Timestamp,
        /// The id of the run that goes on.
        run_id: RunId,
    },
    /// Stops the run where no process executes it: queued or interrupted.
    Stop {
        /// Who stops.
        user_id: UserId,
        /// The run.
        run_id: RunId,
    },
    /// Asks whoever executes the run to stop it.
    RequestStop {
        /// Who stops.
        user_id: UserId,
        /// The run.
        run_id: RunId,
    },
    /// Changes the title.
    Rename {
        /// Who renames.
        user_id: UserId,
        /// The new title.
        title: String,
    },
    /// Removes the conversation from the views.
    Delete {
        /// Who deletes.
        user_id: UserId,
    },
    /// Records that somebody with a role reads what belongs to another.
    RecordRead {
        /// Who reads.
        by: UserId,
        /// By which right.
        role: Role,
        /// What is asked for.
        what: String,
    },
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

/// A turn to answer anew.
#[derive(Clone, Debug)]
pub struct Rerun {
    /// Who asks.
    pub user_id: UserId,
    /// The turn; only the latest one can be rerun.
    pub turn_id: TurnId,
    /// The edited question; absent: the same one.
    pub content: Option<String>,
    /// The edited question's message id.
    pub message_id: MessageId,
    /// The run's id.
    pub run_id: RunId,
    /// The thread's id.
    pub graph_thread_id: ThreadId,
}

/// A pause to be raised.
#[derive(Clone, Debug)]
pub struct NewInterrupt {
    /// Its id.
    pub interrupt_id: InterruptId,
    /// The one call it is bound to.
    pub tool_call_id: ToolCallId,
    /// The tool.
    pub tool: String,
    /// The arguments, exactly.
    pub arguments: Value,
    /// The hash of what is approved: tool, version and arguments.
    pub arguments_hash: String,
    /// What the person is asked.
    pub message: String,
    /// When silence ends it.
    pub expires_at: Option<Timestamp>,
}

/// Decisions about open interrupts.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Who decides.
    pub user_id: UserId,
    /// Interrupt and decision.
    pub decisions: Vec<(InterruptId, bool)>,
    /// What is allowed for the whole conversation with some of them.
    pub grants: Vec<NewGrant>,
    /// The time.
    pub now: Timestamp,
    /// The id of the run that goes on.
    pub run_id: RunId,
}

/// One start of one server process: what a run is owned by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Claim {
    /// The process's name.
    pub node_id: NodeId,
    /// Which start of it.
    pub epoch: u64,
}
