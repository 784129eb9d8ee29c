//! Anthropic's streamed events as pieces of an answer.

use crate::model::failure::told_in_stream;
use crate::model::{ModelChunk, ModelFailure};
use devmind_domain::thread::TokenUsage;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// Any event: the fields that some of them have.
#[derive(Debug, Deserialize)]
pub(super) struct Event {
    r#type: String,
    index: Option<usize>,
    message: Option<Message>,
    content_block: Option<Block>,
    delta: Option<Delta>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct Message {
    model: Option<String>,
    usage: Option<Usage>,
}

#[derive(Debug, Deserialize)]
struct Block {
    r#type: String,
    id: Option<String>,
    name: Option<String>,
    text: Option<String>,
    input: Option<Box<RawValue>>,
}

#[derive(Debug, Default, Deserialize)]
struct Delta {
    text: Option<String>,
    thinking: Option<String>,
    partial_json: Option<String>,
    stop_reason: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Usage {
    input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Clone, Debug, Deserialize)]
struct OutputDetails {
    thinking_tokens: Option<u64>,
}

/// What earlier events of the answer said.
#[derive(Debug, Default)]
pub(super) struct Reader {
    usage: Usage,
    /// A call's block whose input came with its start, and may be all there is.
    whole_input: Option<(usize, String)>,
}

impl Reader {
    pub(super) fn read(&mut self, event: Event, key: &str) -> Vec<Result<ModelChunk, ModelFailure>> {
        if event.r#type == "error" {
            return vec![Err(told_in_stream(&event.error.unwrap_or_default(), key))];
        }
        let index = event.index.unwrap_or_default();
        let pieces = match event.r#type.as_str() {
            "message_start" => self.begin(event.message),
            "content_block_start" => self.block(index, event.content_block).into_iter().collect(),
            "content_block_delta" => self.delta(index, event.delta.unwrap_or_default()).into_iter().collect(),
            "content_block_stop" => self.end_of_block(index).into_iter().collect(),
            "message_delta" => {
                let mut pieces: Vec<_> = self.count(event.usage).into_iter().collect();
                pieces.extend(event.delta.and_then(|delta| delta.stop_reason).map(ModelChunk::Finished));
                pieces
            }
            // `ping`, `message_stop`, and what later versions add.
            _ => Vec::new(),
        };
        pieces.into_iter().map(Ok).collect()
    }

    fn begin(&mut self, message: Option<Message>) -> Vec<ModelChunk> {
        let Some(message) = message else { return Vec::new() };
        let served = message.model.filter(|model| !model.is_empty()).map(ModelChunk::Served);
        served.into_iter().chain(self.count(message.usage)).collect()
    }

    fn block(&mut self, index: usize, block: Option<Block>) -> Option<ModelChunk> {
        let block = block?;
        match block.r#type.as_str() {
            "tool_use" => {
                let input = block.input.map(|input| input.get().to_owned());
                self.whole_input = input.filter(|input| is_some_object(input)).map(|input| (index, input));
                Some(ModelChunk::ToolCall { index, id: block.id, name: block.name, arguments: String::new() })
            }
            _ => block.text.filter(|text| !text.is_empty()).map(ModelChunk::Text),
        }
    }

    fn delta(&mut self, index: usize, delta: Delta) -> Option<ModelChunk> {
        if let Some(arguments) = delta.partial_json {
            self.whole_input = self.whole_input.take().filter(|(of, _)| *of != index || arguments.is_empty());
            return Some(ModelChunk::ToolCall { index, id: None, name: None, arguments });
        }
        let text = delta.text.filter(|text| !text.is_empty()).map(ModelChunk::Text);
        text.or_else(|| delta.thinking.filter(|text| !text.is_empty()).map(ModelChunk::Reasoning))
    }

    fn end_of_block(&mut self, index: usize) -> Option<ModelChunk> {
        let (_, arguments) = self.whole_input.take_if(|(of, _)| *of == index)?;
        Some(ModelChunk::ToolCall { index, id: None, name: None, arguments })
    }

    /// Later counts replace earlier ones; what is not counted again stays.
    fn count(&mut self, usage: Option<Usage>) -> Option<ModelChunk> {
        let (new, old) = (usage?, &self.usage);
        self.usage = Usage {
            input_tokens: new.input_tokens.or(old.input_tokens),
            cache_creation_input_tokens: new.cache_creation_input_tokens.or(old.cache_creation_input_tokens),
            cache_read_input_tokens: new.cache_read_input_tokens.or(old.cache_read_input_tokens),
            output_tokens: new.output_tokens.or(old.output_tokens),
            output_tokens_details: new.output_tokens_details.or_else(|| old.output_tokens_details.clone()),
        };
        Some(ModelChunk::Usage(self.usage.tokens()))
    }
}

