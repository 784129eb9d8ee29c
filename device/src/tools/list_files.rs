//! `workspace.list_files`: the names in one folder, sorted, without the sensitive ones.

use super::folder::{self, Budget, Entries};
use super::{Execution, LocalTool, Prepared, ToolFailure, described, number, text};
use crate::path_policy::OpenedDir;
use crate::workspace::Workspace;
use devmind_domain::limits::{LIST_BUDGET_MS, MAX_LISTED_FILES, MAX_SCANNED_ENTRIES};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The tool.
pub struct ListFiles;

impl LocalTool for ListFiles {
    fn name(&self) -> &'static str {
        "workspace.list_files"
    }

    fn prepare(&self, workspace: &Arc<Workspace>, arguments: &Value) -> Result<Box<dyn Prepared>, ToolFailure> {
        let path = text(arguments, "path", ".").to_owned();
        let limit = number(arguments, "limit", MAX_LISTED_FILES as u64);
        let folder = workspace.open_folder(&path)?;
        Ok(Box::new(Listing {
            workspace: workspace.clone(),
            path,
            folder,
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
        }))
    }
}

struct Listing {
    workspace: Arc<Workspace>,
    path: String,
    folder: OpenedDir,
    limit: usize,
}

impl Prepared for Listing {
    /// Names that the user's disk spells in something else than UTF-8 cannot be asked for: they are
    /// only counted. `truncated` says that there is more: over the limit, after 10,000 entries, or
    /// after 2 seconds.
    fn run(self: Box<Self>, execution: &Execution) -> Result<Value, ToolFailure> {
        let ends_at = Instant::now() + Duration::from_millis(LIST_BUDGET_MS);
        let mut budget = Budget { entries: MAX_SCANNED_ENTRIES, ends_at };
        let OpenedDir { dir, resolved } = &self.folder;
        let Entries { mut entries, not_utf8, mut truncated } =
            folder::read(&self.workspace, dir, resolved, &mut budget, execution)?;
        truncated |= entries.len() > self.limit;
        entries.truncate(self.limit);
        let entries: Vec<Value> =
            entries.iter().map(|entry| described("name", &entry.name, entry.kind, entry.size)).collect();
        Ok(json!({ "path": self.path, "entries": entries, "truncated": truncated, "not_utf8": not_utf8 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use devmind_domain::ErrorCode;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::Path;
    use tokio_util::sync::CancellationToken;

    fn list(folder: &Path, arguments: &Value) -> Result<Value, ToolFailure> {
        let workspace = Arc::new(Workspace::open(folder).expect("workspace"));
        let ends_at = Instant::now() + Duration::from_secs(60);
        let execution = Execution { tool_call_id: "call".into(), ends_at, cancel: CancellationToken::new() };
        ListFiles.prepare(&workspace, arguments).and_then(|listing| listing.run(&execution))
    }

    fn names(listing: &Value) -> Vec<&str> {
        let entries = listing["entries"].as_array().expect("entries");
        entries.iter().filter_map(|entry| entry["name"].as_str()).collect()
    }

    #[test]
    fn a_listing_is_sorted_tells_kinds_and_says_nothing_of_what_links_lead_to() {
        let outside = tempfile::tempdir().expect("folder");
        std::fs::write(outside.path().join("large"), "x".repeat(9_999)).expect("file");
        let folder = tempfile::tempdir().expect("folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("b")).expect("folder");
        std::fs::write(at("c.md"), "four").expect("file");
        std::fs::write(at(".env"), "secret").expect("file");
        std::fs::hard_link(at(".env"), at("innocent")).expect("link");
        std::os::unix::fs::symlink(outside.path().join("large"), at("a")).expect("link");
        std::fs::write(folder.path().join(OsStr::from_bytes(b"\xff")), "").expect("file");
        let listing = list(folder.path(), &json!({})).expect("lists");
        let expected = json!({
            "path": ".", "truncated": false, "not_utf8": 1,
            "entries": [
                { "name": "a", "kind": "symlink" },
                { "name": "b", "kind": "dir" },
                { "name": "c.md", "kind": "file", "size": 4 },
            ],
        });
        assert_eq!(listing, expected);
    }

    #[test]
    fn c20_a_listing_ends_at_its_limit_and_at_ten_thousand_entries_and_says_so() {
        let folder = tempfile::tempdir().expect("folder");
        for name in ["c", "a", "b"] {
            std::fs::write(folder.path().join(name), "").expect("file");
        }
        let listing = list(folder.path(), &json!({ "limit": 2 })).expect("lists");
        assert_eq!((names(&listing), &listing["truncated"]), (vec!["a", "b"], &json!(true)));
        let listing = list(folder.path(), &json!({ "limit": 3 })).expect("lists");
        assert_eq!(listing["truncated"], false);
        for n in 0..MAX_SCANNED_ENTRIES {
            std::fs::write(folder.path().join(format!("{n}")), "").expect("file");
        }
        let listing = list(folder.path(), &json!({})).expect("lists");
        assert_eq!((names(&listing).len(), &listing["truncated"]), (MAX_LISTED_FILES, &json!(true)));
    }

    #[test]
    fn only_folders_are_listed() {
        let folder = tempfile::tempdir().expect("folder");
        std::fs::write(folder.path().join("file"), "").expect("file");
        for (path, code) in
            [("file", ErrorCode::NotAFile), ("missing", ErrorCode::PathNotFound), ("file/x", ErrorCode::PathNotFound)]
        {
            assert_eq!(
                list(folder.path(), &json!({ "path": path })).map_err(|failure| failure.code),
                Err(code),
                "{path}"
            );
        }
    }
}
