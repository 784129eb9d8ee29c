//! `--with`: what a run would have decided with another prompt, policy, limit or model. Only decisions that are
//! pure can be told without asking anybody: the first one that differs ends what the log can answer.

use super::record::readable;
use crate::failure::Failure;
use devmind_domain::ErrorCode;
use devmind_domain::limits::{MAX_MODEL_ROUNDS_PER_RUN, MAX_TOOL_CALLS_PER_RUN};
use devmind_domain::tool_set::ToolSetEvent;
use devmind_domain::tools::{PolicyRule, Rules, catalogue};
use devmind_ledger::{EventFilter, LedgerReader, MAX_PAGE_EVENTS};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

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

/// Bytes of a file of rules, at most; the server's own settings are far smaller.
const MAX_RULES_BYTES: u64 = 4 << 20;

/// What is to be different; nothing, by default.
#[derive(Clone, Debug, Default)]
pub struct WhatIf {
    /// Another system prompt.
    pub system: Option<String>,
    /// Another model.
    pub model: Option<String>,
    /// Rounds of a run, at most.
    pub rounds: Option<u32>,
    /// Tool calls of a run, at most.
    pub calls: Option<u32>,
    /// What is to be done with calls, by the tool's name; it counts before the rules.
    pub tools: BTreeMap<String, ToolPolicy>,
    /// Rules in the place of those that the server had.
    pub rules: Option<Rules>,
}

/// What of the server's settings counts here.
#[derive(Deserialize)]
struct Configured {
    policies: Option<Vec<PolicyRule>>,
}

impl WhatIf {
    /// Whether anything is to be different.
    pub fn is_something(&self) -> bool {
        let Self { system, model, rounds, calls, tools, rules } = self;
        let numbers = rounds.is_some() || calls.is_some();
        system.is_some() || model.is_some() || numbers || !tools.is_empty() || rules.is_some()
    }

    /// Adds `system=TEXT`, `system=@FILE`, `model=NAME`, `rounds=N`, `calls=N`, `policy=FILE` or
    /// `TOOL=allow|ask|deny`. Whether there is such a tool, [`WhatIf::check_tools`] finds out.
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
            "policy" => self.rules = Some(rules(Path::new(value))?),
            "rounds" => self.rounds = Some(number(MAX_MODEL_ROUNDS_PER_RUN)?),
            "calls" => self.calls = Some(number(MAX_TOOL_CALLS_PER_RUN)?),
            tool => {
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

    /// Refuses tools that neither this program brings along nor a model was offered up to a position of the log.
    pub(crate) async fn check_tools(&self, reader: &LedgerReader, at: u64) -> Result<(), Failure> {
        let mut strange: BTreeSet<&str> = self.tools.keys().map(String::as_str).collect();
        strange.retain(|tool| catalogue().get(tool).is_none());
        let sets = EventFilter { event_type: Some("ToolSetRecorded".to_owned()), ..EventFilter::default() };
        let mut after = 0;
        while !strange.is_empty() {
            let page = reader.query(&sets, after, MAX_PAGE_EVENTS).await?;
            let Some(last) = page.last() else { break };
            after = last.position;
            for event in page.iter().filter(|event| event.position <= at) {
                for ToolSetEvent::ToolSetRecorded(set) in readable::<ToolSetEvent>(event).unwrap_or_default() {
                    strange.retain(|name| set.tools.iter().all(|tool| tool.name != *name));
                }
            }
        }
        let Some(tool) = strange.first() else { return Ok(()) };
        let message = format!(
            "--with: {tool:?} is neither a tool that this log knows nor one of system, model, rounds, calls, policy"
        );
        Err(Failure::new(ErrorCode::ValidationFailed, message)
            .with_hint("`devmind-replay stats` lists the tools that were called"))
    }
}

/// The rules of a file with `[[policies]]`, such as the server's own settings.
fn rules(file: &Path) -> Result<Rules, String> {
    let wrong = |reason: String| format!("{}: {reason}", file.display());
    let size = std::fs::metadata(file).map_err(|error| wrong(error.to_string()))?.len();
    if size > MAX_RULES_BYTES {
        return Err(wrong(format!("it has more than {MAX_RULES_BYTES} bytes")));
    }
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let read: Configured = toml::from_str(&text).map_err(|error| {
        let line = error.span().and_then(|span| Some(text.get(..span.start)?.lines().count().max(1)));
        wrong(format!("line {}: {}", line.unwrap_or(1), error.message()))
    })?;
    let policies = read
        .policies
        .ok_or_else(|| wrong("it has no [[policies]]; `policies = []` is a file without rules".to_owned()))?;
    Rules::new(&policies).map_err(|error| wrong(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_understood_or_cannot_be_answered_is_refused() {
        let mut what_if = WhatIf::default();
        let folder = tempfile::tempdir().expect("a folder");
        let policy = |name: &str, text: &str| {
            let file = folder.path().join(name);
            std::fs::write(&file, text).expect("written");
            format!("policy={}", file.display())
        };
        let rule = "[[policies]]\nid = \"r\"\ndecision = ";
        let (mistyped, unknown) =
            (policy("a", &format!("{rule}\"alow\"")), policy("b", &format!("{rule}\"deny\"\ntoll = \"x\"")));
        let (other, pattern) =
            (policy("c", "[[policy]]\nid = 1"), policy("d", &format!("{rule}\"deny\"\ntool = \"[\"")));
        let plain =
            ["system", "rounds=x", "rounds=9999", "add=perhaps", "system=@/no/such/file", "policy=/no/such/file"];
        for wrong in plain.into_iter().chain([mistyped.as_str(), &unknown, &other, &pattern]) {
            assert!(what_if.add(wrong).is_err(), "{wrong}");
        }
        assert!(
            what_if.add(&mistyped).expect_err("no such decision").contains("line 3"),
            "{:?}",
            what_if.add(&mistyped)
        );
        let comment = "#".repeat(usize::try_from(MAX_RULES_BYTES).expect("a size"));
        let large = policy("f", &format!("{comment}\npolicies = []"));
        assert!(what_if.add(&large).expect_err("too large").contains("bytes"));
        assert!(!what_if.is_something());
        for right in ["system=Be brief.", "model=other", "rounds=2", "calls=0", "add=deny"] {
            what_if.add(right).expect(right);
        }
        assert!(what_if.is_something());
        let mut ruled = WhatIf::default();
        // The server's whole settings will do, and so will a file without rules.
        for right in [format!("listen = \"x\"\n{rule}\"deny\""), "policies = []".to_owned()] {
            ruled.add(&policy("e", &right)).expect("rules");
            assert!(ruled.is_something());
        }
    }
}