impl Usage {
    /// Anthropic counts what the cache holds apart from the input; the log's input is the prompt.
    fn tokens(&self) -> TokenUsage {
        let cached = self.cache_read_input_tokens;
        let beside = cached.unwrap_or(0).saturating_add(self.cache_creation_input_tokens.unwrap_or(0));
        TokenUsage {
            input: self.input_tokens.map(|input| input.saturating_add(beside)),
            output: self.output_tokens,
            cached,
            reasoning: self.output_tokens_details.as_ref().and_then(|details| details.thinking_tokens),
        }
    }
}

/// An object with something in it: the empty one only announces the pieces to come.
fn is_some_object(input: &str) -> bool {
    input.strip_prefix('{').is_some_and(|rest| rest.trim() != "}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use devmind_domain::ErrorCode;

    fn read(events: &[&str]) -> Vec<Result<ModelChunk, ModelFailure>> {
        let mut reader = Reader::default();
        let read = |event: &&str| reader.read(serde_json::from_str(event).expect("an event"), "");
        events.iter().flat_map(read).collect()
    }

    fn piece(index: usize, id: Option<&str>, name: Option<&str>, arguments: &str) -> Result<ModelChunk, ModelFailure> {
        let (id, name) = (id.map(str::to_owned), name.map(str::to_owned));
        Ok(ModelChunk::ToolCall { index, id, name, arguments: arguments.to_owned() })
    }

    #[test]
    fn an_answer_with_text_thinking_and_calls_is_read() {
        let pieces = read(&[
            r#"{"type":"message_start","message":{"id":"msg","model":"claude-x","usage":{"input_tokens":5,"cache_creation_input_tokens":2,"cache_read_input_tokens":3,"output_tokens":1}}}"#,
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"x"}}"#,
            r#"{"type":"content_block_stop","index":0}"#,
            r#"{"type":"ping"}"#,
            r#"{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}"#,
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"I add."}}"#,
            r#"{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"t","name":"add","input":{}}}"#,
            r#"{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":""}}"#,
            r#"{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{ \"a\" :"}}"#,
            r#"{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"1}"}}"#,
            r#"{"type":"content_block_stop","index":2}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":9,"output_tokens_details":{"thinking_tokens":4}}}"#,
            r#"{"type":"message_stop"}"#,
        ]);
        let usage = |output, reasoning| {
            Ok(ModelChunk::Usage(TokenUsage { input: Some(10), output: Some(output), cached: Some(3), reasoning }))
        };
        assert_eq!(
            pieces,
            [
                Ok(ModelChunk::Served("claude-x".into())),
                usage(1, None),
                Ok(ModelChunk::Reasoning("hm".into())),
                Ok(ModelChunk::Text("I add.".into())),
                piece(2, Some("t"), Some("add"), ""),
                piece(2, None, None, ""),
                piece(2, None, None, "{ \"a\" :"),
                piece(2, None, None, "1}"),
                usage(9, Some(4)),
                Ok(ModelChunk::Finished("tool_use".into())),
            ]
        );
    }

    #[test]
    fn an_input_that_comes_whole_with_the_start_of_its_block_counts_once() {
        let start = r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"add","input":{ "a" : 1 }}}"#;
        let stop = r#"{"type":"content_block_stop","index":0}"#;
        let delta =
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{}"}}"#;
        let begin = piece(0, Some("t"), Some("add"), "");
        assert_eq!(read(&[start, stop]), [begin.clone(), piece(0, None, None, "{ \"a\" : 1 }")]);
        assert_eq!(read(&[start, delta, stop]), [begin, piece(0, None, None, "{}")]);
    }

    #[test]
    fn a_failure_within_the_stream_is_a_failure() {
        let pieces = read(&[r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#]);
        let failure = pieces[0].as_ref().expect_err("a failure");
        assert_eq!((failure.code, failure.transient), (ErrorCode::ModelUnavailable, true));
    }
}
