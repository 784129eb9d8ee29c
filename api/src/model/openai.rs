//! OpenAI's chat completions, streaming, as OpenAI and compatible endpoints speak them.
//!
//! Compatible endpoints leave out or add fields: everything that is not needed is optional.

use super::endpoint::{Endpoint, pieces};
use super::failure::told_in_stream;
use super::{Model, ModelChunk, ModelConfig, ModelFailure, ModelRequest, ModelStream};
use crate::config::ConfigError;
use async_trait::async_trait;
use devmind_domain::agent::{CallsInAnswer, Message};
use devmind_domain::thread::TokenUsage;
use devmind_domain::tools::ModelVisible;
use futures::StreamExt;
use reqwest::header::{AUTHORIZATION, HeaderMap};
use secrecy::ExposeSecret;
use serde::Deserialize;
use serde_json::{Value, json};

/// Characters of a tool's description that OpenAI takes, at most; others take more.
const MAX_DESCRIPTION_CHARS: usize = 1_024;

/// An OpenAI-compatible model.
pub struct OpenAiModel {
    endpoint: Endpoint,
    name: String,
    max_tokens: Option<u32>,
    parallel_tool_calls: bool,
}

impl OpenAiModel {
    /// A model behind an endpoint.
    ///
    /// # Errors
    /// `CONFIG_INVALID` naming the setting.
    pub fn new(config: &ModelConfig) -> Result<Self, ConfigError> {
        Ok(Self {
            endpoint: Endpoint::new(config, "/chat/completions", HeaderMap::new(), (AUTHORIZATION, "Bearer "))?,
            name: config.name.clone(),
            max_tokens: config.max_tokens,
            parallel_tool_calls: config.parallel_tool_calls,
        })
    }

    fn body(&self, request: &ModelRequest) -> Value {
        let mut body = self.parameters();
        body["model"] = json!(self.name);
        let (tools, more): (Vec<_>, Vec<_>) = request.tools.iter().map(function).unzip();
        let more: Vec<String> = more.into_iter().flatten().collect();
        let mut messages = request.messages.clone();
        if !more.is_empty() {
            let more = more.join("\n\n");
            match messages.first_mut() {
                Some(Message::System { content }) => *content = format!("{content}\n\n{more}"),
                Some(_) | None => messages.insert(0, Message::System { content: more }),
            }
        }
        body["messages"] = messages.iter().map(Message::chat_completion).collect();
        body["tools"] = tools.into();
        body
    }
}

/// A tool as it is sent, and what the instructions say of it where its description is too long.
fn function(tool: &ModelVisible) -> (Value, Option<String>) {
    let ModelVisible { name, description, .. } = tool;
    let mut function = json!({ "type": "function", "function": tool });
    if description.chars().nth(MAX_DESCRIPTION_CHARS).is_none() {
        return (function, None);
    }
    let rest = " … (the whole description is in the instructions)";
    let begins = description.chars().take(MAX_DESCRIPTION_CHARS - rest.chars().count());
    function["function"]["description"] = begins.chain(rest.chars()).collect::<String>().into();
    (function, Some(format!("The tool {name}: {description}")))
}

