//! `workspace.search_files`: names that match a glob, at any depth, without the ignored ones.

use super::walk::Walk;
use super::{Execution, LocalTool, Prepared, ToolFailure, described, glob, number, text};
use crate::path_policy::OpenedDir;
use crate::workspace::Workspace;
use devmind_domain::limits::MAX_SEARCH_RESULTS;
use globset::GlobMatcher;
use serde_json::{Value, json};
use std::sync::Arc;

/// The tool.
pub struct SearchFiles;

impl LocalTool for SearchFiles {
    fn name(&self) -> &'static str {
        "workspace.search_files"
    }

    fn prepare(&self, workspace: &Arc<Workspace>, arguments: &Value) -> Result<Box<dyn Prepared>, ToolFailure> {
        let limit = number(arguments, "limit", MAX_SEARCH_RESULTS as u64);
        let glob = glob::compile(text(arguments, "pattern", ""))?;
        let folder = workspace.open_folder(text(arguments, "path", "."))?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(Box::new(Search { workspace: workspace.clone(), folder, glob, limit }))
    }
}

struct Search {
    workspace: Arc<Workspace>,
    folder: OpenedDir,
    glob: GlobMatcher,
    limit: usize,
}

impl Prepared for Search {
    /// Paths are from the workspace's root, as the other tools take them. `truncated` says that there
    /// may be more: over the limit, beyond 100,000 entries, 64 folders deep, or after 8 seconds.
    fn run(self: Box<Self>, execution: &Execution) -> Result<Value, ToolFailure> {
        let mut walk = Walk::new(&self.workspace, self.folder, execution)?;
        let mut entries = Vec::new();
        while let Some(found) = walk.next()? {
            if !self.glob.is_match(&found.below) {
                continue;
            }
            if entries.len() == self.limit {
                walk.truncated = true;
                break;
            }
            entries.push(described("path", &found.path, found.kind, found.size));
        }
        Ok(json!({
            "entries": entries, "truncated": walk.truncated,
            "not_utf8": walk.not_utf8, "unreadable_folders": walk.unreadable,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{execution, prepared_run, tree};
    use super::*;
    use devmind_domain::ErrorCode;
    use std::os::unix::fs::symlink;

    fn paths(found: &Value) -> Vec<&str> {
        let entries = found["entries"].as_array().expect("entries");
        entries.iter().filter_map(|entry| entry["path"].as_str()).collect()
    }

    #[test]
    fn a_search_finds_names_in_order_and_none_that_is_ignored_sensitive_or_behind_a_link() {
        let outside = tree(&[("leak.rs", "")]);
        let folder = tree(&[
            (".gitignore", "target/\n*.log\n!keep.log\n/top.rs\n"),
            ("top.rs", ""),
            ("src/top.rs", ""),
            ("src/a.rs", "four"),
            ("src/.ignore", "skipped.rs\n"),
            ("src/skipped.rs", ""),
            ("src/deep/b.rs", ""),
            ("target/c.rs", ""),
            ("a.log", ""),
            ("keep.log", ""),
            (".git/d.rs", ""),
            (".ssh/e.rs", ""),
            (".github/f.rs", ""),
        ]);
        symlink(outside.path(), folder.path().join("out")).expect("link");
        symlink("src", folder.path().join("again")).expect("link");
        symlink(".git", folder.path().join("hidden")).expect("link");
        let found = prepared_run(&SearchFiles, folder.path(), &json!({ "pattern": "*.rs" })).expect("found");
        assert_eq!(paths(&found), [".github/f.rs", "src/a.rs", "src/deep/b.rs", "src/top.rs"]);
        assert_eq!(found["entries"][1], json!({ "path": "src/a.rs", "kind": "file", "size": 4 }));
        assert_eq!(found["truncated"], false);
        let logs = prepared_run(&SearchFiles, folder.path(), &json!({ "pattern": "*.log" })).expect("found");
        assert_eq!(paths(&logs), ["keep.log"]);
        let everything = prepared_run(&SearchFiles, folder.path(), &json!({ "pattern": "*" })).expect("found");
        for hidden in ["hidden", ".git", ".ssh"] {
            assert!(!paths(&everything).contains(&hidden), "{hidden}");
        }
        let below = json!({ "pattern": "deep/*", "path": "src" });
        assert_eq!(paths(&prepared_run(&SearchFiles, folder.path(), &below).expect("found")), ["src/deep/b.rs"]);
        let rules_of_above = json!({ "pattern": "*", "path": "src/deep" });
        assert_eq!(
            paths(&prepared_run(&SearchFiles, folder.path(), &rules_of_above).expect("found")),
            ["src/deep/b.rs"]
        );
        let named = json!({ "pattern": "*", "path": "target" });
        assert_eq!(paths(&prepared_run(&SearchFiles, folder.path(), &named).expect("found")), ["target/c.rs"]);
    }

    #[test]
    fn a_search_ends_at_its_limit_and_says_so_and_a_bad_glob_or_folder_is_refused() {
        let folder = tree(&[("a", ""), ("b", ""), ("c", "")]);
        let found = |limit: u64| {
            prepared_run(&SearchFiles, folder.path(), &json!({ "pattern": "*", "limit": limit })).expect("found")
        };
        assert_eq!((paths(&found(2)), &found(2)["truncated"]), (vec!["a", "b"], &json!(true)));
        assert_eq!(found(3)["truncated"], false);
        for (arguments, code) in [
            (json!({ "pattern": "[" }), ErrorCode::InvalidArguments),
            (json!({ "pattern": "*", "path": "../x" }), ErrorCode::PathOutOfScope),
            (json!({ "pattern": "*", "path": ".git" }), ErrorCode::SensitivePathDenied),
            (json!({ "pattern": "*", "path": "a" }), ErrorCode::NotAFile),
        ] {
            let failure = prepared_run(&SearchFiles, folder.path(), &arguments).expect_err("refused");
            assert_eq!(failure.code, code, "{arguments}");
        }
    }

    #[test]
    fn a_search_that_is_taken_back_ends() {
        let folder = tree(&[("a", "")]);
        let workspace = Arc::new(Workspace::open(folder.path()).expect("workspace"));
        let prepared = SearchFiles.prepare(&workspace, &json!({ "pattern": "*" })).expect("prepared");
        let execution = execution();
        execution.cancel.cancel();
        let failure = prepared.run(&execution).expect_err("taken back");
        assert_eq!(failure.code, ErrorCode::CancelledByServer);
    }
}
