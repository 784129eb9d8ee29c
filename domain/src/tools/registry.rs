//! The tools of a process as one value: the built-in ones and those that came later, each with its compiled
//! schemas. What does not make a whole tool is refused when it is registered, never when it is called.

use super::{Approval, Look, ModelVisible, ToolDefinition, schema::compile};
use crate::limits::MAX_TOOL_RETRIES;
use crate::tool_call::Target;
use serde_json::Value;
use std::sync::Arc;

/// Why a definition is not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// The model's name of the tool is empty, too long or has other characters than `[a-zA-Z0-9_-]`.
    #[error("tool {0:?}: a name has 1 to 64 of a-z, A-Z, 0-9, _ and -")]
    Name(String),
    /// Another tool has the name.
    #[error("tool {0}: there is one of this name")]
    Duplicate(String),
    /// A schema is none, or says something that would not be checked.
    #[error("tool {tool}: {which} schema: {reason}")]
    Schema {
        /// The tool.
        tool: String,
        /// `parameters` or `output`.
        which: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A time limit of nothing, or none for a device.
    #[error("tool {0}: a timeout is positive, and a device tool has one")]
    Timeout(String),
    /// Too many repetitions, or any where a call is made at most once or a person allows it once.
    #[error("tool {0}: at most {MAX_TOOL_RETRIES} retries, and none on a device or where a person allows each call")]
    Retries(String),
}

/// A tool with its compiled schemas.
#[derive(Debug)]
pub(super) struct Entry {
    pub definition: ToolDefinition,
    parameters: jsonschema::Validator,
    output: jsonschema::Validator,
}

impl Entry {
    pub fn check_output(&self, value: &Value) -> Result<(), String> {
        complaint(&self.output, value)
    }

    pub fn render(&self, arguments: &Value, value: &Value) -> Result<Value, String> {
        look(self.definition.render.as_ref(), arguments, value)
    }
}

/// Tools by their names. A copy is cheap and shares the compiled schemas.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    entries: Vec<Arc<Entry>>,
}

/// The longest name a model's provider takes (bytes).
const MAX_MODEL_NAME_BYTES: usize = 64;

impl Registry {
    /// A registry of these tools.
    ///
    /// # Errors
    /// The first definition that is refused.
    pub fn new(definitions: impl IntoIterator<Item = ToolDefinition>) -> Result<Self, RegistryError> {
        let mut registry = Self::default();
        definitions.into_iter().try_for_each(|definition| registry.register(definition))?;
        Ok(registry)
    }

    /// Adds a tool.
    ///
    /// # Errors
    /// What is wrong with it; the registry is as it was.
    pub fn register(&mut self, definition: ToolDefinition) -> Result<(), RegistryError> {
        let name = definition.model_name();
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if name.is_empty() || name.len() > MAX_MODEL_NAME_BYTES || !name.bytes().all(is_name) {
            return Err(RegistryError::Name(definition.name));
        }
        if self.by_model_name(&name).is_some() {
            return Err(RegistryError::Duplicate(definition.name));
        }
        if definition.timeout_ms == Some(0) || (definition.timeout_ms.is_none() && definition.target == Target::Device)
        {
            return Err(RegistryError::Timeout(definition.name));
        }
        let once = definition.target == Target::Device || definition.approval != Approval::Never;
        if definition.retries > if once { 0 } else { MAX_TOOL_RETRIES } {
            return Err(RegistryError::Retries(definition.name));
        }
        let compile = |which: &'static str, schema: &Value| {
            compile(schema).map_err(|reason| RegistryError::Schema { tool: definition.name.clone(), which, reason })
        };
        let (parameters, output) =
            (compile("parameters", &definition.parameters)?, compile("output", &definition.output)?);
        if definition.parameters["type"] != "object" {
            let reason = "arguments are an object: say \"type\": \"object\"".to_owned();
            return Err(RegistryError::Schema { tool: definition.name, which: "parameters", reason });
        }
        self.entries.push(Arc::new(Entry { definition, parameters, output }));
        Ok(())
    }

    /// Takes a tool away; whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.entries.len();
        self.entries.retain(|entry| entry.definition.name != name);
        self.entries.len() < before
    }

    /// Every definition.
    pub fn definitions(&self) -> impl Iterator<Item = &ToolDefinition> {
        self.entries.iter().map(|entry| &entry.definition)
    }

    /// What a model is told of them.
    pub fn model_visible(&self) -> Vec<ModelVisible> {
        self.definitions().map(ToolDefinition::model_visible).collect()
    }

    /// A tool by its own name.
    pub fn get(&self, name: &str) -> Option<&ToolDefinition> {
        self.definitions().find(|definition| definition.name == name)
    }

    /// A tool by the name the model uses.
    pub fn by_model_name(&self, name: &str) -> Option<&ToolDefinition> {
        self.definitions().find(|definition| definition.model_name() == name)
    }

    /// Checks arguments against a tool's schema.
    ///
    /// # Errors
    /// Words for the model: what is wrong and where.
    pub fn validate(&self, tool: &str, arguments: &Value) -> Result<(), String> {
        complaint(&self.entry(tool)?.parameters, arguments)
    }

    /// Checks a value against the schema of what the tool gives.
    ///
    /// # Errors
    /// What is wrong and where.
    pub fn check_output(&self, tool: &str, value: &Value) -> Result<(), String> {
        self.entry(tool)?.check_output(value)
    }

    /// What the model sees of a value.
    ///
    /// # Errors
    /// What the tool's own function says.
    pub fn render(&self, tool: &str, arguments: &Value, value: &Value) -> Result<Value, String> {
        self.entry(tool)?.render(arguments, value)
    }

    /// What a person sees of a value.
    ///
    /// # Errors
    /// What the tool's own function says.
    pub fn presentation(&self, tool: &str, arguments: &Value, value: &Value) -> Result<Value, String> {
        look(self.entry(tool)?.definition.presentation.as_ref(), arguments, value)
    }

    /// Whether a call with these arguments may run beside others. What is unknown, invalid or fails runs alone.
    pub fn may_run_beside_others(&self, tool: &str, arguments: &Value) -> bool {
        let Ok(entry) = self.entry(tool) else { return false };
        let Some(predicate) = &entry.definition.concurrency_safe else { return false };
        let asked = std::panic::AssertUnwindSafe(|| predicate(arguments));
        entry.parameters.is_valid(arguments) && std::panic::catch_unwind(asked).unwrap_or(false)
    }

    pub(super) fn entry(&self, tool: &str) -> Result<Arc<Entry>, String> {
        let found = self.entries.iter().find(|entry| entry.definition.name == tool);
        found.cloned().ok_or_else(|| format!("no tool {tool}"))
    }
}

