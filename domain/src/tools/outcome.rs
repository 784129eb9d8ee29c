//! What the model is told of a call.

use crate::ErrorCode;
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

    /// Whether it succeeded.
    pub fn ok(&self) -> bool {
        self.result.is_ok()
    }

    /// The stable code of a failure.
    pub fn error_code(&self) -> Option<String> {
        self.result.as_ref().err().map(|error| error.code.clone())
    }

    /// The JSON text the model sees.
    pub fn content(&self, tool: &str) -> String {
        match &self.result {
            Ok(data) => json!({ "ok": true, "tool": tool, "data": data }).to_string(),
            Err(error) => json!({ "ok": false, "tool": tool, "data": null, "error": error }).to_string(),
        }
    }
}
