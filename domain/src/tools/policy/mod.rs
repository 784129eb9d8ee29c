//! Stage 1 of a call: whether it may go on, before anybody is asked and anything is sent.
//!
//! An ordered chain: each policy allows, refuses, has a person asked, or passes on, and the first word counts. Where
//! nobody has one, the tool's own [`Approval`] does, on the careful side. A person's grant turns *ask* into *allow*,
//! and nothing else: no grant and no order turns a refusal into permission. Policies see a call that was parsed,
//! resolved and validated, and cannot change it.
//!
//! Pure. What is configured is [`Rules`]; a [`Policy`] of another kind is heard by the shell, which gives it only so
//! much time. Recording a verdict, and asking the person, is left to the server's `runs`.

mod path;
mod pattern;
mod rules;
#[cfg(test)]
mod tests;

pub(crate) use path::is_within;
pub use path::plain_path;
pub use pattern::Pattern;
pub use rules::{MAX_POLICIES, PolicyRule, Rules, RulesError};

use super::{Approval, ToolDefinition};
use crate::ErrorCode;
use crate::conversation::Grant;
use crate::ids::{ConversationId, DeviceId, GrantId, UserId};
use crate::tool_call::{Decision, Risk, Target, ToolCallDecided, ToolCallRequested, ToolError};
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The stage, as in events.
pub const POLICY_STAGE: &str = "policy";
/// Who decided where no policy had a word: the tool's own approval.
pub const BY_TOOL: &str = "tool";
/// Who decided where a person was to be asked and there is none.
pub const BY_ABSENCE: &str = "absence";
/// A reason, at most (characters); the rest is cut off.
const MAX_REASON_CHARS: usize = 500;

/// What a policy is told of a call. It is a copy: nothing that a policy does to it changes the call.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyCall {
    /// Its conversation.
    pub conversation_id: ConversationId,
    /// Whose conversation it is.
    pub user_id: UserId,
    /// The device it would run on; none for what runs in the server.
    pub device_id: Option<DeviceId>,
    /// The tool's own name, for example `workspace.read_file`.
    pub tool: String,
    /// The version of its definition.
    pub tool_version: String,
    /// Where it runs.
    pub target: Target,
    /// How much harm it can do.
    pub risk: Risk,
    /// What counts where no policy has a word.
    pub approval: Approval,
    /// The validated arguments, with the schema's defaults for those that were left out.
    pub arguments: Value,
}

impl PolicyCall {
    /// What a policy is told of a requested call.
    pub fn of(definition: &ToolDefinition, request: &ToolCallRequested) -> Self {
        Self {
            conversation_id: request.conversation_id.clone(),
            user_id: request.user_id.clone(),
            device_id: request.device_id.clone(),
            tool: request.tool.clone(),
            tool_version: request.tool_version.clone(),
            target: request.target,
            risk: request.risk,
            approval: definition.approval,
            arguments: with_defaults(&definition.parameters, &request.arguments),
        }
    }
}

/// What is left out means its default: a pattern about it must see that.
pub fn with_defaults(parameters: &Value, arguments: &Value) -> Value {
    let mut filled = arguments.clone();
    if let (Value::Object(filled), Some(Value::Object(properties))) = (&mut filled, parameters.get("properties")) {
        for (name, schema) in properties {
            if let Some(default) = schema.get("default").filter(|_| !filled.contains_key(name)) {
                filled.insert(name.clone(), default.clone());
            }
        }
    }
    filled
}

/// What a policy says about a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyAnswer {
    /// Nothing: the next one is heard.
    Pass,
    /// It may go on.
    Allow,
    /// A person must decide.
    Ask {
        /// Why, for that person; may be empty.
        reason: String,
    },
    /// It is refused.
    Deny {
        /// A stable code: `TOOL_DENIED`, or one of the policy's own.
        code: String,
        /// Why, for the model; may be empty.
        reason: String,
    },
}

/// A policy that is not configured but written. It may have faults: whoever hears it uses [`hear`], which makes a
/// refusal of each of them.
pub trait Policy: Send + Sync + 'static {
    /// What it says; a function of the call alone, and quick.
    fn judge(&self, call: &PolicyCall) -> PolicyAnswer;
}

/// What was decided about a call, and by whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it may go on.
    pub decision: Decision,
    /// A stable code.
    pub code: String,
    /// `policy:<id>`, `grant:<id>`, [`BY_TOOL`] or [`BY_ABSENCE`].
    pub by: String,
    /// Words for the model or for the person; empty where it is allowed, and in older logs.
    pub reason: String,
}

impl Verdict {
    fn new(decision: Decision, code: ErrorCode, by: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { decision, code: code.as_str().to_owned(), by: by.into(), reason: reason.into() }
    }

    /// As it is recorded.
    pub fn decided(&self) -> ToolCallDecided {
        ToolCallDecided {
            stage: POLICY_STAGE.to_owned(),
            decision: self.decision,
            code: self.code.clone(),
            by: self.by.clone(),
            reason: Some(self.reason.clone()).filter(|words| !words.is_empty()),
        }
    }

    /// As it was recorded: it counts, whatever the rules have become.
    pub fn recorded(decided: &ToolCallDecided) -> Self {
        let ToolCallDecided { stage: _, decision, code, by, reason } = decided.clone();
        Self { decision, code, by, reason: reason.unwrap_or_default() }
    }

