//! The edge table: what is given, what comes of it, and the events of the call in order.

/// What happens beside the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Nothing.
    Nothing,
    /// A person allows it.
    Approve,
    /// A person says no.
    Reject,
    /// A person says nothing until it is too late.
    Expire,
    /// A person allowed it for the conversation before.
    Granted,
    /// So many calls come before it in the same message.
    After(usize),
    /// A call that stops the run comes before it in the same message.
    AfterStop,
}

/// One row.
pub struct Row {
    pub given: &'static str,
    /// The model's words: the tool's name, and its arguments as text.
    pub call: (&'static str, &'static str),
    pub act: Act,
    /// The code that the model is told; none for a success.
    pub code: Option<&'static str>,
    /// The call's own stream, in short.
    pub events: &'static str,
    /// The stages that the call passed, where a probe stands.
    pub trace: &'static str,
}

const fn row(
    given: &'static str,
    call: (&'static str, &'static str),
    act: Act,
    code: Option<&'static str>,
    events: &'static str,
    trace: &'static str,
) -> Row {
    Row { given, call, act, code, events, trace }
}

const WHOLE: &str = "policy, guard, wrapper before, body, wrapper after, render, post, finalize";
const REFUSED: &str = "post, finalize";
/// Refused at the policies.
const JUDGED: &str = "policy, post, finalize";
const RENDERED: &str = "requested, dispatched 1, result succeeded, revised render RENDERED";

use Act::*;

