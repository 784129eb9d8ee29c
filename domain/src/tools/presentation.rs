//! What a person sees of the values of the workspace's tools: lines, as a terminal would have them.
//!
//! Pure, and total: a device of another age may give another shape, and then the value is shown as it is. One entry is
//! one line, whatever its name holds. What the model sees is left to `render`, which these tools do not need.

use serde_json::Value;
use std::fmt::Write;

/// A file's text, not its escapes.
pub(super) fn contents(_: &Value, value: &Value) -> Result<Value, String> {
    Ok(value.get("content").unwrap_or(value).clone())
}

/// Names, folders with their slash, files with their size.
pub(super) fn entries(_: &Value, value: &Value) -> Result<Value, String> {
    Ok(lines(value, "entries", |entry, line| {
        line.push_str(&in_line(entry["name"].as_str().or(entry["path"].as_str())?));
        match (entry["kind"].as_str()?, entry["size"].as_u64()) {
            ("dir", _) => line.push('/'),
            ("file", Some(1)) => line.push_str("  1 byte"),
            ("file", Some(size)) => write!(line, "  {size} bytes").ok()?,
            ("file", None) => {}
            (kind, _) => write!(line, "  ({})", in_line(kind)).ok()?,
        }
        Some(())
    }))
}

/// `path:line: text`, and `path-line- text` of the lines around, as grep writes them.
pub(super) fn matches(_: &Value, value: &Value) -> Result<Value, String> {
    Ok(lines(value, "matches", |found, line| {
        let (path, number) = (in_line(found["path"].as_str()?), found["line"].as_u64()?);
        let around = |side: &str| found[side].as_array().map(Vec::as_slice).unwrap_or_default().to_owned();
        let (before, after) = (around("before"), around("after"));
        for (at, text) in (number.saturating_sub(before.len() as u64)..).zip(&before) {
            writeln!(line, "{path}-{at}- {}", in_line(text.as_str()?)).ok()?;
        }
        write!(line, "{path}:{number}: {}", in_line(found["text"].as_str()?)).ok()?;
        if found["cut"] == true {
            line.push_str(" …");
        }
        for (at, text) in (number + 1..).zip(&after) {
            write!(line, "\n{path}-{at}- {}", in_line(text.as_str()?)).ok()?;
        }
        Some(())
    }))
}

/// One line of each element of a list, and a last one where there is more; the value itself where its shape is another.
fn lines(value: &Value, list: &str, line: impl Fn(&Value, &mut String) -> Option<()>) -> Value {
    let Some(elements) = value[list].as_array() else { return value.clone() };
    let one = |element| {
        let mut written = String::new();
        line(element, &mut written).map(|()| written)
    };
    let Some(mut written) = elements.iter().map(one).collect::<Option<Vec<_>>>() else { return value.clone() };
    if value["truncated"] == true {
        written.push("… and more".to_owned());
    }
    if written.is_empty() {
        written.push("nothing".to_owned());
    }
    Value::String(written.join("\n"))
}

/// A text that stays in its line.
fn in_line(text: &str) -> String {
    let shown = |c: char| if c.is_control() && c != '\t' { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::super::catalogue;
    use serde_json::{Value, json};

    fn shown(tool: &str, value: &Value) -> Value {
        catalogue().presentation(tool, &json!({}), value).expect("it is total")
    }

    #[test]
    fn a_person_sees_the_workspace_in_lines_and_what_has_another_shape_as_it_is() {
        let listing = json!({ "path": ".", "truncated": false, "entries": [
            { "name": "src", "kind": "dir" }, { "name": "a\nb", "kind": "file", "size": 1 },
            { "name": "README.md", "kind": "file", "size": 12 }, { "name": "to", "kind": "symlink" },
        ] });
        assert_eq!(shown("workspace.list_files", &listing), "src/\na\\nb  1 byte\nREADME.md  12 bytes\nto  (symlink)");
        let found = json!({ "entries": [{ "path": "src/a.rs", "kind": "file", "size": 2 }], "truncated": true });
        assert_eq!(shown("workspace.search_files", &found), "src/a.rs  2 bytes\n… and more");
        let matches = json!({ "truncated": false, "matches": [
            { "path": "a.txt", "line": 2, "column": 1, "text": "needle", "cut": true, "before": ["one"], "after": ["three"] },
            { "path": "b.txt", "line": 1, "column": 1, "text": "needle", "cut": false },
        ] });
        let lines = "a.txt-1- one\na.txt:2: needle …\na.txt-3- three\nb.txt:1: needle";
        assert_eq!(shown("workspace.search_text", &matches), lines);
        assert_eq!(shown("workspace.read_file", &json!({ "content": "a\nb" })), "a\nb");
        assert_eq!(shown("workspace.list_files", &json!({ "entries": [] })), "nothing");
        for tool in ["list_files", "search_files", "search_text", "read_file"].map(|name| format!("workspace.{name}")) {
            for other in [json!(null), json!({}), json!({ "entries": [1], "matches": [{}] }), json!({ "entries": 1 })] {
                assert_eq!(shown(&tool, &other), other, "{tool}");
            }
        }
    }
}
