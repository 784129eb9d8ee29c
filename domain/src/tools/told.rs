//! Whether what the model was told of a call is what the recorded facts give: the same bytes, made anew.
//!
//! Recomputed is what only the tool's own pure functions made (output schema, `render`, `finalize_content`), in the
//! version that the call was made with. What a policy, a wrapper or a stop made of it is held against the hash in its
//! event. Reading the facts is left to the caller.

use super::{Finish, Registry, ToolOutcome};
use crate::ErrorCode;
use crate::canonical::sha256_hex;
use crate::thread::ToolResultObserved;
use crate::tool_call::{
    Decision, ToolCallDecided, ToolCallEvent, ToolCallRequested, ToolOutcomeRevised, ToolResultRecorded,
};
use serde_json::Value;
use std::sync::Arc;

/// What was recorded of a call before the model was told of it.
#[derive(Clone, Debug, Default)]
pub struct CallFacts {
    /// What the model wants.
    pub request: Option<ToolCallRequested>,
    /// The decision that refused it.
    pub refusal: Option<ToolCallDecided>,
    /// What it gave.
    pub result: Option<ToolResultRecorded>,
    /// What later stages made of it.
    pub revisions: Vec<ToolOutcomeRevised>,
}

impl CallFacts {
    /// Takes a fact of the call's stream.
    pub fn see(&mut self, fact: ToolCallEvent) {
        match fact {
            ToolCallEvent::ToolCallRequested(e) => self.request = Some(e),
            ToolCallEvent::ToolCallDecided(e) if e.decision == Decision::Deny => self.refusal = Some(e),
            ToolCallEvent::ToolResultRecorded(e) => self.result = self.result.take().or(Some(e)),
            ToolCallEvent::ToolOutcomeRevised(e) => self.revisions.push(e),
            ToolCallEvent::ToolCallDecided(_)
            | ToolCallEvent::ToolDispatched(_)
            | ToolCallEvent::ToolReceived(_)
            | ToolCallEvent::ToolCancelRequested(_)
            | ToolCallEvent::ToolWaitTimedOut(_)
            | ToolCallEvent::ToolAttemptRefused(_)
            | ToolCallEvent::ToolResultAcked(_) => {}
        }
    }
}

/// How what the model was told was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It was made anew, and is the same, byte for byte.
    Recomputed,
    /// It is not only the tool's own: its hash, or its code, is the recorded one.
    Compared,
    /// The tool is not known in that version.
    Unknown,
}

/// Stages that are pure functions of a recorded value.
const PURE: [&str; 3] = ["output", "render", "finalize_content"];

/// What the model is told where nobody waited for the result: it may come after that, or just before.
const NOT_WAITED_FOR: [ErrorCode; 9] = [
    ErrorCode::ToolTimeout,
    ErrorCode::ResultUnknown,
    ErrorCode::RunCancelled,
    ErrorCode::ToolNotStarted,
    ErrorCode::ServerRestarted,
    ErrorCode::ShuttingDown,
    ErrorCode::NodeLost,
    ErrorCode::DeviceOffline,
    ErrorCode::DeviceReplaced,
];