/// Calls of tools that run in the server.
pub const IN_SERVER: &[Row] = &[
    // 0. parse → resolve → validate → limit, before anybody is asked.
    row("a sound call", ("probe", r#"{"n": 2}"#), Nothing, None, RENDERED, WHOLE),
    row("no text is no arguments", ("probe", ""), Nothing, None, RENDERED, WHOLE),
    row(
        "no JSON",
        ("probe", "{"),
        Nothing,
        Some("INVALID_ARGUMENTS"),
        "requested, parse deny INVALID_ARGUMENTS by pipeline",
        REFUSED,
    ),
    row(
        "a repeated key",
        ("probe", r#"{"n":1,"n":1}"#),
        Nothing,
        Some("INVALID_ARGUMENTS"),
        "requested, parse deny INVALID_ARGUMENTS by pipeline",
        REFUSED,
    ),
    row(
        "minus zero",
        ("probe", r#"{"n":-0}"#),
        Nothing,
        Some("INVALID_ARGUMENTS"),
        "requested, parse deny INVALID_ARGUMENTS by pipeline",
        REFUSED,
    ),
    row(
        "infinity",
        ("probe", r#"{"n":1e999}"#),
        Nothing,
        Some("INVALID_ARGUMENTS"),
        "requested, parse deny INVALID_ARGUMENTS by pipeline",
        REFUSED,
    ),
    row(
        "not an object",
        ("probe", "[1]"),
        Nothing,
        Some("INVALID_ARGUMENTS"),
        "requested, parse deny INVALID_ARGUMENTS by pipeline",
        REFUSED,
    ),
    row(
        "no such tool",
        ("rm_rf", "{}"),
        Nothing,
        Some("UNKNOWN_TOOL"),
        "requested, resolve deny UNKNOWN_TOOL by pipeline",
        "post",
    ),
    row(
        "other arguments than the schema's",
        ("probe", r#"{"n":"x"}"#),
        Nothing,
        Some("INVALID_ARGUMENTS"),
        "requested, validate deny INVALID_ARGUMENTS by pipeline",
        REFUSED,
    ),
    row(
        "invalid arguments ask nobody",
        ("probe_asks", r#"{"n":"x"}"#),
        Nothing,
        Some("INVALID_ARGUMENTS"),
        "requested, validate deny INVALID_ARGUMENTS by pipeline",
        "post",
    ),
    row(
        "one call too many",
        ("probe", "{}"),
        After(16),
        Some("TOOL_LIMIT_REACHED"),
        "requested, limit deny TOOL_LIMIT_REACHED by pipeline",
        REFUSED,
    ),
    // 1. pre-execute and approval.
    row(
        "a policy denies it",
        ("probe_denied", "{}"),
        Nothing,
        Some("TOOL_DENIED"),
        "requested, policy deny TOOL_DENIED by policy:never",
        "post",
    ),
    row(
        "a person allows it",
        ("probe_asks", "{}"),
        Approve,
        None,
        "requested, policy ask APPROVAL_REQUIRED by tool, approval allow APPROVAL_GIVEN by user:ann, dispatched 1, result succeeded",
        "policy, guard, wrapper before, body, wrapper after, post",
    ),
    row(
        "a person says no",
        ("probe_asks", "{}"),
        Reject,
        Some("APPROVAL_REJECTED"),
        "requested, policy ask APPROVAL_REQUIRED by tool, approval deny APPROVAL_REJECTED by user:ann",
        "policy, post",
    ),
    row(
        "a policy refuses with a code and words of its own",
        ("probe", r#"{"policy":"deny"}"#),
        Nothing,
        Some("NOT_TODAY"),
        "requested, policy deny NOT_TODAY by policy:probe_policy",
        JUDGED,
    ),
    row(
        "a policy panics",
        ("probe", r#"{"policy":"panic"}"#),
        Nothing,
        Some("POLICY_FAILED"),
        "requested, policy deny POLICY_FAILED by policy:probe_policy",
        JUDGED,
    ),
    row(
        "a policy refuses with a code that is another stage's",
        ("probe", r#"{"policy":"lie"}"#),
        Nothing,
        Some("POLICY_FAILED"),
        "requested, policy deny POLICY_FAILED by policy:probe_policy",
        JUDGED,
    ),
    row(
        "nobody answers in time",
        ("probe_asks", "{}"),
        Expire,
        Some("APPROVAL_EXPIRED"),
        "requested, policy ask APPROVAL_REQUIRED by tool, approval deny APPROVAL_EXPIRED by clock",
        "policy, post",
    ),
    row(
        "a person allowed it for the conversation",
        ("probe_asks", "{}"),
        Granted,
        None,
        "requested, policy allow TOOL_ALLOWED by grant, dispatched 1, result succeeded",
        "policy, guard, wrapper before, body, wrapper after, post",
    ),
    row(
        "a person takes back what was allowed for the conversation, after the guards and before the dispatch",
        ("probe_asks", r#"{"wrapper":"revoke"}"#),
        Granted,
        Some("APPROVAL_CANCELLED"),
        "requested, policy allow TOOL_ALLOWED by grant, dispatch deny APPROVAL_CANCELLED by grant",
        "policy, guard, wrapper before, wrapper after, post",
    ),
    // 2. guards.
    row(
        "a guard refuses",
        ("probe", r#"{"guard":"refuse"}"#),
        Nothing,
        Some("GUARD_REFUSED"),
        "requested, guard deny GUARD_REFUSED by probe_guard",
        "policy, guard, post, finalize",
    ),
    row(
        "a guard panics",
        ("probe", r#"{"guard":"panic"}"#),
        Nothing,
        Some("GUARD_REFUSED"),
        "requested, guard deny GUARD_REFUSED by probe_guard",
        "policy, guard, post, finalize",
    ),
    row(
        "a guard refuses what a person allowed",
        ("probe_asks", r#"{"guard":"refuse"}"#),
        Approve,
        Some("GUARD_REFUSED"),
        "requested, policy ask APPROVAL_REQUIRED by tool, approval allow APPROVAL_GIVEN by user:ann, guard deny GUARD_REFUSED by probe_guard",
        "policy, guard, post",
    ),
    // 3. wrappers.
    row(
        "a wrapper refuses before the body",
        ("probe", r#"{"wrapper":"refuse"}"#),
        Nothing,
        Some("RATE_LIMITED"),
        "requested, execute deny RATE_LIMITED by probe_wrapper",
        "policy, guard, wrapper before, post, finalize",
    ),
    row(
        "a wrapper never runs the body and says it did",
        ("probe", r#"{"wrapper":"lie"}"#),
        Nothing,
        Some("EXECUTION_FAILED"),
        "requested, execute deny EXECUTION_FAILED by probe_wrapper",
        "policy, guard, wrapper before, post, finalize",
    ),
    row(
        "a wrapper panics before the body",
        ("probe", r#"{"wrapper":"panic_before"}"#),
        Nothing,
        Some("EXECUTION_FAILED"),
        "requested, execute deny EXECUTION_FAILED by probe_wrapper",
        "policy, guard, wrapper before, post, finalize",
    ),
    row(
        "a wrapper panics after the body",
        ("probe", r#"{"wrapper":"panic_after"}"#),
        Nothing,
        Some("EXECUTION_FAILED"),
        "requested, dispatched 1, result succeeded, revised probe_wrapper EXECUTION_FAILED",
        "policy, guard, wrapper before, body, wrapper after, post, finalize",
    ),
    row(
        "a wrapper does not let a result stand",
        ("probe", r#"{"wrapper":"fail"}"#),
        Nothing,
        Some("RATE_LIMITED"),
        "requested, dispatched 1, result succeeded, revised probe_wrapper RATE_LIMITED",
        "policy, guard, wrapper before, body, wrapper after, post, finalize",
    ),
    row(
        "a body that is late but ends when it is asked",
        ("probe_brief", r#"{"body":"until_asked"}"#),
        Nothing,
        Some("TOOL_TIMEOUT"),
        "requested, dispatched 1, result succeeded, revised timeout TOOL_TIMEOUT",
        "policy, guard, wrapper before, body, wrapper after, post",
    ),
    row(
        "a failure that may pass, where running it again is safe",
        ("probe_again", r#"{"body":"fail_for_now"}"#),
        Nothing,
        Some("IO_ERROR"),
        "requested, dispatched 1, dispatched 2, result failed IO_ERROR",
        "policy, guard, wrapper before, body, wrapper after, wrapper before, body, wrapper after, post",
    ),
    row(
        "a failure that does not pass",
        ("probe_again", r#"{"body":"fail"}"#),
        Nothing,
        Some("NOT_TEXT"),
        "requested, dispatched 1, result failed NOT_TEXT",
        "policy, guard, wrapper before, body, wrapper after, post",
    ),
    row(
        "a failure that may pass, where nobody said that it is safe",
        ("probe", r#"{"body":"fail_for_now"}"#),
        Nothing,
        Some("IO_ERROR"),
        "requested, dispatched 1, result failed IO_ERROR",
        "policy, guard, wrapper before, body, wrapper after, post, finalize",
    ),
    // value → render.
    row(
        "a body that panics",
        ("probe", r#"{"body":"panic"}"#),
        Nothing,
        Some("EXECUTION_FAILED"),
        "requested, dispatched 1, result failed EXECUTION_FAILED",
        "policy, guard, wrapper before, body, wrapper after, post, finalize",
    ),
    row(
        "a body that cannot tell what it did",
        ("probe", r#"{"body":"unknown"}"#),
        Nothing,
        Some("RESULT_UNKNOWN"),
        "requested, dispatched 1, result indeterminate RESULT_UNKNOWN",
        "policy, guard, wrapper before, body, wrapper after, post, finalize",
    ),
    row(
        "a value of another shape",
        ("probe", r#"{"body":"wrong"}"#),
        Nothing,
        Some("INVALID_TOOL_OUTPUT"),
        "requested, dispatched 1, result succeeded, revised output INVALID_TOOL_OUTPUT",
        "policy, guard, wrapper before, body, wrapper after, post, finalize",
    ),
    row(
        "a value that no event holds",
        ("probe", r#"{"body":"large"}"#),
        Nothing,
        Some("RESULT_TOO_LARGE"),
        "requested, dispatched 1, result failed RESULT_TOO_LARGE",
        "policy, guard, wrapper before, body, wrapper after, post, finalize",
    ),
    row(
        "a render that fails",
        ("probe", r#"{"render":"fails"}"#),
        Nothing,
        Some("RENDER_FAILED"),
        "requested, dispatched 1, result succeeded, revised render RENDER_FAILED",
        WHOLE,
    ),
    row(
        "a render that panics",
        ("probe", r#"{"render":"panics"}"#),
        Nothing,
        Some("RENDER_FAILED"),
        "requested, dispatched 1, result succeeded, revised render RENDER_FAILED",
        WHOLE,
    ),
    // 4. post-execute.
    row(
        "a step that puts other content",
        ("probe", r#"{"post":"content"}"#),
        Nothing,
        None,
        "requested, dispatched 1, result succeeded, revised render RENDERED, revised probe_post CONTENT_REPLACED",
        WHOLE,
    ),
    row(
        "a step that puts another value, rendered again",
        ("probe", r#"{"post":"value"}"#),
        Nothing,
        None,
        "requested, dispatched 1, result succeeded, revised render RENDERED, revised probe_post VALUE_REPLACED, revised render RENDERED",
        "policy, guard, wrapper before, body, wrapper after, render, post, render, finalize",
    ),
    row(
        "a step that puts a value of another shape",
        ("probe", r#"{"post":"wrong_value"}"#),
        Nothing,
        Some("INVALID_TOOL_OUTPUT"),
        "requested, dispatched 1, result succeeded, revised render RENDERED, revised probe_post VALUE_REPLACED, revised output INVALID_TOOL_OUTPUT",
        WHOLE,
    ),
    row(
        "a step that blocks with words",
        ("probe", r#"{"post":"block"}"#),
        Nothing,
        Some("BLOCKED_BY_POLICY"),
        "requested, dispatched 1, result succeeded, revised render RENDERED, revised probe_post BLOCKED_BY_POLICY",
        WHOLE,
    ),
    row(
        "a step that blocks a refusal",
        ("probe", r#"{"guard":"refuse","post":"block"}"#),
        Nothing,
        Some("BLOCKED_BY_POLICY"),
        "requested, guard deny GUARD_REFUSED by probe_guard, revised probe_post BLOCKED_BY_POLICY",
        "policy, guard, post, finalize",
    ),
    row(
        "a step that makes a success of a refusal",
        ("probe", r#"{"guard":"refuse","post":"value"}"#),
        Nothing,
        Some("BLOCKED_BY_POLICY"),
        "requested, guard deny GUARD_REFUSED by probe_guard, revised probe_post BLOCKED_BY_POLICY",
        "policy, guard, post, finalize",
    ),
    row(
        "a step that panics",
        ("probe", r#"{"post":"panic"}"#),
        Nothing,
        Some("BLOCKED_BY_POLICY"),
        "requested, dispatched 1, result succeeded, revised render RENDERED, revised probe_post BLOCKED_BY_POLICY",
        WHOLE,
    ),
    // Cancellation.
    row(
        "a stop before the call is dispatched",
        ("probe", r#"{"stop":"guard"}"#),
        Nothing,
        Some("ABORTED_BEFORE_DISPATCH"),
        "requested, dispatch deny ABORTED_BEFORE_DISPATCH by stop",
        "policy, guard, post, finalize",
    ),
    row(
        "a stop between dispatch and body",
        ("probe", r#"{"stop":"wrapper before"}"#),
        Nothing,
        Some("ABORTED_BEFORE_DISPATCH"),
        "requested, dispatched 1, result cancelled ABORTED_BEFORE_DISPATCH",
        "policy, guard, wrapper before, wrapper after, post, finalize",
    ),
    row(
        "a stop while the body runs, which is awaited",
        ("probe", r#"{"stop":"body","body":"until_asked"}"#),
        Nothing,
        Some("ABORTED"),
        "requested, dispatched 1, result succeeded, revised render RENDERED, revised stop ABORTED",
        WHOLE,
    ),
    row(
        "a stop while the body fails",
        ("probe", r#"{"stop":"body","body":"fail"}"#),
        Nothing,
        Some("NOT_TEXT"),
        "requested, dispatched 1, result failed NOT_TEXT",
        "policy, guard, wrapper before, body, wrapper after, post, finalize",
    ),
    row(
        "a stop after the body",
        ("probe", r#"{"stop":"wrapper after"}"#),
        Nothing,
        Some("ABORTED"),
        "requested, dispatched 1, result succeeded, revised render RENDERED, revised stop ABORTED",
        WHOLE,
    ),
    row(
        "a stop while the policies are heard",
        ("probe", r#"{"stop":"policy"}"#),
        Nothing,
        Some("TOOL_NOT_STARTED"),
        "",
        "policy, post, finalize",
    ),
    row(
        "a stop before the call's turn has come",
        ("probe", "{}"),
        AfterStop,
        Some("TOOL_NOT_STARTED"),
        "",
        "policy, policy, guard, wrapper before, body, wrapper after, render, post, finalize, post, finalize",
    ),
    row(
        "a stop before the call's turn has come, and a step that blocks it",
        ("probe", r#"{"post":"block"}"#),
        AfterStop,
        Some("BLOCKED_BY_POLICY"),
        "requested, revised probe_post BLOCKED_BY_POLICY",
        "policy, policy, guard, wrapper before, body, wrapper after, render, post, finalize, post, finalize",
    ),
];

/// Calls of a device's tools, with the real device program.
pub const ON_DEVICE: &[Row] = &[
    row(
        "a listing",
        ("workspace_list_files", "{}"),
        Nothing,
        None,
        "requested, dispatched 1, result succeeded",
        "policy, guard, wrapper before, wrapper after, post",
    ),
    row(
        "a read that the person at the device allows",
        ("workspace_read_file", r#"{"path":"README.md"}"#),
        Nothing,
        None,
        "requested, dispatched 1, result succeeded",
        "policy, guard, wrapper before, wrapper after, post",
    ),
    row(
        "no such file",
        ("workspace_read_file", r#"{"path":"none"}"#),
        Nothing,
        Some("PATH_NOT_FOUND"),
        "requested, dispatched 1, result rejected PATH_NOT_FOUND",
        "policy, guard, wrapper before, wrapper after, post",
    ),
    row(
        "a path that leaves the workspace",
        ("workspace_read_file", r#"{"path":"../x"}"#),
        Nothing,
        Some("PATH_OUT_OF_SCOPE"),
        "requested, dispatched 1, result rejected PATH_OUT_OF_SCOPE",
        "policy, guard, wrapper before, wrapper after, post",
    ),
    row(
        "a guard refuses",
        ("workspace_read_file", r#"{"path":"guard=refuse"}"#),
        Nothing,
        Some("GUARD_REFUSED"),
        "requested, guard deny GUARD_REFUSED by probe_guard",
        "policy, guard, post",
    ),
    row(
        "a wrapper refuses before anything is sent",
        ("workspace_read_file", r#"{"path":"wrapper=refuse"}"#),
        Nothing,
        Some("RATE_LIMITED"),
        "requested, execute deny RATE_LIMITED by probe_wrapper",
        "policy, guard, wrapper before, post",
    ),
    row(
        "a wrapper panics after the device has answered",
        ("workspace_list_files", r#"{"path":"wrapper=panic_after"}"#),
        Nothing,
        Some("EXECUTION_FAILED"),
        "requested, dispatched 1, result succeeded, revised probe_wrapper EXECUTION_FAILED",
        "policy, guard, wrapper before, wrapper after, post",
    ),
    row(
        "a step blocks what the device gave",
        ("workspace_list_files", r#"{"path":"post=block"}"#),
        Nothing,
        Some("BLOCKED_BY_POLICY"),
        "requested, dispatched 1, result succeeded, revised probe_post BLOCKED_BY_POLICY",
        "policy, guard, wrapper before, wrapper after, post",
    ),
    row(
        "a person takes back what was allowed for the conversation, right before it is sent",
        ("workspace_list_files", r#"{"path":"wrapper=revoke"}"#),
        Granted,
        Some("APPROVAL_CANCELLED"),
        "requested, policy allow TOOL_ALLOWED by grant, dispatch deny APPROVAL_CANCELLED by grant",
        "guard, wrapper before, wrapper after, post",
    ),
    row(
        "a stop before anything is sent",
        ("workspace_list_files", r#"{"path":"stop=guard"}"#),
        Nothing,
        Some("ABORTED_BEFORE_DISPATCH"),
        "requested, dispatch deny ABORTED_BEFORE_DISPATCH by stop",
        "policy, guard, post",
    ),
    row(
        "a stop after the device has answered",
        ("workspace_list_files", r#"{"path":"stop=wrapper after"}"#),
        Nothing,
        Some("ABORTED"),
        "requested, dispatched 1, result succeeded, revised stop ABORTED",
        "policy, guard, wrapper before, wrapper after, post",
    ),
];

/// Calls in a server where nobody is asked.
pub const UNATTENDED: &[Row] = &[
    row(
        "a person would be asked",
        ("probe_asks", "{}"),
        Nothing,
        Some("APPROVAL_UNAVAILABLE"),
        "requested, policy deny APPROVAL_UNAVAILABLE by absence",
        "policy, post",
    ),
    row("nobody would be asked", ("probe", "{}"), Nothing, None, RENDERED, WHOLE),
];
