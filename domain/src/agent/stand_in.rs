//! Results for the calls that a run's end finds without one: a prompt must not hold a call without a result.
//!
//! What is recorded of a call is told as it would have been told while the run went on; the code of the run's end is
//! for a call of which no end is recorded, or none that this program can tell. That is an outcome like any other:
//! post-execute steps see it, and where the tool is at hand as it was offered, its `finalize_content` does too.

use crate::ErrorCode;
use crate::canonical::{canonical_json, sha256_hex};
use crate::ids::{ThreadId, ToolCallId};
use crate::limits::MAX_PAYLOAD_BYTES;
use crate::thread::{ModelToolCall, Thread, ToolResultObserved};
use crate::tool_call::{ToolCall, ToolCallRequested, ToolOutcomeRevised};
use crate::tools::{Admission, Finish, PostExecute, Registry, Seen, ToolOutcome, admit};
use std::sync::Arc;

/// Bytes of recorded results, as JSON writes them, that the end of one run tells at most: one append holds them.
const MAX_TOLD_BYTES: usize = MAX_PAYLOAD_BYTES;

/// The stages that make of a recorded outcome what the model sees.
#[derive(Clone, Copy)]
pub struct Stages<'a> {
    /// The tools.
    pub tools: &'a Registry,
    /// The id of this set of tools, where it is not what the program brings along.
    pub tool_set: Option<&'a str>,
    /// The post-execute steps.
    pub post_execute: &'a Arc<[PostExecute]>,
}

/// What is told of one call.
#[derive(Clone, Debug, PartialEq)]
pub struct StandIn {
    /// What the thread observes.
    pub observed: ToolResultObserved,
    /// The call, where stages changed what is told of it and its stream does not say yet that the model wants it.
    pub request: Option<(ModelToolCall, Admission)>,
    /// What stages made of the outcome and is not recorded yet.
    pub revisions: Vec<ToolOutcomeRevised>,
}

/// One result for every call of the latest answer that has none, in the model's order. `recorded` is what the call's
/// own stream says; without `stages` nothing of it is told, and every call has the code.
pub fn stand_in_results(
    thread: &Thread,
    thread_id: &ThreadId,
    recorded: impl Fn(&ToolCallId) -> Arc<ToolCall>,
    stages: Option<Stages<'_>>,
    code: ErrorCode,
) -> Vec<StandIn> {
    let unanswered = thread.exchanges.last().into_iter().flat_map(|last| last.unanswered());
    let mut left = MAX_TOLD_BYTES;
    let stand_in = |call: &ModelToolCall| {
        let tool_call_id = ToolCallId::of(thread_id, &call.id);
        let recorded = recorded(&tool_call_id);
        let mut fits = |seen: &Seen| {
            let bytes = canonical_json(seen.content.as_str()).len();
            let fits = bytes <= left;
            left -= if fits { bytes } else { 0 };
            fits
        };
        let code = match code {
            // Nobody can say of what was sent that it was not started.
            ErrorCode::ToolNotStarted if !recorded.attempts.is_empty() => ErrorCode::ResultUnknown,
            code => code,
        };
        let outcome = || ToolOutcome::failure(code, code.help());
        let seen = stages.and_then(|stages| seen(&recorded, stages)).filter(&mut fits);
        let seen = seen.map(|seen| (None, seen)).or_else(|| {
            let (request, seen) = unended(call, &recorded, thread, stages?, outcome())?;
            fits(&seen).then_some((request, seen))
        });
        let (request, Seen { outcome, content, revisions }) = seen.unwrap_or_else(|| {
            let (outcome, revisions) = (outcome(), Vec::new());
            (None, Seen { content: outcome.content(&call.name), outcome, revisions })
        });
        let (ok, error) = (outcome.ok(), outcome.error_code());
        StandIn { observed: ToolResultObserved { tool_call_id, ok, content, error }, request, revisions }
    };
    unanswered.map(stand_in).collect()
}

/// Whether the tool is the one that the call was requested of.
fn is_at_hand(request: &ToolCallRequested, tools: &Registry) -> bool {
    tools.get(&request.tool).map_or("", |known| known.version.as_str()) == request.tool_version
}

/// What the model would have seen of a settled call; nothing where its tool is not at hand in that version, or where
/// later stages made something else of it than they would now.
fn seen(call: &ToolCall, stages: Stages<'_>) -> Option<Seen> {
    let request = call.request.as_ref().filter(|request| is_at_hand(request, stages.tools))?;
    let outcome = match (call.refusal(), &call.result) {
        (Some(refusal), _) => ToolOutcome { result: Err(refusal.error()) },
        (None, Some(result)) => ToolOutcome::of(result),
        (None, None) => return None,
    };
    let finish = Finish::captured(stages.tools, &request.tool, stages.post_execute);
    let seen = finish.see(&request.arguments, outcome.into());
    match call.revisions.last() {
        None => Some(seen),
        Some(last) if last.content_hash == sha256_hex(seen.content.as_bytes()) => {
            Some(Seen { revisions: Vec::new(), ..seen })
        }
        Some(_) => None,
    }
}

/// What the model sees of a call whose end cannot be told, and the call where it must be recorded with that; nothing
/// where nobody can say which tool it is of: it was not requested, and the tools are others than the model was offered.
fn unended(
    call: &ModelToolCall,
    recorded: &ToolCall,
    thread: &Thread,
    stages: Stages<'_>,
    outcome: ToolOutcome,
) -> Option<(Option<(ModelToolCall, Admission)>, Seen)> {
    let Some(request) = &recorded.request else {
        if thread.tool_set.as_deref() != stages.tool_set {
            return None;
        }
        let admission = admit(stages.tools, call, false);
        let finish = Finish::captured(stages.tools, &admission.tool, stages.post_execute);
        // A tool that does not exist has the name that the model wrote.
        let seen = finish.see(&admission.arguments, outcome.into());
        let request = (!seen.revisions.is_empty()).then(|| (call.clone(), admission));
        return Some((request, seen));
    };
    // The last word of a tool that is another by now is not this call's.
    let none = Registry::default();
    let tools = if is_at_hand(request, stages.tools) { stages.tools } else { &none };
    let mut seen = Finish::captured(tools, &request.tool, stages.post_execute).see(&request.arguments, outcome.into());
    if recorded.revisions.ends_with(&seen.revisions) {
        seen.revisions.clear();
    }
    Some((None, seen))
}
