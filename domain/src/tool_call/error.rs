//! Why a tool call refuses a command.

use crate::ErrorCode;

/// A refusal; nothing has happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolCallError {
    /// The id was used for a call of another tool, version or arguments.
    #[error("this call id was used for other arguments")]
    HashConflict,
    /// The call belongs to another device, or another journal of it.
    #[error("the call belongs to another device or journal")]
    DeviceChanged,
    /// A person must decide first.
    #[error("a person must decide about this call first")]
    NotApproved,
    /// The device may have forgotten the call.
    #[error("the call is too old to be sent again")]
    TooOld,
    /// There is no such call.
    #[error("there is no such call")]
    Unknown,
    /// The report comes from somebody the call was never sent to.
    #[error("the call was never sent to this device")]
    ForeignReport,
    /// The attempt was never made.
    #[error("attempt {attempt_no} was never made")]
    NoSuchAttempt {
        /// The attempt.
        attempt_no: u32,
    },
    /// An acknowledgement says that a result is safe, and there is none.
    #[error("the call has no result to acknowledge")]
    NoResult,
}

impl ToolCallError {
    /// The stable code.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::HashConflict => ErrorCode::IdempotencyConflict,
            Self::DeviceChanged => ErrorCode::DeviceChanged,
            Self::NotApproved => ErrorCode::ApprovalRequired,
            Self::TooOld => ErrorCode::CallTooOld,
            Self::Unknown => ErrorCode::NotFound,
            Self::ForeignReport | Self::NoSuchAttempt { .. } | Self::NoResult => ErrorCode::Protocol,
        }
    }
}
