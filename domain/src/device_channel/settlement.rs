//! How a call ends on the device, and what a start of its program makes of calls that have not ended.

use crate::ErrorCode;
use crate::canonical::{canonical_json, sha256_hex};
use crate::tool_call::{Phase, ResultStatus, ToolError};
use serde_json::Value;

/// How a call ends: what the device's journal keeps, and the server is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// How.
    pub status: ResultStatus,
    /// The output's canonical JSON text.
    pub output: Option<String>,
    /// SHA-256 of that text.
    pub output_sha256: Option<String>,
    /// Why it did not succeed.
    pub error: Option<ToolError>,
}

impl Settlement {
    /// It ran and gave an output.
    pub fn succeeded(output: &Value) -> Self {
        let text = canonical_json(output);
        let sha256 = sha256_hex(text.as_bytes());
        Self { status: ResultStatus::Succeeded, output: Some(text), output_sha256: Some(sha256), error: None }
    }

    /// It did not succeed.
    pub fn without_success(status: ResultStatus, code: ErrorCode, message: impl Into<String>) -> Self {
        let error = ToolError { code: code.as_str().to_owned(), message: message.into() };
        Self { status, output: None, output_sha256: None, error: Some(error) }
    }

    /// The same where there is no room for the output: that it ran, and what it gave, stay known.
    #[must_use]
    pub fn without_output(&self) -> Self {
        let error = ToolError {
            code: ErrorCode::OutputNotStored.as_str().to_owned(),
            message: "the call ran, but the device's disk was full: its output is lost".to_owned(),
        };
        Self { output: None, error: Some(error), ..self.clone() }
    }

    /// How a new start of the program settles a call that an earlier one left at this phase. What was
    /// not begun did not run; what was begun may have, and nobody can know. Neither runs again.
    pub fn after_restart(left_at: Phase) -> Self {
        match left_at {
            Phase::Reserved | Phase::Confirming => Self::not_executed(),
            Phase::Executing => {
                let message = "the device program ended while executing the call";
                Self::without_success(ResultStatus::Indeterminate, ErrorCode::DeviceRestarted, message)
            }
        }
    }

    /// The program ends before the call began.
    pub fn not_executed() -> Self {
        let message = "the device program ended before it began the call";
        Self::without_success(ResultStatus::Cancelled, ErrorCode::NotExecuted, message)
    }

    /// The server took the call back.
    pub fn taken_back() -> Self {
        let message = "the server took the call back";
        Self::without_success(ResultStatus::Cancelled, ErrorCode::CancelledByServer, message)
    }

    /// The call did not run and never will, because of this.
    pub fn rejected(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::without_success(ResultStatus::Rejected, code, message)
    }

    /// The request had been under way for too long to begin.
    pub fn expired() -> Self {
        Self::rejected(ErrorCode::RequestExpired, "the request was too old to begin")
    }
}