#[async_trait]
impl Model for OpenAiModel {
    fn provider(&self) -> &str {
        "openai-compatible"
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn parameters(&self) -> Value {
        let mut parameters = json!({
            "stream": true,
            "stream_options": { "include_usage": true },
            "parallel_tool_calls": self.parallel_tool_calls,
        });
        if let Some(max_tokens) = self.max_tokens {
            parameters["max_completion_tokens"] = max_tokens.into();
        }
        parameters
    }

    fn calls_in_answer(&self) -> CallsInAnswer {
        if self.parallel_tool_calls { CallsInAnswer::Several } else { CallsInAnswer::One }
    }

    async fn ask(&self, request: ModelRequest) -> Result<ModelStream, ModelFailure> {
        let events = self.endpoint.stream::<Chunk>(&self.body(&request)).await?;
        let key = self.endpoint.key();
        Ok(pieces(events, move |chunk| chunk.into_pieces(key.expose_secret())).boxed())
    }
}

#[derive(Debug, Deserialize)]
struct Chunk {
    model: Option<String>,
    choices: Option<Vec<Choice>>,
    usage: Option<Usage>,
    /// Some endpoints report a failure within the stream.
    error: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    delta: Option<Delta>,
    finish_reason: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Delta {
    content: Option<String>,
    /// The model's words where it declines: they are its answer.
    refusal: Option<String>,
    /// Endpoints name it so or so; some send both, with the same text.
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    tool_calls: Option<Vec<CallDelta>>,
}

#[derive(Debug, Deserialize)]
struct CallDelta {
    index: Option<usize>,
    id: Option<String>,
    function: Option<FunctionDelta>,
}

#[derive(Debug, Default, Deserialize)]
struct FunctionDelta {
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<PromptDetails>,
    completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Debug, Deserialize)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct CompletionDetails {
    reasoning_tokens: Option<u64>,
}

impl Usage {
    fn tokens(self) -> TokenUsage {
        TokenUsage {
            input: self.prompt_tokens,
            output: self.completion_tokens,
            cached: self.prompt_tokens_details.and_then(|details| details.cached_tokens),
            reasoning: self.completion_tokens_details.and_then(|details| details.reasoning_tokens),
        }
    }
}

fn said(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

impl Chunk {
    fn into_pieces(self, key: &str) -> Vec<Result<ModelChunk, ModelFailure>> {
        if let Some(error) = self.error {
            return vec![Err(told_in_stream(&error, key))];
        }
        let mut pieces: Vec<_> = said(self.model).map(ModelChunk::Served).into_iter().collect();
        pieces.extend(self.usage.map(|usage| ModelChunk::Usage(usage.tokens())));
        // One answer was asked for: other choices are not ours.
        if let Some(choice) = self.choices.unwrap_or_default().into_iter().next() {
            let delta = choice.delta.unwrap_or_default();
            pieces.extend(said(delta.reasoning_content).or(said(delta.reasoning)).map(ModelChunk::Reasoning));
            pieces.extend(said(delta.content).map(ModelChunk::Text));
            pieces.extend(said(delta.refusal).map(ModelChunk::Text));
            for call in delta.tool_calls.unwrap_or_default() {
                let function = call.function.unwrap_or_default();
                let arguments = function.arguments.unwrap_or_default();
                let (index, id, name) = (call.index.unwrap_or_default(), call.id, function.name);
                pieces.push(ModelChunk::ToolCall { index, id, name, arguments });
            }
            pieces.extend(said(choice.finish_reason).map(ModelChunk::Finished));
        }
        pieces.into_iter().map(Ok).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use devmind_domain::ErrorCode;
    use devmind_domain::thread::ModelToolCall;

    fn read(chunk: Value) -> Vec<ModelChunk> {
        let chunk: Chunk = serde_json::from_value(chunk).expect("a chunk");
        chunk.into_pieces("").into_iter().map(|piece| piece.expect("no failure")).collect()
    }

    #[test]
    fn a_chunk_with_only_some_fields_is_read() {
        let call = json!({ "choices": [{ "delta": { "tool_calls": [{ "function": { "arguments": "{\"a\":" } }] } }] });
        assert_eq!(read(call), [ModelChunk::ToolCall { index: 0, id: None, name: None, arguments: "{\"a\":".into() }]);
        let usage = json!({ "model": "m", "choices": null, "usage": { "prompt_tokens": 3, "completion_tokens": 4 } });
        let tokens = TokenUsage { input: Some(3), output: Some(4), ..TokenUsage::default() };
        assert_eq!(read(usage), [ModelChunk::Served("m".into()), ModelChunk::Usage(tokens)]);
        assert_eq!(read(json!({ "model": "", "choices": [{ "delta": null, "finish_reason": "" }] })), []);
    }

    #[test]
    fn details_of_usage_reasoning_and_refusals_are_read() {
        let chunk = json!({
            "choices": [{ "delta": { "reasoning": "hm", "refusal": "No." }, "finish_reason": "stop" }],
            "usage": {
                "prompt_tokens": 9, "completion_tokens": 8,
                "prompt_tokens_details": { "cached_tokens": 7 }, "completion_tokens_details": { "reasoning_tokens": 6 },
            },
        });
        let tokens = TokenUsage { input: Some(9), output: Some(8), cached: Some(7), reasoning: Some(6) };
        assert_eq!(
            read(chunk),
            [
                ModelChunk::Usage(tokens),
                ModelChunk::Reasoning("hm".into()),
                ModelChunk::Text("No.".into()),
                ModelChunk::Finished("stop".into())
            ]
        );
    }

    #[test]
    fn a_failure_within_the_stream_is_a_failure() {
        let chunk: Chunk =
            serde_json::from_value(json!({ "error": { "message": "busy", "code": 429 } })).expect("a chunk");
        let failure = chunk.into_pieces("").remove(0).expect_err("a failure");
        assert_eq!((failure.code, failure.transient), (ErrorCode::ModelRateLimited, true));
    }

    #[test]
    fn a_call_goes_back_as_the_text_that_came() {
        let arguments = "{ \"a\" :1,\"a\":2, \"ü\":\"\\u00fc\" ";
        let call = ModelToolCall { id: "c".into(), name: "add".into(), arguments: arguments.into() };
        let sent = Message::Assistant { content: String::new(), tool_calls: vec![call] }.chat_completion();
        assert_eq!(sent["tool_calls"][0]["function"]["arguments"], arguments);
    }

    fn model() -> OpenAiModel {
        let base_url = Some("http://x".to_owned());
        let config = ModelConfig { base_url, name: "m".into(), max_tokens: Some(9), ..ModelConfig::default() };
        OpenAiModel::new(&config).expect("a model")
    }

    #[test]
    fn a_description_that_is_too_long_for_a_tool_is_whole_in_the_instructions() {
        let tool = |name: &str, chars| ModelVisible {
            name: name.into(),
            description: "ä".repeat(chars),
            parameters: json!({ "type": "object" }),
        };
        let tools = vec![tool("short", MAX_DESCRIPTION_CHARS), tool("long", MAX_DESCRIPTION_CHARS + 1)];
        let system = Message::System { content: "Be brief.".into() };
        let body = model().body(&ModelRequest { messages: vec![system], tools: tools.clone() });
        let sent = |n: usize| body["tools"][n]["function"]["description"].as_str().expect("text").to_owned();
        assert_eq!(sent(0), tools[0].description);
        assert_eq!(sent(1).chars().count(), MAX_DESCRIPTION_CHARS);
        assert!(sent(1).ends_with("(the whole description is in the instructions)"), "{}", sent(1));
        let said = format!("Be brief.\n\nThe tool long: {}", tools[1].description);
        assert_eq!(body["messages"][0]["content"], said);
    }

    #[test]
    fn what_is_recorded_as_parameters_is_what_is_sent() {
        let model = model();
        let mut body = model.body(&ModelRequest { messages: Vec::new(), tools: Vec::new() });
        assert_eq!(body["parallel_tool_calls"], false);
        let body = body.as_object_mut().expect("an object");
        body.retain(|name, _| !["model", "messages", "tools"].contains(&name.as_str()));
        assert_eq!(Value::Object(body.clone()), model.parameters());
    }
}
