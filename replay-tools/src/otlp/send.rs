//! OTLP/HTTP with JSON: one POST a run to `…/v1/traces` (<https://opentelemetry.io/docs/specs/otlp/#otlphttp>).

use crate::failure::Failure;
use crate::output::say;
use devmind_domain::ErrorCode;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, StatusCode, Url};
use serde_json::Value;
use std::time::Duration;

/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Requests made for one run, at most.
const MAX_ATTEMPTS: u32 = 5;
/// The wait before the second attempt, doubled for each further one; `Retry-After` overrules it.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// The longest wait that a collector can ask for.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Bytes of an answer that are looked at.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// A receiver of spans.
pub(super) struct Collector {
    http: Client,
    url: Url,
    headers: HeaderMap,
}

impl Collector {
    /// A collector at a base address, or at the full address of its trace service.
    pub fn new(address: &str, headers: &[(String, String)]) -> Result<Self, Failure> {
        let hint = "give an address like http://localhost:4318";
        let wrong = |reason: String| Failure::new(ErrorCode::ValidationFailed, reason).with_hint(hint);
        let mut url = crate::http::address(address, hint)?;
        if !url.path().trim_end_matches('/').ends_with("/v1/traces") {
            let path = format!("{}/v1/traces", url.path().trim_end_matches('/'));
            url.set_path(&path);
        }
        let mut all = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        for (name, value) in headers {
            let header = HeaderName::try_from(name.as_str()).ok().zip(HeaderValue::try_from(value.as_str()).ok());
            let (name, mut value) = header.ok_or_else(|| wrong(format!("{name:?} is no header")))?;
            // Its value is a secret more often than not.
            value.set_sensitive(true);
            all.insert(name, value);
        }
        Ok(Self { http: crate::http::client(&url, REQUEST_TIMEOUT)?, url, headers: all })
    }

    /// Sends one request; what may succeed later is tried again, as the protocol says.
    pub async fn send(&self, request: &Value) -> Result<(), Failure> {
        let mut wait = FIRST_WAIT;
        for attempt in 1.. {
            let sent = self.http.post(self.url.clone()).headers(self.headers.clone()).json(request).send().await;
            let (reason, asked) = match sent {
                Ok(answer) if answer.status().is_success() => {
                    let body = crate::http::beginning(answer, MAX_ANSWER_BYTES).await.map_err(Failure::internal)?;
                    return self.partial(&body);
                }
                Ok(answer) => {
                    let status = answer.status();
                    let asked = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
                    let again = [
                        StatusCode::TOO_MANY_REQUESTS,
                        StatusCode::BAD_GATEWAY,
                        StatusCode::SERVICE_UNAVAILABLE,
                        StatusCode::GATEWAY_TIMEOUT,
                    ];
                    if !again.contains(&status) {
                        return Err(self.refused(format!("answered {status}")));
                    }
                    (format!("answered {status}"), asked.map(Duration::from_secs))
                }
                Err(error) => (format!("cannot be reached: {}", error.without_url()), None),
            };
            if attempt == MAX_ATTEMPTS {
                return Err(self.refused(reason));
            }
            tokio::time::sleep(asked.unwrap_or(wait).min(MAX_WAIT)).await;
            wait *= 2;
        }
        Ok(())
    }

    /// A success that took only a part says so.
    fn partial(&self, body: &[u8]) -> Result<(), Failure> {
        let Ok(answer) = serde_json::from_slice::<Value>(body) else { return Ok(()) };
        let partial = &answer["partialSuccess"];
        let rejected = partial["rejectedSpans"].as_str().and_then(|text| text.parse().ok());
        let rejected: i64 = rejected.or_else(|| partial["rejectedSpans"].as_i64()).unwrap_or(0);
        let message = partial["errorMessage"].as_str().unwrap_or_default();
        if rejected > 0 {
            return Err(self.refused(format!("refused {rejected} spans: {}", crate::output::escaped(message))));
        }
        if !message.is_empty() {
            say(crate::output::escaped(&format!("the collector says: {message}")));
        }
        Ok(())
    }

    fn refused(&self, reason: String) -> Failure {
        let address = self.url.origin().ascii_serialization();
        Failure::new(ErrorCode::CollectorRefused, format!("the collector at {address} {reason}"))
    }
}
