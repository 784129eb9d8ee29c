//! A prompt in Anthropic's words: instructions apart, calls and results as blocks of the two sides,
//! which take turns.

use crate::model::ModelRequest;
use devmind_domain::agent::Message;
use devmind_domain::canonical::hash_json;
use devmind_domain::thread::ModelToolCall;
use devmind_domain::tools::ModelVisible;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// Characters of a tool's name, at most.
const MAX_NAME_CHARS: usize = 128;

/// What is posted.
#[derive(Debug, Serialize)]
pub(super) struct Body<'a> {
    model: &'a str,
    #[serde(flatten)]
    parameters: Map<String, Value>,
    #[serde(skip_serializing_if = "String::is_empty")]
    system: String,
    messages: Vec<Turn<'a>>,
    tools: Vec<Value>,
}

#[derive(Debug, Serialize)]
struct Turn<'a> {
    role: Side,
    content: Vec<Block<'a>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Side {
    User,
    Assistant,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    Text { text: &'a str },
    ToolUse { id: String, name: String, input: Box<RawValue> },
    ToolResult { tool_use_id: String, content: &'a str },
}

impl<'a> Body<'a> {
    pub(super) fn new(model: &'a str, parameters: Value, request: &'a ModelRequest) -> Self {
        let parameters = match parameters {
            Value::Object(parameters) => parameters,
            _ => Map::new(),
        };
        let mut body = Self {
            model,
            parameters,
            system: String::new(),
            messages: Vec::new(),
            tools: request.tools.iter().map(tool).collect(),
        };
        for message in &request.messages {
            match message {
                Message::System { content } => {
                    if !body.system.is_empty() {
                        body.system.push_str("\n\n");
                    }
                    body.system.push_str(content);
                }
                Message::User { content } => body.say(Side::User, text(content)),
                Message::Tool { tool_call_id, content } => {
                    let result = Block::ToolResult { tool_use_id: accepted_id(tool_call_id), content };
                    body.say(Side::User, Some(result));
                }
                Message::Assistant { content, tool_calls } => {
                    body.say(Side::Assistant, text(content));
                    for call in tool_calls {
                        let (id, name) = (accepted_id(&call.id), accepted_name(&call.name));
                        body.say(Side::Assistant, Some(Block::ToolUse { id, name, input: input(call) }));
                    }
                }
            }
        }
        body
    }

    /// All results of an answer's calls must be in the one message that follows it.
    fn say(&mut self, role: Side, block: Option<Block<'a>>) {
        let Some(block) = block else { return };
        match self.messages.last_mut() {
            Some(turn) if turn.role == role => turn.content.push(block),
            _ => self.messages.push(Turn { role, content: vec![block] }),
        }
    }
}

fn tool(tool: &ModelVisible) -> Value {
    json!({ "name": tool.name, "description": tool.description, "input_schema": tool.parameters })
}

/// Empty text is refused.
fn text(text: &str) -> Option<Block<'_>> {
    (!text.trim().is_empty()).then_some(Block::Text { text })
}

/// The arguments as they were written. Only an object can be sent: other text goes back as the
/// documented object that holds it.
fn input(call: &ModelToolCall) -> Box<RawValue> {
    let written = call.arguments.trim();
    let object = if written.is_empty() { "{}" } else { written };
    let wrapped = || json!({ "INVALID_JSON": call.arguments }).to_string();
    RawValue::from_string(object.to_owned())
        .ok()
        .filter(|raw| raw.get().starts_with('{'))
        .or_else(|| RawValue::from_string(wrapped()).ok())
        .unwrap_or_else(|| RawValue::NULL.to_owned())
}

fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}

/// An id that the API accepts, the same for a call and its result, another for every other id.
fn accepted_id(id: &str) -> String {
    if is_plain(id) { id.to_owned() } else { format!("call_{}", hash_json(id)) }
}

/// A name that the API accepts, also where a model invented another: the call was answered with
/// `UNKNOWN_TOOL`, and the conversation goes on.
fn accepted_name(name: &str) -> String {
    if is_plain(name) && name.len() <= MAX_NAME_CHARS {
        return name.to_owned();
    }
    let plain = name.chars().map(|c| if is_plain(c.encode_utf8(&mut [0; 4])) { c } else { '_' });
    let plain: String = plain.take(MAX_NAME_CHARS).collect();
    if plain.is_empty() { "_".to_owned() } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str, name: &str, arguments: &str) -> ModelToolCall {
        ModelToolCall { id: id.into(), name: name.into(), arguments: arguments.into() }
    }

    fn sent(messages: Vec<Message>) -> Value {
        let tools = vec![ModelVisible { name: "add".into(), description: "d".into(), parameters: json!({ "p": 1 }) }];
        let request = ModelRequest { messages, tools };
        let body = Body::new("m", json!({ "stream": true, "max_tokens": 5 }), &request);
        serde_json::from_str(&serde_json::to_string(&body).expect("written")).expect("JSON")
    }

    #[test]
    fn instructions_are_apart_and_the_two_sides_take_turns() {
        let user = |text: &str| Message::User { content: text.into() };
        let tool = |id: &str, text: &str| Message::Tool { tool_call_id: id.into(), content: text.into() };
        let calls = vec![call("a", "add", "{\"a\":1}"), call("b", "add", "")];
        let body = sent(vec![
            Message::System { content: "be kind".into() },
            user("first"),
            Message::Assistant { content: String::new(), tool_calls: Vec::new() },
            user("second"),
            Message::Assistant { content: "I add.".into(), tool_calls: calls },
            tool("a", "1"),
            tool("b", "2"),
        ]);
        let text = |text: &str| json!({ "type": "text", "text": text });
        assert_eq!(
            body,
            json!({
                "model": "m", "stream": true, "max_tokens": 5, "system": "be kind",
                "tools": [{ "name": "add", "description": "d", "input_schema": { "p": 1 } }],
                "messages": [
                    { "role": "user", "content": [text("first"), text("second")] },
                    { "role": "assistant", "content": [
                        text("I add."),
                        { "type": "tool_use", "id": "a", "name": "add", "input": { "a": 1 } },
                        { "type": "tool_use", "id": "b", "name": "add", "input": {} },
                    ] },
                    { "role": "user", "content": [
                        { "type": "tool_result", "tool_use_id": "a", "content": "1" },
                        { "type": "tool_result", "tool_use_id": "b", "content": "2" },
                    ] },
                ],
            })
        );
    }

    #[test]
    fn arguments_go_back_as_they_were_written_and_other_text_as_an_object_that_holds_it() {
        let written = "{ \"a\" :1,\"a\":2, \"\\u00fc\":\"ü\" }";
        assert_eq!(input(&call("a", "f", written)).get(), written);
        for text in ["{\"a\":", "[1]", "7", "no"] {
            let held: Value = serde_json::from_str(input(&call("a", "f", text)).get()).expect("JSON");
            assert_eq!(held, json!({ "INVALID_JSON": text }));
        }
    }

    #[test]
    fn ids_and_names_that_the_api_refuses_are_replaced_the_same_everywhere() {
        assert_eq!(accepted_id("toolu_1-A"), "toolu_1-A");
        let (first, second) = (accepted_id("a~1.2"), accepted_id("a~1.3"));
        assert!(is_plain(&first) && first != second && first == accepted_id("a~1.2"), "{first} {second}");
        assert!(is_plain(&accepted_id("")));
        assert_eq!(accepted_name("rm -rf ü"), "rm_-rf__");
        assert_eq!(accepted_name(""), "_");
        assert_eq!(accepted_name(&"x".repeat(500)).len(), MAX_NAME_CHARS);
    }
}