    /// The grant that allowed the call, if one did.
    pub fn grant(&self) -> Option<GrantId> {
        (self.decision == Decision::Allow).then(|| self.by.strip_prefix("grant:").map(GrantId::from)).flatten()
    }

    /// Whether a fault of a policy is what refuses the call.
    pub fn is_fault(&self) -> bool {
        self.code == ErrorCode::PolicyFailed.as_str()
    }

    /// Why the call is refused, for the model.
    pub fn error(&self) -> ToolError {
        self.decided().error()
    }

    /// Allowed under a grant that was taken back before the call began.
    pub fn revoked(self) -> Self {
        let reason = "the permission for this conversation was taken back before the call began";
        Self::new(Decision::Deny, ErrorCode::ApprovalCancelled, self.by, reason)
    }

    /// What the tool itself says of a call about which nobody else has a word. [`Approval::Always`] and
    /// [`Approval::Policy`] both fail closed: without a rule or a grant that allows the call, a person is asked.
    pub fn of_tool(approval: Approval) -> Self {
        match approval {
            Approval::Never => Self::new(Decision::Allow, ErrorCode::ToolAllowed, BY_TOOL, ""),
            Approval::Always | Approval::Policy => {
                Self::new(Decision::Ask, ErrorCode::ApprovalRequired, BY_TOOL, "this tool asks before it is used")
            }
        }
    }

    /// A policy has a fault, and the call is refused for it.
    pub fn of_fault(policy: &str, what: &str) -> Self {
        let reason = format!("the policy {policy} {what}; the call is refused");
        Self::new(Decision::Deny, ErrorCode::PolicyFailed, format!("policy:{policy}"), reason)
    }

    /// What a policy said, in the form that is recorded; nothing where it passed. A code that belongs to something
    /// else is a lie about what happened, and refuses the call as a fault.
    pub fn of_answer(policy: &str, answer: PolicyAnswer) -> Option<Self> {
        let by = format!("policy:{policy}");
        let words = |reason: String, otherwise: String| match reason.trim() {
            "" => otherwise,
            said => said.chars().take(MAX_REASON_CHARS).collect(),
        };
        Some(match answer {
            PolicyAnswer::Pass => return None,
            PolicyAnswer::Allow => Self::new(Decision::Allow, ErrorCode::ToolAllowed, by, ""),
            PolicyAnswer::Ask { reason } => {
                let reason = words(reason, format!("the policy {policy} has a person asked"));
                Self::new(Decision::Ask, ErrorCode::ApprovalRequired, by, reason)
            }
            PolicyAnswer::Deny { code, .. } if !is_code_of_a_policy(&code) => {
                Self::of_fault(policy, "refused with a code that is none of its own")
            }
            PolicyAnswer::Deny { code, reason } => {
                let reason = words(reason, format!("the policy {policy} refuses this call"));
                Self { decision: Decision::Deny, code, by, reason }
            }
        })
    }
}

/// Whether a policy may refuse with it: `TOOL_DENIED`, or a word of its own that this program uses for nothing else.
pub fn is_code_of_a_policy(code: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    let shaped = code.len() <= 64 && code.bytes().all(is_word) && code.starts_with(|c: char| c.is_ascii_uppercase());
    shaped && ErrorCode::parse(code).is_none_or(|known| known == ErrorCode::ToolDenied)
}

/// Whether it can be the id of a policy: 1 to 64 of a-z, A-Z, 0-9, `_`, `.` and `-`.
pub fn is_policy_id(id: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    (1..=64).contains(&id.len()) && id.bytes().all(is_part)
}

/// Hears one policy. Where it panics, the call is refused, and nothing else happens.
pub fn hear(id: &str, policy: &dyn Policy, call: &PolicyCall) -> Option<Verdict> {
    match catch_unwind(AssertUnwindSafe(|| policy.judge(call))) {
        Ok(answer) => Verdict::of_answer(id, answer),
        Err(_panic) => Some(Verdict::of_fault(id, "has a fault")),
    }
}

/// Whether a person is to be asked, unless one granted it: without that, grants change nothing.
pub fn would_ask(word: Option<&Verdict>, call: &PolicyCall) -> bool {
    let decision = word.map_or_else(|| Verdict::of_tool(call.approval).decision, |word| word.decision);
    decision == Decision::Ask
}

/// What is decided about a call, given the first word that a policy had about it. `somebody`: whether there is a
/// person who can be asked; without one, *ask* is a refusal.
pub fn conclude(word: Option<Verdict>, grants: &[Grant], call: &PolicyCall, somebody: bool) -> Verdict {
    let asks = would_ask(word.as_ref(), call);
    let verdict = word.unwrap_or_else(|| Verdict::of_tool(call.approval));
    if !asks {
        return verdict;
    }
    if let Some(grant) = grants.iter().find(|grant| grant.covers(call)) {
        return Verdict::new(Decision::Allow, ErrorCode::ToolAllowed, format!("grant:{}", grant.grant_id), "");
    }
    if somebody {
        return verdict;
    }
    let reason = format!("{} has a person asked, and nobody can be asked here", verdict.by);
    Verdict::new(Decision::Deny, ErrorCode::ApprovalUnavailable, BY_ABSENCE, reason)
}

/// What configured rules, grants and the tool itself decide about a call.
pub fn judge(rules: &Rules, grants: &[Grant], call: &PolicyCall, somebody: bool) -> Verdict {
    conclude(rules.first_word(call), grants, call, somebody)
}
