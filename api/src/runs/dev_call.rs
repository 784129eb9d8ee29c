//! A device call that no model asked for. It goes through the stages of a model's call, and belongs to a run like one:
//! its stop is the call's, and it lives in a task that the process owns. Nobody is asked in the conversation.

use super::call::Calls;
use super::execution::Halt;
use crate::error::{ApiError, ApiResult};
use crate::state::App;
use devmind_domain::ErrorCode;
use devmind_domain::agent::{Approvals, Permission, PlannedCall};
use devmind_domain::conversation::Conversation;
use devmind_domain::thread::ModelToolCall;
use devmind_domain::tool_call::ToolCallError;
use devmind_domain::tools::ToolOutcome;
use devmind_projections::RunRow;
use std::sync::Arc;

/// Calls and waits.
///
/// # Errors
/// When the ledger fails, or the run was stopped by the end of the process.
pub async fn call(app: &Arc<App>, run: RunRow, call: ModelToolCall) -> ApiResult<ToolOutcome> {
    let active = app.runs.enter(&run.run_id);
    let calls =
        Calls { app: app.clone(), run, tools: app.tools.current(), signal: active.signal.clone(), parent: None };
    let task = app.run_tasks.spawn(async move {
        let outcome = carry_out(&calls, call).await;
        drop(active);
        outcome
    });
    match task.await {
        Ok(done) => done.map_err(ApiError::from),
        Err(error) => Err(ApiError::internal(ErrorCode::Internal, &error)),
    }
}

async fn carry_out(calls: &Calls, call: ModelToolCall) -> Result<ToolOutcome, Halt> {
    let mut approvals = Approvals::of(&Conversation::default(), &calls.run.graph_thread_id);
    if let Some(judged) = calls.judge(&call, false, false).await? {
        approvals.judged(judged.tool_call_id, judged.call_hash, judged.verdict);
    }
    let permission = approvals.about(calls.tools.registry(), &call, false);
    if permission == Permission::Undecided {
        // A run has a person asked about it: that is not to be answered from here.
        return Ok(ToolOutcome::failure(ErrorCode::ApprovalRequired, ErrorCode::ApprovalRequired.help()));
    }
    let planned = PlannedCall { call, over_limit: false, permission };
    Ok(calls.carry_out(&planned).await?.outcome)
}

impl From<ToolCallError> for ApiError {
    fn from(error: ToolCallError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<Halt> for ApiError {
    fn from(halt: Halt) -> Self {
        match halt {
            Halt::Stopped(_) => Self::of(ErrorCode::AbortedBeforeDispatch),
            Halt::Append(error) => error.into(),
            Halt::Ledger(error) => error.into(),
            Halt::ToolCall(error) => error.into(),
            Halt::Conversation(error) => error.into(),
            Halt::Thread(error) => Self::internal(ErrorCode::Internal, &error),
            Halt::Broken(error) => Self::internal(ErrorCode::Internal, &error),
        }
    }
}
