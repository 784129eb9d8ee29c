//! Models: one port, and the providers behind it.
//!
//! A model streams chunks; putting them together, recording them and the limits of time and size
//! are the caller's work ([`crate::runs`]).

mod demo;
mod openai;

pub use demo::DemoModel;
pub use openai::OpenAiModel;

use async_trait::async_trait;
use devmind_domain::ErrorCode;
use devmind_domain::agent::Message;
use devmind_domain::thread::TokenUsage;
use futures::stream::BoxStream;
use serde::Serialize;
use serde_json::Value;

/// A tool as the model sees it: these fields and no others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OfferedTool {
    /// The name to call it by.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON Schema of its arguments.
    pub parameters: Value,
}

/// A question to a model.
#[derive(Clone, Debug)]
pub struct ModelRequest {
    /// The prompt.
    pub messages: Vec<Message>,
    /// The tools it may call.
    pub tools: Vec<OfferedTool>,
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelChunk {
    /// Text for the user.
    Text(String),
    /// A piece of a tool call.
    ToolCall {
        /// Which call of this answer.
        index: usize,
        /// Its id, in the first piece.
        id: Option<String>,
        /// Its name, in the first piece.
        name: Option<String>,
        /// Argument text that follows what came before.
        arguments: String,
    },
    /// Tokens.
    Usage(TokenUsage),
    /// The model that really answers.
    Served(String),
    /// The answer is complete; without this the stream was cut.
    Finished(String),
}

/// Why a model did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFailure {
    /// The stable code.
    pub code: ErrorCode,
    /// What a person can read; never holds the key or the prompt.
    pub message: String,
}

impl ModelFailure {
    /// A failure.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
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
    /// Asks.
    async fn ask(&self, request: ModelRequest) -> Result<ModelStream, ModelFailure>;
}
