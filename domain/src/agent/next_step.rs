//! What the agent does next.

use super::approvals::{Approvals, Permission};
use super::conclusion::concluded;
use crate::ErrorCode;
use crate::ids::MessageId;
use crate::limits::{MAX_MODEL_ROUNDS_PER_RUN, MAX_TOOL_CALLS_PER_RUN};
use crate::thread::{ModelToolCall, Thread};
use crate::tools::Registry;

/// One step of the loop.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Ask the model.
    CallModel {
        /// 1, 2, 3 …
        round: u32,
    },
    /// Hear the policies about calls of the latest answer.
    Judge(Vec<PlannedCall>),
    /// Carry out calls of the latest answer, in the model's order.
    RunTools(Vec<PlannedCall>),
    /// These calls wait for a person; everything else of the latest answer is done.
    AwaitApproval(Vec<PlannedCall>),
    /// The turn has its answer: the latest one of the model, or what a tool gave that ended the turn.
    Finish {
        /// The answer's message.
        message_id: MessageId,
        /// The answer.
        answer: String,
    },
    /// The run cannot go on.
    Fail {
        /// A stable code.
        code: String,
        /// What a person can read.
        message: String,
    },
}

/// A call to carry out.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedCall {
    /// The call.
    pub call: ModelToolCall,
    /// Whether the run has used up its calls: then it is answered, not carried out.
    pub over_limit: bool,
    /// Whether it may go on.
    pub permission: Permission,
}

/// What to do next; the thread, what was decided about its calls and which tools there are is all there is to know.
pub fn next_step(thread: &Thread, approvals: &Approvals, tools: &Registry) -> Step {
    if let Some(failure) = &thread.failure {
        return Step::Fail { code: failure.code.clone(), message: failure.message.clone() };
    }
    let Some(last) = thread.exchanges.last() else {
        return Step::CallModel { round: 1 };
    };
    let earlier: usize = thread.exchanges.iter().rev().skip(1).map(|exchange| exchange.calls.len()).sum();
    let waiting: Vec<_> = last
        .calls
        .iter()
        .enumerate()
        .filter(|(_, call)| last.result_of(&call.id).is_none())
        .map(|(index, call)| {
            let over_limit = earlier + index >= MAX_TOOL_CALLS_PER_RUN as usize;
            PlannedCall { call: call.clone(), over_limit, permission: approvals.about(tools, call, over_limit) }
        })
        .collect();
    // Nothing is sent, and nobody asked, while a call of the message is unjudged.
    let unjudged: Vec<_> =
        waiting.iter().filter(|planned| planned.permission == Permission::Unjudged).cloned().collect();
    if !unjudged.is_empty() {
        return Step::Judge(unjudged);
    }
    // A call that waits for a person does not hold back the others.
    let (undecided, ready): (Vec<_>, Vec<_>) =
        waiting.into_iter().partition(|planned| planned.permission == Permission::Undecided);
    if !ready.is_empty() {
        return Step::RunTools(ready);
    }
    if !undecided.is_empty() {
        return Step::AwaitApproval(undecided);
    }
    if let Some((message_id, answer)) = concluded(last) {
        return Step::Finish { message_id, answer };
    }
    if last.calls.is_empty() {
        return Step::Finish { message_id: last.message_id.clone(), answer: last.content.clone() };
    }
    if thread.rounds() >= MAX_MODEL_ROUNDS_PER_RUN {
        return Step::Fail {
            code: ErrorCode::ModelRoundLimit.as_str().to_owned(),
            message: format!("the model was asked {MAX_MODEL_ROUNDS_PER_RUN} times without an answer"),
        };
    }
    Step::CallModel { round: thread.rounds() + 1 }
}
