//! What the model is told of a call.

use crate::ErrorCode;
use crate::canonical::canonical_json;
use crate::limits::{MAX_TOOL_MESSAGE_CHARS, MAX_TOOL_OUTPUT_BYTES};
use crate::tool_call::{ResultStatus, ToolError, ToolResultRecorded};
use serde_json::{Value, json};

/// A call's outcome in the form the model gets.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolOutcome {
    /// The output, or why there is none.
    pub result: Result<Value, ToolError>,
}

impl ToolOutcome {
    /// A success.
    pub fn success(output: Value) -> Self {
        Self { result: Ok(output) }
    }

    /// A failure.
    pub fn failure(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { result: Err(ToolError { code: code.as_str().to_owned(), message: message.into() }) }
    }

    /// The outcome of a settled call.
    pub fn of(recorded: &ToolResultRecorded) -> Self {
        let result = match (recorded.status, &recorded.output, &recorded.error) {
            (ResultStatus::Succeeded, Some(output), _) => Ok(output.clone()),
            (ResultStatus::Succeeded, None, _) => Err(ToolError {
                code: ErrorCode::OutputNotStored.as_str().to_owned(),
                message: "the call ran, its output is no longer there".to_owned(),
            }),
            (_, _, Some(error)) => Err(error.clone()),
            (status, _, None) => Err(ToolError {
                code: ErrorCode::ExecutionFailed.as_str().to_owned(),
                message: format!("the call ended as {}", status.as_str()),
            }),
        };
        Self { result }
    }

    /// What of it can be recorded: a value that is too large is none, and words are cut.
    #[must_use]
    pub fn bounded(self) -> Self {
        match self.result {
            Ok(value) if canonical_json(&value).len() > MAX_TOOL_OUTPUT_BYTES => {
                let message =
                    format!("the tool ran and gave more than {MAX_TOOL_OUTPUT_BYTES} bytes, which are not kept");
                Self::failure(ErrorCode::ResultTooLarge, message)
            }
            Err(ToolError { code, message }) if message.chars().nth(MAX_TOOL_MESSAGE_CHARS).is_some() => {
                let message = message.chars().take(MAX_TOOL_MESSAGE_CHARS).chain(['…']).collect();
                Self { result: Err(ToolError { code, message }) }
            }
            result => Self { result },
        }
    }

    /// The same success or failure with other words in the place of what it gave.
    #[must_use]
    pub(super) fn saying(self, words: String) -> Self {
        let result = match self.result {
            Ok(_) => Ok(Value::String(words)),
            Err(ToolError { code, .. }) => Err(ToolError { code, message: words }),
        };
        Self { result }
    }

    /// Whether it succeeded.
    pub fn ok(&self) -> bool {
        self.result.is_ok()
    }

    /// The stable code of a failure.
    pub fn error_code(&self) -> Option<String> {
        self.result.as_ref().err().map(|error| error.code.clone())
    }

    /// The JSON text the model sees. Canonical, so that an output read back from the ledger (where 1.0
    /// is written as 1) gives the same bytes as the live one.
    pub fn content(&self, tool: &str) -> String {
        canonical_json(&match &self.result {
            Ok(data) => json!({ "ok": true, "tool": tool, "data": data }),
            Err(error) => json!({ "ok": false, "tool": tool, "data": null, "error": error }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool_call::ResultOrigin;

    fn recorded(status: ResultStatus, output: Option<Value>, error: Option<ToolError>) -> ToolResultRecorded {
        ToolResultRecorded {
            executed_attempt_no: 1,
            status,
            output,
            output_sha256: None,
            error,
            started_at: None,
            finished_at: None,
            origin: ResultOrigin::Live,
            connection_id: None,
        }
    }

    #[test]
    fn the_model_is_told_the_output_or_the_code_and_never_both() {
        let content = ToolOutcome::success(json!({"sum": 5})).content("add");
        assert_eq!(content, r#"{"data":{"sum":5},"ok":true,"tool":"add"}"#);
        let refused = ToolOutcome::failure(ErrorCode::ConfirmationRejected, "no");
        let expected = r#"{"data":null,"error":{"code":"CONFIRMATION_REJECTED","message":"no"},"ok":false,"tool":"t"}"#;
        assert_eq!(refused.content("t"), expected);
        assert!(!refused.ok());
    }

    #[test]
    fn an_output_from_the_ledger_gives_the_model_the_same_bytes_as_the_live_one() {
        for output in [json!({"sum": 1.0}), json!([1e21, 0.1, 1e-7]), json!({"b": "é", "a": null})] {
            let stored = serde_json::from_str(&canonical_json(&output)).expect("JSON");
            let live = ToolOutcome::success(output).content("add");
            assert_eq!(ToolOutcome::success(stored).content("add"), live);
        }
    }

    #[test]
    fn what_is_too_large_to_be_recorded_is_a_failure_and_words_are_cut() {
        let fits = ToolOutcome::success(json!("x".repeat(MAX_TOOL_OUTPUT_BYTES - 2)));
        assert_eq!(fits.clone().bounded(), fits);
        let large = ToolOutcome::success(json!("x".repeat(MAX_TOOL_OUTPUT_BYTES - 1))).bounded();
        assert_eq!(large.error_code().as_deref(), Some("RESULT_TOO_LARGE"));
        let words = ToolOutcome::failure(ErrorCode::IoError, "é".repeat(MAX_TOOL_MESSAGE_CHARS + 1)).bounded();
        let error = words.result.expect_err("a failure");
        assert_eq!((error.code.as_str(), error.message.chars().count()), ("IO_ERROR", MAX_TOOL_MESSAGE_CHARS + 1));
        assert!(error.message.ends_with("é…"));
    }

    #[test]
    fn the_outcome_of_a_settled_call_is_its_output_or_always_some_code() {
        let error = ToolError { code: "NOT_TEXT".into(), message: "binary".into() };
        for (status, output, error, expected) in [
            (ResultStatus::Succeeded, Some(json!(1)), None, None),
            (ResultStatus::Succeeded, None, None, Some("OUTPUT_NOT_STORED")),
            (ResultStatus::Failed, None, Some(error.clone()), Some("NOT_TEXT")),
            (ResultStatus::Rejected, Some(json!(1)), Some(error), Some("NOT_TEXT")),
            (ResultStatus::Indeterminate, None, None, Some("EXECUTION_FAILED")),
        ] {
            let outcome = ToolOutcome::of(&recorded(status, output, error));
            assert_eq!(outcome.error_code().as_deref(), expected, "{status:?}");
        }
    }
}
