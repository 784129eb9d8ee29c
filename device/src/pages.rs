//! The server's pages on this computer, so that one window has everything: the device's own page shows
//! them in a frame, and its question on top.
//!
//! The device asks the server for them as its user, so nobody signs in twice. What the server sends is not
//! believed more than its tool calls are: the pages have an origin of their own, apart from the page
//! that asks the user, whose key and buttons no script of theirs can reach; the frame may not
//! navigate the window; only that page may frame them; and they load nothing from anywhere else.
//!
//! Who asks here is answered as the user, so who may ask is guarded: the host's name is the key, a random name
//! below `localhost`, which browsers resolve to this computer themselves (RFC 6761). It is never sent
//! anywhere else, as a cookie would be to every other server on 127.0.0.1, and no page of another site that
//! rebinds its own name can know it. What changes something must come from these pages themselves.

use crate::connection::{Identity, Server};
use crate::loopback::{Loopback, keep_alone, only, refused, secret};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    ACCEPT, ACCEPT_LANGUAGE, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_TYPE, ETAG, HOST, HeaderName, HeaderValue,
    IF_NONE_MATCH, LOCATION, ORIGIN, REFERRER_POLICY,
};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use devmind_domain::ErrorCode;
use devmind_domain::canonical::sha256_hex;
use devmind_domain::ids::DeviceId;
use reqwest::Url;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// Tells the server's pages which computer they are shown on.
const DEVICE_HEADER: &str = "x-devmind-device";
/// What of a request the server gets.
const ASKED: [HeaderName; 6] = [
    ACCEPT,
    ACCEPT_LANGUAGE,
    CONTENT_TYPE,
    IF_NONE_MATCH,
    HeaderName::from_static("last-event-id"),
    HeaderName::from_static("x-requested-with"),
];
/// What of an answer the browser gets.
const ANSWERED: [HeaderName; 3] = [CONTENT_TYPE, CONTENT_DISPOSITION, ETAG];

/// The pages, at an address of their own.
pub(crate) struct Pages {
    loopback: Loopback,
    app: App,
}

#[derive(Clone)]
struct App {
    /// `KEY.localhost:PORT`.
    host: Arc<str>,
    policy: Arc<str>,
    server: Server,
    identity: Identity,
    device_id: DeviceId,
    client: reqwest::Client,
}

impl Pages {
    /// Takes a free port and makes a name; only the page at `framed_by` may frame what is served.
    pub(crate) async fn bind(
        server: Server,
        identity: Identity,
        device_id: DeviceId,
        framed_by: SocketAddr,
    ) -> io::Result<Self> {
        let client = server.http_client().build().map_err(io::Error::other)?;
        let loopback = Loopback::bind().await?;
        let key: String = secret::<16>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        let host = format!("{key}.localhost:{}", loopback.address.port()).into();
        let port = framed_by.port();
        let policy = format!(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
             form-action 'self'; base-uri 'none'; frame-ancestors http://127.0.0.1:{port} http://localhost:{port}"
        );
        let app = App { host, policy: policy.into(), server, identity, device_id, client };
        Ok(Self { loopback, app })
    }

    /// Where they are: for the user's own browser only.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.app.host)
    }

    /// Serves for ever.
    pub(crate) async fn serve(self) {
        self.loopback.serve(Router::new().fallback(forward).with_state(self.app)).await;
    }
}

async fn forward(State(app): State<App>, request: Request) -> Response {
    let mut response = match app.judge(request.method(), request.headers()) {
        Ok(()) => app.forward(request).await,
        Err(code) => refused(code),
    };
    let headers = response.headers_mut();
    // What the server says of a file's age is kept.
    let age = headers.get(CACHE_CONTROL).cloned();
    // Not `no-referrer`: a browser would then send the origin of a form as `null`.
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    if keep_alone(headers, &app.policy).is_err() {
        return refused(ErrorCode::Internal);
    }
    if let Some(age) = age {
        headers.insert(CACHE_CONTROL, age);
    }
    response
}

