//! Why a command could not do what it was asked, and how that is told.

use devmind_domain::ErrorCode;
use devmind_ledger::bundle::BundleError;
use devmind_ledger::foreign::ForeignError;
use devmind_ledger::proof::ProveError;
use devmind_ledger::{ExecuteError, LedgerError, RedactError};
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

impl From<RedactError> for Failure {
    fn from(error: RedactError) -> Self {
        let code = match &error {
            RedactError::NoSuchEvent(_) => ErrorCode::NotFound,
            RedactError::NoContent { .. } => ErrorCode::ValidationFailed,
            RedactError::Unreadable { .. } | RedactError::Tampered(_) => ErrorCode::LedgerCorrupt,
            RedactError::Ledger(error) => error.code(),
            RedactError::Record(ExecuteError::Refused(_)) => ErrorCode::ValidationFailed,
            RedactError::Record(ExecuteError::Append(error)) => error.code(),
            RedactError::Record(ExecuteError::Ledger(error)) => error.code(),
        };
        let failure = Self::new(code, error.to_string());
        match error {
            RedactError::NoContent { .. } => failure.with_hint("there is nothing to erase; `log --after` shows events"),
            RedactError::NoSuchEvent(_) => failure.with_hint("`devmind-replay log` shows the positions there are"),
            RedactError::Unreadable { .. }
            | RedactError::Tampered(_)
            | RedactError::Ledger(_)
            | RedactError::Record(_) => failure,
        }
    }
}

impl From<ProveError> for Failure {
    fn from(error: ProveError) -> Self {
        match error {
            ProveError::OutOfRange { .. } => Self::new(ErrorCode::NotFound, error.to_string()),
            ProveError::Ledger(error) => error.into(),
        }
    }
}

impl From<BundleError> for Failure {
    fn from(error: BundleError) -> Self {
        match error {
            BundleError::Ledger(error) => error.into(),
            BundleError::Prove(error) => error.into(),
            BundleError::Io(_) => {
                Self::new(ErrorCode::IoError, error.to_string()).with_hint("check the file and its folder")
            }
            BundleError::Line { .. } => Self::new(ErrorCode::LedgerCorrupt, error.to_string())
                .with_hint("the file is damaged, or no bundle: get it again from where it came"),
            BundleError::NoCheckpoint => Self::new(ErrorCode::NotReady, error.to_string())
                .with_hint("the server signs one every minute, and when it stops"),
            BundleError::Partial => Self::new(ErrorCode::ValidationFailed, error.to_string())
                .with_hint("`export` without --conversation or --run writes a whole one"),
            BundleError::NotEmpty => {
                Self::new(ErrorCode::ValidationFailed, error.to_string()).with_hint("name an empty folder with --data")
            }
        }
    }
}

impl From<ForeignError> for Failure {
    fn from(error: ForeignError) -> Self {
        match error {
            ForeignError::Ledger(error) => error.into(),
            ForeignError::Source(_) => Self::new(ErrorCode::IoError, error.to_string())
                .with_hint("check the file or the database, and the name of its table (--table)"),
            ForeignError::NotEmpty => {
                Self::new(ErrorCode::ValidationFailed, error.to_string()).with_hint("name an empty folder with --data")
            }
            ForeignError::Storage(_) => Self::new(ErrorCode::LedgerUnavailable, error.to_string())
                .with_hint("run it again: what is stored is found, and the import goes on from there"),
        }
    }
}

impl From<ViewError> for Failure {
    fn from(error: ViewError) -> Self {
        let failure = Self::new(error.code(), error.to_string());
        match error {
            ViewError::UnknownProjection { .. } => failure.with_hint("`devmind-replay status` lists the views"),
            _ => failure,
        }
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
