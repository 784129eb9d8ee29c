//! A set of tools that models were offered, where it is not simply what this program brings along.
//!
//! Tools of other servers come, change and go. What a model could call when it was asked is recorded once for every
//! set, under the hash of the set, before the first question that offers it: so a replay judges calls by the tools
//! that there were. A tool's own functions are no data and not in here.

use crate::aggregate::{Decider, adapt_to_cqrs_es};
use crate::canonical::hash_json;
use crate::event::{AggregateType, event_set};
use crate::tool_call::{Risk, Target};
use crate::tools::{Approval, Registry, RegistryError, ToolDefinition, catalogue, mcp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What is known of a tool beside its functions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedTool {
    /// The name in events and frames.
    pub name: String,
    /// The version of the definition.
    pub version: String,
    /// What the model was told.
    pub description: String,
    /// JSON Schema of the arguments.
    pub parameters: Value,
    /// JSON Schema of the value.
    pub output: Value,
    /// Where it runs.
    pub target: Target,
    /// How much harm it can do.
    pub risk: Risk,
    /// How long it may take (milliseconds).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Whether a device asks its person.
    pub requires_confirmation: bool,
    /// Whether a person must approve a call.
    pub approval: Approval,
}

impl From<&ToolDefinition> for RecordedTool {
    fn from(tool: &ToolDefinition) -> Self {
        Self {
            name: tool.name.clone(),
            version: tool.version.clone(),
            description: tool.description.clone(),
            parameters: tool.parameters.clone(),
            output: tool.output.clone(),
            target: tool.target,
            risk: tool.risk,
            timeout_ms: tool.timeout_ms,
            requires_confirmation: tool.requires_confirmation,
            approval: tool.approval,
        }
    }
}

impl From<&RecordedTool> for ToolDefinition {
    fn from(tool: &RecordedTool) -> Self {
        Self {
            version: tool.version.clone(),
            target: tool.target,
            risk: tool.risk,
            timeout_ms: tool.timeout_ms,
            requires_confirmation: tool.requires_confirmation,
            approval: tool.approval,
            ..Self::new(&tool.name, &tool.description, tool.parameters.clone(), tool.output.clone())
        }
    }
}

/// Models are offered these tools; the stream's id is the hash of the set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolSetRecorded {
    /// The tools.
    pub tools: Vec<RecordedTool>,
}

impl ToolSetRecorded {
    /// The set of a registry.
    pub fn of(registry: &Registry) -> Self {
        Self { tools: registry.definitions().map(RecordedTool::from).collect() }
    }

    /// SHA-256 of the set: its id.
    pub fn id(&self) -> String {
        hash_json(&self.tools)
    }

    /// The registry of the set. A tool that is known, or that this program brings along, is that one with its
    /// functions.
    ///
    /// # Errors
    /// When a tool would not be registered today.
    pub fn registry(&self, known: &Registry) -> Result<Registry, RegistryError> {
        let whole = |tool: &RecordedTool| {
            let own = [known, catalogue()].into_iter().filter_map(|own| own.get(&tool.name));
            let same = own.into_iter().find(|own| RecordedTool::from(*own) == *tool);
            same.cloned().unwrap_or_else(|| mcp::with_functions(tool.into()))
        };
        Registry::new(self.tools.iter().map(whole))
    }
}

event_set! {
    /// What can happen to a set of tools.
    ToolSetEvent of ToolSet {
        ToolSetRecorded = 1,
    }
}

/// What can be asked: that the set is recorded.
#[derive(Clone, Debug)]
pub struct RecordToolSet(pub ToolSetRecorded);

/// There is nothing to refuse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolSetError {}

/// Whether a set is recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolSet {
    /// The set.
    pub recorded: Option<ToolSetRecorded>,
}

impl Decider for ToolSet {
    const TYPE: AggregateType = AggregateType::ToolSet;
    const STATE_VERSION: u32 = 1;
    type Command = RecordToolSet;
    type Event = ToolSetEvent;
    type Error = ToolSetError;

    fn decide(&self, RecordToolSet(set): RecordToolSet) -> Result<Vec<ToolSetEvent>, ToolSetError> {
        Ok(if self.recorded.is_some() { vec![] } else { vec![set.into()] })
    }

    fn evolve(&mut self, event: &ToolSetEvent) {
        match event {
            ToolSetEvent::ToolSetRecorded(e) => {
                self.recorded.get_or_insert_with(|| e.clone());
            }
        }
    }
}

adapt_to_cqrs_es!(ToolSet, "tool_set");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_read_back_has_the_same_tools_and_the_same_id() {
        let set = ToolSetRecorded::of(catalogue());
        let stored = serde_json::to_string(&set).expect("JSON");
        let read: ToolSetRecorded = serde_json::from_str(&stored).expect("the same");
        assert_eq!(read.id(), set.id());
        assert_eq!(ToolSetRecorded::of(&read.registry(&Registry::default()).expect("whole")), set);
    }
}
