//! The pages: documents made on the server from the same reads as the JSON API, with small scripts on top.
//!
//! `layout` is the frame of every page, `components` what pages are made of, `text` how text from outside is
//! shown, `session` how a browser is somebody, `assets` the styles and scripts. Audit pages work without
//! scripts; what a script adds is convenience.

mod approvals;
mod assets;
mod audit;
mod chat;
pub mod components;
pub mod error;
mod grants;
pub mod layout;
mod operations;
mod session;
mod shortcuts;
pub mod text;

pub use audit::{Kept as KeptBundles, Verification};
pub use error::PageResult;
pub use session::{Viewer, utf8_percent};

use crate::error::ApiError;
use crate::identity::check_origin;
use crate::state::App;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use devmind_domain::ErrorCode;
use error::PageError;
use std::sync::Arc;

/// What a page may load: its own styles, scripts and streams, from this server alone; nothing inline, no frames.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; \
     connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Every page, and what pages load.
pub fn router(app: &Arc<App>) -> Router<Arc<App>> {
    Router::new()
        .merge(chat::routes())
        .merge(approvals::routes())
        .merge(audit::routes())
        .merge(operations::routes())
        .merge(session::routes())
        .merge(shortcuts::routes())
        .route_layer(middleware::from_fn_with_state(app.clone(), refuse))
        .route_layer(middleware::from_fn_with_state(app.clone(), session::introduce))
        .route("/ui/{version}/{name}", get(assets::serve))
}

/// What comes while the process stops, and forms that other sites' pages send: a cookie travels with every
/// request, whoever made the form.
async fn refuse(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if app.stopping.is_cancelled() {
        return PageError(ApiError::of(ErrorCode::ShuttingDown)).into_response();
    }
    match check_origin(request.method(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => PageError(error).into_response(),
    }
}

/// There is no such page: in the form that was asked for.
pub fn not_found(headers: &HeaderMap) -> Response {
    let error = ApiError::of(ErrorCode::NotFound);
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    if accept.is_some_and(|accept| accept.contains("text/html")) {
        return PageError(error).into_response();
    }
    error.into_response()
}

/// The headers of every document.
pub fn secure(response: &mut Response) {
    let headers = response.headers_mut();
    if !headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/html")) {
        return;
    }
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        // The origin stays in the forms' requests, the path goes to nobody else.
        (header::REFERRER_POLICY, "same-origin"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}