fn look(of: Option<&Look>, arguments: &Value, value: &Value) -> Result<Value, String> {
    let Some(of) = of else { return Ok(value.clone()) };
    let shown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| of(arguments, value)));
    shown.unwrap_or_else(|_panic| Err("the tool's own function panicked".to_owned()))
}

fn complaint(validator: &jsonschema::Validator, value: &Value) -> Result<(), String> {
    validator.validate(value).map_err(|error| {
        let at = error.instance_path().to_string();
        // Without the value itself, which may be a megabyte.
        let error = error.masked().to_string();
        if at.is_empty() { error } else { format!("{at}: {error}") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tool(change: impl FnOnce(&mut ToolDefinition)) -> ToolDefinition {
        let mut tool = ToolDefinition::new("t", "", json!({"type": "object"}), json!({"type": "object"}));
        change(&mut tool);
        tool
    }

    #[test]
    fn what_is_no_whole_tool_is_refused_when_it_is_registered() {
        let refused = |change: &dyn Fn(&mut ToolDefinition)| {
            let mut registry = Registry::new([tool(|other| other.name = "a.b".into())]).expect("whole");
            let error = registry.register(tool(change)).expect_err("refused").to_string();
            assert_eq!(registry.definitions().count(), 1, "{error}");
            error
        };
        for (change, complaint) in [
            (&(|t: &mut ToolDefinition| t.name = "a_b".into()) as &dyn Fn(&mut ToolDefinition), "one of this name"),
            (&|t| t.name = String::new(), "1 to 64"),
            (&|t| t.name = "x".repeat(65), "1 to 64"),
            (&|t| t.name = "a b".into(), "1 to 64"),
            (&|t| t.output = Value::Null, "output schema"),
            (&|t| t.output = json!({"type": "objekt"}), "output schema"),
            (&|t| t.parameters = json!({"type": "array"}), "parameters schema"),
            (&|t| t.parameters = json!({"type": "object", "$ref": "https://example.org/s"}), "leads out"),
            (&|t| t.parameters["properties"] = json!({"a": {"maxLen": 3}}), "maxLen is not supported"),
            (&|t| t.parameters["anyOf"] = json!([{"$dynamicRef": "#x"}]), "$dynamicRef is not supported"),
            (&|t| t.timeout_ms = Some(0), "positive"),
            (&|t| t.target = Target::Device, "device tool has one"),
            (&|t| t.retries = 1, "a person allows each call"),
            (&|t| (t.retries, t.approval) = (6, Approval::Never), "at most 5 retries"),
            (
                &|t| (t.retries, t.approval, t.target, t.timeout_ms) = (1, Approval::Never, Target::Device, Some(1)),
                "on a device",
            ),
        ] {
            let error = refused(change);
            assert!(error.contains(complaint), "{error}, not {complaint}");
        }
    }

    #[test]
    fn only_an_explicit_yes_for_valid_arguments_lets_a_call_run_beside_others() {
        let parameters = json!({"type": "object", "required": ["a"]});
        let with = |predicate: Option<crate::tools::Predicate>| {
            let mut tool = tool(|tool| tool.parameters = parameters.clone());
            tool.concurrency_safe = predicate;
            Registry::new([tool]).expect("whole")
        };
        let (valid, invalid) = (json!({"a": 1}), json!({}));
        assert!(with(Some(Arc::new(|_| true))).may_run_beside_others("t", &valid));
        assert!(!with(Some(Arc::new(|_| true))).may_run_beside_others("t", &invalid));
        assert!(!with(Some(Arc::new(|_| true))).may_run_beside_others("u", &valid));
        assert!(!with(Some(Arc::new(|_| false))).may_run_beside_others("t", &valid));
        assert!(!with(Some(Arc::new(|_| panic!("a fault")))).may_run_beside_others("t", &valid));
        assert!(!with(None).may_run_beside_others("t", &valid));
    }

    #[test]
    fn a_function_that_fails_or_panics_is_an_error_and_no_more() {
        let with = |render: Option<Look>| {
            let mut tool = tool(|_| {});
            tool.render = render;
            Registry::new([tool]).expect("whole").render("t", &json!({}), &json!(1))
        };
        assert_eq!(with(None), Ok(json!(1)));
        assert_eq!(with(Some(Arc::new(|_, value| Ok(json!([value]))))), Ok(json!([1])));
        assert_eq!(with(Some(Arc::new(|_, _| Err("no".to_owned())))), Err("no".to_owned()));
        assert!(with(Some(Arc::new(|_, _| panic!("a fault")))).is_err());
    }

    #[test]
    fn the_model_sees_three_named_fields() {
        let seen = tool(|tool| tool.name = "a.b".into()).model_visible();
        assert_eq!((seen.name.as_str(), &seen.parameters), ("a_b", &json!({"type": "object"})));
    }
}
