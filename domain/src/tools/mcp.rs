//! Tools of MCP servers (<https://modelcontextprotocol.io/specification/2025-11-25/server/tools>) as tools of ours:
//! their names, their definitions, the one canonical value they give and what the model sees of it.
//!
//! What a server says about its tools is somebody else's word: it is bounded here, and neither its hints nor
//! anything else of it lowers a risk or spares a question. How a server is reached is left to the server program.

use super::ToolDefinition;
use super::schema::placed;
use crate::canonical::hash_json;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What names of tools that come from an MCP server begin with.
pub const PREFIX: &str = "mcp_";
/// Characters of a description that the model is shown, at most.
pub const MAX_DESCRIPTION_CHARS: usize = 4_096;
/// Bytes of a tool's schemas, at most.
pub const MAX_SCHEMA_BYTES: usize = 32 << 10;

/// A tool as its server describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Offered {
    /// Its name there.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON Schema of its arguments.
    pub parameters: Value,
    /// JSON Schema of its structured content, where it promises some.
    pub output: Option<Value>,
}

/// The definition of a tool of an MCP server: of high risk, alone, and with a person's word, until the settings say
/// otherwise. Its version is the hash of what the server said of it and of where the server is, so that an approval
/// counts for exactly this tool.
///
/// # Errors
/// Why there is no such tool here.
pub fn definition(server: &str, address: &str, offered: &Offered) -> Result<ToolDefinition, String> {
    let Offered { name, description, parameters, output } = offered;
    if name.is_empty() {
        return Err("it has no name".to_owned());
    }
    let bytes = parameters.to_string().len() + output.as_ref().map_or(0, |schema| schema.to_string().len());
    if bytes > MAX_SCHEMA_BYTES {
        return Err(format!("its schemas have {bytes} bytes, more than {MAX_SCHEMA_BYTES}"));
    }
    let version = hash_json(&json!({
        "address": address, "name": name, "description": description, "parameters": parameters, "output": output,
    }));
    let shown: String = description.chars().take(MAX_DESCRIPTION_CHARS).collect();
    Ok(ToolDefinition {
        version,
        requires_confirmation: false,
        render: Some(Arc::new(|_, value| Ok(rendered(value)))),
        ..ToolDefinition::new(format!("{PREFIX}{server}_{name}"), shown, parameters.clone(), output_of(output.as_ref()))
    })
}

/// A tool of which the log has the definition: what its values look like to the model is the same.
pub fn with_functions(tool: ToolDefinition) -> ToolDefinition {
    if !tool.name.starts_with(PREFIX) {
        return tool;
    }
    ToolDefinition { render: Some(Arc::new(|_, value| Ok(rendered(value)))), ..tool }
}

/// The value of a call: the content as it came, and the structured content where there is some.
pub fn value(content: Value, structured: Option<Value>) -> Value {
    let structured = structured.map(|structured| (STRUCTURED.to_owned(), structured));
    Value::Object([("content".to_owned(), content)].into_iter().chain(structured).collect())
}

const STRUCTURED: &str = "structuredContent";

/// What the values of a tool match. A tool that promises structured content must give it.
fn output_of(structured: Option<&Value>) -> Value {
    let mut required = vec!["content"];
    let mut properties = Map::from_iter([("content".to_owned(), json!({ "type": "array" }))]);
    let mut whole = Map::new();
    if let Some(schema) = structured {
        required.push(STRUCTURED);
        properties.insert(STRUCTURED.to_owned(), placed(schema, &format!("/properties/{STRUCTURED}")));
        whole.extend(schema.get("$schema").map(|dialect| ("$schema".to_owned(), dialect.clone())));
    }
    whole.extend([("type".to_owned(), json!("object")), ("properties".to_owned(), properties.into())]);
    whole.insert("required".to_owned(), json!(required));
    whole.into()
}

/// What the model sees of a value: the structured content alone where the rest repeats it as text (which the
/// protocol asks for), texts as one text, and of pictures, sounds and files that they are there.
fn rendered(value: &Value) -> Value {
    let blocks = value["content"].as_array().map(Vec::as_slice).unwrap_or_default();
    let texts: Option<Vec<&str>> = blocks.iter().map(text_of).collect();
    match (value.get(STRUCTURED), texts) {
        (Some(structured), Some(_)) => structured.clone(),
        (Some(structured), None) => {
            let other: Vec<Value> = blocks.iter().filter(|block| text_of(block).is_none()).map(without_data).collect();
            json!({ "content": other, STRUCTURED: structured })
        }
        (None, Some(texts)) => Value::String(texts.join("\n")),
        (None, None) => blocks.iter().map(without_data).collect(),
    }
}

fn text_of(block: &Value) -> Option<&str> {
    block["text"].as_str().filter(|_| block["type"] == "text")
}

