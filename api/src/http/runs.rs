//! Runs: answering their approvals, stopping them, reading their stream again.

use super::agent::sse;
use super::conversations::{check_owner, checked_key};
use super::extract::{Body, Query, checked_id};
use crate::error::{ApiError, ApiResult};
use crate::identity::User;
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
use futures::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;

/// Answers in one request, at most.
const MAX_DECISIONS: usize = 64;

/// One answer, or several.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResumeBody {
    #[serde(default)]
    interrupt_id: Option<String>,
    #[serde(default)]
    approved: Option<bool>,
    #[serde(default)]
    decisions: Option<Vec<DecisionBody>>,
    idempotency_key: String,
}

/// An answer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecisionBody {
    interrupt_id: String,
    approved: bool,
}

/// Records answers to approvals; the last open one prepares the run that goes on.
pub async fn resume(
    State(app): State<Arc<App>>,
    User(user): User,
    Body(body): Body<ResumeBody>,
) -> ApiResult<Json<Prepared>> {
    checked_key(&body.idempotency_key)?;
    let decisions: Vec<(InterruptId, bool)> = match (body.interrupt_id, body.approved, body.decisions) {
        (Some(id), Some(approved), None) => vec![(id.into(), approved)],
        (None, None, Some(decisions)) => {
            decisions.into_iter().map(|decision| (decision.interrupt_id.into(), decision.approved)).collect()
        }
        _ => return Err(ApiError::field("body", "give interrupt_id and approved, or decisions")),
    };
    if decisions.is_empty() || decisions.len() > MAX_DECISIONS {
        return Err(ApiError::field("decisions", format!("must have 1-{MAX_DECISIONS} entries")));
    }
    for (id, _) in &decisions {
        checked_id("interrupt_id", id.as_str())?;
    }
    prepare_resume(&app, &user, body.idempotency_key, decisions).await.map(Json)
}

/// Which run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunBody {
    run_id: String,
}

/// Stops a run, wherever it is: not claimed, waiting for a person, or running. Stopping twice is the
/// same as once.
pub async fn stop_run(
    State(app): State<Arc<App>>,
    User(user): User,
    Body(body): Body<RunBody>,
) -> ApiResult<Json<Value>> {
    checked_id("run_id", &body.run_id)?;
    let run = own_run(&app, &body.run_id.into(), &user).await?;
    let status = stop::stop(&app, &user, &run).await?;
    Ok(Json(json!({ "run_id": run.run_id, "status": status })))
}

/// Which run's stream.
#[derive(Debug, Deserialize)]
pub struct EventsQuery {
    run_id: String,
}

/// The run's stream from its beginning, or after `Last-Event-ID`, live or finished. Reading it never
/// stops the run.
pub async fn events(
    State(app): State<Arc<App>>,
    User(user): User,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    checked_id("run_id", &query.run_id)?;
    let run = own_run(&app, &query.run_id.into(), &user).await?;
    let last = headers.get("last-event-id").map(|value| value.to_str().unwrap_or_default());
    let after =
        last.map(replay::Cursor::parse).transpose().map_err(|problem| ApiError::field("Last-Event-ID", problem))?;
    let head = app.ledger.reader().head().await?.position;
    if after.as_ref().is_some_and(|after| after.position > head) {
        return Err(ApiError::field("Last-Event-ID", format!("is beyond the log's head, {head}")));
    }
    let frames = replay::replay(app.clone(), run, after.unwrap_or_default()).map(|(cursor, event)| {
        let data = serde_json::to_string(&event).unwrap_or_default();
        Ok::<_, Infallible>(Event::default().id(cursor.to_string()).data(data))
    });
    Ok(sse(frames))
}

async fn own_run(
    app: &App,
    run_id: &RunId,
    user: &devmind_domain::ids::UserId,
) -> ApiResult<devmind_projections::RunRow> {
    app.caught_up(&["conversation"]).await?;
    let run = app.views.find_run(run_id).await?.ok_or_else(|| ApiError::of(ErrorCode::RunNotFound))?;
    check_owner(app, &run.conversation_id, user).await?;
    Ok(run)
}
