//! `POST /api/agent`: claims a prepared run and streams it as AG-UI over SSE.

use super::extract::{Body, checked_id};
use crate::agui::RunAgentInput;
use crate::error::{ApiError, ApiResult};
use crate::identity::User;
use crate::runs::claim_and_start;
use crate::state::App;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use devmind_domain::ErrorCode;
use futures::StreamExt;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// A comment is sent when nothing else was for this long: proxies and clients cut silent streams.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Everything that can be refused is refused here, with a status; after that the stream tells.
pub async fn run(
    State(app): State<Arc<App>>,
    User(user): User,
    Body(input): Body<RunAgentInput>,
) -> ApiResult<Response> {
    checked_id("threadId", &input.thread_id)?;
    checked_id("runId", &input.run_id)?;
    if app.stopping.is_cancelled() {
        return Err(ApiError::of(ErrorCode::ShuttingDown));
    }
    let events = claim_and_start(&app, user, input).await?;
    let frames = events.map(|event| {
        // One JSON object a frame; the protocol's types always serialise.
        let data = serde_json::to_string(&event).unwrap_or_default();
        Ok::<_, Infallible>(Event::default().data(data))
    });
    let mut response = Sse::new(frames).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}
