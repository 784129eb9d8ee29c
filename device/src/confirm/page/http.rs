//! The page over HTTP, on this computer alone.
//!
//! Another program's page in the same browser can send requests here, by a name that it makes resolve to
//! 127.0.0.1 too (DNS rebinding); so every request must name this very address as its host, and no
//! other origin. The questions need a random token besides, which reaches the page in the fragment of
//! its link — never sent over the wire, in no log, no referrer — and the page sends as a header; a
//! cookie would go to every other server on this address. Scripts come from this server alone, and no
//! other page may frame this one.

use super::Page;
use crate::loopback::{Loopback, keep_alone, only, refused, secret};
use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, FromRequest, Query, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, ORIGIN, REFERRER_POLICY};
use axum::http::{HeaderMap, Method};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use devmind_domain::ErrorCode;
use devmind_domain::canonical::sha256_hex;
use serde::Deserialize;
use serde_json::json;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const INDEX: &str = include_str!("../../../ui/index.html");
const SCRIPT: &str = include_str!("../../../ui/page.js");
const STYLE: &str = include_str!("../../../ui/page.css");

/// What the page may load and who may frame it; what it may frame is added, where it frames anything.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Bytes of a request's body, at most.
const MAX_BODY_BYTES: usize = 4 << 10;
/// News are waited for no longer.
const NEWS_WITHIN: Duration = Duration::from_secs(20);

/// The server of the page.
pub struct PageServer {
    loopback: Loopback,
    token: String,
    page: Arc<Page>,
    frames: Option<String>,
}

#[derive(Clone)]
struct App {
    page: Arc<Page>,
    policy: Arc<str>,
    /// `127.0.0.1:PORT` and `localhost:PORT`.
    hosts: Arc<[String; 2]>,
    token_sha256: Arc<str>,
}

impl PageServer {
    /// Takes a free port on the loopback address and makes a token.
    ///
    /// # Errors
    /// When there is no port or no randomness.
    pub async fn bind(page: Arc<Page>) -> io::Result<Self> {
        let loopback = Loopback::bind().await?;
        let token = URL_SAFE_NO_PAD.encode(secret::<32>()?);
        Ok(Self { loopback, token, page, frames: None })
    }

    /// Where it is, without the token.
    pub fn address(&self) -> SocketAddr {
        self.loopback.address
    }

    /// The link that opens it, with the token: for the user's eyes and browser only.
    pub fn link(&self) -> String {
        format!("http://{}/#{}", self.address(), self.token)
    }

    /// Lets the page frame what is served at this address.
    pub(crate) fn frame(&mut self, url: &str) {
        self.frames = Some(url.to_owned());
    }

    /// Serves for ever.
    pub async fn serve(self) {
        let port = self.address().port();
        let frames = self.frames.map(|url| format!("; frame-src {url}")).unwrap_or_default();
        let app = App {
            page: self.page,
            policy: format!("{POLICY}{frames}").into(),
            hosts: Arc::new([format!("127.0.0.1:{port}"), format!("localhost:{port}")]),
            token_sha256: sha256_hex(self.token.as_bytes()).into(),
        };
        self.loopback.serve(router(app)).await;
    }
}

fn router(app: App) -> Router {
    Router::new()
        .route("/", get(|| async { file("text/html; charset=utf-8", INDEX) }))
        .route("/page.js", get(|| async { file("text/javascript; charset=utf-8", SCRIPT) }))
        .route("/page.css", get(|| async { file("text/css; charset=utf-8", STYLE) }))
        .route("/api/questions", get(questions))
        .route("/api/answer", post(answer))
        .fallback(|| async { refused(ErrorCode::NotFound) })
        .method_not_allowed_fallback(|| async { refused(ErrorCode::MethodNotAllowed) })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::from_fn_with_state(app.clone(), guard))
        .with_state(app)
}

fn file(kind: &'static str, text: &'static str) -> Response {
    ([(CONTENT_TYPE, kind)], text).into_response()
}

/// Every request: this host, no other origin; every answer: the headers that keep the page alone.
async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    let mut response = match app.judge(request.method(), request.uri().path(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(code) => refused(code),
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("x-frame-options"), "DENY"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if keep_alone(headers, &app.policy).is_err() {
        return refused(ErrorCode::Internal);
    }
    response
}

impl App {
    fn judge(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), ErrorCode> {
        let only = |name| only(headers, name);
        let host = only(HOST).ok_or(ErrorCode::OriginDenied)?;
        if !self.hosts.iter().any(|own| own == host) {
            return Err(ErrorCode::OriginDenied);
        }
        match only(ORIGIN) {
            Some(origin) if origin.strip_prefix("http://") == Some(host) => {}
            // A browser names the origin of everything but plain reads.
            None if *method == Method::GET || *method == Method::HEAD => {}
            _ => return Err(ErrorCode::OriginDenied),
        }
        let is_foreign =
            only(HeaderName::from_static("sec-fetch-site")).is_some_and(|site| !matches!(site, "same-origin" | "none"));
        if is_foreign && path.starts_with("/api/") {
            return Err(ErrorCode::OriginDenied);
        }
        let token = only(AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
        // Hashes are compared: how long that takes says nothing about the token.
        let is_known = token.is_some_and(|token| sha256_hex(token.as_bytes()) == *self.token_sha256);
        if path.starts_with("/api/") && !is_known {
            return Err(ErrorCode::Unauthenticated);
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct After {
    #[serde(default)]
    after: u64,
}

/// What there is to see, as soon as it is not what the page knows.
async fn questions(
    State(app): State<App>,
    after: Result<Query<After>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let Ok(Query(After { after })) = after else { return refused(ErrorCode::ValidationFailed) };
    let looking = app.page.look();
    let mut version = app.page.version.subscribe();
    let news = version.wait_for(|version| *version != after);
    // The same again is news, too: the page learns that the device is there.
    let _ = tokio::time::timeout(NEWS_WITHIN, news).await;
    drop(looking);
    axum::Json(app.page.news()).into_response()
}

/// Only a literal `true` allows, and nothing besides it may be said.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerBody {
    id: u64,
    allow: bool,
}

async fn answer(State(app): State<App>, request: axum::http::Request<Body>) -> Response {
    let Ok(axum::Json(AnswerBody { id, allow })) = axum::Json::from_request(request, &()).await else {
        return refused(ErrorCode::ValidationFailed);
    };
    match app.page.answer(id, allow) {
        Ok(()) => axum::Json(json!({ "taken": true })).into_response(),
        Err(code) => refused(code),
    }
}
