//! Runs: answering their approvals, stopping them, reading their stream again.

use super::access::read_conversation;
use super::agent::sse;
use super::extract::{Body, Query};
use super::fields::{ClientId, IdempotencyKey};
use super::grants::GrantBody;
use super::openapi::{RunStreamFrame, refusals};
use crate::error::{ApiError, ApiResult};
use crate::identity::{Author, Caller};
use crate::runs::prepare::{Prepared, prepare_resume};
use crate::runs::{replay, stop};
use crate::state::App;
use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::response::sse::Event;
use devmind_domain::ErrorCode;
use devmind_domain::ids::{InterruptId, RunId};
use devmind_projections::RunRow;
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

/// Answers in one request, at most.
const MAX_DECISIONS: usize = 64;

/// One answer (`interrupt_id` and `approved`, with a yes also `grant`), or several (`decisions`).
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeBody {
    #[serde(default)]
    interrupt_id: Option<ClientId>,
    #[serde(default)]
    approved: Option<bool>,
    #[serde(default)]
    grant: Option<GrantBody>,
    #[serde(default)]
    #[schema(min_items = 1, max_items = 64)]
    decisions: Option<Vec<DecisionBody>>,
    idempotency_key: IdempotencyKey,
}

/// An answer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DecisionBody {
    interrupt_id: ClientId,
    approved: bool,
    /// With a yes: what is allowed beside this one call, as long as the conversation lasts.
    #[serde(default)]
    grant: Option<GrantBody>,
}

refusals!(ResumeRefusals: PERSONAL, CHANGE;
    Forbidden, ConversationNotFound, InterruptNotFound, InterruptAlreadyResolved, InterruptClosed, InterruptExpired,
    IdempotencyConflict, GrantRefused);

/// Records answers to approvals; the last open one prepares the run that goes on.
#[utoipa::path(post, path = "/api/runs/resume", tag = "runs", operation_id = "resume_run",
    request_body = ResumeBody, responses((status = 200, body = Prepared), ResumeRefusals))]
pub async fn resume(
    State(app): State<Arc<App>>,
    Author(user): Author,
    Body(body): Body<ResumeBody>,
) -> ApiResult<Json<Prepared>> {
    let decisions = match (body.interrupt_id, body.approved, body.grant, body.decisions) {
        (Some(interrupt_id), Some(approved), grant, None) => vec![DecisionBody { interrupt_id, approved, grant }],
        (None, None, None, Some(decisions)) => decisions,
        _ => return Err(ApiError::field("body", "give interrupt_id and approved, or decisions")),
    };
    if decisions.is_empty() || decisions.len() > MAX_DECISIONS {
        return Err(ApiError::field("decisions", format!("must have 1-{MAX_DECISIONS} entries")));
    }
    let (mut answers, mut grants) = (Vec::new(), Vec::new());
    for DecisionBody { interrupt_id, approved, grant } in decisions {
        let id: InterruptId = interrupt_id.id();
        grants.extend(grant.map(|grant| (id.clone(), grant)));
        answers.push((id, approved));
    }
    prepare_resume(&app, &user, body.idempotency_key.into(), answers, grants).await.map(Json)
}

/// Which run.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StopBody {
    run_id: ClientId,
}

/// How the run has ended.
#[derive(Debug, Serialize, ToSchema)]
pub struct StoppedRun {
    run_id: RunId,
    /// `succeeded`, `failed` or `cancelled`.
    status: String,
}

refusals!(StopRefusals: PERSONAL, CHANGE; Forbidden, ConversationNotFound, RunNotFound, RunInProgress);

/// Stops a run, wherever it is: not claimed, waiting for a person, or running.
///
/// Stopping twice is the same as once.
#[utoipa::path(post, path = "/api/runs/stop", tag = "runs", operation_id = "stop_run",
    request_body = StopBody, responses((status = 200, body = StoppedRun), StopRefusals))]
pub async fn stop_run(
    State(app): State<Arc<App>>,
    Author(user): Author,
    Body(body): Body<StopBody>,
) -> ApiResult<Json<StoppedRun>> {
    let run = find(&app, &body.run_id.id()).await?;
    if run.user_id != user {
        return Err(ApiError::of(ErrorCode::Forbidden));
    }
    let status = stop::stop(&app, &user, &run).await?;
    Ok(Json(StoppedRun { run_id: run.run_id, status }))
}

/// The id of a frame of this stream: digits, or digits with a dash and digits.
#[derive(ToSchema)]
#[schema(pattern = r"^[0-9]{1,15}(-[0-9]{1,4})?$")]
pub struct LastEventId(#[expect(dead_code, reason = "only described here, read by the replay")] String);

/// Which run's stream.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// The run.
    run_id: ClientId,
}

refusals!(EventsRefusals: PERSONAL, QUERY; Forbidden, ConversationNotFound, RunNotFound, RateLimited);

/// The run's stream from its beginning, or after `Last-Event-ID`, live or finished.
///
/// Reading it never stops the run. A person may have 6 of these open at a time.
#[utoipa::path(get, path = "/api/runs/events", tag = "runs", operation_id = "read_run",
    params(EventsQuery, ("Last-Event-ID" = Option<LastEventId>, Header, description = "The last frame that was seen.")),
    responses((status = 200, description = "The run's AG-UI events, one a frame.",
        content_type = "text/event-stream", body = RunStreamFrame), EventsRefusals))]
pub async fn events(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let run = find(&app, &query.run_id.id()).await?;
    let last = headers.get("last-event-id").map(|value| value.to_str().unwrap_or_default());
    let after =
        last.map(replay::Cursor::parse).transpose().map_err(|problem| ApiError::field("Last-Event-ID", problem))?;
    let head = app.ledger.reader().head().await?.position;
    if after.as_ref().is_some_and(|after| after.position > head) {
        return Err(ApiError::field("Last-Event-ID", format!("is beyond the log's head, {head}")));
    }
    let open =
        app.open_streams.take(Some(caller.user_id.clone())).ok_or_else(|| ApiError::of(ErrorCode::RateLimited))?;
    read_conversation(&app, &caller, &run.conversation_id, "run_events").await?;
    let frames = replay::replay(app.clone(), run, after.unwrap_or_default()).map(move |(cursor, event)| {
        let _counted = &open;
        let data = serde_json::to_string(&event).unwrap_or_default();
        Ok::<_, Infallible>(Event::default().id(cursor.to_string()).data(data))
    });
    Ok(sse(frames))
}

/// A run of a conversation that was not deleted. Whose it is, is the caller's to check.
async fn find(app: &App, run_id: &RunId) -> ApiResult<RunRow> {
    app.caught_up(&["conversation"]).await?;
    let run = app.views.find_run(run_id).await?.ok_or_else(|| ApiError::of(ErrorCode::RunNotFound))?;
    if app.views.conversation_owner(&run.conversation_id).await?.is_none() {
        return Err(ApiError::of(ErrorCode::ConversationNotFound));
    }
    Ok(run)
}
