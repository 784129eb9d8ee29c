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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::played::{answer, server};
    use serde_json::json;

    /// What comes of sending once, and how often it was tried.
    async fn sent(answers: &[(&str, &str, &str)], headers: &[(&str, &str)]) -> (Result<(), Failure>, Vec<String>) {
        let answers = answers.iter().map(|(status, more, body)| answer(status, more, body)).collect();
        let (address, requests) = server(answers).await;
        let headers: Vec<_> = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let collector = Collector::new(&address, &headers).unwrap_or_else(|_| panic!("a collector"));
        let came = collector.send(&json!({})).await;
        let requests = requests.lock().expect("whole").clone();
        (came, requests)
    }

    #[tokio::test]
    async fn what_may_succeed_later_is_tried_again_so_often_and_all_else_is_told_at_once() {
        let now = "retry-after: 0\r\n";
        let again = ["429 Too Many Requests", "502 Bad Gateway", "503 Service Unavailable", "504 Gateway Timeout"];
        let mut answers: Vec<_> = again.iter().map(|status| (*status, now, "")).collect();
        answers.push(("200 OK", "", ""));
        let (came, requests) = sent(&answers, &[("x-key", "v")]).await;
        assert!(came.is_ok() && requests.len() == 5, "{came:?}");
        assert!(requests.iter().all(|request| request.starts_with("POST /v1/traces ") && request.contains("x-key: v")));
        answers[4] = ("503 Service Unavailable", now, "");
        answers.extend(answers.clone());
        let (came, requests) = sent(&answers, &[]).await;
        assert!(came.is_err() && requests.len() == MAX_ATTEMPTS as usize, "{came:?}");
        let (came, requests) = sent(&[("400 Bad Request", "", ""), ("200 OK", "", "")], &[]).await;
        assert!(came.is_err() && requests.len() == 1, "{came:?}");
    }

    #[tokio::test]
    async fn a_success_that_refused_spans_is_none_in_either_spelling_of_the_number() {
        for rejected in [r#""2""#, "2"] {
            let body = format!(r#"{{"partialSuccess":{{"rejectedSpans":{rejected},"errorMessage":"too old"}}}}"#);
            let (came, _) = sent(&[("200 OK", "", &body)], &[]).await;
            let Err(Failure::Error { code, message, .. }) = came else { panic!("{body}") };
            assert!(code == ErrorCode::CollectorRefused && message.contains("2 spans: too old"), "{message}");
        }
        let warned = r#"{"partialSuccess":{"errorMessage":"mind the load"}}"#;
        assert!(sent(&[("200 OK", "", warned)], &[]).await.0.is_ok());
    }

    #[test]
    fn what_is_no_header_is_refused_before_anything_is_sent() {
        for (name, value) in [("a b", "v"), ("", "v"), ("a", "v\n")] {
            assert!(Collector::new("http://localhost:1", &[(name.to_owned(), value.to_owned())]).is_err(), "{name:?}");
        }
    }
}
