//! One tool's definition.

use crate::protocol::RegisteredTool;
use crate::tool_call::{Risk, Target};
use serde_json::Value;

/// Whether a person must approve a call in the conversation, before it is dispatched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approval {
    /// Never.
    Never,
    /// Every call.
    Always,
}

/// What is known of a tool before it is called.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDefinition {
    /// The name in events and frames, for example `workspace.read_file`.
    pub name: &'static str,
    /// The version of this definition; part of every call's hash.
    pub version: &'static str,
    /// What the model is told.
    pub description: &'static str,
    /// JSON Schema of the arguments.
    pub parameters: Value,
    /// Where it runs.
    pub target: Target,
    /// How much harm it can do.
    pub risk: Risk,
    /// How long it may run (milliseconds).
    pub timeout_ms: u64,
    /// Whether the device asks its user first.
    pub requires_confirmation: bool,
    /// Whether a person must approve the call in the conversation.
    pub approval: Approval,
}

impl ToolDefinition {
    /// The name the model uses: providers allow no dots.
    pub fn model_name(&self) -> String {
        self.name.replace('.', "_")
    }

    /// As a device offers it.
    pub fn registered(&self) -> RegisteredTool {
        RegisteredTool {
            name: self.name.to_owned(),
            version: self.version.to_owned(),
            risk: self.risk,
            schema: self.parameters.clone(),
            timeout_ms: self.timeout_ms,
            requires_confirmation: self.requires_confirmation,
        }
    }
}
