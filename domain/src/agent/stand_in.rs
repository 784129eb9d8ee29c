//! Results for the calls that a run's end finds without one: a prompt must not hold a call without a result.
//!
//! What is recorded of a call is told as it would have been told while the run went on; the code of the run's end is
//! for a call of which no end is recorded, or none that this program can tell.

use crate::ErrorCode;
use crate::canonical::{canonical_json, sha256_hex};
use crate::ids::{ThreadId, ToolCallId};
use crate::limits::MAX_PAYLOAD_BYTES;
use crate::thread::{ModelToolCall, Thread, ToolResultObserved};
use crate::tool_call::{ToolCall, ToolOutcomeRevised};
use crate::tools::{Finish, PostExecute, Registry, Seen, ToolOutcome};
use std::sync::Arc;

/// Bytes of recorded results, as JSON writes them, that the end of one run tells at most: one append holds them.
const MAX_TOLD_BYTES: usize = MAX_PAYLOAD_BYTES;

/// The stages that make of a recorded outcome what the model sees.
#[derive(Clone, Copy)]
pub struct Stages<'a> {
    /// The tools.
    pub tools: &'a Registry,
    /// The post-execute steps.
    pub post_execute: &'a Arc<[PostExecute]>,
}

/// What is told of one call.
#[derive(Clone, Debug, PartialEq)]
pub struct StandIn {
    /// What the thread observes.
    pub observed: ToolResultObserved,
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
        let seen = stages.and_then(|stages| seen(&recorded, stages)).filter(|seen| {
            let bytes = canonical_json(seen.content.as_str()).len();
            let fits = bytes <= left;
            left -= if fits { bytes } else { 0 };
            fits
        });
        let Seen { outcome, content, revisions } = seen.unwrap_or_else(|| {
            let code = match code {
                // Nobody can say of what was sent that it was not started.
                ErrorCode::ToolNotStarted if !recorded.attempts.is_empty() => ErrorCode::ResultUnknown,
                code => code,
            };
            let outcome = ToolOutcome::failure(code, code.help());
            Seen { content: outcome.content(&call.name), outcome, revisions: Vec::new() }
        });
        let (ok, error) = (outcome.ok(), outcome.error_code());
        StandIn { observed: ToolResultObserved { tool_call_id, ok, content, error }, revisions }
    };
    unanswered.map(stand_in).collect()
}

/// What the model would have seen of a settled call; nothing where its tool is not at hand in that version, or where
/// later stages made something else of it than they would now.
fn seen(call: &ToolCall, stages: Stages<'_>) -> Option<Seen> {
    let request = call.request.as_ref()?;
    let version = stages.tools.get(&request.tool).map_or("", |known| known.version.as_str());
    if version != request.tool_version {
        return None;
    }
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
