//! Guards: the last look at a call, after everybody has decided about it and right before it is dispatched.
//!
//! A guard is synchronous and can only refuse: it has no word for "allow", so the order of guards cannot turn a
//! refusal into permission. One that panics refuses. [`built_in_guards`] are those that every call passes; what they
//! look at ([`AtDispatch`]) is read again right before, never remembered. Recording a refusal is left to the caller.

use super::ToolDefinition;
use crate::ErrorCode;
use crate::agent::Permission;
use crate::canonical::{call_hash, canonical_json};
use crate::conversation::{Conversation, RunStatus};
use crate::limits::MAX_TOOL_ARGUMENTS_BYTES;
use crate::tool_call::{ToolCall, ToolCallRequested};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A call right before it is dispatched.
pub struct AtDispatch<'a> {
    /// The tool, as the run knows it.
    pub definition: &'a ToolDefinition,
    /// What will be carried out.
    pub request: &'a ToolCallRequested,
    /// The call's own stream.
    pub call: &'a ToolCall,
    /// The conversation of the run that makes it; none where no run does.
    pub conversation: Option<&'a Conversation>,
    /// What is decided about it, by what the conversation says now.
    pub permission: &'a Permission,
}

/// Why a guard refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// `GUARD_REFUSED`, unless there is a better one.
    pub code: ErrorCode,
    /// Words for the model.
    pub reason: String,
}

impl Refusal {
    /// With `GUARD_REFUSED`.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { code: ErrorCode::GuardRefused, reason: reason.into() }
    }
}

type Check = Arc<dyn Fn(&AtDispatch<'_>) -> Result<(), Refusal> + Send + Sync>;

/// One guard.
#[derive(Clone)]
pub struct Guard {
    id: Arc<str>,
    check: Check,
}

impl Guard {
    /// A guard; the id stands in the event of a refusal.
    pub fn new(id: &str, check: impl Fn(&AtDispatch<'_>) -> Result<(), Refusal> + Send + Sync + 'static) -> Self {
        Self { id: id.into(), check: Arc::new(check) }
    }
}

/// Asks guards in order, up to the first that refuses.
///
/// # Errors
/// The id of that guard, and why.
pub fn ask_guards(guards: &[Guard], call: &AtDispatch<'_>) -> Result<(), (String, Refusal)> {
    for guard in guards {
        let asked = catch_unwind(AssertUnwindSafe(|| (guard.check)(call)));
        let verdict = asked.unwrap_or_else(|_panic| Err(Refusal::new("a guard has a fault, and then nothing passes")));
        verdict.map_err(|refusal| (guard.id.to_string(), refusal))?;
    }
    Ok(())
}

/// What every call passes.
pub fn built_in_guards() -> Vec<Guard> {
    vec![
        Guard::new("arguments_hash", |at| {
            let request = at.request;
            let same_tool = (&request.tool, &request.tool_version) == (&at.definition.name, &at.definition.version);
            let hash = call_hash(&request.tool, &request.tool_version, &request.arguments);
            // That the call is the one that its stream knows, its stream says when it is dispatched.
            require(same_tool && hash == request.call_hash, "this is not the call that was requested")
        }),
        Guard::new("arguments_size", |at| {
            let bytes = canonical_json(&at.request.arguments).len();
            require(
                bytes <= MAX_TOOL_ARGUMENTS_BYTES,
                &format!("arguments have {bytes} bytes, at most {MAX_TOOL_ARGUMENTS_BYTES} are carried out"),
            )
        }),
        Guard::new("permission", |at| {
            let holds =
                matches!(at.permission, Permission::NotNeeded | Permission::Granted(_) | Permission::Allowed(_));
            require(holds, "what was decided about this call does not hold any more")
        }),
        Guard::new("single_use", |at| {
            let used = matches!(at.permission, Permission::Allowed(_)) && !at.call.attempts.is_empty();
            require(!used, "a person allowed this call once, and it was sent already")
        }),
        Guard::new("run", |at| {
            let Some(conversation) = at.conversation else { return Ok(()) };
            let latest = conversation.latest.as_ref().and_then(|turn| turn.run.as_ref());
            let own = latest.filter(|run| run.graph_thread_id == at.request.graph_thread_id);
            let goes_on = own.is_some_and(|run| matches!(run.status, RunStatus::Running(_)) && !run.stop_requested);
            if goes_on && !conversation.deleted {
                return Ok(());
            }
            let code = ErrorCode::AbortedBeforeDispatch;
            Err(Refusal { code, reason: code.help().to_owned() })
        }),
    ]
}

fn require(holds: bool, reason: &str) -> Result<(), Refusal> {
    if holds { Ok(()) } else { Err(Refusal::new(reason)) }
}

#[cfg(test)]
mod tests;
