//! What the model sees of what a tool really gave: the value against its schema, then rendered, then finalised.
//!
//! The result itself is recorded before any of this, and none of this changes it: a value of the wrong shape or a
//! fault in rendering never hides that the tool ran. Pure, so that it is the same live and in a replay.

use super::{Registry, ToolOutcome};
use crate::ErrorCode;
use crate::canonical::sha256_hex;
use crate::tool_call::ToolOutcomeRevised;
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The end of a call as the thread records it.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Whether it succeeded, and the code where it did not.
    pub outcome: ToolOutcome,
    /// The text for the model.
    pub content: String,
    /// What is to be recorded where this is not simply what the tool gave.
    pub revision: Option<ToolOutcomeRevised>,
}

impl Registry {
    /// What the model sees of an outcome. Failures pass through to the last stage; a tool that is not in the
    /// registry has no stages.
    pub fn seen(&self, tool: &str, arguments: &Value, outcome: ToolOutcome) -> Seen {
        let plain = outcome.content(tool);
        let Some(definition) = self.get(tool) else {
            return Seen { outcome, content: plain, revision: None };
        };
        let mut by = ("render", "RENDERED");
        let shaped = match &outcome.result {
            Err(_) => outcome,
            Ok(value) => match (self.check_output(tool, value), self.render(tool, arguments, value)) {
                (Err(reason), _) => {
                    by = ("output", ErrorCode::InvalidToolOutput.as_str());
                    ToolOutcome::failure(ErrorCode::InvalidToolOutput, reason)
                }
                (Ok(()), Err(reason)) => {
                    by = ("render", ErrorCode::RenderFailed.as_str());
                    ToolOutcome::failure(ErrorCode::RenderFailed, reason)
                }
                (Ok(()), Ok(shown)) => ToolOutcome::success(shown),
            },
        };
        let mut content = shaped.content(tool);
        if let Some(finalize) = &definition.finalize_content {
            // Total: where it has a fault, the text stays as it is.
            let last = catch_unwind(AssertUnwindSafe(|| finalize(content.clone()))).unwrap_or_else(|_| content.clone());
            if last != content {
                (by, content) = (("finalize_content", "FINALIZED"), last);
            }
        }
        let revision = (content != plain).then(|| ToolOutcomeRevised {
            by: by.0.to_owned(),
            reason: by.1.to_owned(),
            content_hash: sha256_hex(content.as_bytes()),
        });
        Seen { outcome: shaped, content, revision }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::ToolDefinition;
    use serde_json::json;
    use std::sync::Arc;

    fn seen(change: impl FnOnce(&mut ToolDefinition), outcome: ToolOutcome) -> Seen {
        let output = json!({"type": "object", "required": ["sum"]});
        let mut tool = ToolDefinition::new("t", "", json!({"type": "object"}), output);
        change(&mut tool);
        Registry::new([tool]).expect("whole").seen("t", &json!({}), outcome)
    }

    #[test]
    fn what_the_model_sees_differs_from_the_result_only_with_a_revision_that_says_who_and_why() {
        let good = || ToolOutcome::success(json!({"sum": 1}));
        for (what, seen, code, revised) in [
            ("nothing", seen(|_| {}, good()), None, None),
            ("a failure", seen(|_| {}, ToolOutcome::failure(ErrorCode::IoError, "")), Some("IO_ERROR"), None),
            (
                "a value of another shape",
                seen(|_| {}, ToolOutcome::success(json!({}))),
                Some("INVALID_TOOL_OUTPUT"),
                Some(("output", "INVALID_TOOL_OUTPUT")),
            ),
            (
                "a render that fails",
                seen(|tool| tool.render = Some(Arc::new(|_, _| Err("no".into()))), good()),
                Some("RENDER_FAILED"),
                Some(("render", "RENDER_FAILED")),
            ),
            (
                "a render that panics",
                seen(|tool| tool.render = Some(Arc::new(|_, _| panic!("a fault"))), good()),
                Some("RENDER_FAILED"),
                Some(("render", "RENDER_FAILED")),
            ),
            (
                "a render",
                seen(|tool| tool.render = Some(Arc::new(|_, value| Ok(value["sum"].clone()))), good()),
                None,
                Some(("render", "RENDERED")),
            ),
            (
                "a last word",
                seen(|tool| tool.finalize_content = Some(Arc::new(|text| text + "!")), good()),
                None,
                Some(("finalize_content", "FINALIZED")),
            ),
            (
                "a last word that panics",
                seen(|tool| tool.finalize_content = Some(Arc::new(|_| panic!("a fault"))), good()),
                None,
                None,
            ),
        ] {
            assert_eq!(seen.outcome.error_code().as_deref(), code, "{what}");
            let revision = seen.revision.as_ref().map(|revision| (revision.by.as_str(), revision.reason.as_str()));
            assert_eq!(revision, revised, "{what}");
            if let Some(revision) = &seen.revision {
                assert_eq!(revision.content_hash, sha256_hex(seen.content.as_bytes()), "{what}");
            }
        }
    }
}
