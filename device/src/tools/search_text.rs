//! `workspace.search_text`: lines of text files that match a regular expression.
//!
//! Expressions run in time linear in the text (no back references), and their compiled size is
//! bounded. Files that are binary, not UTF-8 or too large are passed over and counted.

use super::walk::{Found, Walk};
use super::{Execution, LocalTool, Prepared, Subject, ToolFailure, glob, is_true, number, text};
use crate::path_policy::OpenedDir;
use crate::text::{whole_characters, whole_characters_from};
use crate::workspace::Workspace;
use cap_std::fs::MetadataExt as _;
use devmind_domain::ErrorCode;
use devmind_domain::limits::*;
use globset::GlobMatcher;
use regex::{Regex, RegexBuilder};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, Read as _};
use std::sync::Arc;

/// Bytes of a compiled expression, at most.
const MAX_COMPILED_BYTES: usize = 1 << 20;
/// Bytes that matching may remember, at most.
const MAX_CACHE_BYTES: usize = 1 << 20;
/// Groups within groups, at most.
const MAX_NESTING: u32 = 64;
/// Bytes read, and lines matched, between two looks at the limits.
const CHUNK_BYTES: usize = 64 << 10;
const CHUNK_LINES: usize = 1_000;
/// Bytes before a match that are shown of a long line.
const BEFORE_MATCH: usize = 100;
/// Matches where the caller names no limit.
const USUAL_LIMIT: u64 = 100;

/// The tool.
pub struct SearchText;

impl LocalTool for SearchText {
    fn name(&self) -> &'static str {
        "workspace.search_text"
    }

    fn prepare(&self, workspace: &Arc<Workspace>, arguments: &Value) -> Result<Box<dyn Prepared>, ToolFailure> {
        let pattern = RegexBuilder::new(text(arguments, "pattern", ""))
            .case_insensitive(is_true(arguments, "case_insensitive"))
            .size_limit(MAX_COMPILED_BYTES)
            .dfa_size_limit(MAX_CACHE_BYTES)
            .nest_limit(MAX_NESTING)
            .build()
            .map_err(|error| unusable(&error))?;
        let glob = arguments.get("glob").and_then(Value::as_str).map(glob::compile).transpose()?;
        let path = text(arguments, "path", ".").to_owned();
        let folder = workspace.open_folder(&path)?;
        let limit = usize::try_from(number(arguments, "limit", USUAL_LIMIT)).unwrap_or(usize::MAX);
        let context = usize::try_from(number(arguments, "context", 0)).unwrap_or(0);
        Ok(Box::new(Search { workspace: workspace.clone(), path, folder, pattern, glob, limit, context }))
    }
}

/// What is wrong with an expression, without the picture that a terminal would show.
fn unusable(error: &regex::Error) -> ToolFailure {
    let words = error.to_string();
    let last = words.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
    ToolFailure::new(ErrorCode::InvalidArguments, format!("the expression cannot be used: {last}"))
}

struct Search {
    workspace: Arc<Workspace>,
    path: String,
    folder: OpenedDir,
    pattern: Regex,
    glob: Option<GlobMatcher>,
    limit: usize,
    context: usize,
}

/// What a search has come to.
#[derive(Default)]
struct Answer {
    matches: Vec<Value>,
    /// Bytes of text in them.
    bytes: usize,
    files_searched: usize,
    bytes_searched: u64,
    binary: u32,
    too_large: u32,
    unreadable: u32,
}

impl Prepared for Search {
    fn subject(&self) -> Option<Subject> {
        Some(Subject { resolved_path: self.folder.resolved.join("/"), facts: None })
    }

    /// The path leads to the same folder.
    fn is_unchanged(&self) -> bool {
        let identity = |folder: &OpenedDir| folder.dir.dir_metadata().ok().map(|found| (found.dev(), found.ino()));
        let before = identity(&self.folder);
        before.is_some() && self.workspace.open_folder(&self.path).is_ok_and(|now| identity(&now) == before)
    }

    /// `truncated` says that there may be more: over the limit of matches, of text in the answer, of
    /// what one search looks into, or after 8 seconds.
    fn run(self: Box<Self>, execution: &Execution) -> Result<Value, ToolFailure> {
        let Self { workspace, folder, pattern, glob, limit, context, .. } = *self;
        let matcher = Matcher { pattern, context, limit, execution };
        let mut walk = Walk::new(&workspace, folder, execution)?;
        let mut answer = Answer::default();
        while let Some(found) = walk.next()? {
            let is_wanted = found.size.is_some() && glob.as_ref().is_none_or(|glob| glob.is_match(&found.below));
            if !is_wanted {
                continue;
            }
            if answer.is_spent() || walk.is_out_of_time() {
                walk.truncated = true;
                break;
            }
            let Some(content) = answer.read(&walk, &found, execution)? else { continue };
            if !matcher.search(&found.path, &content, &mut answer)? {
                walk.truncated = true;
                break;
            }
        }
        Ok(json!({
            "matches": answer.matches, "truncated": walk.truncated, "files_searched": answer.files_searched,
            "skipped": {
                "binary_or_not_utf8": answer.binary, "too_large": answer.too_large,
                "unreadable": answer.unreadable + walk.unreadable, "name_not_utf8": walk.not_utf8,
            },
        }))
    }
}

