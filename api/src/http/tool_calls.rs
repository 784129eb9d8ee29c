//! The tool_call view: what became of each call, with its attempts.

use super::conversations::check_owner;
use super::extract::Query;
use crate::error::{ApiError, ApiResult};
use crate::identity::User;
use crate::state::App;
use axum::Json;
use axum::extract::State;
use devmind_domain::ErrorCode;
use devmind_domain::ids::{ConversationId, RunId, ToolCallId};
use devmind_projections::{ToolCallQuery, ToolCallRow};
use serde::Deserialize;
use std::sync::Arc;

/// Which calls: exactly one of the three.
#[derive(Deserialize)]
pub struct Which {
    conversation_id: Option<ConversationId>,
    run_id: Option<RunId>,
    tool_call_id: Option<ToolCallId>,
}

/// Calls of a conversation, of a run, or one.
pub async fn list(
    State(app): State<Arc<App>>,
    User(user): User,
    Query(which): Query<Which>,
) -> ApiResult<Json<Vec<ToolCallRow>>> {
    app.caught_up(&["conversation", "tool_call"]).await?;
    match (which.conversation_id, which.run_id, which.tool_call_id) {
        (Some(conversation_id), None, None) => {
            check_owner(&app, &conversation_id, &user).await?;
            Ok(Json(app.views.tool_calls(ToolCallQuery::Conversation(conversation_id)).await?))
        }
        (None, Some(run_id), None) => {
            let run = app.views.find_run(&run_id).await?.ok_or_else(|| ApiError::of(ErrorCode::RunNotFound))?;
            check_owner(&app, &run.conversation_id, &user).await?;
            Ok(Json(app.views.tool_calls(ToolCallQuery::Run(run_id)).await?))
        }
        (None, None, Some(tool_call_id)) => {
            let rows = app.views.tool_calls(ToolCallQuery::Call(tool_call_id)).await?;
            match rows.first() {
                None => Err(ApiError::new(ErrorCode::NotFound, "there is no such tool call")),
                Some(row) if row.user_id != user => Err(ApiError::of(ErrorCode::Forbidden)),
                Some(_) => Ok(Json(rows)),
            }
        }
        _ => Err(ApiError::field("query", "give one of conversation_id, run_id, tool_call_id")),
    }
}
