//! What was decided about the calls of a thread: the policies' verdicts, and what people said.
//!
//! Either is bound to one call and to the hash of what was judged or shown (tool, version, arguments). For
//! anything else it does not exist: the call is judged anew, and a new interrupt is raised.

use crate::conversation::{Conversation, InterruptStatus};
use crate::ids::{ThreadId, ToolCallId, UserId};
use crate::thread::ModelToolCall;
use crate::tool_call::Decision;
use crate::tools::{BY_TOOL, Registry, Verdict, admit};
use std::collections::BTreeMap;

/// Whether a call may go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permission {
    /// No policy was heard about it yet.
    Unjudged,
    /// Nobody has to be asked: it can only fail, or the tool itself allows every call.
    NotNeeded,
    /// A policy or a grant allows it.
    Granted(Verdict),
    /// It is refused before anybody is asked.
    Denied(Verdict),
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
    /// The verdicts of the policies, with the hash of what was judged.
    verdicts: BTreeMap<ToolCallId, (String, Verdict)>,
}

impl Approvals {
    /// What the conversation says about the calls of a thread.
    pub fn of(conversation: &Conversation, thread_id: &ThreadId) -> Self {
        let interrupts = conversation.latest.iter().flat_map(|turn| &turn.interrupts);
        let decision = |interrupt: &crate::conversation::Interrupt| {
            (interrupt.tool_call_id.clone(), interrupt.arguments_hash.clone(), interrupt.status.clone())
        };
        let decisions = interrupts.map(decision).collect();
        Self { thread_id: thread_id.clone(), decisions, verdicts: BTreeMap::new() }
    }

    /// Takes the policies' verdict about what has this hash. What was recorded of a call counts before any other.
    pub fn judged(&mut self, call: ToolCallId, call_hash: String, verdict: Verdict) {
        self.verdicts.insert(call, (call_hash, verdict));
    }

    /// The policies' verdict about a call.
    pub fn verdict(&self, call: &ToolCallId) -> Option<&Verdict> {
        self.verdicts.get(call).map(|(_, verdict)| verdict)
    }

    /// Whether a call may go on. A call that can only fail needs nobody's permission to fail.
    pub fn about(&self, tools: &Registry, call: &ModelToolCall, over_limit: bool) -> Permission {
        let admission = admit(tools, call, over_limit);
        if admission.refusal.is_some() {
            return Permission::NotNeeded;
        }
        let id = ToolCallId::of(&self.thread_id, &call.id);
        let verdict = self.verdicts.get(&id).filter(|(hash, _)| *hash == admission.call_hash);
        let Some((_, verdict)) = verdict else { return Permission::Unjudged };
        match verdict.decision {
            Decision::Allow if verdict.by == BY_TOOL => return Permission::NotNeeded,
            Decision::Allow => return Permission::Granted(verdict.clone()),
            Decision::Deny => return Permission::Denied(verdict.clone()),
            Decision::Ask => {}
        }
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
