//! Anthropic's messages, streaming.

mod events;
mod prompt;

use super::endpoint::{Endpoint, pieces};
use super::{Model, ModelConfig, ModelFailure, ModelRequest, ModelStream};
use crate::config::ConfigError;
use async_trait::async_trait;
use devmind_domain::agent::CallsInAnswer;
use devmind_domain::limits::MODEL_MAX_TOKENS;
use events::{Event, Reader};
use futures::StreamExt;
use prompt::Body;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use secrecy::ExposeSecret;
use serde_json::{Value, json};

/// The version of the API that is spoken here.
const API_VERSION: &str = "2023-06-01";

/// A model of Anthropic's, or behind an endpoint that speaks its API.
pub struct AnthropicModel {
    endpoint: Endpoint,
    name: String,
    max_tokens: u32,
    parallel_tool_calls: bool,
}

impl AnthropicModel {
    /// A model behind an endpoint.
    ///
    /// # Errors
    /// `CONFIG_INVALID` naming the setting.
    pub fn new(config: &ModelConfig) -> Result<Self, ConfigError> {
        let version = (HeaderName::from_static("anthropic-version"), HeaderValue::from_static(API_VERSION));
        let key = (HeaderName::from_static("x-api-key"), "");
        Ok(Self {
            endpoint: Endpoint::new(config, "/messages", HeaderMap::from_iter([version]), key)?,
            name: config.name.clone(),
            max_tokens: config.max_tokens.unwrap_or(MODEL_MAX_TOKENS),
            parallel_tool_calls: config.parallel_tool_calls,
        })
    }
}

#[async_trait]
impl Model for AnthropicModel {
    fn provider(&self) -> &str {
        "anthropic"
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn parameters(&self) -> Value {
        json!({
            "stream": true,
            "max_tokens": self.max_tokens,
            "tool_choice": { "type": "auto", "disable_parallel_tool_use": !self.parallel_tool_calls },
        })
    }

    fn calls_in_answer(&self) -> CallsInAnswer {
        if self.parallel_tool_calls { CallsInAnswer::Several } else { CallsInAnswer::One }
    }

    async fn ask(&self, request: ModelRequest) -> Result<ModelStream, ModelFailure> {
        let body = Body::new(&self.name, self.parameters(), &request);
        let events = self.endpoint.stream::<Event>(&body).await?;
        let (key, mut reader) = (self.endpoint.key(), Reader::default());
        Ok(pieces(events, move |event| reader.read(event, key.expose_secret())).boxed())
    }
}
