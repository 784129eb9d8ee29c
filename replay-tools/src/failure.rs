//! Why a command could not do what it was asked, and how that is told.

use devmind_domain::ErrorCode;
use devmind_ledger::LedgerError;
use devmind_projections::ViewError;
use std::io::{self, ErrorKind};
use std::process::ExitCode;

/// A command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Whoever read the output has had enough (`| head`): no error.
    ClosedPipe,
    /// Everything else: what happened and what can be done.
    Error { code: ErrorCode, message: String, hint: String },
}

impl Failure {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::Error { code, message: message.into(), hint: code.help().to_owned() }
    }

    pub fn internal(error: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::Internal, error.to_string())
    }

    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        match self {
            Self::ClosedPipe => self,
            Self::Error { code, message, .. } => Self::Error { code, message, hint: hint.into() },
        }
    }
}

impl From<LedgerError> for Failure {
    fn from(error: LedgerError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<ViewError> for Failure {
    fn from(error: ViewError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::BrokenPipe => Self::ClosedPipe,
            _ => Self::new(ErrorCode::IoError, format!("the output cannot be written: {error}"))
                .with_hint("check where stdout goes"),
        }
    }
}

/// Tells a failure on stderr.
pub(crate) fn report(failure: &Failure) -> ExitCode {
    if let Failure::Error { code, message, hint } = failure {
        crate::output::say(format_args!("error[{code}]: {message}\nhint: {hint}"));
    }
    ExitCode::from(1)
}
