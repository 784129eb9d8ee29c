//! Any endpoint that speaks OpenAI's chat-completion API, streaming, through `async-openai`.
//!
//! Requests and chunks are our own small types (the crate's "bring your own types"): compatible
//! endpoints leave out or add fields that the crate's strict types refuse, and a call's arguments
//! must arrive as the verbatim text.

use super::{Model, ModelChunk, ModelFailure, ModelRequest, ModelStream};
use crate::config::ModelConfig;
use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::error::OpenAIError;
use async_openai::middleware::ReqwestService;
use async_openai::types::stream::StreamResponse;
use async_trait::async_trait;
use devmind_domain::ErrorCode;
use devmind_domain::agent::Message;
use devmind_domain::thread::TokenUsage;
use futures::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};

/// An OpenAI-compatible model.
pub struct OpenAiModel {
    client: Client<OpenAIConfig>,
    name: String,
}

impl OpenAiModel {
    /// A model behind an endpoint.
    pub fn new(config: &ModelConfig) -> Self {
        crate::tls::install_provider();
        let endpoint = OpenAIConfig::new()
            .with_api_base(config.base_url.trim_end_matches('/'))
            .with_api_key(config.api_key.as_str());
        // Without the crate's own retries: one recorded request is one sent request, and a refusal is
        // told at once.
        let http = ReqwestService::new(reqwest::Client::new());
        Self { client: Client::with_config(endpoint).with_http_service(http), name: config.name.clone() }
    }
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
        json!({ "stream": true, "parallel_tool_calls": false })
    }

    async fn ask(&self, request: ModelRequest) -> Result<ModelStream, ModelFailure> {
        let body = self.body(&request);
        let answer: Result<StreamResponse<Chunk>, _> = self.client.chat().create_stream_byot(body).await;
        let chunks = answer.map_err(|error| failure(&error))?;
        Ok(chunks
            .map(|chunk| match chunk {
                Ok(chunk) => chunk.into_pieces().into_iter().map(Ok).collect::<Vec<_>>(),
                Err(error) => vec![Err(cut_or(failure(&error)))],
            })
            .flat_map(futures::stream::iter)
            .boxed())
    }
}

