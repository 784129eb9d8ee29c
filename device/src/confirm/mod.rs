//! Asking the person at the device.
//!
//! Only an explicit yes allows; no answer, no way to ask, and every error deny. What is asked, and
//! what an answer leads to, is left to `call`; this module shows it honestly and fetches the answer.

mod both;
mod decider;
mod notify;
pub mod page;
mod render;
mod terminal;

pub use both::Both;
pub(crate) use decider::Decider;
pub use notify::{Notifier, notifier_loop};
pub use page::Page;
pub use render::render;
pub use terminal::Terminal;

use crate::clock::Deadline;
use crate::tools::Subject;
use async_trait::async_trait;
use devmind_domain::ids::ToolCallId;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// A person's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Yes, this once.
    Allow,
    /// No.
    Deny,
    /// Nobody answered, or nobody could be asked.
    NoAnswer,
}

/// What the person decides about. It cannot be edited, only allowed or denied.
#[derive(Clone, Debug)]
pub struct ConfirmationRequest {
    /// The call.
    pub tool_call_id: ToolCallId,
    /// The tool, for example `workspace.read_file`.
    pub tool: String,
    /// Its arguments, all of them.
    pub arguments: Value,
    /// The file it is about.
    pub subject: Option<Subject>,
    /// What the conversation is about.
    pub conversation_title: String,
    /// When the call expires, however long the question has been open.
    pub deadline: Deadline,
}

/// A way to ask.
#[async_trait]
pub trait Confirm: Send + Sync {
    /// Asks and waits, at most 60 s from when the question is shown. The future may be dropped at
    /// any time, and `cancel` says that the answer no longer matters: the question is closed.
    async fn ask(&self, request: &ConfirmationRequest, cancel: &CancellationToken) -> Answer;

    /// The same, and how the answer came about, for the record.
    async fn decide(&self, request: &ConfirmationRequest, cancel: &CancellationToken) -> (Answer, &'static str) {
        (self.ask(request, cancel).await, "a person")
    }
}

/// The same answer to everything: `--yes`, `--no`, and where there is nobody to ask.
#[derive(Clone, Copy, Debug)]
pub struct Fixed(
    /// Whether to allow.
    pub bool,
);

#[async_trait]
impl Confirm for Fixed {
    async fn ask(&self, _request: &ConfirmationRequest, _cancel: &CancellationToken) -> Answer {
        if self.0 { Answer::Allow } else { Answer::Deny }
    }

    async fn decide(&self, request: &ConfirmationRequest, cancel: &CancellationToken) -> (Answer, &'static str) {
        (self.ask(request, cancel).await, "the setting confirm")
    }
}
