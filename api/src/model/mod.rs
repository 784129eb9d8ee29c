//! Models: one port, and the providers behind it.
//!
//! A model streams chunks; recording them, the limits of time and size, and asking again are the
//! caller's work ([`crate::runs`]).

mod anthropic;
mod calls;
mod config;
mod demo;
mod endpoint;
mod failure;
mod openai;
mod retry;

pub use anthropic::AnthropicModel;
pub use calls::Calls;
pub use config::{ModelConfig, Provider};
pub use demo::DemoModel;
pub use failure::ModelFailure;
pub use openai::OpenAiModel;
pub use retry::pause_before_retry;

use crate::config::ConfigError;
use async_trait::async_trait;
use devmind_domain::agent::{CallsInAnswer, Message};
use devmind_domain::thread::TokenUsage;
use devmind_domain::tools::ModelVisible;
use futures::stream::BoxStream;
use serde_json::Value;
use std::sync::Arc;

/// A question to a model.
#[derive(Clone, Debug)]
pub struct ModelRequest {
    /// The prompt.
    pub messages: Vec<Message>,
    /// The tools it may call.
    pub tools: Vec<ModelVisible>,
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelChunk {
    /// Text for the user.
    Text(String),
    /// The model's reasoning, where it shows it; not for the user.
    Reasoning(String),
    /// A piece of a tool call; [`Calls`] puts them together.
    ToolCall {
        /// Which call of this answer, by the provider's counting.
        index: usize,
        /// Its id, in the first piece.
        id: Option<String>,
        /// Its name, in the first piece.
        name: Option<String>,
        /// Argument text that follows what came before.
        arguments: String,
    },
    /// Tokens so far.
    Usage(TokenUsage),
    /// The model that really answers.
    Served(String),
    /// The answer is complete, and why; without this the stream was cut.
    Finished(String),
}

/// The stream of an answer.
pub type ModelStream = BoxStream<'static, Result<ModelChunk, ModelFailure>>;

/// A model. Dropping the stream aborts the request.
#[async_trait]
pub trait Model: Send + Sync {
    /// Who serves it.
    fn provider(&self) -> &str;
    /// Its name.
    fn name(&self) -> &str;
    /// What it is asked with, besides messages and tools.
    fn parameters(&self) -> Value;
    /// How many calls it may make in one answer.
    fn calls_in_answer(&self) -> CallsInAnswer {
        CallsInAnswer::One
    }
    /// Asks, once: whether to ask again is the caller's decision.
    async fn ask(&self, request: ModelRequest) -> Result<ModelStream, ModelFailure>;
}

/// The model that the settings name; without any, the demo model.
///
/// # Errors
/// `CONFIG_INVALID` naming the setting.
pub fn open(config: Option<&ModelConfig>) -> Result<Arc<dyn Model>, ConfigError> {
    let Some(config) = config else { return Ok(Arc::new(DemoModel)) };
    config.check()?;
    Ok(match config.provider {
        Provider::Openai => Arc::new(OpenAiModel::new(config)?),
        Provider::Anthropic => Arc::new(AnthropicModel::new(config)?),
    })
}
