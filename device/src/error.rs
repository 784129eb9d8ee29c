//! Why the device program does not start, or stops by itself.

use devmind_domain::ErrorCode;

/// A refusal or failure of the device program, with its stable code.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct DeviceError {
    code: ErrorCode,
    message: String,
    hint: Option<String>,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl DeviceError {
    /// A refusal in one sentence.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None, source: None }
    }

    /// The same with what to do about it, where the code's own words are too general.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same with what caused it.
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// What a person can do about it.
    pub fn hint(&self) -> &str {
        self.hint.as_deref().unwrap_or_else(|| self.code.help())
    }
}
