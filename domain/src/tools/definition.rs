//! One tool's definition: what the model sees of it, and what the host knows of it.
//!
//! The third layer, how a tool is carried out, is left to who carries it out: `server_tools`, the server's own
//! list of bodies, the device. Defaults are the careful ones: [`ToolDefinition::new`] makes a tool of high risk
//! that runs alone and that a person must allow, until its author says otherwise.

use crate::protocol::RegisteredTool;
use crate::tool_call::{Risk, Target};
use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;

/// Whether a person must approve a call in the conversation, before it is dispatched: what counts where no policy has
/// a word about the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Approval {
    /// Never: it is allowed.
    Never,
    /// Always: a person is asked, unless there is a grant for the conversation.
    Always,
    /// It is for policies to say. Where none does, a person is asked, as with `Always`: it fails closed.
    Policy,
}

/// Whether a call with these validated arguments may run beside others.
pub type Predicate = Arc<dyn Fn(&Value) -> bool + Send + Sync>;
/// A pure function of (arguments, value): what a value looks like to the model or to a person. The same bytes
/// live and in a replay.
pub type Look = Arc<dyn Fn(&Value, &Value) -> Result<Value, String> + Send + Sync>;
/// The last word about the text the model gets, and about nothing else; total.
pub type Finalize = Arc<dyn Fn(String) -> String + Send + Sync>;

/// What is known of a tool before it is called.
#[derive(Clone)]
pub struct ToolDefinition {
    /// The name in events and frames, for example `workspace.read_file`.
    pub name: String,
    /// The version of this definition; part of every call's hash.
    pub version: String,
    /// What the model is told.
    pub description: String,
    /// JSON Schema of the arguments.
    pub parameters: Value,
    /// JSON Schema of the value it gives.
    pub output: Value,
    /// Where it runs.
    pub target: Target,
    /// How much harm it can do.
    pub risk: Risk,
    /// How long it may run (milliseconds); absent: as long as it takes. Who declares it promises to watch for the
    /// end of its time: running code is asked to end and awaited, never killed.
    pub timeout_ms: Option<u64>,
    /// How often it may be run again after a failure that may pass (a retriable code); 0: never. Who declares more
    /// promises that running it twice does no harm.
    pub retries: u32,
    /// Whether the device asks its user first.
    pub requires_confirmation: bool,
    /// Whether a person must approve the call in the conversation.
    pub approval: Approval,
    /// Which calls may run beside others; absent: none.
    pub concurrency_safe: Option<Predicate>,
    /// What the model sees of a value; absent: the value.
    pub render: Option<Look>,
    /// What a person sees of a value; absent: the value.
    pub presentation: Option<Look>,
    /// What becomes of the text for the model at the very end; absent: nothing. It changes that text alone: a program
    /// that calls the tool gets the value, as it reads no text. What a program must not get either belongs out of the
    /// value, or is for a post-execute step to take away, which both obey.
    pub finalize_content: Option<Finalize>,
}

/// What the model is told of a tool. It is built by naming its fields: a new field of a definition is hidden from
/// the model until somebody decides otherwise.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ModelVisible {
    /// The name the model uses.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON Schema of its arguments.
    pub parameters: Value,
}

impl ToolDefinition {
    /// A server tool with every default on the careful side.
    pub fn new(name: impl Into<String>, description: impl Into<String>, parameters: Value, output: Value) -> Self {
        Self {
            name: name.into(),
            version: "1".to_owned(),
            description: description.into(),
            parameters,
            output,
            target: Target::Server,
            risk: Risk::High,
            timeout_ms: None,
            retries: 0,
            requires_confirmation: true,
            approval: Approval::Always,
            concurrency_safe: None,
            render: None,
            presentation: None,
            finalize_content: None,
        }
    }

    /// The name the model uses: providers allow no dots.
    pub fn model_name(&self) -> String {
        self.name.replace('.', "_")
    }

    /// What the model is told.
    pub fn model_visible(&self) -> ModelVisible {
        ModelVisible {
            name: self.model_name(),
            description: self.description.clone(),
            parameters: self.parameters.clone(),
        }
    }

    /// As a device offers it.
    pub fn registered(&self) -> RegisteredTool {
        RegisteredTool {
            name: self.name.clone(),
            version: self.version.clone(),
            risk: self.risk,
            schema: self.parameters.clone(),
            timeout_ms: self.timeout_ms.unwrap_or(crate::limits::TOOL_EXECUTION_MS),
            requires_confirmation: self.requires_confirmation,
        }
    }
}

impl fmt::Debug for ToolDefinition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = json!({ "risk": self.risk, "target": self.target, "timeout_ms": self.timeout_ms });
        write!(f, "{} {} {said}", self.name, self.version)
    }
}

/// Every call may run beside others: for tools that only read.
pub fn always_beside_others() -> Option<Predicate> {
    Some(Arc::new(|_| true))
}
