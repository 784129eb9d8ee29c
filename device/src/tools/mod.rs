//! What the device can do for a model: a trait and one list.
//!
//! A tool has two steps. [`LocalTool::prepare`] is check 4: it applies the path policy, opens what
//! it will need and keeps the handle. [`Prepared::run`] is check 9: it works from that handle alone.
//! In between the user may be asked, which is left to `confirm`, as the order is to `call`. Both steps
//! block and run on threads for blocking work.

mod folder;
mod glob;
mod ignored;
mod list_files;
mod read_file;
mod search_files;
mod search_text;
mod walk;

pub use list_files::ListFiles;
pub use read_file::ReadFile;
pub use search_files::SearchFiles;
pub use search_text::SearchText;

use crate::path_policy::{FileFacts, PathDenied};
use crate::workspace::Workspace;
use devmind_domain::ErrorCode;
use devmind_domain::ids::ToolCallId;
use devmind_domain::tool_call::ToolError;
use devmind_domain::tools::{ToolDefinition, catalogue};
use serde_json::Value;
use std::sync::Arc;
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// Every tool of the device. Adding one = one file, one line here, one entry in the domain's
/// catalogue.
pub fn all() -> Vec<Arc<dyn LocalTool>> {
    vec![Arc::new(ListFiles), Arc::new(ReadFile), Arc::new(SearchFiles), Arc::new(SearchText)]
}

/// A tool that runs on this device.
pub trait LocalTool: Send + Sync {
    /// Its name in the domain's catalogue, which has everything else that is known before a call.
    fn name(&self) -> &'static str;

    /// Check 4: judges the paths in the arguments (which match the tool's schema) and opens what
    /// the call needs.
    ///
    /// # Errors
    /// The path policy's codes; the call does not run.
    fn prepare(&self, workspace: &Arc<Workspace>, arguments: &Value) -> Result<Box<dyn Prepared>, ToolFailure>;

    /// What the path policy says of a path that this tool is given: most look into a folder.
    ///
    /// # Errors
    /// The path policy's codes.
    fn judge(&self, workspace: &Workspace, path: &str) -> Result<(), PathDenied> {
        workspace.open_folder(path).map(drop)
    }

    /// Its definition; `None` for a tool that the catalogue does not have, which is never offered.
    fn definition(&self) -> Option<&'static ToolDefinition> {
        catalogue().get(self.name())
    }
}

/// A call whose files are open.
pub trait Prepared: Send {
    /// The file or folder that the person is shown, if the call is about one.
    fn subject(&self) -> Option<Subject> {
        None
    }

    /// Check 8: whether the file is still the one that was shown. Blocking.
    fn is_unchanged(&self) -> bool {
        true
    }

    /// Check 9: does it. Blocking; looks at the execution's limits at least every 64 KiB.
    ///
    /// # Errors
    /// A stable code and words for the model.
    fn run(self: Box<Self>, execution: &Execution) -> Result<Value, ToolFailure>;
}

/// A file or a folder as a person is shown it before deciding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Its path within the workspace, links resolved.
    pub resolved_path: String,
    /// Size, age and number of names of a file; `None`: a folder with everything in it.
    pub facts: Option<FileFacts>,
}

/// The limits of one execution.
#[derive(Clone, Debug)]
pub struct Execution {
    /// The call.
    pub tool_call_id: ToolCallId,
    /// When it must have ended.
    pub ends_at: Instant,
    /// Whether the server took it back.
    pub cancel: CancellationToken,
}

impl Execution {
    /// Goes on, or says why not.
    ///
    /// # Errors
    /// `CANCELLED_BY_SERVER`, `EXECUTION_TIMEOUT`.
    pub fn check(&self) -> Result<(), ToolFailure> {
        if self.cancel.is_cancelled() {
            return Err(ToolFailure::new(ErrorCode::CancelledByServer, "the server took the call back"));
        }
        if Instant::now() >= self.ends_at {
            return Err(ToolFailure::new(ErrorCode::ExecutionTimeout, "the tool took too long"));
        }
        Ok(())
    }
}

/// Why a tool did not do it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolFailure {
    /// A stable code.
    pub code: ErrorCode,
    /// Words for the model; no path outside the workspace, no text of the operating system's.
    pub message: String,
}

impl ToolFailure {
    /// A failure.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// A read or a listing that the operating system broke off.
    pub(crate) fn io(error: &std::io::Error) -> Self {
        tracing::warn!(%error, "a tool could not read");
        Self::new(ErrorCode::IoError, "the device could not read it")
    }
}

impl From<PathDenied> for ToolFailure {
    fn from(denied: PathDenied) -> Self {
        Self::new(denied.code, denied.message)
    }
}

impl From<ToolFailure> for ToolError {
    fn from(failure: ToolFailure) -> Self {
        Self { code: failure.code.as_str().to_owned(), message: failure.message }
    }
}

/// A text argument, or what stands in for it.
fn text<'a>(arguments: &'a Value, name: &str, otherwise: &'a str) -> &'a str {
    arguments.get(name).and_then(Value::as_str).unwrap_or(otherwise)
}

/// A whole number, or what stands in for it. JSON Schema counts `5.0` as an integer too.
fn number(arguments: &Value, name: &str, otherwise: u64) -> u64 {
    let value = arguments.get(name);
    value.and_then(|value| value.as_u64().or_else(|| value.as_f64().map(|n| n as u64))).unwrap_or(otherwise)
}

/// Whether an argument is `true`.
fn is_true(arguments: &Value, name: &str) -> bool {
    arguments.get(name).and_then(Value::as_bool).unwrap_or(false)
}

/// One thing of a folder as a model is told of it: where, what kind, and how many bytes if it is a file.
fn described(word: &str, place: &str, kind: folder::Kind, size: Option<u64>) -> Value {
    let mut told =
        serde_json::Map::from_iter([(word.to_owned(), place.into()), ("kind".to_owned(), kind.as_str().into())]);
    told.extend(size.map(|size| ("size".to_owned(), size.into())));
    Value::Object(told)
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests {
    use super::*;
    use devmind_domain::tool_call::Target;

    #[test]
    fn every_device_tool_of_the_catalogue_is_in_the_list_and_the_other_way_round() {
        let mut offered: Vec<&str> = all().iter().map(|tool| tool.name()).collect();
        let device_only = |definition: &&ToolDefinition| definition.target == Target::Device;
        let mut known: Vec<&str> =
            catalogue().definitions().filter(device_only).map(|definition| definition.name.as_str()).collect();
        offered.sort_unstable();
        known.sort_unstable();
        assert_eq!(offered, known);
    }
}
