//! Which paths of the workspace a tool may open.
//!
//! A path is judged in a fixed order: by its form ([`lexical`]), by its names ([`sensitive`]), then
//! by opening it beneath the held workspace folder ([`open`]) and looking at what was really opened.
//! What stands outside, and what has a sensitive name, gets the same answer whether it exists or
//! not; every error refuses. What a tool does with the open handle is left to `tools`.

mod beneath;
pub mod lexical;
mod open;
pub mod sensitive;

pub use beneath::Backend;
pub use open::{FileFacts, OpenedDir, OpenedFile};
pub(crate) use open::{open_entry, open_folder_entry};

use devmind_domain::ErrorCode;

/// Why a path is not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PathDenied {
    /// The stable code.
    pub code: ErrorCode,
    /// Words that never depend on what there is outside or behind a sensitive name.
    pub message: &'static str,
}

impl PathDenied {
    /// The one answer for a code.
    pub(crate) fn new(code: ErrorCode) -> Self {
        let message = match code {
            ErrorCode::InvalidArguments => "the path is empty, too long, or holds a NUL character",
            ErrorCode::AbsolutePathDenied => "absolute paths are not opened; use a path relative to the workspace",
            ErrorCode::PathOutOfScope => "the path leaves the workspace",
            ErrorCode::SensitivePathDenied => "files of this name hold secrets and are never opened",
            ErrorCode::PathNotFound => "there is nothing of this name in the workspace",
            ErrorCode::NotAFile => "only regular files can be read and only folders listed",
            ErrorCode::WorkspaceReplaced => "the workspace's folder was moved, replaced or removed",
            _ => "the device could not open it",
        };
        Self { code, message }
    }
}
