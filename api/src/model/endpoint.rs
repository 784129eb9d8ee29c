//! How both dialects reach their endpoint: one client, one way to send, one reading of what fails.
//!
//! The client is `async-openai` with "bring your own types": it sends what it is given and streams
//! the events' JSON as it came, and its `Config` decides address and headers, so that the same client
//! speaks to Anthropic. The types of the dialects are ours because the log must hold what was really
//! said. (`genai` knows both providers, but its streams hold neither the served model nor a call's
//! index, calls without an index are dropped, and a call's arguments go back to OpenAI as re-written
//! JSON; it also switches `serde_json/preserve_order` on for the whole build.)
//!
//! Sending is a service of our own below that client: it never repeats a request unseen, keeps
//! `Retry-After`, follows no redirect (a key goes to the configured host only) and bounds what is read.

use super::failure::{causes, cut, printable, refused};
use super::{ModelConfig, ModelFailure};
use crate::config::ConfigError;
use async_openai::Client;
use async_openai::config::Config;
use async_openai::error::OpenAIError;
use async_openai::middleware::HttpRequestFactory;
use async_openai::types::stream::StreamResponse;
use devmind_domain::ErrorCode;
use devmind_domain::limits::{MAX_MODEL_LINE_BYTES, MAX_MODEL_REFUSAL_BYTES, MAX_MODEL_STREAM_BYTES};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Body, Response};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// An address to post requests to.
pub(super) struct Endpoint {
    client: Client<Address>,
    key: Arc<SecretString>,
}

impl Endpoint {
    /// `path` below the configured base, with the given headers and the key, if there is one, in the
    /// header `key.0` after the prefix `key.1`.
    pub(super) fn new(
        config: &ModelConfig,
        path: &str,
        mut headers: HeaderMap,
        (key_header, prefix): (HeaderName, &str),
    ) -> Result<Self, ConfigError> {
        crate::tls::install_provider();
        let key = config.api_key.trim();
        if !key.is_empty() {
            // The text of the error would not hold the key; the rule is that it need not be looked at.
            let mut value = HeaderValue::from_str(&format!("{prefix}{key}"))
                .map_err(|_| ConfigError::invalid("MODEL_API_KEY holds characters that no key has"))?;
            value.set_sensitive(true);
            headers.insert(key_header, value);
        }
        let base = config.base_url().trim_end_matches('/').to_owned();
        let http = http_client(&base)?;
        let address = Address { url: format!("{base}{path}"), headers, base, no_key: SecretString::default() };
        let sender = http.clone();
        let send = tower::service_fn(move |request: HttpRequestFactory| send(sender.clone(), request));
        let client = Client::build(http, address).with_http_service(send);
        Ok(Self { client, key: Arc::new(SecretString::from(key)) })
    }

    /// Posts a body and streams the events of the answer. Dropping the stream gives the request up.
    pub(super) async fn stream<Event: DeserializeOwned + Send + 'static>(
        &self,
        body: &impl Serialize,
    ) -> Result<BoxStream<'static, Result<Event, ModelFailure>>, ModelFailure> {
        let answer: Result<StreamResponse<Event>, _> = self.client.chat().create_stream_byot(body).await;
        let events = answer.map_err(|error| not_begun(error, self.key.expose_secret()))?;
        let key = self.key.clone();
        Ok(events.map(move |event| event.map_err(|error| broken_off(&error, key.expose_secret()))).boxed())
    }

    /// The key, to keep it out of what is passed on.
    pub(super) fn key(&self) -> Arc<SecretString> {
        self.key.clone()
    }
}

fn http_client(base: &str) -> Result<reqwest::Client, ConfigError> {
    let mut builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .user_agent(concat!("devmind/", env!("CARGO_PKG_VERSION")));
    if base.starts_with("http://") {
        // A machine without certificates can still ask a model beside it.
        builder = builder.tls_certs_only([]);
    }
    builder.build().map_err(|error| ConfigError::invalid(format!("no HTTP client for the model: {}", causes(&error))))
}

/// Address and headers, the same for every request.
struct Address {
    url: String,
    headers: HeaderMap,
    base: String,
    /// The client wants one to be asked for; ours is in a header.
    no_key: SecretString,
}

impl Config for Address {
    fn headers(&self) -> HeaderMap {
        self.headers.clone()
    }

    fn url(&self, _path: &str) -> String {
        self.url.clone()
    }

    fn query(&self) -> Vec<(&str, &str)> {
        Vec::new()
    }

    fn api_base(&self) -> &str {
        &self.base
    }

    fn api_key(&self) -> &SecretString {
        &self.no_key
    }
}

/// An answer that is no stream.
#[derive(Debug, thiserror::Error)]
#[error("status {status}")]
struct Refusal {
    status: u16,
    retry_after: Option<Duration>,
    body: String,
}

async fn send(http: reqwest::Client, request: HttpRequestFactory) -> Result<Response, OpenAIError> {
    let request = request.build().await?;
    let response = http.execute(request).await?;
    let kind = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_page = ["text/html", "application/json"].iter().any(|page| kind.starts_with(page));
    if response.status().is_success() && !is_page {
        return Ok(bounded(response));
    }
    let status = response.status().as_u16();
    let retry_after = retry_after(response.headers(), SystemTime::now());
    let body = beginning_of(response).await;
    Err(OpenAIError::Boxed(Box::new(Refusal { status, retry_after, body })))
}

