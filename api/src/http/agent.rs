//! `POST /api/agent`: claims a prepared run and streams it as AG-UI over SSE.

use super::extract::Body;
use super::openapi::{RunStreamFrame, refusals};
use crate::agui::{AgUiEvent, RunAgentInput};
use crate::error::ApiResult;
use crate::identity::Author;
use crate::runs::claim_and_start;
use crate::state::App;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// A comment is sent when nothing else was for this long: proxies and clients cut silent streams.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

refusals!(Refusals: PERSONAL, CHANGE;
    Forbidden, ConversationNotFound, RunNotFound, RunMismatch, MessageMismatch, InterruptMismatch, RunAlreadyClaimed,
    RunNotActive);

/// Claims a prepared run and streams it; a run is claimed once, ever.
///
/// Everything that can be refused is refused with a status; after that the stream tells.
#[utoipa::path(post, path = "/api/agent", tag = "runs", operation_id = "execute_run",
    request_body = RunAgentInput,
    responses((status = 200, description = "The run's AG-UI events, one a frame. A client that goes away stops it.",
        content_type = "text/event-stream", body = RunStreamFrame), Refusals))]
pub async fn run(
    State(app): State<Arc<App>>,
    Author(user): Author,
    Body(input): Body<RunAgentInput>,
) -> ApiResult<Response> {
    claim_and_start(&app, user, input).await.map(stream_response)
}

/// A run's events as an SSE response.
pub(super) fn stream_response(events: impl Stream<Item = AgUiEvent> + Send + 'static) -> Response {
    let frames = events.map(|event| {
        // One JSON object a frame; the protocol's types always serialise.
        Ok::<_, Infallible>(Event::default().data(serde_json::to_string(&event).unwrap_or_default()))
    });
    sse(frames)
}

/// An SSE response that proxies and clients do not cut: a comment in silence, no buffering.
pub(crate) fn sse(frames: impl Stream<Item = Result<Event, Infallible>> + Send + 'static) -> Response {
    let mut response = Sse::new(frames).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}
