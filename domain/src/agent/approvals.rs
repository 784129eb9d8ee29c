//! What people decided about the calls of a thread.
//!
//! A decision is bound to one call and to the hash of what was shown (tool, version, arguments). For
//! anything else it does not exist, and a new interrupt is raised.

use crate::conversation::{Conversation, InterruptStatus};
use crate::ids::{ThreadId, ToolCallId, UserId};
use crate::thread::ModelToolCall;
use crate::tools::{Approval, Registry, admit};

/// Whether a call may go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Nobody has to be asked.
    NotNeeded,
    /// A person must decide, and has not.
    Undecided,
    /// A person allowed exactly this call.
    Allowed(UserId),
    /// A person said no.
    Rejected(UserId),
    /// Nobody decided in time; not a refusal.
    Expired,
    /// The question was taken back.
    Cancelled,
}

/// The decisions about the calls of one thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Approvals {
    thread_id: ThreadId,
    /// Call, hash and state, oldest first.
    decisions: Vec<(ToolCallId, String, InterruptStatus)>,
}

impl Approvals {
    /// What the conversation says about the calls of a thread.
    pub fn of(conversation: &Conversation, thread_id: &ThreadId) -> Self {
        let interrupts = conversation.latest.iter().flat_map(|turn| &turn.interrupts);
        let decision = |interrupt: &crate::conversation::Interrupt| {
            (interrupt.tool_call_id.clone(), interrupt.arguments_hash.clone(), interrupt.status.clone())
        };
        Self { thread_id: thread_id.clone(), decisions: interrupts.map(decision).collect() }
    }

    /// Whether a call may go on. A call that can only fail needs nobody's permission to fail.
    pub fn about(&self, tools: &Registry, call: &ModelToolCall, over_limit: bool) -> Permission {
        let admission = admit(tools, call, over_limit);
        let definition = tools.get(&admission.tool);
        if admission.refusal.is_some() || definition.is_none_or(|definition| definition.approval == Approval::Never) {
            return Permission::NotNeeded;
        }
        let id = ToolCallId::of(&self.thread_id, &call.id);
        let newest =
            self.decisions.iter().rev().find(|(call_id, hash, _)| *call_id == id && *hash == admission.call_hash);
        match newest.map(|(_, _, status)| status) {
            None | Some(InterruptStatus::Open) => Permission::Undecided,
            Some(InterruptStatus::Resolved { approved: true, by }) => Permission::Allowed(by.clone()),
            Some(InterruptStatus::Resolved { approved: false, by }) => Permission::Rejected(by.clone()),
            Some(InterruptStatus::Cancelled) => Permission::Cancelled,
            Some(InterruptStatus::Expired) => Permission::Expired,
        }
    }
}
