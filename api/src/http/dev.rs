//! For developers, on their own machine alone: a device tool is called without a model, the way a run
//! calls it.

use super::extract::Body;
use super::fields::ClientId;
use super::openapi::refusals;
use crate::error::{ApiError, ApiResult};
use crate::identity::Author;
use crate::ids::new_id;
use crate::runs::dev_call::call;
use crate::state::App;
use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use devmind_domain::ErrorCode;
use devmind_domain::ids::{RunId, ToolCallId};
use devmind_domain::thread::ModelToolCall;
use devmind_domain::tool_call::{Target, ToolError};
use devmind_domain::tools::{ToolOutcome, admit, catalogue};
use devmind_projections::RunRow;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use utoipa::ToSchema;

/// Passes only where the development headers count: anywhere else there is no such route.
pub struct Development;

impl FromRequestParts<Arc<App>> for Development {
    type Rejection = ApiError;

    async fn from_request_parts(_: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        if app.identities.development { Ok(Self) } else { Err(ApiError::of(ErrorCode::NotFound)) }
    }
}

/// A call.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CallBody {
    /// A run of yours; its device is asked.
    run_id: ClientId,
    /// For example `workspace.read_file`.
    tool_name: ClientId,
    /// As the tool's schema says.
    #[schema(value_type = Object)]
    arguments: Value,
    /// The call; absent: a new one. The same id again is the same call: it is answered from the ledger, joined
    /// while it is under way, or sent once more where nobody knows what became of it.
    tool_call_id: Option<ClientId>,
}

/// What became of it, as a model would be told.
#[derive(Serialize, ToSchema)]
pub struct Called {
    /// The call.
    tool_call_id: String,
    /// Whether it succeeded.
    ok: bool,
    /// What it gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Value>,
    /// Why it gave nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    error: Option<ToolError>,
}

refusals!(Refusals: PERSONAL, CHANGE; NotFound, Forbidden, RunNotFound, UnknownTool, InvalidArguments);

/// The run. Whose it is, its thread and its device never change, so what the views know of it already will do.
async fn find_run(app: &App, run_id: &RunId) -> ApiResult<RunRow> {
    if let Some(run) = app.views.find_run(run_id).await? {
        return Ok(run);
    }
    app.caught_up(&["conversation"]).await?;
    app.views.find_run(run_id).await?.ok_or_else(|| ApiError::of(ErrorCode::RunNotFound))
}

/// Calls a device tool without a model, in development mode on a loopback address; elsewhere 404.
///
/// A client that goes away does not take the call back; stopping the run does.
#[utoipa::path(post, path = "/api/desktop/dev/tool-calls", tag = "devices", operation_id = "dev_call_tool",
    request_body = CallBody, responses((status = 200, body = Called), Refusals))]
pub async fn call_tool(
    _: Development,
    State(app): State<Arc<App>>,
    Author(user): Author,
    Body(body): Body<CallBody>,
) -> ApiResult<Json<Called>> {
    let run = find_run(&app, &body.run_id.id()).await?;
    if run.user_id != user {
        return Err(ApiError::of(ErrorCode::Forbidden));
    }
    let tool = catalogue().get(body.tool_name.as_str()).filter(|definition| definition.target == Target::Device);
    let tool = tool.ok_or_else(|| ApiError::new(ErrorCode::UnknownTool, "tool_name: there is no such device tool"))?;
    let thread = &run.graph_thread_id;
    let model_call_id = match &body.tool_call_id {
        None => format!("dev-{}", new_id()),
        Some(id) => id.as_str().strip_prefix(&format!("{thread}:")).map(str::to_owned).ok_or_else(|| {
            ApiError::field("tool_call_id", format!("must begin with {thread}:, the thread of the run's calls"))
        })?,
    };
    let id = ToolCallId::of(thread, &model_call_id);
    let planned = ModelToolCall { id: model_call_id, name: tool.model_name(), arguments: body.arguments.to_string() };
    let admission = admit(catalogue(), &planned, false);
    if let Some((_, error)) = admission.refusal {
        return Err(ApiError::new(ErrorCode::InvalidArguments, error.message));
    }
    let ToolOutcome { result } = call(&app, run, planned).await?;
    let (output, error) = result.map_or_else(|error| (None, Some(error)), |output| (Some(output), None));
    Ok(Json(Called { tool_call_id: id.to_string(), ok: error.is_none(), output, error }))
}