/// Compares.
///
/// # Errors
/// What differs.
pub fn told(registry: &Registry, call: &CallFacts, observed: &ToolResultObserved) -> Result<Told, String> {
    let not_waited_for = || NOT_WAITED_FOR.iter().filter(|code| observed.error.as_deref() == Some(code.as_str()));
    let stands_in = not_waited_for().any(|code| is_failure(observed, *code));
    let left = call.revisions.last().filter(|last| last.content_hash == sha256_hex(observed.content.as_bytes()));
    if let Some(last) = call.revisions.last()
        && left.is_none()
        && !stands_in
    {
        return Err(format!("{} left another text than the model was told: {}", last.by, observed.content));
    }
    let Some(request) = &call.request else { return Ok(Told::Unknown) };
    if registry.get(&request.tool).is_none_or(|known| known.version != request.tool_version) {
        return Ok(Told::Unknown);
    }
    let outcome = match (&call.refusal, &call.result) {
        (None, None) | (Some(_), _) if observed.ok => {
            return Err("the model was told a success that nothing recorded".to_owned());
        }
        (None, None) => return Ok(Told::Compared),
        (Some(refusal), _) => ToolOutcome { result: Err(refusal.error()) },
        (None, Some(result)) => ToolOutcome::of(result),
    };
    if !call.revisions.iter().all(|revision| PURE.contains(&revision.by.as_str())) {
        return Ok(Told::Compared);
    }
    let none: Arc<[_]> = Arc::new([]);
    let seen = Finish::captured(registry, &request.tool, &none).see(&request.arguments, outcome.clone().into());
    let same = (&seen.content, seen.outcome.ok(), seen.outcome.error_code())
        == (&observed.content, observed.ok, observed.error.clone());
    if same {
        return presented(registry, request, &outcome).map(|()| Told::Recomputed);
    }
    // Logs from before reasons were recorded have the words of a refusal nowhere else.
    let unspoken = call.refusal.as_ref().filter(|refusal| refusal.reason.is_none());
    // What stands in is an outcome like any other, and stages may have left another text of it.
    let revised = left.is_some() && not_waited_for().next().is_some() && seen.content != observed.content;
    if stands_in || revised || unspoken.is_some_and(|refusal| observed.error.as_ref() == Some(&refusal.code)) {
        return Ok(Told::Compared);
    }
    Err(format!("recomputed: {}; told: {}", seen.content, observed.content))
}

/// Whether the model was told of a failure, in the words that every failure has.
fn is_failure(observed: &ToolResultObserved, code: ErrorCode) -> bool {
    let said = serde_json::from_str::<Value>(&observed.content).unwrap_or_default();
    observed.error.as_deref() == Some(code.as_str()) && said["ok"] == false && said["error"]["code"] == code.as_str()
}

