//! Results for calls that will never get one: a prompt must not hold a call without a result.

use crate::ErrorCode;
use crate::ids::{ThreadId, ToolCallId};
use crate::thread::{Thread, ToolResultObserved};
use crate::tools::ToolOutcome;

/// One result for every call of the latest answer that has none, in the model's order; `code` says with
/// which code.
pub fn stand_in_results(
    thread: &Thread,
    thread_id: &ThreadId,
    code: impl Fn(&ToolCallId) -> ErrorCode,
) -> Vec<ToolResultObserved> {
    let unanswered = thread.exchanges.last().into_iter().flat_map(|last| last.unanswered());
    unanswered
        .map(|call| {
            let tool_call_id = ToolCallId::of(thread_id, &call.id);
            let code = code(&tool_call_id);
            let outcome = ToolOutcome::failure(code, code.help());
            ToolResultObserved {
                tool_call_id,
                ok: false,
                content: outcome.content(&call.name),
                error: outcome.error_code(),
            }
        })
        .collect()
}
