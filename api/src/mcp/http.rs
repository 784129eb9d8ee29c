//! Posting to a server that is elsewhere: the SDK's client over `reqwest`, with limits, and with one difference.
//!
//! A server that has forgotten a session answers with an error that names no request, with whatever status it likes.
//! The SDK drops that, and whoever asked would wait until its time is over; here it is what it is: refused.

use super::MAX_MESSAGE_BYTES;
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use rmcp::model::{ClientJsonRpcMessage, ErrorCode, JsonRpcMessage};
use rmcp::transport::common::client_side_sse::{BoxedSseResponse, ExponentialBackoff};
use rmcp::transport::streamable_http_client::{
    StreamableHttpClient, StreamableHttpClientTransportConfig, StreamableHttpError, StreamableHttpPostResponse,
    StreamableHttpResponseLimits,
};
use rmcp::transport::{DynamicTransportError, StreamableHttpClientTransport};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// A connection must stand within this time.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Turns of taking up a stream again that broke off, and the pause before the first.
const MAX_RESUMES: usize = 3;
const RESUME_AFTER: Duration = Duration::from_millis(200);
/// Bytes that are read of a refusal.
const MAX_REFUSAL_BYTES: usize = 16 << 10;
/// JSON-RPC errors of a request that was never looked at: no JSON, no request, or (of the server's own) no session.
const NOT_LOOKED_AT: [i32; 4] = [-32_700, -32_600, -32_000, -32_001];

/// The way to a server.
pub(super) fn transport(
    url: &Url,
    headers: &HeaderMap,
) -> Result<StreamableHttpClientTransport<Client>, reqwest::Error> {
    crate::tls::install_provider();
    let mut client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        // What was sent is never sent again.
        .retry(reqwest::retry::never())
        .connect_timeout(CONNECT_WITHIN)
        .user_agent(concat!("devmind/", env!("CARGO_PKG_VERSION")));
    if url.scheme() == "http" {
        // A machine without certificates can still ask a server beside it.
        client = client.tls_certs_only([]);
    }
    let mut resume = ExponentialBackoff::default();
    (resume.max_times, resume.base_duration) = (Some(MAX_RESUMES), RESUME_AFTER);
    let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
        .custom_headers(headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
        .max_sse_event_size(MAX_MESSAGE_BYTES)
        .max_json_response_size(MAX_MESSAGE_BYTES)
        .max_error_response_size(MAX_REFUSAL_BYTES)
        // It would send calls again.
        .reinit_on_expired_session(false);
    config.retry_config = Arc::new(resume);
    Ok(StreamableHttpClientTransport::with_client(Client(client.build()?), config))
}

/// Whether a failure to send says that the server has not looked at the request.
pub(super) fn was_not_looked_at(error: &DynamicTransportError) -> bool {
    match error.error.downcast_ref::<Failed>() {
        Some(StreamableHttpError::Client(error)) => error.is_connect() || error.is_builder(),
        Some(
            StreamableHttpError::SessionExpired
            | StreamableHttpError::AuthRequired(_)
            | StreamableHttpError::InsufficientScope(_),
        ) => true,
        Some(_) | None => false,
    }
}

/// The SDK's client over `reqwest`, to which an error that names no request is an answer.
#[derive(Clone)]
pub(super) struct Client(reqwest::Client);

type Failed = StreamableHttpError<reqwest::Error>;

impl StreamableHttpClient for Client {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let limits = StreamableHttpResponseLimits::default();
        self.post_message_with_response_limits(uri, message, session_id, auth_header, headers, limits).await
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
        limits: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let posted = self.0.post_message_with_response_limits(uri, message, session_id, auth_header, headers, limits);
        match posted.await? {
            StreamableHttpPostResponse::Json(JsonRpcMessage::Error(error), _) if error.id.is_none() => {
                let ErrorCode(code) = error.error.code;
                if NOT_LOOKED_AT.contains(&code) {
                    return Err(StreamableHttpError::SessionExpired);
                }
                Err(StreamableHttpError::UnexpectedServerResponse(format!("error {code}").into()))
            }
            answer => Ok(answer),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failed> {
        self.0.delete_session(uri, session_id, auth_header, headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxedSseResponse, Failed> {
        let bytes = MAX_MESSAGE_BYTES;
        self.0.get_stream_with_max_sse_event_size(uri, session_id, last_event_id, auth_header, headers, bytes).await
    }
}
