//! Why a model did not answer: stable codes for what endpoints say, and whether asking again helps.

use devmind_domain::ErrorCode;
use serde_json::Value;
use std::time::Duration;

/// Why a model did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFailure {
    /// The stable code.
    pub code: ErrorCode,
    /// What a person can read; never holds the key or the prompt.
    pub message: String,
    /// The endpoint limits, fails inside or takes no connection: it may answer the next time.
    pub transient: bool,
    /// How long the endpoint wants to be left alone first.
    pub retry_after: Option<Duration>,
}

impl ModelFailure {
    /// A failure that asking again would not mend.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), transient: false, retry_after: None }
    }

    /// The same failure as one that may be gone the next time.
    pub fn transient(self, retry_after: Option<Duration>) -> Self {
        Self { transient: true, retry_after, ..self }
    }

    /// The failure that is told in the end: how often the model was asked belongs to it.
    pub fn after_tries(mut self, tries: u32) -> Self {
        if tries > 1 {
            self.message = format!("{} (asked {tries} times)", self.message);
        }
        self
    }
}

/// An answer whose status is no success.
pub(super) fn refused(status: u16, body: &str, retry_after: Option<Duration>, key: &str) -> ModelFailure {
    let code = match status {
        401 | 403 => ErrorCode::ModelAuthFailed,
        408 | 504 => ErrorCode::ModelTimeout,
        429 => ErrorCode::ModelRateLimited,
        500.. => ErrorCode::ModelUnavailable,
        _ => ErrorCode::ModelRefused,
    };
    let said = Said::of(body);
    let failure =
        ModelFailure::new(code, format!("the model's endpoint answered {status}: {}", printable(&said.message, key)));
    // A used-up quota is told as 429 too, and is not back in a moment.
    if (status == 429 && said.kind != "insufficient_quota") || status >= 500 {
        failure.transient(retry_after)
    } else {
        failure
    }
}

/// An error that came as a part of the stream, after a status that promised an answer.
pub(super) fn told_in_stream(error: &Value, key: &str) -> ModelFailure {
    let said = Said::of_value(error);
    let (code, transient) = match said.kind.as_str() {
        "authentication_error" | "permission_error" | "401" | "403" => (ErrorCode::ModelAuthFailed, false),
        "rate_limit_error" | "rate_limit_exceeded" | "429" => (ErrorCode::ModelRateLimited, true),
        "timeout_error" | "504" => (ErrorCode::ModelTimeout, true),
        "overloaded_error" | "api_error" | "server_error" | "500" | "502" | "503" | "529" => {
            (ErrorCode::ModelUnavailable, true)
        }
        "invalid_request_error"
        | "not_found_error"
        | "request_too_large"
        | "billing_error"
        | "insufficient_quota"
        | "400"
        | "402"
        | "404"
        | "413" => (ErrorCode::ModelRefused, false),
        _ => (ErrorCode::ModelUnavailable, false),
    };
    let failure = ModelFailure::new(code, format!("the model's endpoint failed: {}", printable(&said.message, key)));
    if transient { failure.transient(None) } else { failure }
}

/// A stream that ended before the answer did.
pub(super) fn cut(why: &str, key: &str) -> ModelFailure {
    let message = format!("the model's answer broke off: {}", printable(why, key));
    ModelFailure::new(ErrorCode::ModelStreamCut, message)
}

/// The causes of an error in one line.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

/// An endpoint's words, short and without the key: some repeat the key that they refuse.
pub(super) fn printable(text: &str, key: &str) -> String {
    const MAX_CHARS: usize = 300;
    let text = if key.is_empty() { text.to_owned() } else { text.replace(key, "***") };
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_CHARS).collect()
}

/// What an error object says.
struct Said {
    message: String,
    /// Its code, or else its type.
    kind: String,
}

impl Said {
    fn of(body: &str) -> Self {
        match serde_json::from_str::<Value>(body) {
            Ok(Value::Object(body)) => Self::of_value(body.get("error").unwrap_or(&Value::Object(body.clone()))),
            // An error page in place of the API's JSON: a proxy, or the wrong address.
            _ => Self { message: body.to_owned(), kind: String::new() },
        }
    }

    fn of_value(error: &Value) -> Self {
        let text = |name: &str| match error.get(name) {
            Some(Value::String(text)) if !text.is_empty() => Some(text.clone()),
            Some(Value::Number(number)) => Some(number.to_string()),
            _ => None,
        };
        let message = text("message").or_else(|| error.as_str().map(str::to_owned));
        Self {
            message: message.unwrap_or_else(|| error.to_string()),
            kind: text("code").or_else(|| text("type")).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_status_has_its_code_and_only_limits_and_failures_inside_are_transient() {
        for (status, code, transient) in [
            (400, ErrorCode::ModelRefused, false),
            (401, ErrorCode::ModelAuthFailed, false),
            (403, ErrorCode::ModelAuthFailed, false),
            (404, ErrorCode::ModelRefused, false),
            (408, ErrorCode::ModelTimeout, false),
            (307, ErrorCode::ModelRefused, false),
            (429, ErrorCode::ModelRateLimited, true),
            (500, ErrorCode::ModelUnavailable, true),
            (504, ErrorCode::ModelTimeout, true),
            (529, ErrorCode::ModelUnavailable, true),
        ] {
            let failure = refused(status, r#"{"error":{"message":"no"}}"#, None, "");
            assert_eq!((failure.code, failure.transient), (code, transient), "{status}");
            assert_eq!(failure.message, format!("the model's endpoint answered {status}: no"));
        }
    }

    #[test]
    fn a_quota_that_is_used_up_is_not_asked_again() {
        let body = json!({ "error": { "message": "pay", "type": "insufficient_quota", "code": "insufficient_quota" } });
        assert!(!refused(429, &body.to_string(), None, "").transient);
    }

    #[test]
    fn an_endpoint_that_repeats_the_key_does_not_make_us_repeat_it() {
        let body = r#"{"error":{"message":"wrong key sk-secret, no: sk-secret"}}"#;
        for failure in [
            refused(401, body, None, "sk-secret"),
            refused(502, "<p>sk-secret</p>", None, "sk-secret"),
            told_in_stream(&json!({ "message": "sk-secret", "type": "api_error" }), "sk-secret"),
            cut("data: sk-secret", "sk-secret"),
        ] {
            assert!(!failure.message.contains("sk-secret"), "{failure:?}");
            assert!(failure.message.contains("***"), "{failure:?}");
        }
    }

    #[test]
    fn errors_within_a_stream_are_told_apart_in_both_dialects() {
        for (error, code, transient) in [
            (json!({ "type": "overloaded_error", "message": "m" }), ErrorCode::ModelUnavailable, true),
            (json!({ "type": "rate_limit_error", "message": "m" }), ErrorCode::ModelRateLimited, true),
            (json!({ "type": "invalid_request_error", "message": "m" }), ErrorCode::ModelRefused, false),
            (json!({ "code": 502, "message": "m" }), ErrorCode::ModelUnavailable, true),
            (json!({ "type": "server_error", "code": null, "message": "m" }), ErrorCode::ModelUnavailable, true),
            (json!("out of memory"), ErrorCode::ModelUnavailable, false),
        ] {
            let failure = told_in_stream(&error, "");
            assert_eq!((failure.code, failure.transient), (code, transient), "{error}");
        }
    }
}
