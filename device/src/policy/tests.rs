//! Which rule allows what, and which file allows nothing.

use super::*;
use crate::clock::Deadline;
use crate::tools::Subject;
use serde_json::json;
use std::time::Duration;

fn asked(tool: &str, path: Option<&str>) -> ConfirmationRequest {
    ConfirmationRequest {
        tool_call_id: "call".into(),
        tool: tool.to_owned(),
        arguments: json!({ "path": "what the model wrote" }),
        subject: path.map(|path| Subject { resolved_path: path.to_owned(), facts: None }),
        conversation_title: String::new(),
        deadline: Deadline::after(Duration::from_secs(60)),
    }
}

fn rule(tool: &str, path: &str) -> Rule {
    Rule { workspace: "/ws".into(), tool: tool.to_owned(), path: path.to_owned() }
}

#[test]
fn a_rule_allows_only_its_tool_in_its_workspace_on_paths_that_its_glob_matches_whole() {
    const READ: &str = "workspace.read_file";
    let ws = Path::new("/ws");
    for (glob, path, expected) in [
        ("docs/*.md", "docs/guide.md", true),
        ("docs/*.md", "docs/deep/guide.md", false),
        ("docs/**", "docs/deep/guide.md", true),
        ("*.md", "docs/guide.md", false),
        ("docs", "docs/guide.md", false),
        ("**", "docs/guide.md", true),
        (".", "", true),
        (".", "docs", false),
    ] {
        assert_eq!(rule(READ, glob).allows(ws, &asked(READ, Some(path))), expected, "{glob} {path}");
    }
    let all = rule(READ, "**");
    assert!(!all.allows(ws, &asked("workspace.search_text", Some("a"))), "another tool");
    assert!(!all.allows(Path::new("/ws2"), &asked(READ, Some("a"))), "another workspace");
    assert!(!all.allows(ws, &asked(READ, None)), "nothing that was opened");
}

#[test]
fn there_are_no_rules_until_one_is_written_and_a_removed_one_counts_no_more() {
    let folder = tempfile::tempdir().expect("folder");
    let policy = Policy::of(folder.path());
    let request = asked("workspace.read_file", Some("docs/guide.md"));
    let allowing = || policy.allowing(Path::new("/ws"), &request).map(|(number, _)| number);
    assert_eq!(allowing(), None);
    policy.add(rule("workspace.read_file", "src/**")).expect("added");
    policy.add(rule("workspace.read_file", "docs/**")).expect("added");
    policy.add(rule("workspace.read_file", "docs/**")).expect("there already");
    assert_eq!((policy.rules().expect("rules").len(), allowing()), (2, Some(2)));
    assert_eq!(policy.remove(2).expect("removed").path, "docs/**");
    assert_eq!(allowing(), None);
    assert!(policy.remove(2).is_err() && policy.remove(0).is_err());
    assert!(policy.add(rule("workspace.read_file", "[")).is_err());
}

#[test]
fn a_file_that_others_may_change_or_that_is_no_list_of_rules_allows_nothing() {
    let folder = tempfile::tempdir().expect("folder");
    let policy = Policy::of(folder.path());
    policy.add(rule("workspace.read_file", "**")).expect("added");
    let file = folder.path().join(FILE);
    let good = fs::read_to_string(&file).expect("text");
    let request = asked("workspace.read_file", Some("a"));
    let allowing = || policy.allowing(Path::new("/ws"), &request).is_some();
    assert!(allowing());
    for (text, mode) in [
        (good.clone(), 0o622),
        (format!("{good}\nsurprise = 1"), 0o600),
        (format!("{good}\n[[rule]]\nworkspace = \"/ws\"\ntool = \"x\"\npath = \"[\""), 0o600),
        ("nonsense".to_owned(), 0o600),
    ] {
        fs::write(&file, &text).expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("rights");
        assert!(!allowing(), "{mode:o} {text}");
        assert!(policy.rules().is_err());
    }
}
