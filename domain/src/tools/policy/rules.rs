//! The rules that are configured, in their order: what they look like, and which of them has the first word.

use super::pattern::{Matcher, Pattern, glob};
use super::{PolicyAnswer, PolicyCall, Verdict, is_code_of_a_policy, is_policy_id};
use crate::ErrorCode;
use crate::tool_call::{Decision, Risk};
use globset::GlobMatcher;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Rules, at most.
pub const MAX_POLICIES: usize = 200;
/// Each glob or regular expression, at most (bytes).
const MAX_PATTERN_BYTES: usize = 1024;

/// One rule: what it is about, and what it says. What it does not name, it is about in any shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyRule {
    /// Its name in events: `policy:<id>`.
    pub id: String,
    /// A glob over the tool's name: `workspace.*`, `mcp_files_*`, `{add,demo_text}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// `LOW`, `MEDIUM`, `HIGH`; none: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub risk: Vec<Risk>,
    /// Patterns by JSON Pointer (RFC 6901) into the arguments; every one must match, and an argument that is not
    /// there matches none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub arguments: BTreeMap<String, Pattern>,
    /// A glob over the user's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// A glob over the device's id. What runs in the server runs on no device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// `allow`, `ask` or `deny`.
    pub decision: Decision,
    /// Of a refusal: a word of your own; absent: `TOOL_DENIED`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Words for the model (`deny`) or for the person (`ask`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A rule that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policies: rule {number} ({id:?}): {problem}")]
pub struct RulesError {
    /// Which, from 1.
    pub number: usize,
    /// Its id as it was written.
    pub id: String,
    /// What is wrong with it.
    pub problem: String,
}

/// A rule that can be matched.
#[derive(Clone, Debug)]
struct Compiled {
    rule: PolicyRule,
    tool: Option<GlobMatcher>,
    user: Option<GlobMatcher>,
    device: Option<GlobMatcher>,
    arguments: Vec<(String, Matcher)>,
}

/// Rules in their order.
#[derive(Clone, Debug, Default)]
pub struct Rules(Vec<Compiled>);

impl Rules {
    /// Rules that can be matched.
    ///
    /// # Errors
    /// The first rule that cannot be used, by number and id.
    pub fn new(rules: &[PolicyRule]) -> Result<Self, RulesError> {
        let mut compiled: Vec<Compiled> = Vec::with_capacity(rules.len());
        for (index, rule) in rules.iter().enumerate() {
            let wrong = |problem: String| RulesError { number: index + 1, id: rule.id.clone(), problem };
            if index == MAX_POLICIES {
                return Err(wrong(format!("there may be {MAX_POLICIES} rules at most")));
            }
            if compiled.iter().any(|earlier| earlier.rule.id == rule.id) {
                return Err(wrong("an earlier rule has this id".to_owned()));
            }
            compiled.push(Compiled::new(rule).map_err(wrong)?);
        }
        Ok(Self(compiled))
    }

    /// The ids, in their order.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|compiled| compiled.rule.id.as_str())
    }

    /// What the first rule says that is about the call.
    pub fn first_word(&self, call: &PolicyCall) -> Option<Verdict> {
        let rule = &self.0.iter().find(|compiled| compiled.is_about(call))?.rule;
        let reason = rule.reason.clone().unwrap_or_default();
        let answer = match rule.decision {
            Decision::Allow => PolicyAnswer::Allow,
            Decision::Ask => PolicyAnswer::Ask { reason },
            Decision::Deny => {
                let code = rule.code.clone().unwrap_or_else(|| ErrorCode::ToolDenied.as_str().to_owned());
                PolicyAnswer::Deny { code, reason }
            }
        };
        Verdict::of_answer(&rule.id, answer)
    }
}

impl Compiled {
    fn new(rule: &PolicyRule) -> Result<Self, String> {
        if !is_policy_id(&rule.id) {
            return Err("id: 1-64 letters, digits, . _ -".to_owned());
        }
        match (&rule.code, rule.decision) {
            (Some(_), Decision::Allow | Decision::Ask) => return Err("code: only a refusal has one".to_owned()),
            (Some(code), Decision::Deny) if !is_code_of_a_policy(code) => {
                return Err(format!(
                    "code: {code:?} is no word of capitals, digits and _, or means something else here"
                ));
            }
            (Some(_), Decision::Deny) | (None, _) => {}
        }
        if rule.decision == Decision::Allow && rule.reason.is_some() {
            return Err("reason: nobody is told why something is allowed".to_owned());
        }
        let name = |what: &str, pattern: &Option<String>| match pattern {
            None => Ok(None),
            Some(pattern) => short(pattern).and_then(glob).map(Some).map_err(|problem| format!("{what}: {problem}")),
        };
        let argument = |(pointer, pattern): (&String, &Pattern)| {
            let wrong = |problem: String| format!("arguments: {pointer:?}: {problem}");
            if !pointer.starts_with('/') {
                return Err(wrong("is no JSON Pointer: begin it with /".to_owned()));
            }
            pattern.glob.iter().chain(&pattern.regex).try_for_each(|text| short(text).map(drop)).map_err(wrong)?;
            Ok((pointer.clone(), pattern.compile().map_err(wrong)?))
        };
        Ok(Self {
            tool: name("tool", &rule.tool)?,
            user: name("user", &rule.user)?,
            device: name("device", &rule.device)?,
            arguments: rule.arguments.iter().map(argument).collect::<Result<_, _>>()?,
            rule: rule.clone(),
        })
    }

    fn is_about(&self, call: &PolicyCall) -> bool {
        let allows = self.rule.decision == Decision::Allow;
        // A tool is also known by the name that the model uses.
        let is_tool = |glob: &GlobMatcher| glob.is_match(&call.tool) || glob.is_match(call.tool.replace('.', "_"));
        let is_device = |glob: &GlobMatcher| call.device_id.as_ref().is_some_and(|id| glob.is_match(id.as_str()));
        self.tool.as_ref().is_none_or(is_tool)
            && (self.rule.risk.is_empty() || self.rule.risk.contains(&call.risk))
            && self.user.as_ref().is_none_or(|glob| glob.is_match(call.user_id.as_str()))
            && self.device.as_ref().is_none_or(is_device)
            && self.arguments.iter().all(|(pointer, pattern)| {
                call.arguments.pointer(pointer).is_some_and(|value| pattern.matches(value, allows))
            })
    }
}

fn short(pattern: &str) -> Result<&str, String> {
    if pattern.is_empty() || pattern.len() > MAX_PATTERN_BYTES {
        return Err(format!("a pattern has 1-{MAX_PATTERN_BYTES} bytes"));
    }
    Ok(pattern)
}
