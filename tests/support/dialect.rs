//! How the two model APIs say the same things, event by event.

use crate::model::Said;
use serde_json::{Value, json};

/// One side of a conversation in one dialect.
pub enum Speaker {
    /// OpenAI's chat completions.
    OpenAi,
    /// Anthropic's messages: a message of blocks, one after the other.
    Anthropic {
        /// The blocks that have begun, each with the index of its call if it is one.
        blocks: Vec<Option<usize>>,
        /// Whether anything was said.
        begun: bool,
    },
}

impl Speaker {
    /// Who answers at this path.
    pub fn of_path(path: &str) -> Self {
        match path {
            "/v1/messages" => Self::Anthropic { blocks: Vec::new(), begun: false },
            "/v1/chat/completions" => Self::OpenAi,
            other => panic!("nobody posts to {other}"),
        }
    }

    /// The events that say it.
    pub fn say(&mut self, said: &Said) -> String {
        match self {
            Self::OpenAi => openai(said),
            Self::Anthropic { blocks, begun } => anthropic(blocks, begun, said),
        }
    }
}

fn openai(said: &Said) -> String {
    let chunk = |delta: Value, finish: Option<&str>| {
        let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
        let head = json!({ "id": "c", "object": "chat.completion.chunk", "created": 0, "model": "scripted-1" });
        let mut chunk = head;
        chunk["choices"] = json!([choice]);
        format!("data: {chunk}\n\n")
    };
    match said {
        Said::Text(text) => chunk(json!({ "role": "assistant", "content": text }), None),
        Said::Call(index, id, name, arguments) => {
            let function = json!({ "name": name, "arguments": arguments });
            let call = json!({ "index": index, "id": id, "type": "function", "function": function });
            chunk(json!({ "tool_calls": [call] }), None)
        }
        Said::Arguments(index, text) => {
            let call = json!({ "index": index, "function": { "arguments": text } });
            chunk(json!({ "tool_calls": [call] }), None)
        }
        Said::Failure => "data: {\"error\":{\"message\":\"busy inside\",\"code\":503}}\n\n".to_owned(),
        Said::End { calls } => {
            let usage = json!({
                "prompt_tokens": 7, "completion_tokens": 3,
                "prompt_tokens_details": { "cached_tokens": 5 },
                "completion_tokens_details": { "reasoning_tokens": 2 },
            });
            let end = chunk(json!({}), Some(if *calls { "tool_calls" } else { "stop" }));
            let usage = json!({ "model": "scripted-1", "choices": [], "usage": usage });
            format!("{end}data: {usage}\n\ndata: [DONE]\n\n")
        }
    }
}

fn anthropic(blocks: &mut Vec<Option<usize>>, begun: &mut bool, said: &Said) -> String {
    let mut events = Vec::new();
    if !*begun {
        *begun = true;
        let usage = json!({ "input_tokens": 2, "cache_read_input_tokens": 5, "output_tokens": 1 });
        let message = json!({ "id": "m", "role": "assistant", "model": "scripted-1", "content": [], "usage": usage });
        events.push(json!({ "type": "message_start", "message": message }));
        events.push(json!({ "type": "ping" }));
    }
    match said {
        Said::Text(text) => {
            begin(blocks, None, json!({ "type": "text", "text": "" }), &mut events);
            events.push(delta(blocks.len() - 1, json!({ "type": "text_delta", "text": text })));
        }
        Said::Call(index, id, name, arguments) => {
            let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
            begin(blocks, Some(*index), block, &mut events);
            events.push(delta(blocks.len() - 1, json!({ "type": "input_json_delta", "partial_json": arguments })));
        }
        Said::Arguments(index, text) => {
            let block = blocks.iter().rposition(|call| *call == Some(*index)).expect("the call has begun");
            events.push(delta(block, json!({ "type": "input_json_delta", "partial_json": text })));
        }
        Said::Failure => {
            let error = json!({ "type": "overloaded_error", "message": "busy inside" });
            events.push(json!({ "type": "error", "error": error }));
        }
        Said::End { calls } => {
            end(blocks, &mut events);
            let reason = if *calls { "tool_use" } else { "end_turn" };
            let usage = json!({ "output_tokens": 3, "output_tokens_details": { "thinking_tokens": 2 } });
            events.push(json!({ "type": "message_delta", "delta": { "stop_reason": reason }, "usage": usage }));
            events.push(json!({ "type": "message_stop" }));
        }
    }
    let name = |event: &Value| event["type"].as_str().expect("a type").to_owned();
    events.iter().map(|event| format!("event: {}\ndata: {event}\n\n", name(event))).collect()
}

fn begin(blocks: &mut Vec<Option<usize>>, call: Option<usize>, block: Value, events: &mut Vec<Value>) {
    end(blocks, events);
    events.push(json!({ "type": "content_block_start", "index": blocks.len(), "content_block": block }));
    blocks.push(call);
}

fn end(blocks: &[Option<usize>], events: &mut Vec<Value>) {
    if let Some(last) = blocks.len().checked_sub(1) {
        events.push(json!({ "type": "content_block_stop", "index": last }));
    }
}

fn delta(index: usize, delta: Value) -> Value {
    json!({ "type": "content_block_delta", "index": index, "delta": delta })
}
