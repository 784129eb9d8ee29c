//! Why a conversation refuses a command.

use crate::ErrorCode;

/// A refusal; nothing has happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConversationError {
    /// There is no such conversation (or it was deleted).
    #[error("there is no such conversation")]
    NotFound,
    /// It belongs to somebody else.
    #[error("the conversation belongs to somebody else")]
    NotOwner,
    /// The latest turn is being answered.
    #[error("the latest turn is still being answered")]
    RunInProgress,
    /// The latest turn waits for a person.
    #[error("the latest turn waits for an approval")]
    WaitingApproval,
    /// There is no such run here.
    #[error("there is no such run")]
    RunNotFound,
    /// The run was claimed before.
    #[error("the run was already claimed")]
    AlreadyClaimed,
    /// Only the latest turn can be answered anew.
    #[error("only the latest turn can be answered anew")]
    TurnNotLatest,
    /// It is not one of the latest thread's: a newer question or answer took its place.
    #[error("this approval has made way for a newer question or answer")]
    InterruptNotFound,
    /// The interrupt was answered the other way.
    #[error("the approval was already answered the other way")]
    InterruptAlreadyResolved,
    /// The interrupt ended without an answer.
    #[error("the approval is no longer open")]
    InterruptClosed,
    /// Nobody answered in time.
    #[error("the time to answer this approval is over")]
    InterruptExpired,
    /// This cannot be allowed for the whole of a conversation.
    #[error("this cannot be allowed for the whole conversation: {0}")]
    GrantRefused(&'static str),
    /// There is no such grant (any more).
    #[error("there is no such permission; it may have been revoked")]
    GrantNotFound,
    /// A server process executes the run: it must be told.
    #[error("the run is being executed")]
    RunExecuting,
    /// The run has ended, or is owned by another process or another start of it.
    #[error("the run has ended or belongs to another server process")]
    RunNotActive,
    /// A run is interrupted by at least one question: a fault of whoever interrupts it.
    #[error("a run cannot wait for approvals without naming one")]
    NothingToAsk,
}

impl ConversationError {
    /// The stable code.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound => ErrorCode::ConversationNotFound,
            Self::NotOwner => ErrorCode::Forbidden,
            Self::RunInProgress => ErrorCode::RunInProgress,
            Self::WaitingApproval => ErrorCode::TurnWaitingApproval,
            Self::RunNotFound => ErrorCode::RunNotFound,
            Self::AlreadyClaimed => ErrorCode::RunAlreadyClaimed,
            Self::TurnNotLatest => ErrorCode::TurnNotLatest,
            Self::InterruptAlreadyResolved => ErrorCode::InterruptAlreadyResolved,
            // Whoever found the conversation by the interrupt knows that there was one.
            Self::InterruptNotFound | Self::InterruptClosed => ErrorCode::InterruptClosed,
            Self::InterruptExpired => ErrorCode::InterruptExpired,
            Self::GrantRefused(_) => ErrorCode::GrantRefused,
            Self::GrantNotFound => ErrorCode::GrantNotFound,
            Self::RunExecuting => ErrorCode::RunInProgress,
            Self::RunNotActive => ErrorCode::RunNotActive,
            Self::NothingToAsk => ErrorCode::Internal,
        }
    }
}
