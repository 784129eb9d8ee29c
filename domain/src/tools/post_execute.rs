//! Post-execute steps: they see what became of every call, refusals too, before the model does.
//!
//! A step may put other text before the model, or another value (which is checked and rendered like the tool's own),
//! or hold the outcome back with words of its own; one of these at most, which its type says. It cannot make a success
//! of a failure. A step with a fault holds the outcome back: it may have been there to hide something.

use super::ToolOutcome;
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What a step is shown.
pub struct AfterCall<'a> {
    /// The tool, or the model's word where there is none of this name.
    pub tool: &'a str,
    /// The arguments; a string where they were no JSON object.
    pub arguments: &'a Value,
    /// The tool's value, or why there is none.
    pub outcome: &'a ToolOutcome,
    /// The text that the model is to see.
    pub content: &'a str,
}

/// What a step wants changed.
#[derive(Clone, Debug, PartialEq)]
pub enum Amendment {
    /// Nothing.
    Keep,
    /// The model sees this text.
    Content(String),
    /// The tool's value is this. A fault where the call has failed.
    Value(Value),
    /// The model is told `BLOCKED_BY_POLICY` and these words.
    Block(String),
}

type Look = Arc<dyn Fn(&AfterCall<'_>) -> Amendment + Send + Sync>;

/// One step.
#[derive(Clone)]
pub struct PostExecute {
    id: Arc<str>,
    look: Look,
}

impl PostExecute {
    /// A step; the id stands in the event of what it changes.
    pub fn new(id: &str, look: impl Fn(&AfterCall<'_>) -> Amendment + Send + Sync + 'static) -> Self {
        Self { id: id.into(), look: Arc::new(look) }
    }

    /// The id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What it wants changed.
    pub(super) fn look(&self, call: &AfterCall<'_>) -> Amendment {
        let asked = catch_unwind(AssertUnwindSafe(|| (self.look)(call)));
        match asked.unwrap_or_else(|_panic| fault()) {
            Amendment::Value(_) if !call.outcome.ok() => fault(),
            amendment => amendment,
        }
    }
}

fn fault() -> Amendment {
    Amendment::Block("a step after the tool has a fault, and then nothing passes".to_owned())
}