impl Answer {
    fn is_spent(&self) -> bool {
        self.files_searched >= MAX_SEARCHED_FILES || self.bytes_searched >= MAX_SEARCHED_BYTES
    }

    /// A file's text; `None` for what is passed over, which is counted.
    fn read(&mut self, walk: &Walk<'_>, found: &Found, execution: &Execution) -> Result<Option<String>, ToolFailure> {
        if found.size.is_some_and(|size| size > MAX_SEARCHED_FILE_BYTES) {
            self.too_large += 1;
            return Ok(None);
        }
        let Ok(mut file) = walk.open(found) else {
            self.unreadable += 1;
            return Ok(None);
        };
        let read = read_whole(&mut file, execution)?;
        self.files_searched += 1;
        match read {
            Err(_) => self.unreadable += 1,
            // It grew since its folder was read.
            Ok(bytes) if bytes.len() as u64 > MAX_SEARCHED_FILE_BYTES => self.too_large += 1,
            Ok(bytes) => {
                self.bytes_searched += bytes.len() as u64;
                match String::from_utf8(bytes) {
                    Ok(content) if !content.contains('\0') => return Ok(Some(content)),
                    _ => self.binary += 1,
                }
            }
        }
        Ok(None)
    }
}

/// One byte more than may be, at most.
fn read_whole(file: &mut File, execution: &Execution) -> Result<io::Result<Vec<u8>>, ToolFailure> {
    let mut content = Vec::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    while content.len() as u64 <= MAX_SEARCHED_FILE_BYTES {
        execution.check()?;
        match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => content.extend_from_slice(&chunk[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(content))
}

struct Matcher<'a> {
    pattern: Regex,
    context: usize,
    limit: usize,
    execution: &'a Execution,
}

impl Matcher<'_> {
    /// Adds the matching lines of one text; `false` when the answer is full.
    fn search(&self, path: &str, content: &str, answer: &mut Answer) -> Result<bool, ToolFailure> {
        let lines: Vec<&str> = content.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            if at % CHUNK_LINES == 0 {
                self.execution.check()?;
            }
            let Some(matched) = self.pattern.find(line) else { continue };
            let from = matched.start();
            if answer.matches.len() == self.limit || answer.bytes >= MAX_SEARCH_ANSWER_BYTES {
                return Ok(false);
            }
            let shown = excerpt(line, from);
            answer.bytes += shown.len();
            let mut told = json!({
                "path": path, "line": at + 1, "column": line[..from].chars().count() + 1,
                "text": shown, "cut": shown.len() < line.len(),
            });
            if self.context > 0 {
                let before = lines.get(at.saturating_sub(self.context)..at).unwrap_or_default();
                let after = lines.get(at + 1..lines.len().min(at + 1 + self.context)).unwrap_or_default();
                for (word, around) in [("before", before), ("after", after)] {
                    let around: Vec<&str> = around.iter().map(|line| excerpt(line, 0)).collect();
                    answer.bytes += around.iter().map(|line| line.len()).sum::<usize>();
                    told[word] = json!(around);
                }
            }
            answer.matches.push(told);
        }
        Ok(true)
    }
}