/// A block without what a model cannot read: base64 of a picture, a sound or a file.
fn without_data(block: &Value) -> Value {
    let mut block = block.clone();
    let cut = |place: Option<&mut Value>| {
        if let Some(Value::String(data)) = place {
            *data = format!("{} characters of base64 are in the log", data.len());
        }
    };
    cut(block.get_mut("data"));
    cut(block.get_mut("resource").and_then(|resource| resource.get_mut("blob")));
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool_call::Risk;
    use crate::tool_set::ToolSetRecorded;
    use crate::tools::{Approval, Registry};

    fn offered(change: impl FnOnce(&mut Offered)) -> Offered {
        let parameters = json!({ "type": "object", "properties": { "path": { "type": "string" } } });
        let mut offered = Offered { name: "read".into(), description: "Reads.".into(), parameters, output: None };
        change(&mut offered);
        offered
    }

    #[test]
    fn a_tool_is_named_after_its_server_and_is_as_dangerous_as_can_be() {
        let tool = definition("files", "a", &offered(|_| {})).expect("a tool");
        assert_eq!((tool.name.as_str(), tool.risk, tool.approval), ("mcp_files_read", Risk::High, Approval::Always));
        assert!(tool.concurrency_safe.is_none() && tool.timeout_ms.is_none());
        let dotted = definition("files", "a", &offered(|tool| tool.name = "fs.read".into())).expect("a tool");
        assert_eq!(dotted.model_name(), "mcp_files_fs_read");
        for (change, complaint) in [
            ((|tool| tool.name = "a/b".into()) as fn(&mut Offered), "1 to 64"),
            (|tool| tool.name = "x".repeat(60), "1 to 64"),
            (|tool| tool.name = String::new(), "no name"),
            (|tool| tool.parameters = json!({ "type": "object", "x-own": 1 }), "x-own is not supported"),
            (|tool| tool.parameters = json!({}), "type"),
            (|tool| tool.output = Some(json!({ "type": "objekt" })), "output schema"),
            (|tool| tool.output = Some(json!("object")), "output schema"),
            (|tool| tool.parameters["title"] = json!("x".repeat(MAX_SCHEMA_BYTES)), "bytes"),
        ] {
            let registered = definition("files", "a", &offered(change))
                .and_then(|tool| Registry::new([tool]).map_err(|error| error.to_string()));
            let error = registered.expect_err(complaint);
            assert!(error.contains(complaint), "{error}, not {complaint}");
        }
        let long = definition("files", "a", &offered(|tool| tool.description = "ä".repeat(5_000))).expect("a tool");
        assert_eq!(long.description.chars().count(), MAX_DESCRIPTION_CHARS);
    }

    #[test]
    fn whatever_a_server_says_otherwise_of_a_tool_makes_it_another_version() {
        let version = |server: &str, address: &str, change: fn(&mut Offered)| {
            definition(server, address, &offered(change)).expect("a tool").version
        };
        let own = version("files", "a", |_| {});
        assert_eq!(own, version("files", "a", |_| {}));
        // Also where the model sees no difference.
        let cut: fn(&mut Offered) = |tool| tool.description = "ä".repeat(5_000);
        let more: fn(&mut Offered) = |tool| tool.description = "ä".repeat(5_001);
        assert_ne!(version("files", "a", cut), version("files", "a", more));
        for other in [
            version("files", "b", |_| {}),
            version("files", "a", |tool| tool.description.push('!')),
            version("files", "a", |tool| tool.parameters["title"] = json!("t")),
            version("files", "a", |tool| tool.output = Some(json!({ "type": "object" }))),
        ] {
            assert_ne!(own, other);
        }
    }

    #[test]
    fn a_promise_of_structured_content_is_held_and_the_model_reads_what_can_be_read() {
        let output = json!({ "$defs": { "n": { "type": "integer" } }, "properties": { "n": { "$ref": "#/$defs/n" } } });
        let tools = |output: Option<Value>| {
            let tool = definition("s", "a", &offered(|tool| tool.output = output)).expect("a tool");
            Registry::new([tool]).expect("whole")
        };
        let (promised, plain) = (tools(Some(output)), tools(None));
        let text = |text: &str| json!({ "type": "text", "text": text });
        let picture = json!({ "type": "image", "mimeType": "image/png", "data": "AAAA" });
        let file = json!({ "type": "resource", "resource": { "uri": "a:b", "blob": "AA" } });
        for (tools, value, seen) in [
            (&promised, value(json!([text("{}")]), Some(json!({ "n": 1 }))), Some(json!({ "n": 1 }))),
            (&promised, value(json!([]), Some(json!({ "n": "1" }))), None),
            (&promised, value(json!([text("{}")]), None), None),
            (&plain, value(json!([text("a"), text("b")]), None), Some(json!("a\nb"))),
            (&plain, value(json!([]), None), Some(json!(""))),
            (&plain, value(json!([text("a")]), Some(json!([1]))), Some(json!([1]))),
            (
                &plain,
                value(json!([text("a"), picture]), Some(json!(1))),
                Some(json!({
                    "content": [{ "type": "image", "mimeType": "image/png", "data": "4 characters of base64 are in the log" }],
                    "structuredContent": 1,
                })),
            ),
            (
                &plain,
                value(json!([text("a"), file]), None),
                Some(json!([
                    { "type": "text", "text": "a" },
                    { "type": "resource", "resource": { "uri": "a:b", "blob": "2 characters of base64 are in the log" } },
                ])),
            ),
        ] {
            let checked = tools.check_output("mcp_s_read", &value);
            let shown = checked.and_then(|()| tools.render("mcp_s_read", &json!({}), &value));
            if let Ok(shown) = &shown {
                // From the log alone it looks the same.
                let set = ToolSetRecorded::of(tools);
                let later = set.registry(&Registry::default()).expect("whole");
                assert_eq!(later.render("mcp_s_read", &json!({}), &value).as_ref(), Ok(shown));
            }
            assert_eq!(shown.ok(), seen, "{value}");
        }
    }
}
