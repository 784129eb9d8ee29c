//! A device call that no model asked for. It belongs to a run like a model's: its stop is the call's, and
//! it lives in a task that the process owns.

use super::call::requested;
use crate::device_gateway::calls::{CallContext, CallEnd};
use crate::error::{ApiError, ApiResult};
use crate::state::App;
use devmind_domain::ErrorCode;
use devmind_domain::event::Actor;
use devmind_domain::ids::ToolCallId;
use devmind_domain::tool_call::ToolCallError;
use devmind_domain::tools::{Admission, ToolOutcome};
use devmind_projections::RunRow;
use std::sync::Arc;

/// Calls and waits.
///
/// # Errors
/// When the ledger fails, or the run was stopped by the end of the process.
pub async fn call(
    app: &Arc<App>,
    run: RunRow,
    model_call_id: &str,
    id: ToolCallId,
    admission: Admission,
) -> ApiResult<ToolOutcome> {
    let request = requested(&run, model_call_id, &admission);
    let active = app.runs.enter(&run.run_id);
    let context = CallContext {
        run_id: run.run_id.clone(),
        metadata: app.metadata(Actor::user(&run.user_id)).conversation(&run.conversation_id).run(&run.run_id),
        conversation_title: run.title,
        signal: active.signal.clone(),
    };
    let owner = app.clone();
    let task = app.run_tasks.spawn(async move {
        let end = owner.gateway.call(&owner.ledger, &owner.claim, context, &id, request).await;
        drop(active);
        end
    });
    match task.await {
        Ok(Ok(CallEnd::Outcome(outcome) | CallEnd::Stopped(_, outcome))) => Ok(outcome),
        Ok(Err(error)) => Err(error.into()),
        Err(error) => Err(ApiError::internal(ErrorCode::Internal, &error)),
    }
}

impl From<ToolCallError> for ApiError {
    fn from(error: ToolCallError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
