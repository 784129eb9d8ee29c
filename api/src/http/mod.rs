//! The HTTP routes and their description. Handlers validate, hand on, and answer; they hold no rules.

pub(crate) mod access;
pub(crate) mod agent;
mod agui;
mod conversations;
mod dev;
mod devices;
mod extract;
mod fields;
pub(crate) mod grants;
mod health;
pub(crate) mod ledger;
pub(crate) mod ledger_stream;
mod metrics;
mod openapi;
mod proofs;
mod runs;
mod tool_calls;
mod usage;

pub use fields::{ClientId, Content, IdempotencyKey, Title};
pub use grants::{GrantBody, GrantRow, grants_of};

use crate::error::ApiError;
use crate::ids::new_id;
use crate::state::App;
use crate::ui;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use devmind_domain::ErrorCode;
use devmind_domain::limits::{MAX_BODY_BYTES, MAX_QUESTION_BODY_BYTES};
use openapi::Description;
use serde_json::{Value, json};
use std::sync::Arc;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Streams of one person that are open at a time, at most.
pub const MAX_OPEN_STREAMS: u32 = 6;

/// Routes for people: refused while the process stops.
fn personal() -> OpenApiRouter<Arc<App>> {
    // The limit of a route that has one of its own comes first.
    questions().layer(DefaultBodyLimit::max(MAX_QUESTION_BODY_BYTES)).merge(others())
}

/// Routes whose bodies hold a question, or all messages of a thread.
fn questions() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(conversations::turns, conversations::ask))
        .routes(routes!(conversations::rerun))
        .routes(routes!(agent::run))
        .routes(routes!(agui::run))
}

fn others() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(conversations::list))
        .routes(routes!(conversations::search))
        .routes(routes!(conversations::rename))
        .routes(routes!(conversations::delete))
        .routes(routes!(grants::list))
        .routes(routes!(grants::revoke))
        .routes(routes!(runs::resume))
        .routes(routes!(runs::stop_run))
        .routes(routes!(runs::events))
        .routes(routes!(tool_calls::list))
        .routes(routes!(devices::list))
        .routes(routes!(devices::ticket))
        .routes(routes!(dev::call_tool))
        .routes(routes!(usage::list))
        .routes(routes!(ledger::events))
        .routes(routes!(ledger_stream::events))
        .routes(routes!(ledger::state))
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
    let personal = personal()
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .route_layer(middleware::from_fn_with_state(app.clone(), refuse_when_stopping));
    let (router, _) = personal.merge(open()).split_for_parts();
    router
        .merge(ui::router(&app).layer(DefaultBodyLimit::max(MAX_BODY_BYTES)))
        .fallback(|headers: HeaderMap| async move { ui::not_found(&headers) })
        .method_not_allowed_fallback(|| async { ApiError::of(ErrorCode::MethodNotAllowed) })
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
    ui::secure(&mut response);
    response
}

/// The client gets the id under which the log has the cause.
fn panicked(cause: Box<dyn std::any::Any + Send + 'static>) -> Response {
    let text = cause.downcast_ref::<String>().map(String::as_str).or(cause.downcast_ref::<&str>().copied());
    let (id, code) = (new_id(), ErrorCode::Internal);
    tracing::error!(error.id = id, error.code = code.as_str(), cause = text.unwrap_or("?"), "a handler panicked");
    ApiError { details: Some(json!({ "error_id": id })), ..ApiError::of(code) }.into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{Body, to_bytes};
    use tower::ServiceExt as _;

    #[tokio::test]
    async fn a_handler_that_panics_answers_500_with_an_id_and_without_the_cause() {
        async fn broken() {
            panic!("the secret of the house");
        }
        let router = Router::new().fallback(broken).layer(CatchPanicLayer::custom(panicked));
        let answer = router.oneshot(Request::new(Body::empty())).await.expect("an answer");
        assert_eq!(answer.status(), 500);
        let body = to_bytes(answer.into_body(), MAX_BODY_BYTES).await.expect("a body");
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(body["error"]["code"], "INTERNAL");
        assert!(body["error"]["details"]["error_id"].is_string(), "{body}");
        assert!(!body.to_string().contains("secret"), "{body}");
    }
}