impl OpenAiModel {
    fn body(&self, request: &ModelRequest) -> Value {
        let mut body = json!({
            "model": self.name,
            "messages": request.messages.iter().map(message).collect::<Vec<_>>(),
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        if !request.tools.is_empty() {
            let tools = request.tools.iter().map(|tool| json!({ "type": "function", "function": tool }));
            body["tools"] = tools.collect();
            body["parallel_tool_calls"] = false.into();
        }
        body
    }
}

fn message(message: &Message) -> Value {
    match message {
        Message::System { content } => json!({ "role": "system", "content": content }),
        Message::User { content } => json!({ "role": "user", "content": content }),
        Message::Tool { tool_call_id, content } => {
            json!({ "role": "tool", "tool_call_id": tool_call_id, "content": content })
        }
        Message::Assistant { content, tool_calls } if tool_calls.is_empty() => {
            json!({ "role": "assistant", "content": content })
        }
        Message::Assistant { content, tool_calls } => json!({
            "role": "assistant",
            "content": content,
            "tool_calls": tool_calls.iter().map(|call| json!({
                "id": call.id,
                "type": "function",
                "function": { "name": call.name, "arguments": call.arguments },
            })).collect::<Vec<_>>(),
        }),
    }
}

/// What went wrong, in a stable code. The provider's words are passed on; the key is not in them.
fn failure(error: &OpenAIError) -> ModelFailure {
    match error {
        OpenAIError::ApiError(answer) => {
            let status = answer.status_code.as_u16();
            let code = match status {
                401 | 403 => ErrorCode::ModelAuthFailed,
                408 | 504 => ErrorCode::ModelTimeout,
                429 => ErrorCode::ModelRateLimited,
                500.. => ErrorCode::ModelUnavailable,
                _ => ErrorCode::ModelRefused,
            };
            ModelFailure::new(
                code,
                format!("the model's endpoint answered {status}: {}", shortened(&answer.api_error.message)),
            )
        }
        OpenAIError::Reqwest(error) if error.is_timeout() => {
            ModelFailure::new(ErrorCode::ModelTimeout, "the model's endpoint did not answer in time")
        }
        OpenAIError::Reqwest(error) => ModelFailure::new(
            ErrorCode::ModelUnreachable,
            format!("the model's endpoint cannot be reached: {}", causes(error)),
        ),
        // An error page in place of the API's JSON: a proxy, or the wrong address.
        OpenAIError::JSONDeserialize(_, text) => ModelFailure::new(
            ErrorCode::ModelUnavailable,
            format!("the model's endpoint sent what is no answer: {}", shortened(text)),
        ),
        other => ModelFailure::new(
            ErrorCode::ModelStreamCut,
            format!("the model's answer broke off: {}", shortened(&other.to_string())),
        ),
    }
}

/// A connection that is lost after the answer began is a cut answer, not an unreachable model.
fn cut_or(failure: ModelFailure) -> ModelFailure {
    match failure.code {
        ErrorCode::ModelUnreachable => {
            ModelFailure::new(ErrorCode::ModelStreamCut, "the model's answer broke off: the connection was lost")
        }
        _ => failure,
    }
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    shortened(&text)
}

fn shortened(text: &str) -> String {
    const MAX_CHARS: usize = 300;
    text.chars().take(MAX_CHARS).collect()
}

#[derive(Debug, Deserialize)]
struct Chunk {
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Delta,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Delta {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<CallDelta>>,
}

#[derive(Debug, Deserialize)]
struct CallDelta {
    #[serde(default)]
    index: usize,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    function: Option<FunctionDelta>,
}

#[derive(Debug, Deserialize)]
struct FunctionDelta {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    arguments: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    #[serde(default)]
    prompt_tokens_details: Option<PromptDetails>,
    #[serde(default)]
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

impl Chunk {
    fn into_pieces(self) -> Vec<ModelChunk> {
        let mut pieces: Vec<_> = self.model.map(ModelChunk::Served).into_iter().collect();
        if let Some(usage) = self.usage {
            pieces.push(ModelChunk::Usage(TokenUsage {
                input: usage.prompt_tokens,
                output: usage.completion_tokens,
                cached: usage.prompt_tokens_details.and_then(|details| details.cached_tokens),
                reasoning: usage.completion_tokens_details.and_then(|details| details.reasoning_tokens),
            }));
        }
        // One answer was asked for: other choices are not ours.
        let Some(choice) = self.choices.into_iter().next() else { return pieces };
        pieces.extend(choice.delta.content.filter(|text| !text.is_empty()).map(ModelChunk::Text));
        for call in choice.delta.tool_calls.unwrap_or_default() {
            let (name, arguments) = call.function.map_or((None, None), |function| (function.name, function.arguments));
            let arguments = arguments.unwrap_or_default();
            pieces.push(ModelChunk::ToolCall { index: call.index, id: call.id, name, arguments });
        }
        pieces.extend(choice.finish_reason.map(ModelChunk::Finished));
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_with_only_some_fields_is_read() {
        let chunk: Chunk = serde_json::from_value(json!({
            "choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{\"a\":"}}]}}]
        }))
        .expect("read");
        assert_eq!(
            chunk.into_pieces(),
            vec![ModelChunk::ToolCall { index: 0, id: None, name: None, arguments: "{\"a\":".into() }]
        );
        let chunk: Chunk = serde_json::from_value(json!({
            "model": "m", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}
        }))
        .expect("read");
        let usage = TokenUsage { input: Some(3), output: Some(4), ..TokenUsage::default() };
        assert_eq!(chunk.into_pieces(), vec![ModelChunk::Served("m".into()), ModelChunk::Usage(usage)]);
    }
}