/// Presentation is a pure function, too, and of every value.
fn presented(registry: &Registry, request: &ToolCallRequested, outcome: &ToolOutcome) -> Result<(), String> {
    let Ok(value) = &outcome.result else { return Ok(()) };
    let view = || registry.presentation(&request.tool, &request.arguments, value);
    match (view(), view()) {
        (Ok(first), Ok(second)) if first == second => Ok(()),
        (Ok(_), Ok(_)) => Err("it is presented in two ways".to_owned()),
        (Err(reason), _) | (_, Err(reason)) => Err(format!("it cannot be presented: {reason}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool_call::{ResultOrigin, ResultStatus, Risk, Target, ToolError};
    use crate::tools::{Look, ToolDefinition};
    use serde_json::json;

    fn registry(render: Option<Look>) -> Registry {
        let any = json!({"type": "object"});
        let tool = ToolDefinition { render, ..ToolDefinition::new("t", "", any.clone(), any) };
        Registry::new([tool]).expect("whole")
    }

    fn recorded(status: ResultStatus, output: Option<Value>, error: Option<&str>) -> CallFacts {
        let error = error.map(|code| ToolError { code: code.into(), message: "words".into() });
        let request = ToolCallRequested {
            conversation_id: "c".into(),
            turn_id: "t".into(),
            run_id: "r".into(),
            user_id: "ann".into(),
            graph_thread_id: "g".into(),
            model_call_id: "m".into(),
            parent_tool_call_id: None,
            tool: "t".into(),
            tool_version: "1".into(),
            target: Target::Server,
            device_id: None,
            arguments: json!({}),
            call_hash: "h".into(),
            risk: Risk::Low,
        };
        let result = ToolResultRecorded {
            executed_attempt_no: 1,
            status,
            output,
            output_sha256: None,
            error,
            started_at: None,
            finished_at: None,
            origin: ResultOrigin::Live,
            connection_id: None,
        };
        CallFacts { request: Some(request), result: Some(result), ..CallFacts::default() }
    }

    fn observed(content: &str, error: Option<&str>) -> ToolResultObserved {
        let (content, error) = (content.to_owned(), error.map(str::to_owned));
        ToolResultObserved { tool_call_id: "g:m".into(), ok: error.is_none(), content, error }
    }

    #[test]
    fn what_was_told_is_made_anew_and_any_other_byte_is_a_difference() {
        let good = || recorded(ResultStatus::Succeeded, Some(json!({"a": 1})), None);
        let plain = r#"{"data":{"a":1},"ok":true,"tool":"t"}"#;
        let (same, shout) = (registry(None), registry(Some(Arc::new(|_, value| Ok(json!(format!("{value}!")))))));
        assert_eq!(told(&same, &good(), &observed(plain, None)), Ok(Told::Recomputed));
        assert!(told(&shout, &good(), &observed(plain, None)).is_err(), "another render");
        assert!(told(&same, &good(), &observed(&plain.replace('1', "2"), None)).is_err(), "other bytes");

        let failed = || recorded(ResultStatus::Failed, None, Some("IO_ERROR"));
        let words = r#"{"data":null,"error":{"code":"IO_ERROR","message":"words"},"ok":false,"tool":"t"}"#;
        assert_eq!(told(&same, &failed(), &observed(words, Some("IO_ERROR"))), Ok(Told::Recomputed));
        let late = words.replace("IO_ERROR", "TOOL_TIMEOUT");
        assert_eq!(told(&same, &good(), &observed(&late, Some("TOOL_TIMEOUT"))), Ok(Told::Compared));
        assert!(told(&same, &good(), &observed(words, Some("IO_ERROR"))).is_err(), "a failure that nothing recorded");
        let stand_in = words.replace("IO_ERROR", "SERVER_RESTARTED");

        let revised = |by: &str, content: &str| CallFacts {
            revisions: vec![ToolOutcomeRevised {
                by: by.into(),
                reason: "x".into(),
                content_hash: sha256_hex(content.as_bytes()),
            }],
            ..good()
        };
        assert_eq!(told(&same, &revised("policy", "short"), &observed("short", None)), Ok(Told::Compared));
        assert!(told(&same, &revised("policy", "short"), &observed("shorter", None)).is_err());
        // A crash between what a step made of it and the model that was to be told.
        let crashed = observed(&stand_in, Some("SERVER_RESTARTED"));
        assert_eq!(told(&same, &revised("policy", "short"), &crashed), Ok(Told::Compared));
        assert!(told(&same, &revised("render", "short"), &observed("short", None)).is_err(), "no render says this");
        // A tool's own last word about what stands in for a result that could not be told.
        let last_word = revised("finalize_content", "short");
        assert_eq!(told(&same, &last_word, &observed("short", Some("SERVER_RESTARTED"))), Ok(Told::Compared));
        assert!(
            told(&same, &last_word, &observed("short", Some("IO_ERROR"))).is_err(),
            "nothing stands in by this code"
        );
        assert!(told(&same, &last_word, &observed("other", Some("SERVER_RESTARTED"))).is_err(), "another text");
        let hidden = told(&same, &revised("render", plain), &observed(plain, Some("SERVER_RESTARTED")));
        assert!(hidden.is_err(), "the recorded result is not told as a failure");

        let refusal = ToolCallDecided {
            stage: "guard".into(),
            decision: crate::tool_call::Decision::Deny,
            code: "GUARD_REFUSED".into(),
            by: "g".into(),
            reason: None,
        };
        let spoken = ToolCallDecided { reason: Some("no".into()), ..refusal.clone() };
        let refused = CallFacts { result: None, refusal: Some(spoken), ..good() };
        let words = r#"{"data":null,"error":{"code":"GUARD_REFUSED","message":"no"},"ok":false,"tool":"t"}"#;
        assert_eq!(told(&same, &refused, &observed(words, Some("GUARD_REFUSED"))), Ok(Told::Recomputed));
        let other = words.replace("\"no\"", "\"yes\"");
        assert!(told(&same, &refused, &observed(&other, Some("GUARD_REFUSED"))).is_err(), "other words");
        // Logs from before reasons were recorded.
        let refused = CallFacts { result: None, refusal: Some(refusal), ..good() };
        assert_eq!(told(&same, &refused, &observed("no", Some("GUARD_REFUSED"))), Ok(Told::Compared));
        assert!(told(&same, &refused, &observed("no", Some("TOOL_DENIED"))).is_err());
        assert!(told(&same, &refused, &observed(plain, None)).is_err());
        let nothing = CallFacts { result: None, ..good() };
        assert!(told(&same, &nothing, &observed(plain, None)).is_err());
        assert_eq!(told(&Registry::default(), &good(), &observed("x", None)), Ok(Told::Unknown));
    }
}
