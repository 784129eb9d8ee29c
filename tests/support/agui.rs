//! The order rules of an AG-UI stream, checked for every stream that a test reads to its end.

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The text of a field, or nothing.
pub fn text<'a>(event: &'a Value, field: &str) -> &'a str {
    event[field].as_str().unwrap_or_default()
}

/// The events' types, in order.
pub fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| text(event, "type")).collect()
}

/// The events' types with neighbours of the same type put together.
pub fn outline(events: &[Value]) -> Vec<&str> {
    let mut types = types(events);
    types.dedup();
    types
}

/// All text that was streamed.
pub fn spoken(events: &[Value]) -> String {
    events.iter().filter(|event| event["type"] == "TEXT_MESSAGE_CONTENT").map(|event| text(event, "delta")).collect()
}

/// What the results say, parsed, in order.
pub fn results(events: &[Value]) -> Vec<Value> {
    let results = events.iter().filter(|event| event["type"] == "TOOL_CALL_RESULT");
    results.map(|event| serde_json::from_str(text(event, "content")).expect("a result is JSON")).collect()
}

/// The same by the ids of the calls: those of one message come in the order in which the calls ended.
pub fn results_by_call(events: &[Value]) -> Vec<Value> {
    let mut sorted: Vec<Value> = events.iter().filter(|event| event["type"] == "TOOL_CALL_RESULT").cloned().collect();
    sorted.sort_by(|one, other| text(one, "toolCallId").cmp(text(other, "toolCallId")));
    results(&sorted)
}

/// The last event.
pub fn last(events: &[Value]) -> &Value {
    events.last().expect("a stream is never empty")
}

/// The code of the `RUN_ERROR` that ended the stream.
pub fn error_code(events: &[Value]) -> &str {
    let last = last(events);
    assert_eq!(last["type"], "RUN_ERROR", "{events:#?}");
    text(last, "code")
}

/// Fails when the run did not end with an answer.
pub fn assert_success(events: &[Value]) {
    let last = last(events);
    assert_eq!((&last["type"], &last["outcome"]["type"]), (&"RUN_FINISHED".into(), &"success".into()), "{events:#?}");
}

/// Fails when a complete stream breaks an order rule of AG-UI 1.0.
pub fn assert_in_order(thread_id: &str, run_id: &str, events: &[Value]) {
    let fail = |why: &str, event: &Value| -> ! { panic!("{why}: {event}\nin {events:#?}") };
    let (mut open_text, mut open_calls, mut ended_calls) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
    let mut message_ids = BTreeSet::new();
    for (at, event) in events.iter().enumerate() {
        let kind = text(event, "type");
        let (message, call) = (text(event, "messageId"), text(event, "toolCallId"));
        let is_last = at + 1 == events.len();
        if (at == 0) != (kind == "RUN_STARTED") {
            fail("RUN_STARTED comes first and once", event);
        }
        if is_last != matches!(kind, "RUN_FINISHED" | "RUN_ERROR") {
            fail("one terminal event, the last", event);
        }
        let good = match kind {
            "RUN_STARTED" => {
                event["threadId"] == thread_id && event["runId"] == run_id && event["protocolVersion"] == "1.0"
            }
            "TEXT_MESSAGE_START" => message_ids.insert(message.to_owned()) && open_text.insert(message),
            "TEXT_MESSAGE_CONTENT" => open_text.contains(message),
            "TEXT_MESSAGE_END" => open_text.remove(message),
            "TOOL_CALL_START" => open_text.is_empty() && !ended_calls.contains_key(call) && open_calls.insert(call),
            "TOOL_CALL_ARGS" => open_calls.contains(call),
            "TOOL_CALL_END" => open_calls.remove(call) && ended_calls.insert(call, false).is_none(),
            "TOOL_CALL_RESULT" => {
                message_ids.insert(message.to_owned()) && ended_calls.insert(call, true) == Some(false)
            }
            "RUN_FINISHED" => {
                event["threadId"] == thread_id
                    && event["runId"] == run_id
                    && open_text.is_empty()
                    && open_calls.is_empty()
                    && (event["outcome"]["type"] != "success" || ended_calls.values().all(|answered| *answered))
            }
            "RUN_ERROR" => !text(event, "message").is_empty() && !text(event, "code").is_empty(),
            _ => false,
        };
        if !good {
            fail("out of order, or with other ids", event);
        }
    }
}

/// The same for the stream of a resumed run: the calls of the runs before it are known.
pub fn assert_in_order_after(thread_id: &str, run_id: &str, known: impl IntoIterator<Item = String>, events: &[Value]) {
    let own: BTreeSet<&str> = events
        .iter()
        .filter(|event| event["type"] == "TOOL_CALL_START")
        .map(|event| text(event, "toolCallId"))
        .collect();
    let answered: BTreeSet<&str> = events
        .iter()
        .filter(|event| event["type"] == "TOOL_CALL_RESULT")
        .map(|event| text(event, "toolCallId"))
        .collect();
    let mut all = events.to_vec();
    let known = known.into_iter().filter(|id| answered.contains(id.as_str()) && !own.contains(id.as_str()));
    let before =
        known.flat_map(|id| ["TOOL_CALL_START", "TOOL_CALL_END"].map(|kind| json!({ "type": kind, "toolCallId": id })));
    all.splice(1..1, before);
    assert_in_order(thread_id, run_id, &all);
}
