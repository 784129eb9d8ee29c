//! The tool_call view: what became of each call, with its attempts.

use super::access::read_conversation;
use super::extract::Query;
use super::fields::ClientId;
use super::openapi::refusals;
use crate::error::{ApiError, ApiResult};
use crate::identity::Caller;
use crate::state::App;
use axum::Json;
use axum::extract::State;
use devmind_domain::ErrorCode;
use devmind_domain::ids::{ConversationId, RunId};
use devmind_projections::{ToolCallQuery, ToolCallRow};
use serde::Deserialize;
use std::sync::Arc;
use utoipa::IntoParams;

/// Which calls: exactly one of the three.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct Which {
    /// Those of a conversation.
    conversation_id: Option<ClientId>,
    /// Those that a run asked for first.
    run_id: Option<ClientId>,
    /// One.
    tool_call_id: Option<ClientId>,
}

refusals!(Refusals: PERSONAL, QUERY; Forbidden, ConversationNotFound, RunNotFound, NotFound);

/// Calls of a conversation, of a run, or one; give exactly one of the three.
#[utoipa::path(get, path = "/api/tool-calls", tag = "runs", operation_id = "list_tool_calls",
    params(Which), responses((status = 200, body = Vec<ToolCallRow>), Refusals))]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(which): Query<Which>,
) -> ApiResult<Json<Vec<ToolCallRow>>> {
    app.caught_up(&["conversation", "tool_call"]).await?;
    match (which.conversation_id, which.run_id, which.tool_call_id) {
        (Some(conversation_id), None, None) => {
            let conversation_id: ConversationId = conversation_id.id();
            read_conversation(&app, &caller, &conversation_id, "tool_calls").await?;
            Ok(Json(app.views.tool_calls(ToolCallQuery::Conversation(conversation_id)).await?))
        }
        (None, Some(run_id), None) => {
            let run_id: RunId = run_id.id();
            let run = app.views.find_run(&run_id).await?.ok_or_else(|| ApiError::of(ErrorCode::RunNotFound))?;
            read_conversation(&app, &caller, &run.conversation_id, "tool_calls").await?;
            Ok(Json(app.views.tool_calls(ToolCallQuery::Run(run_id)).await?))
        }
        (None, None, Some(tool_call_id)) => {
            let rows = app.views.tool_calls(ToolCallQuery::Call(tool_call_id.id())).await?;
            let Some(row) = rows.first() else {
                return Err(ApiError::new(ErrorCode::NotFound, "there is no such tool call"));
            };
            read_conversation(&app, &caller, &row.conversation_id, "tool_calls").await?;
            Ok(Json(rows))
        }
        _ => Err(ApiError::field("query", "give one of conversation_id, run_id, tool_call_id")),
    }
}
