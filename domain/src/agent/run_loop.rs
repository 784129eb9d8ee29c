//! The loop: look at the thread, take a step, until the run ends.

use super::approvals::Approvals;
use super::next_step::{PlannedCall, Step, next_step};
use crate::ids::MessageId;
use crate::thread::Thread;
use crate::tools::Registry;
use std::future::Future;

/// How the loop causes effects. Every method appends what happened to the thread before it returns,
/// so that [`AgentPorts::thread`] has moved on.
pub trait AgentPorts: Send {
    /// Why the loop had to be left: a stop, a failure of the ledger.
    type Halt: Send;

    /// The thread as it is recorded.
    fn thread(&self) -> &Thread;

    /// What was decided about the thread's calls.
    fn approvals(&self) -> &Approvals;

    /// The tools there are for this run.
    fn tools(&self) -> &Registry;

    /// Asks the model.
    fn call_model(&mut self, round: u32) -> impl Future<Output = Result<(), Self::Halt>> + Send;

    /// Hears the policies about calls; [`AgentPorts::approvals`] then has a verdict about each. One that is recorded
    /// for a call is its verdict, whatever the policies would say now.
    fn judge(&mut self, calls: Vec<PlannedCall>) -> impl Future<Output = Result<(), Self::Halt>> + Send;

    /// Carries out calls; each one gets exactly one result.
    fn run_tools(&mut self, calls: Vec<PlannedCall>) -> impl Future<Output = Result<(), Self::Halt>> + Send;

    /// Asks a person about calls, and ends the run until there is an answer.
    fn await_approval(&mut self, calls: Vec<PlannedCall>) -> impl Future<Output = Result<(), Self::Halt>> + Send;
}

/// How a run of the loop ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentEnd {
    /// With an answer.
    Answered {
        /// The answer's message.
        message_id: MessageId,
        /// The answer.
        answer: String,
    },
    /// With a question to a person.
    Interrupted,
    /// With an error.
    Failed {
        /// A stable code.
        code: String,
        /// What a person can read.
        message: String,
    },
}

/// Runs the agent until it answers, fails or is halted.
///
/// # Errors
/// Whatever a port halts with.
pub async fn run_agent<P: AgentPorts>(ports: &mut P) -> Result<AgentEnd, P::Halt> {
    loop {
        match next_step(ports.thread(), ports.approvals(), ports.tools()) {
            Step::CallModel { round } => ports.call_model(round).await?,
            Step::Judge(calls) => ports.judge(calls).await?,
            Step::RunTools(calls) => ports.run_tools(calls).await?,
            Step::AwaitApproval(calls) => {
                ports.await_approval(calls).await?;
                return Ok(AgentEnd::Interrupted);
            }
            Step::Finish { message_id, answer } => return Ok(AgentEnd::Answered { message_id, answer }),
            Step::Fail { code, message } => return Ok(AgentEnd::Failed { code, message }),
        }
    }
}
