//! `--with`: what a run would have decided with another prompt, policy, limit or model. Only decisions that are
//! pure can be told without asking anybody: the first one that differs ends what the log can answer.

use devmind_domain::limits::{MAX_MODEL_ROUNDS_PER_RUN, MAX_TOOL_CALLS_PER_RUN};
use std::collections::BTreeMap;

/// What is to be done with calls of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolPolicy {
    /// Carry them out without asking a person.
    Allow,
    /// Ask a person first.
    Ask,
    /// Refuse them.
    Deny,
}

/// What is to be different; nothing, by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WhatIf {
    /// Another system prompt.
    pub system: Option<String>,
    /// Another model.
    pub model: Option<String>,
    /// Rounds of a run, at most.
    pub rounds: Option<u32>,
    /// Tool calls of a run, at most.
    pub calls: Option<u32>,
    /// Other policies, by the tool's name.
    pub tools: BTreeMap<String, ToolPolicy>,
}

impl WhatIf {
    /// Whether anything is to be different.
    pub fn is_something(&self) -> bool {
        *self != Self::default()
    }

    /// Adds `system=TEXT`, `system=@FILE`, `model=NAME`, `rounds=N`, `calls=N` or `TOOL=allow|ask|deny`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn add(&mut self, text: &str) -> Result<(), String> {
        let (name, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not NAME=VALUE"))?;
        // A run cannot be replayed further than it went.
        let number = |most: u32| match value.parse() {
            Ok(number) if number <= most => Ok(number),
            Ok(_) | Err(_) => Err(format!("{name} must be a number up to {most}, which it is now")),
        };
        match name {
            "system" => {
                let text = match value.strip_prefix('@') {
                    Some(file) => std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?,
                    None => value.to_owned(),
                };
                self.system = Some(text);
            }
            "model" => self.model = Some(value.to_owned()),
            "rounds" => self.rounds = Some(number(MAX_MODEL_ROUNDS_PER_RUN)?),
            "calls" => self.calls = Some(number(MAX_TOOL_CALLS_PER_RUN)?),
            tool => {
                if devmind_domain::tools::catalogue().get(tool).is_none() {
                    return Err(format!("{tool:?} is neither a tool nor one of system, model, rounds, calls"));
                }
                let policy = match value {
                    "allow" => ToolPolicy::Allow,
                    "ask" => ToolPolicy::Ask,
                    "deny" => ToolPolicy::Deny,
                    other => return Err(format!("{other:?} is none of allow, ask, deny")),
                };
                self.tools.insert(tool.to_owned(), policy);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_understood_or_cannot_be_answered_is_refused() {
        let mut what_if = WhatIf::default();
        for wrong in ["system", "rounds=x", "rounds=9999", "no_such_tool=deny", "add=perhaps", "system=@/no/such/file"]
        {
            assert!(what_if.add(wrong).is_err(), "{wrong}");
        }
        assert!(!what_if.is_something());
        for right in ["system=Be brief.", "model=other", "rounds=2", "calls=0", "add=deny"] {
            what_if.add(right).expect(right);
        }
        assert!(what_if.is_something());
    }
}
