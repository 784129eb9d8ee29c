//! Refusals as clients see them: a status and `{"error": {code, message, details?, retriable}}`.
//!
//! Two messages: the client's says what to do, the log's says what happened. Causes are logged once,
//! here.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use devmind_domain::ErrorCode;
use devmind_domain::conversation::ConversationError;
use devmind_ledger::{AppendError, ExecuteError, LedgerError};
use devmind_projections::ViewError;
use serde_json::{Value, json};

/// A refusal on its way to a client.
#[derive(Debug, thiserror::Error)]
#[error("{code}: {message}")]
pub struct ApiError {
    /// The stable code.
    pub code: ErrorCode,
    /// What the client is told.
    pub message: String,
    /// More, for programs.
    pub details: Option<Value>,
}

/// What handlers return.
pub type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    /// A refusal in these words.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: None }
    }

    /// A refusal in the code's own words.
    pub fn of(code: ErrorCode) -> Self {
        Self::new(code, code.help())
    }

    /// A field that is not what it should be.
    pub fn field(field: &str, problem: impl std::fmt::Display) -> Self {
        Self {
            code: ErrorCode::ValidationFailed,
            message: format!("{field}: {problem}"),
            details: Some(json!({ "field": field })),
        }
    }

    /// A failure whose cause is for the log alone.
    pub fn internal(code: ErrorCode, cause: &dyn std::fmt::Display) -> Self {
        tracing::error!(error.code = code.as_str(), cause = %cause, "request failed");
        Self::of(code)
    }

    /// The JSON body.
    pub fn body(&self) -> Value {
        let mut error = json!({
            "code": self.code,
            "message": self.message,
            "hint": self.code.help(),
            "retriable": self.code.retriable(),
        });
        if let Some(details) = &self.details {
            error["details"] = details.clone();
        }
        json!({ "error": error })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(self.body())).into_response()
    }
}

impl From<ConversationError> for ApiError {
    fn from(error: ConversationError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<AppendError> for ApiError {
    fn from(error: AppendError) -> Self {
        Self::internal(error.code(), &error)
    }
}

impl From<LedgerError> for ApiError {
    fn from(error: LedgerError) -> Self {
        Self::internal(error.code(), &error)
    }
}

impl From<ViewError> for ApiError {
    fn from(error: ViewError) -> Self {
        Self::internal(error.code(), &error)
    }
}

impl<E: Into<ApiError>> From<ExecuteError<E>> for ApiError {
    fn from(error: ExecuteError<E>) -> Self {
        match error {
            ExecuteError::Refused(refusal) => refusal.into(),
            ExecuteError::Append(error) => error.into(),
            ExecuteError::Ledger(error) => error.into(),
        }
    }
}
