//! An HTTP server on the loopback address, for this computer's browser alone.

use axum::Router;
use axum::http::header::{HeaderName, HeaderValue, InvalidHeaderValue};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use devmind_domain::ErrorCode;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Connections at the same time, at most.
const MAX_CONNECTIONS: usize = 32;
/// Bytes of a connection's buffer, and so of a request's head, at most.
const MAX_BUFFER_BYTES: usize = 16 << 10;
/// A request's head must come within this time.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// A connection is closed after so long, whatever happens on it; the page opens another.
const CONNECTION_WITHIN: Duration = Duration::from_secs(120);

/// A free port on the loopback address.
pub(crate) struct Loopback {
    listener: TcpListener,
    pub(crate) address: SocketAddr,
}

impl Loopback {
    pub(crate) async fn bind() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    /// Serves for ever.
    pub(crate) async fn serve(self, router: Router) {
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            // The semaphore is never closed.
            let Ok(permit) = connections.clone().acquire_owned().await else { return };
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "the page's server cannot take a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let service = TowerToHyperService::new(router.clone());
            tokio::spawn(async move {
                let connection = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEAD_WITHIN)
                    .max_buf_size(MAX_BUFFER_BYTES)
                    .serve_connection(TokioIo::new(stream), service);
                // What ends a connection concerns nobody: the page opens another.
                let _ = tokio::time::timeout(CONNECTION_WITHIN, connection).await;
                drop(permit);
            });
        }
    }
}

/// The one value of a header; two are none.
pub(crate) fn only(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(|value| value.to_str().unwrap_or("\u{fffd}"));
    if values.next().is_some() { Some("") } else { first }
}

/// Random bytes that nobody guesses.
pub(crate) fn secret<const BYTES: usize>() -> io::Result<[u8; BYTES]> {
    let mut secret = [0; BYTES];
    getrandom::fill(&mut secret).map_err(io::Error::other)?;
    Ok(secret)
}

/// The headers that keep a page alone, with what it may load and who may frame it.
pub(crate) fn keep_alone(headers: &mut HeaderMap, policy: &str) -> Result<(), InvalidHeaderValue> {
    use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, X_CONTENT_TYPE_OPTIONS};
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_str(policy)?);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    Ok(())
}

pub(crate) fn refused(code: ErrorCode) -> Response {
    let status = StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, axum::Json(json!({ "error": { "code": code, "message": code.help() } }))).into_response()
}
