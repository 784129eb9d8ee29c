//! The one list of tools.

use super::{Approval, ToolDefinition};
use crate::limits::*;
use crate::tool_call::{Risk, Target};
use serde_json::{Value, json};
use std::sync::LazyLock;

/// Every tool. Adding one = one entry here, and its body in `server_tools` or in the device's list.
pub fn definitions() -> Vec<ToolDefinition> {
    vec![
        ToolDefinition {
            name: "add",
            version: "1",
            description: "Adds two numbers.",
            parameters: object(json!({ "a": {"type": "number"}, "b": {"type": "number"} }), &["a", "b"]),
            target: Target::Server,
            risk: Risk::Low,
            timeout_ms: 1_000,
            requires_confirmation: false,
            approval: Approval::Never,
        },
        ToolDefinition {
            name: "get_current_time",
            version: "1",
            description: "The current date and time, in an IANA time zone such as Europe/Berlin (default UTC).",
            parameters: object(json!({ "timezone": {"type": "string", "minLength": 1, "maxLength": 64} }), &[]),
            target: Target::Server,
            risk: Risk::Low,
            timeout_ms: 1_000,
            requires_confirmation: false,
            approval: Approval::Never,
        },
        ToolDefinition {
            name: "demo_text",
            version: "1",
            description: "The built-in demo text. Needs the user's approval.",
            parameters: object(json!({}), &[]),
            target: Target::Server,
            risk: Risk::Medium,
            timeout_ms: 1_000,
            requires_confirmation: false,
            approval: Approval::Always,
        },
        ToolDefinition {
            name: "workspace.list_files",
            version: "1",
            description: "Lists the names in a folder of the user's workspace: name, kind and size. Use a path relative to the workspace root.",
            parameters: object(
                json!({
                    "path": {"type": "string", "minLength": 1, "maxLength": MAX_PATH_BYTES, "default": "."},
                    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LISTED_FILES, "default": MAX_LISTED_FILES},
                }),
                &[],
            ),
            target: Target::Device,
            risk: Risk::Low,
            timeout_ms: TOOL_EXECUTION_MS,
            requires_confirmation: false,
            approval: Approval::Never,
        },
        ToolDefinition {
            name: "workspace.read_file",
            version: "1",
            description: "Reads a UTF-8 text file of the user's workspace, after the user allows it. Use a path relative to the workspace root; offset and max_bytes read a part.",
            parameters: object(
                json!({
                    "path": {"type": "string", "minLength": 1, "maxLength": MAX_PATH_BYTES},
                    "offset": {"type": "integer", "minimum": 0, "maximum": MAX_OFFSET, "default": 0},
                    "max_bytes": {"type": "integer", "minimum": 1, "maximum": MAX_READ_BYTES, "default": MAX_READ_BYTES},
                }),
                &["path"],
            ),
            target: Target::Device,
            risk: Risk::Medium,
            timeout_ms: TOOL_EXECUTION_MS,
            requires_confirmation: true,
            approval: Approval::Never,
        },
        ToolDefinition {
            name: "workspace.search_files",
            version: "1",
            description: "Finds files and folders of the user's workspace by name. pattern is a glob: *.rs matches names at any depth, src/**/*.rs matches paths below path. What ignore files (.gitignore, .ignore) exclude is left out, and links are not followed.",
            parameters: object(
                json!({
                    "pattern": {"type": "string", "minLength": 1, "maxLength": MAX_PATTERN_CHARS},
                    "path": {"type": "string", "minLength": 1, "maxLength": MAX_PATH_BYTES, "default": "."},
                    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_SEARCH_RESULTS, "default": MAX_SEARCH_RESULTS},
                }),
                &["pattern"],
            ),
            target: Target::Device,
            risk: Risk::Low,
            timeout_ms: TOOL_EXECUTION_MS,
            requires_confirmation: false,
            approval: Approval::Never,
        },
        ToolDefinition {
            name: "workspace.search_text",
            version: "1",
            description: "Searches the text files of the user's workspace line by line, after the user allows it. pattern is a regular expression without look-around and back references; glob restricts the files, as in workspace_search_files; context adds lines around each match.",
            parameters: object(
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
            target: Target::Device,
            risk: Risk::Medium,
            timeout_ms: TOOL_EXECUTION_MS,
            requires_confirmation: true,
            approval: Approval::Never,
        },
    ]
}

/// The largest offset that every JSON reader keeps exactly.
const MAX_OFFSET: u64 = (1 << 53) - 1;

/// An object schema that takes no other fields.
fn object(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// The catalogue with its compiled schemas.
pub struct Catalogue {
    entries: Vec<(ToolDefinition, jsonschema::Validator)>,
}

/// The catalogue of this program.
pub fn catalogue() -> &'static Catalogue {
    static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| Catalogue::new(definitions()));
    &CATALOGUE
}

impl Catalogue {
    #[allow(clippy::expect_used)]
    fn new(definitions: Vec<ToolDefinition>) -> Self {
        let compile = |definition: ToolDefinition| {
            let validator = jsonschema::validator_for(&definition.parameters).expect("a test compiles every schema");
            (definition, validator)
        };
        Self { entries: definitions.into_iter().map(compile).collect() }
    }

    /// Every definition.
    pub fn definitions(&self) -> impl Iterator<Item = &ToolDefinition> {
        self.entries.iter().map(|(definition, _)| definition)
    }

    /// A tool by its own name.
    pub fn get(&self, name: &str) -> Option<&ToolDefinition> {
        self.definitions().find(|definition| definition.name == name)
    }

    /// A tool by the name the model uses.
    pub fn by_model_name(&self, name: &str) -> Option<&ToolDefinition> {
        self.definitions().find(|definition| definition.model_name() == name)
    }

    /// Checks arguments against a tool's schema.
    ///
    /// # Errors
    /// Words for the model: what is wrong and where.
    pub fn validate(&self, tool: &str, arguments: &Value) -> Result<(), String> {
        let Some((_, validator)) = self.entries.iter().find(|(definition, _)| definition.name == tool) else {
            return Err(format!("no tool {tool}"));
        };
        validator.validate(arguments).map_err(|error| {
            let at = error.instance_path().to_string();
            // Without the value itself, which may be a megabyte.
            let error = error.masked().to_string();
            if at.is_empty() { error } else { format!("{at}: {error}") }
        })
    }
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
            assert!(definition.timeout_ms > 0 && !definition.description.is_empty(), "{name}");
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
