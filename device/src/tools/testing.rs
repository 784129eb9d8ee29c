//! What the tests of several tools need: a folder, an execution without hurry, a tool run at once.

use super::{Execution, LocalTool, ToolFailure};
use crate::workspace::Workspace;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// A folder with these files.
pub(super) fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("folder");
    for (path, content) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        std::fs::write(path, content).expect("file");
    }
    folder
}

/// An execution that nobody takes back, with a minute.
pub(super) fn execution() -> Execution {
    let ends_at = Instant::now() + Duration::from_secs(60);
    Execution { tool_call_id: "call".into(), ends_at, cancel: CancellationToken::new() }
}

/// Checks 4 and 9 of one call.
pub(super) fn prepared_run(tool: &dyn LocalTool, folder: &Path, arguments: &Value) -> Result<Value, ToolFailure> {
    let workspace = Arc::new(Workspace::open(folder).expect("workspace"));
    tool.prepare(&workspace, arguments)?.run(&execution())
}
