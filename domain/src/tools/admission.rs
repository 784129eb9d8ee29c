//! Which calls of the model may go on: parse → resolve → validate → limit, before anybody is asked.

use super::{Registry, ToolDefinition};
use crate::canonical::call_hash;
use crate::json::parse_strict;
use crate::thread::ModelToolCall;
use crate::tool_call::{Risk, Target};
use crate::{ErrorCode, tool_call::ToolError};
use serde_json::Value;

/// What became of a call at the door.
#[derive(Clone, Debug, PartialEq)]
pub struct Admission {
    /// The tool's own name, or the model's word where there is no such tool.
    pub tool: String,
    /// The version of its definition; empty where there is no such tool.
    pub version: String,
    /// Where it runs.
    pub target: Target,
    /// How much harm it can do; an unknown tool counts as the worst.
    pub risk: Risk,
    /// The arguments, parsed once; text that was no JSON object is kept as a string.
    pub arguments: Value,
    /// SHA-256 of tool, version and arguments.
    pub call_hash: String,
    /// The stage that refused it and why, if one did.
    pub refusal: Option<(&'static str, ToolError)>,
}

/// Judges a call of the model. `over_limit`: the run has used up its calls.
pub fn admit(tools: &Registry, call: &ModelToolCall, over_limit: bool) -> Admission {
    let definition = tools.by_model_name(&call.name);
    let parsed = parse_arguments(&call.arguments);
    let refusal = judge(tools, definition, &parsed, over_limit);
    let arguments = parsed.unwrap_or_else(|_| Value::String(call.arguments.clone()));
    let tool = definition.map_or_else(|| call.name.clone(), |definition| definition.name.clone());
    let version = definition.map_or_else(String::new, |definition| definition.version.clone());
    Admission {
        call_hash: call_hash(&tool, &version, &arguments),
        tool,
        version,
        target: definition.map_or(Target::Server, |definition| definition.target),
        risk: definition.map_or(Risk::High, |definition| definition.risk),
        arguments,
        refusal: refusal.map(|(stage, code, message)| (stage, ToolError { code: code.as_str().to_owned(), message })),
    }
}

fn judge(
    tools: &Registry,
    definition: Option<&ToolDefinition>,
    parsed: &Result<Value, String>,
    over_limit: bool,
) -> Option<(&'static str, ErrorCode, String)> {
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(reason) => return Some(("parse", ErrorCode::InvalidArguments, reason.clone())),
    };
    let Some(definition) = definition else {
        return Some(("resolve", ErrorCode::UnknownTool, "there is no such tool".to_owned()));
    };
    if let Err(reason) = tools.validate(&definition.name, arguments) {
        return Some(("validate", ErrorCode::InvalidArguments, reason));
    }
    if over_limit {
        let message = "this run has used all its tool calls; answer with what there is".to_owned();
        return Some(("limit", ErrorCode::ToolLimitReached, message));
    }
    None
}

/// The model's text as a JSON object; no text at all means no arguments.
fn parse_arguments(text: &str) -> Result<Value, String> {
    let text = if text.trim().is_empty() { "{}" } else { text };
    match parse_strict(text)? {
        Value::Object(object) => Ok(Value::Object(object)),
        _ => Err("arguments must be a JSON object".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::catalogue;

    fn verdict(name: &str, arguments: &str, over_limit: bool) -> Option<(&'static str, String)> {
        let call = ModelToolCall { id: "c".into(), name: name.into(), arguments: arguments.into() };
        admit(catalogue(), &call, over_limit).refusal.map(|(stage, error)| (stage, error.code))
    }

    #[test]
    fn calls_that_can_only_fail_are_refused_at_their_stage() {
        for (name, arguments, over_limit, expected) in [
            ("add", r#"{"a":1,"b":2}"#, false, None),
            ("get_current_time", "", false, None),
            ("workspace_read_file", r#"{"path":"README.md"}"#, false, None),
            ("workspace.read_file", r#"{"path":"README.md"}"#, false, Some(("resolve", "UNKNOWN_TOOL"))),
            ("rm_rf", "{}", false, Some(("resolve", "UNKNOWN_TOOL"))),
            ("rm_rf", "{", false, Some(("parse", "INVALID_ARGUMENTS"))),
            ("add", r#"{"a":1}"#, true, Some(("validate", "INVALID_ARGUMENTS"))),
            ("add", r#"{"a":-0,"b":2}"#, false, Some(("parse", "INVALID_ARGUMENTS"))),
            ("add", r#"{"a":1,"a":1,"b":2}"#, false, Some(("parse", "INVALID_ARGUMENTS"))),
            ("add", "[1,2]", false, Some(("parse", "INVALID_ARGUMENTS"))),
            ("add", "{\"a\":", false, Some(("parse", "INVALID_ARGUMENTS"))),
            ("add", r#"{"a":1}"#, false, Some(("validate", "INVALID_ARGUMENTS"))),
            ("add", r#"{"a":1,"b":2}"#, true, Some(("limit", "TOOL_LIMIT_REACHED"))),
        ] {
            let got = verdict(name, arguments, over_limit);
            let expected = expected.map(|(stage, code)| (stage, code.to_owned()));
            assert_eq!(got, expected, "{name} {arguments}");
        }
    }

    #[test]
    fn the_hash_of_what_was_parsed_is_the_hash_of_what_runs() {
        let call = |text: &str| {
            admit(catalogue(), &ModelToolCall { id: String::new(), name: "add".into(), arguments: text.into() }, false)
        };
        assert_eq!(call(r#"{"a":1,"b":2}"#).call_hash, call(r#"{ "b": 2, "a": 1 }"#).call_hash);
        assert_ne!(call(r#"{"a":1,"b":2}"#).call_hash, call(r#"{"a":2,"b":1}"#).call_hash);
    }
}
