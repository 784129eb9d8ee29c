//! The tools that this program brings along.

use super::{Approval, Registry, ToolDefinition, always_beside_others, presentation};
use crate::limits::*;
use crate::tool_call::{Risk, Target};
use serde_json::{Value, json};
use std::sync::{Arc, LazyLock};

/// Every tool. Adding one = one entry here, and its body in `server_tools` or in the device's list.
pub fn definitions() -> Vec<ToolDefinition> {
    vec![
        ToolDefinition {
            risk: Risk::Low,
            timeout_ms: Some(1_000),
            requires_confirmation: false,
            approval: Approval::Never,
            concurrency_safe: always_beside_others(),
            ..ToolDefinition::new(
                "add",
                "Adds two numbers.",
                object(json!({ "a": {"type": "number"}, "b": {"type": "number"} }), &["a", "b"]),
                object(json!({ "sum": {"type": "number"} }), &["sum"]),
            )
        },
        ToolDefinition {
            risk: Risk::Low,
            timeout_ms: Some(1_000),
            requires_confirmation: false,
            approval: Approval::Never,
            concurrency_safe: always_beside_others(),
            ..ToolDefinition::new(
                "get_current_time",
                "The current date and time, in an IANA time zone such as Europe/Berlin (default UTC).",
                object(json!({ "timezone": {"type": "string", "minLength": 1, "maxLength": 64} }), &[]),
                object(json!({ "time": {"type": "string"}, "timezone": {"type": "string"} }), &["time", "timezone"]),
            )
        },
        ToolDefinition {
            risk: Risk::Medium,
            timeout_ms: Some(1_000),
            requires_confirmation: false,
            approval: Approval::Always,
            concurrency_safe: always_beside_others(),
            ..ToolDefinition::new(
                "demo_text",
                "The built-in demo text. Needs the user's approval.",
                object(json!({}), &[]),
                object(json!({ "text": {"type": "string"} }), &["text"]),
            )
        },
        ToolDefinition {
            target: Target::Device,
            risk: Risk::Low,
            timeout_ms: Some(TOOL_EXECUTION_MS),
            requires_confirmation: false,
            approval: Approval::Never,
            concurrency_safe: always_beside_others(),
            presentation: Some(Arc::new(presentation::entries)),
            ..ToolDefinition::new(
                "workspace.list_files",
                "Lists the names in a folder of the user's workspace: name, kind and size. Use a path relative to the workspace root.",
                object(
                    json!({
                        "path": {"type": "string", "minLength": 1, "maxLength": MAX_PATH_BYTES, "default": "."},
                        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LISTED_FILES, "default": MAX_LISTED_FILES},
                    }),
                    &[],
                ),
                of_device(
                    json!({ "path": {"type": "string"}, "entries": {"type": "array", "items": {"type": "object"}}, "truncated": {"type": "boolean"} }),
                ),
            )
        },
        ToolDefinition {
            target: Target::Device,
            risk: Risk::Medium,
            timeout_ms: Some(TOOL_EXECUTION_MS),
            requires_confirmation: true,
            approval: Approval::Never,
            concurrency_safe: always_beside_others(),
            presentation: Some(Arc::new(presentation::contents)),
            ..ToolDefinition::new(
                "workspace.read_file",
                "Reads a UTF-8 text file of the user's workspace, after the user allows it. Use a path relative to the workspace root; offset and max_bytes read a part.",
                object(
                    json!({
                        "path": {"type": "string", "minLength": 1, "maxLength": MAX_PATH_BYTES},
                        "offset": {"type": "integer", "minimum": 0, "maximum": MAX_OFFSET, "default": 0},
                        "max_bytes": {"type": "integer", "minimum": 1, "maximum": MAX_READ_BYTES, "default": MAX_READ_BYTES},
                    }),
                    &["path"],
                ),
                of_device(
                    json!({ "path": {"type": "string"}, "content": {"type": "string"}, "size": {"type": "integer", "minimum": 0} }),
                ),
            )
        },
        ToolDefinition {
            target: Target::Device,
            risk: Risk::Low,
            timeout_ms: Some(TOOL_EXECUTION_MS),
            requires_confirmation: false,
            approval: Approval::Never,
            concurrency_safe: always_beside_others(),
            presentation: Some(Arc::new(presentation::entries)),
            ..ToolDefinition::new(
                "workspace.search_files",
                "Finds files and folders of the user's workspace by name. pattern is a glob: *.rs matches names at any depth, src/**/*.rs matches paths below path. What ignore files (.gitignore, .ignore) exclude is left out, and links are not followed.",
                object(
                    json!({
                        "pattern": {"type": "string", "minLength": 1, "maxLength": MAX_PATTERN_CHARS},
                        "path": {"type": "string", "minLength": 1, "maxLength": MAX_PATH_BYTES, "default": "."},
                        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_SEARCH_RESULTS, "default": MAX_SEARCH_RESULTS},
                    }),
                    &["pattern"],
                ),
                of_device(
                    json!({ "entries": {"type": "array", "items": {"type": "object"}}, "truncated": {"type": "boolean"} }),
                ),
            )
        },
        ToolDefinition {
            target: Target::Device,
            risk: Risk::Medium,
            timeout_ms: Some(TOOL_EXECUTION_MS),
            requires_confirmation: true,
            approval: Approval::Never,
            concurrency_safe: always_beside_others(),
            presentation: Some(Arc::new(presentation::matches)),
            ..ToolDefinition::new(
                "workspace.search_text",
                "Searches the text files of the user's workspace line by line, after the user allows it. pattern is a regular expression without look-around and back references; glob restricts the files, as in workspace_search_files; context adds lines around each match.",
                object(
                    json!({
                        "pattern": {"type": "string", "minLength": 1, "maxLength": MAX_PATTERN_CHARS},
                        "path": {"type": "string", "minLength": 1, "maxLength": MAX_PATH_BYTES, "default": "."},
                        "glob": {"type": "string", "minLength": 1, "maxLength": MAX_PATTERN_CHARS},
                        "case_insensitive": {"type": "boolean", "default": false},
                        "context": {"type": "integer", "minimum": 0, "maximum": MAX_CONTEXT_LINES, "default": 0},
                        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_SEARCH_RESULTS, "default": 100},
                    }),
                    &["pattern"],
                ),
                of_device(
                    json!({ "matches": {"type": "array", "items": {"type": "object"}}, "truncated": {"type": "boolean"} }),
                ),
            )
        },
    ]
}

