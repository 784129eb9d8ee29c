//! What the model sees of what became of a call: value → schema → rendering → post-execute steps → `finalize_content`.
//!
//! What really happened is recorded before any of this, and none of this changes it: a late time-out, a value of the
//! wrong shape, a fault in rendering or a stop never hides that the tool ran. Everything is captured when the call
//! starts ([`Finish::captured`]) and used up by its one outcome ([`Finish::see`]). Total, and pure where the steps are:
//! the same live and in a replay.

use super::registry::Entry;
use super::{AfterCall, Amendment, PostExecute, Registry, ToolOutcome};
use crate::ErrorCode;
use crate::canonical::{canonical_json, sha256_hex};
use crate::limits::MAX_TOOL_CONTENT_JSON_BYTES;
use crate::tool_call::{ToolError, ToolOutcomeRevised};
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// How a call ended, before anything is made of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// What was recorded of it.
    pub outcome: ToolOutcome,
    /// The execute wrapper that does not let the outcome stand, and why.
    pub overruled: Option<(String, ToolError)>,
    /// The run was stopped meanwhile.
    pub aborted: bool,
}

impl From<ToolOutcome> for Ended {
    fn from(outcome: ToolOutcome) -> Self {
        Self { outcome, overruled: None, aborted: false }
    }
}

/// The end of a call as the thread records it.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Whether it succeeded, and the code where it did not. Its value, or its words, are what a caller gets who reads
    /// no text, as a program does: where a step put a text in their place, that text.
    pub outcome: ToolOutcome,
    /// The text for the model.
    pub content: String,
    /// What each stage changed, in their order; none where the text is simply what was recorded.
    pub revisions: Vec<ToolOutcomeRevised>,
}

/// What comes after the body of one call, as it was when the call started.
pub struct Finish {
    tool: String,
    entry: Option<Arc<Entry>>,
    post_execute: Arc<[PostExecute]>,
}

impl Finish {
    /// The stages for a call of a tool. What is not in the registry has no stages of its own.
    pub fn captured(registry: &Registry, tool: &str, post_execute: &Arc<[PostExecute]>) -> Self {
        Self { tool: tool.to_owned(), entry: registry.entry(tool).ok(), post_execute: post_execute.clone() }
    }

    /// What the model sees.
    pub fn see(self, arguments: &Value, ended: Ended) -> Seen {
        let Ended { outcome, overruled, aborted } = ended;
        let mut text = Text { tool: &self.tool, content: outcome.content(&self.tool), revisions: Vec::new() };
        let (mut outcome, mut in_its_place) = (outcome, None);
        if let Some((by, error)) = overruled {
            let code = error.code.clone();
            outcome = ToolOutcome { result: Err(error) };
            text.becomes(&by, &code, outcome.content(&self.tool));
        }
        outcome = self.shape(arguments, outcome, &mut text);
        if aborted && outcome.ok() {
            outcome = text.fails("stop", ErrorCode::Aborted, ErrorCode::Aborted.help());
        }
        for step in self.post_execute.iter() {
            let (tool, content) = (self.tool.as_str(), text.content.as_str());
            let amendment = step.look(&AfterCall { tool, arguments, outcome: &outcome, content });
            if amendment != Amendment::Keep {
                in_its_place = None;
            }
            match amendment {
                Amendment::Keep => {}
                Amendment::Content(content) if !fits(&content) => {
                    outcome = text.fails(step.id(), ErrorCode::BlockedByPolicy, "what is put in its place is too long");
                }
                Amendment::Content(content) => {
                    in_its_place = Some(content.clone());
                    text.becomes(step.id(), "CONTENT_REPLACED", content);
                }
                Amendment::Value(value) => {
                    let replaced = ToolOutcome::success(value);
                    text.becomes(step.id(), "VALUE_REPLACED", replaced.content(&self.tool));
                    outcome = self.shape(arguments, replaced, &mut text);
                }
                Amendment::Block(words) => outcome = text.fails(step.id(), ErrorCode::BlockedByPolicy, &words),
            }
        }
        if let Some(finalize) = self.entry.as_ref().and_then(|entry| entry.definition.finalize_content.as_ref()) {
            // Total: where it has a fault, the text stays as it is.
            let last = catch_unwind(AssertUnwindSafe(|| finalize(text.content.clone())));
            if let Ok(last) = last
                && fits(&last)
            {
                text.becomes("finalize_content", "FINALIZED", last);
            }
        }
        let Text { content, revisions, .. } = text;
        // What a step took from the model's eyes a program of the model does not get either.
        let outcome = match in_its_place {
            Some(words) => outcome.saying(words),
            None => outcome,
        };
        Seen { outcome, content, revisions }
    }

    /// A value against its schema, then rendered. The outcome keeps the value; the text is what is rendered.
    fn shape(&self, arguments: &Value, outcome: ToolOutcome, text: &mut Text<'_>) -> ToolOutcome {
        let (Ok(value), Some(entry)) = (&outcome.result, &self.entry) else { return outcome };
        if let Err(reason) = entry.check_output(value) {
            return text.fails("output", ErrorCode::InvalidToolOutput, &reason);
        }
        match entry.render(arguments, value) {
            Err(reason) => text.fails("render", ErrorCode::RenderFailed, &reason),
            Ok(shown) => {
                let content = ToolOutcome::success(shown).content(&self.tool);
                if !fits(&content) {
                    return text.fails("render", ErrorCode::RenderFailed, "it is too long to be shown");
                }
                text.becomes("render", "RENDERED", content);
                outcome
            }
        }
    }
}

/// Whether an event can hold a text.
fn fits(content: &str) -> bool {
    // JSON writes a byte with six at most.
    content.len() <= MAX_TOOL_CONTENT_JSON_BYTES / 6
        || canonical_json(&Value::String(content.to_owned())).len() <= MAX_TOOL_CONTENT_JSON_BYTES
}

/// The text for the model, and who changed it.
struct Text<'a> {
    tool: &'a str,
    content: String,
    revisions: Vec<ToolOutcomeRevised>,
}

impl Text<'_> {
    fn becomes(&mut self, by: &str, reason: &str, content: String) {
        if content == self.content {
            return;
        }
        let content_hash = sha256_hex(content.as_bytes());
        self.content = content;
        self.revisions.push(ToolOutcomeRevised { by: by.to_owned(), reason: reason.to_owned(), content_hash });
    }

    fn fails(&mut self, by: &str, code: ErrorCode, words: &str) -> ToolOutcome {
        let outcome = ToolOutcome::failure(code, words);
        self.becomes(by, code.as_str(), outcome.content(self.tool));
        outcome
    }
}

#[cfg(test)]
mod tests;
