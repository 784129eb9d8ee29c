//! The HTTP routes and their description. Handlers validate, hand on, and answer; they hold no rules.

mod access;
mod agent;
mod agui;
mod conversations;
mod devices;
mod extract;
mod fields;
mod health;
mod ledger;
mod metrics;
mod openapi;
mod proofs;
mod runs;
mod streams;
mod tool_calls;

pub use fields::ClientId;
pub use streams::OpenStreams;

use crate::error::ApiError;
use crate::state::App;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use devmind_domain::ErrorCode;
use devmind_domain::limits::MAX_BODY_BYTES;
use openapi::Description;
use serde_json::Value;
use std::sync::Arc;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Routes for people: refused while the process stops.
fn personal() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(conversations::list))
        .routes(routes!(conversations::turns, conversations::ask))
        .routes(routes!(conversations::rerun))
        .routes(routes!(conversations::rename))
        .routes(routes!(conversations::delete))
        .routes(routes!(runs::resume))
        .routes(routes!(runs::stop_run))
        .routes(routes!(runs::events))
        .routes(routes!(agent::run))
        .routes(routes!(agui::run))
        .routes(routes!(tool_calls::list))
        .routes(routes!(devices::list))
        .routes(routes!(devices::ticket))
        .routes(routes!(ledger::events))
        .routes(routes!(proofs::checkpoint))
        .routes(routes!(proofs::inclusion))
        .routes(routes!(proofs::consistency))
}

/// Routes for programs, which ask as nobody.
fn open() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(devices::socket))
        .routes(routes!(health::live))
        .routes(routes!(health::ready))
        .routes(routes!(metrics::metrics))
        .routes(routes!(openapi::document))
}

/// The description of every route.
pub fn description() -> Value {
    let routes = OpenApiRouter::with_openapi(openapi::base()).merge(personal()).merge(open());
    openapi::finish(routes.get_openapi())
}

/// Every route.
pub fn router(app: Arc<App>) -> Router {
    let personal = personal().route_layer(middleware::from_fn_with_state(app.clone(), refuse_when_stopping));
    let (router, _) = personal.merge(open()).split_for_parts();
    router
        .fallback(|| async { ApiError::of(ErrorCode::NotFound) })
        .method_not_allowed_fallback(|| async { ApiError::of(ErrorCode::MethodNotAllowed) })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(Extension(Description(Arc::new(description()))))
        .layer(middleware::from_fn(common_headers))
        .layer(CatchPanicLayer::custom(panicked))
        .with_state(app)
}

/// What comes while the process stops is refused before anything is read of it.
async fn refuse_when_stopping(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if app.stopping.is_cancelled() {
        return ApiError::of(ErrorCode::ShuttingDown).into_response();
    }
    next.run(request).await
}

async fn common_headers(request: Request, next: Next) -> Response {
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
