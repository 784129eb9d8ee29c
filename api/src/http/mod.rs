//! The HTTP routes. Handlers validate, hand on, and answer; they hold no rules.

mod agent;
mod agui;
mod conversations;
mod devices;
mod extract;
mod health;
mod ledger;
mod runs;
mod tool_calls;

use crate::error::ApiError;
use crate::state::App;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use devmind_domain::ErrorCode;
use devmind_domain::limits::MAX_BODY_BYTES;
use devmind_domain::protocol::{TICKET_PATH, WS_PATH};
use std::sync::Arc;
use tower_http::catch_panic::CatchPanicLayer;

/// Every route.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/api/conversations", get(conversations::list))
        .route("/api/turns", get(conversations::turns).post(conversations::ask))
        .route("/api/turns/rerun", post(conversations::rerun))
        .route("/api/conversations/rename", post(conversations::rename))
        .route("/api/conversations/delete", post(conversations::delete))
        .route("/api/runs/resume", post(runs::resume))
        .route("/api/runs/stop", post(runs::stop_run))
        .route("/api/runs/events", get(runs::events))
        .route("/api/agent", post(agent::run))
        .route("/api/agui", post(agui::run))
        .route("/api/tool-calls", get(tool_calls::list))
        .route("/api/devices", get(devices::list))
        .route(TICKET_PATH, post(devices::ticket))
        .route(WS_PATH, get(devices::socket))
        .route("/api/ledger/events", get(ledger::events))
        .route("/healthz", get(health::live))
        .route("/readyz", get(health::ready))
        .fallback(|| async { ApiError::of(ErrorCode::NotFound) })
        .method_not_allowed_fallback(|| async { ApiError::of(ErrorCode::MethodNotAllowed) })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::from_fn(common_headers))
        .layer(CatchPanicLayer::custom(panicked))
        .with_state(app)
}

async fn common_headers(request: axum::extract::Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn panicked(cause: Box<dyn std::any::Any + Send + 'static>) -> Response {
    let text = cause.downcast_ref::<String>().map(String::as_str).or(cause.downcast_ref::<&str>().copied());
    ApiError::internal(ErrorCode::Internal, &format!("a handler panicked: {}", text.unwrap_or("?"))).into_response()
}