/// The same answer, cut where it is larger than an answer can be.
fn bounded(response: Response) -> Response {
    let (mut total, mut line) = (0, 0);
    let pieces = response.bytes_stream().map(move |piece| {
        let piece = piece.map_err(io::Error::other)?;
        total += piece.len();
        line = match piece.iter().rposition(|byte| matches!(byte, b'\n' | b'\r')) {
            Some(end) => piece.len() - end - 1,
            None => line + piece.len(),
        };
        if total > MAX_MODEL_STREAM_BYTES || line > MAX_MODEL_LINE_BYTES {
            tracing::warn!(total, line, "the model's answer is larger than an answer can be");
            return Err(io::Error::other("too large"));
        }
        Ok(piece)
    });
    axum::http::Response::new(Body::wrap_stream(pieces)).into()
}

async fn beginning_of(response: Response) -> String {
    let (mut body, mut pieces) = (Vec::new(), response.bytes_stream());
    while let Some(Ok(piece)) = pieces.next().await {
        body.extend_from_slice(&piece);
        if body.len() >= MAX_MODEL_REFUSAL_BYTES {
            body.truncate(MAX_MODEL_REFUSAL_BYTES);
            break;
        }
    }
    String::from_utf8_lossy(&body).into_owned()
}

/// Seconds or a date, as HTTP has it, or the milliseconds that some providers add.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let header = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let milliseconds = header(&HeaderName::from_static("retry-after-ms")).and_then(|text| text.parse().ok());
    if let Some(milliseconds) = milliseconds {
        return Some(Duration::from_millis(milliseconds));
    }
    let text = header(&RETRY_AFTER)?;
    match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => Some(httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default()),
    }
}

/// Why an answer did not begin.
fn not_begun(error: OpenAIError, key: &str) -> ModelFailure {
    match error {
        OpenAIError::Boxed(error) => match error.downcast::<Refusal>() {
            Ok(refusal) if refusal.status < 300 => ModelFailure::new(
                ErrorCode::ModelUnavailable,
                format!("the model's endpoint sent what is no stream: {}", printable(&refusal.body, key)),
            ),
            Ok(refusal) => refused(refusal.status, &refusal.body, refusal.retry_after, key),
            Err(error) => ModelFailure::new(ErrorCode::Internal, printable(&causes(&*error), key)),
        },
        OpenAIError::Reqwest(error) => {
            // Nothing was sent where no connection was made; a request that was lost on the way may
            // have been answered.
            let transient = error.is_connect();
            let message = printable(&causes(&error.without_url()), key);
            let message = format!("the model's endpoint cannot be reached: {message}");
            let failure = ModelFailure::new(ErrorCode::ModelUnreachable, message);
            if transient { failure.transient(None) } else { failure }
        }
        other => ModelFailure::new(ErrorCode::Internal, printable(&causes(&other), key)),
    }
}

/// Why an answer broke off.
fn broken_off(error: &OpenAIError, key: &str) -> ModelFailure {
    match error {
        OpenAIError::JSONDeserialize(_, text) => cut(&format!("this is no piece of an answer: {text}"), key),
        _ => cut("the connection was lost", key),
    }
}

/// Every piece of an answer, event by event, through what reads the dialect; the first failure is
/// the last piece.
pub(super) fn pieces<Event, Piece, Pieces>(
    events: BoxStream<'static, Result<Event, ModelFailure>>,
    mut read: impl FnMut(Event) -> Pieces + Send + 'static,
) -> impl Stream<Item = Result<Piece, ModelFailure>> + Send + 'static
where
    Event: Send + 'static,
    Piece: Send + 'static,
    Pieces: IntoIterator<Item = Result<Piece, ModelFailure>>,
{
    events
        .map(move |event| match event {
            Ok(event) => read(event).into_iter().collect::<Vec<_>>(),
            Err(failure) => vec![Err(failure)],
        })
        .flat_map(futures::stream::iter)
        .scan(false, |failed, piece| {
            let over = *failed;
            *failed |= piece.is_err();
            std::future::ready((!over).then_some(piece))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_read_as_seconds_a_date_or_milliseconds() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for (name, text, expected) in [
            ("retry-after", "7", Some(Duration::from_secs(7))),
            ("retry-after", "0.5", Some(Duration::from_millis(500))),
            ("retry-after", "Sun, 09 Sep 2001 01:46:47 GMT", Some(Duration::from_secs(7))),
            ("retry-after", "Sun, 09 Sep 2001 01:46:33 GMT", Some(Duration::ZERO)),
            ("retry-after", "-1", None),
            ("retry-after", "soon", None),
            ("retry-after", "inf", None),
            ("retry-after-ms", "250", Some(Duration::from_millis(250))),
        ] {
            let headers = HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(text))]);
            assert_eq!(retry_after(&headers, now), expected, "{name}: {text}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }

    #[test]
    fn a_key_that_is_no_header_is_refused_without_being_told() {
        let config = ModelConfig { api_key: "sk-\nsecret".into(), ..ModelConfig::default() };
        let config = ModelConfig { base_url: Some("http://x".into()), name: "m".into(), ..config };
        let key = (HeaderName::from_static("x-api-key"), "");
        let error = Endpoint::new(&config, "/p", HeaderMap::new(), key).err().expect("refused").to_string();
        assert!(error.contains("MODEL_API_KEY") && !error.contains("secret"), "{error}");
    }
}
