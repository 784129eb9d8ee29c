//! What can be asked of a thread: each command records one fact of the loop.

use super::event::*;

/// A command.
#[derive(Clone, Debug)]
pub enum ThreadCommand {
    /// Begins the journal.
    Start(ThreadStarted),
    /// The model is about to be asked.
    RequestModel(ModelRequested),
    /// A piece of its answer came.
    Progress(AnswerProgressed),
    /// It answered; ids of calls are made unique here.
    RecordResponse(ModelResponded),
    /// It failed.
    RecordFailure(ModelFailed),
    /// A call of the latest answer has its result, and leaves this where it succeeded.
    ObserveResult(ToolResultObserved, Deferred),
}

/// What a tool leaves for the time after all results of its message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deferred {
    /// What the model is told then, each as a message of its own.
    pub contexts: Vec<String>,
    /// Whether the turn ends then.
    pub concludes_turn: bool,
}

/// A refusal: the fact does not follow from what is there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThreadError {
    /// The journal exists.
    #[error("the thread has begun already")]
    AlreadyStarted,
    /// The journal does not exist.
    #[error("the thread has not begun")]
    NotStarted,
    /// The fact belongs to another round.
    #[error("the thread is in round {expected}, not {got}")]
    WrongRound {
        /// Where the thread stands.
        expected: u32,
        /// What the command said.
        got: u32,
    },
    /// Nobody asked the model.
    #[error("the model was not asked")]
    NotAsked,
    /// A tool has ended the turn.
    #[error("a tool has ended the turn")]
    Concluded,
    /// Calls of the last answer wait for their results.
    #[error("calls of the last answer have no result yet")]
    ResultsMissing,
    /// No such call waits for a result.
    #[error("no such call waits for a result")]
    UnexpectedResult,
}