/// What is shown of a line: all of it, or whole characters around a match.
fn excerpt(line: &str, matched_at: usize) -> &str {
    if line.len() <= MAX_MATCHED_LINE_BYTES {
        return line;
    }
    let rest = whole_characters_from(line, matched_at.saturating_sub(BEFORE_MATCH));
    whole_characters(rest, MAX_MATCHED_LINE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{execution, prepared_run, tree};
    use super::*;
    use std::path::Path;

    fn search(folder: &Path, arguments: &Value) -> Value {
        prepared_run(&SearchText, folder, arguments).expect("searched")
    }

    fn places(found: &Value) -> Vec<String> {
        let matches = found["matches"].as_array().expect("matches");
        let place =
            |found: &Value| format!("{}:{}:{}", found["path"].as_str().expect("path"), found["line"], found["column"]);
        matches.iter().map(place).collect()
    }

    #[test]
    fn matches_are_told_by_place_and_nothing_sensitive_ignored_or_behind_a_link_is_searched() {
        let outside = tree(&[("leak.txt", "needle\n")]);
        let folder = tree(&[
            ("a.txt", "one\r\nNeedle needle\nthree\nfour needle"),
            ("src/b.rs", "é needle\n"),
            (".gitignore", "ignored.txt\n"),
            ("ignored.txt", "needle\n"),
            (".env", "needle\n"),
            (".git/config", "needle\n"),
            ("keys/id_rsa", "needle\n"),
        ]);
        std::fs::hard_link(folder.path().join(".env"), folder.path().join("innocent.txt")).expect("link");
        std::os::unix::fs::symlink(outside.path().join("leak.txt"), folder.path().join("leak.txt")).expect("link");
        std::os::unix::fs::symlink(".env", folder.path().join("env.txt")).expect("link");
        let found = search(folder.path(), &json!({ "pattern": "needle", "context": 1 }));
        assert_eq!(places(&found), ["a.txt:2:8", "a.txt:4:6", "src/b.rs:1:3"]);
        let first = json!({
            "path": "a.txt", "line": 2, "column": 8, "text": "Needle needle", "cut": false,
            "before": ["one"], "after": ["three"],
        });
        assert_eq!(found["matches"][0], first);
        let either = search(folder.path(), &json!({ "pattern": "^needle", "case_insensitive": true }));
        assert_eq!(places(&either), ["a.txt:2:1"]);
        let only_rust = search(folder.path(), &json!({ "pattern": "needle", "glob": "*.rs" }));
        assert_eq!(places(&only_rust), ["src/b.rs:1:3"]);
        let below = search(folder.path(), &json!({ "pattern": "needle", "path": "src" }));
        assert_eq!(places(&below), ["src/b.rs:1:3"]);
    }

    #[test]
    fn what_is_no_text_or_too_large_is_counted_and_passed_over() {
        let folder = tree(&[("binary", "needle\0"), ("text", "needle")]);
        std::fs::write(folder.path().join("latin1"), b"needle \xe9").expect("file");
        let large = File::create(folder.path().join("large")).expect("file");
        large.set_len(MAX_SEARCHED_FILE_BYTES + 1).expect("long");
        let found = search(folder.path(), &json!({ "pattern": "needle" }));
        assert_eq!(places(&found), ["text:1:1"]);
        assert_eq!((&found["skipped"]["binary_or_not_utf8"], &found["skipped"]["too_large"]), (&json!(2), &json!(1)));
    }

    #[test]
    fn long_lines_are_cut_around_the_match_between_whole_characters() {
        for filler in ["x", "é", "日", "😀"] {
            let line = format!("{}needle{}", filler.repeat(1_000), filler.repeat(1_000));
            let folder = tree(&[("long", &line)]);
            let found = search(folder.path(), &json!({ "pattern": "needle" }));
            let shown = found["matches"][0]["text"].as_str().expect("text");
            assert!(shown.contains("needle") && shown.len() <= MAX_MATCHED_LINE_BYTES, "{shown}");
            assert!(line.contains(shown));
            assert_eq!((&found["matches"][0]["cut"], &found["matches"][0]["column"]), (&json!(true), &json!(1_001)));
        }
    }

    #[test]
    fn a_search_ends_at_its_limits_and_says_so() {
        let many = format!("{}\n", "needle").repeat(600);
        let folder = tree(&[("many", &many)]);
        for (limit, matches, truncated) in [(2, 2, true), (500, 500, true)] {
            let found = search(folder.path(), &json!({ "pattern": "needle", "limit": limit }));
            assert_eq!((places(&found).len(), &found["truncated"]), (matches, &json!(truncated)));
        }
        let wide = format!("{}\n", "needle".repeat(50)).repeat(2_000);
        let folder = tree(&[("wide", &wide)]);
        let found = search(folder.path(), &json!({ "pattern": "needle", "limit": 500, "context": 5 }));
        assert!(found.to_string().len() < 2 * MAX_SEARCH_ANSWER_BYTES);
        assert_eq!(found["truncated"], true);
    }

    #[test]
    fn an_expression_that_is_wrong_or_would_grow_too_large_is_refused_with_words() {
        let folder = tree(&[]);
        for pattern in ["(", "(?=x)", r"(a)\1", r"\p{L}{900}{900}"] {
            let failure = prepared_run(&SearchText, folder.path(), &json!({ "pattern": pattern })).expect_err(pattern);
            assert_eq!(failure.code, ErrorCode::InvalidArguments, "{pattern}");
            assert!(!failure.message.contains('\n'), "{}", failure.message);
        }
    }

    #[test]
    fn a_search_stops_when_it_is_taken_back_and_a_folder_that_was_replaced_is_not_searched() {
        let folder = tree(&[("src/a", "needle")]);
        let workspace = Arc::new(Workspace::open(folder.path()).expect("workspace"));
        let arguments = json!({ "pattern": "needle", "path": "src" });
        let prepared = SearchText.prepare(&workspace, &arguments).expect("prepared");
        assert!(prepared.is_unchanged());
        std::fs::rename(folder.path().join("src"), folder.path().join("old")).expect("renamed");
        std::fs::create_dir(folder.path().join("src")).expect("folder");
        assert!(!prepared.is_unchanged());
        let execution = execution();
        execution.cancel.cancel();
        assert_eq!(prepared.run(&execution).err().map(|failure| failure.code), Some(ErrorCode::CancelledByServer));
    }
}