impl App {
    fn judge(&self, method: &Method, headers: &HeaderMap) -> Result<(), ErrorCode> {
        let host = only(headers, HOST).unwrap_or_default();
        // Hashes are compared: how long that takes says nothing about the key.
        if sha256_hex(host.as_bytes()) != sha256_hex(self.host.as_bytes()) {
            return Err(ErrorCode::OriginDenied);
        }
        let is_own = |origin: &str| origin.strip_prefix("http://") == Some(&*self.host);
        let origin = only(headers, ORIGIN);
        let is_plain_read = matches!(*method, Method::GET | Method::HEAD);
        match origin {
            Some(origin) if is_own(origin) => {}
            // A browser names the origin of everything but plain reads.
            None if is_plain_read => {}
            _ => return Err(ErrorCode::OriginDenied),
        }
        if !is_plain_read && *method != Method::POST {
            return Err(ErrorCode::MethodNotAllowed);
        }
        Ok(())
    }

    async fn forward(&self, request: Request) -> Response {
        let (head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let Some(url) = self.url(path) else { return refused(ErrorCode::NotFound) };
        let mut asked = self.identity.sign(self.client.request(head.method.clone(), url));
        for name in ASKED {
            if let Some(value) = head.headers.get(&name) {
                asked = asked.header(name, value);
            }
        }
        asked = asked.header(DEVICE_HEADER, self.device_id.as_str());
        if head.method == Method::POST {
            // That it came from these pages is known here; the server wants to hear of its own.
            asked = asked.header(ORIGIN, self.server.origin()).header("sec-fetch-site", "same-origin");
            // Passed on as it comes: how much is too much, the server says.
            asked = asked.body(reqwest::Body::wrap_stream(body.into_data_stream()));
        }
        match asked.send().await {
            Ok(answer) => self.answer(answer),
            Err(error) => {
                tracing::debug!(%error, "the server's pages cannot be had");
                self.unreachable(&head.headers)
            }
        }
    }

    /// The server's URL of a path; none for what a page has no business with.
    fn url(&self, path: &str) -> Option<Url> {
        let base = Url::parse(&self.server.http("/")).ok()?;
        let url = Url::parse(&self.server.http(path)).ok()?;
        // Parsed, so that `..` is gone.
        let rest = url.path().strip_prefix(base.path())?;
        let is_device = rest.trim_start_matches('/').to_ascii_lowercase().starts_with("api/desktop");
        (url.origin() == base.origin() && !is_device).then_some(url)
    }

    fn answer(&self, answer: reqwest::Response) -> Response {
        let mut headers = HeaderMap::new();
        for name in ANSWERED.into_iter().chain([CACHE_CONTROL]) {
            if let Some(value) = answer.headers().get(&name) {
                headers.insert(name, value.clone());
            }
        }
        // A place on the same server; any other would leave the frame's origin.
        let place = answer.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        if let Some(place) = place.filter(|place| place.starts_with('/') && !place.starts_with("//"))
            && let Ok(place) = HeaderValue::from_str(place)
        {
            headers.insert(LOCATION, place);
        }
        let status = answer.status();
        (status, headers, Body::from_stream(answer.bytes_stream())).into_response()
    }

    /// People get a page that tries again by itself, scripts a code.
    fn unreachable(&self, headers: &HeaderMap) -> Response {
        if !only(headers, ACCEPT).is_some_and(|accept| accept.contains("text/html")) {
            return refused(ErrorCode::ServerUnreachable);
        }
        let page = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Not reachable</title>\
                    <meta http-equiv=\"refresh\" content=\"3\"></head><body><h1>The server cannot be reached</h1>\
                    <p>Start it, or check the device's <code>--server</code>. This page tries again by itself.</p>\
                    </body></html>";
        (StatusCode::SERVICE_UNAVAILABLE, [(CONTENT_TYPE, "text/html; charset=utf-8")], page).into_response()
    }
}

#[cfg(test)]
mod tests;