/// The largest offset that every JSON reader keeps exactly.
const MAX_OFFSET: u64 = (1 << 53) - 1;

/// An object schema that takes no other fields.
fn object(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// What a device gives: an object. A device of another age may leave fields out or add some.
fn of_device(properties: Value) -> Value {
    json!({ "type": "object", "properties": properties })
}

/// The tools that this program brings along.
///
/// The list is this program's own, and a test registers it: that it cannot be registered is a fault that the
/// first start of any test shows.
#[allow(clippy::expect_used)]
pub fn catalogue() -> &'static Registry {
    static CATALOGUE: LazyLock<Registry> =
        LazyLock::new(|| Registry::new(definitions()).expect("a test registers every definition"));
    &CATALOGUE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_is_complete_and_its_names_are_distinct() {
        let mut names = std::collections::BTreeSet::new();
        for definition in catalogue().definitions() {
            let name = definition.model_name();
            assert!(
                name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'),
                "{name}"
            );
            assert!(names.insert(name.clone()), "{name} stands twice");
            assert!(definition.timeout_ms.is_some() && !definition.description.is_empty(), "{name}");
            assert_eq!(definition.parameters["additionalProperties"], false, "{name} takes unknown fields");
        }
    }

    #[test]
    fn a_call_that_does_not_match_its_schema_is_told_where() {
        for (tool, arguments, complaint) in [
            ("workspace.read_file", json!({}), "path"),
            ("workspace.read_file", json!({"path": "a", "mode": "r"}), "mode"),
            ("workspace.read_file", json!({"path": "a", "max_bytes": true}), "max_bytes"),
            ("workspace.read_file", json!({"path": "a", "max_bytes": 262_145}), "max_bytes"),
            ("workspace.list_files", json!({"limit": 0}), "limit"),
            ("add", json!({"a": 1, "b": "2"}), "/b"),
        ] {
            let error = catalogue().validate(tool, &arguments).expect_err(tool);
            assert!(error.contains(complaint), "{tool} {arguments}: {error}");
        }
        assert_eq!(catalogue().validate("workspace.list_files", &json!({})), Ok(()));
        let long = "a".repeat(MAX_PATH_BYTES + 1);
        let error = catalogue().validate("workspace.read_file", &json!({ "path": long })).expect_err("too long");
        assert!(error.contains("/path") && !error.contains("aaaa"), "{error}");
    }
}
