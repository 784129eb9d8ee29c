//! Steps for an event that no program ever recorded, so that chains are shown to work on every read path
//! before the first real one is needed. Like kill points, they are no part of a release build.
//!
//! `ToolCallOpened` version 1 has `args`; version 2 calls them `arguments`; version 3 was split into the request
//! and its first attempt, whose own first version called the wait `timeout_ms`.

use super::Step;
use crate::event::AggregateType;
use serde_json::{Map, Value};

pub(super) const STEPS: &[Step] = &[
    Step {
        of: AggregateType::ToolCall,
        event_type: "ToolCallOpened",
        version: 1,
        to: &[("ToolCallOpened", 2)],
        up: |payload| Ok(vec![Value::Object(renamed(object(payload)?, "args", "arguments")?)]),
        content: &["args"],
    },
    Step {
        of: AggregateType::ToolCall,
        event_type: "ToolCallOpened",
        version: 2,
        to: &[("ToolCallRequested", 1), ("ToolCallSent", 1)],
        up: |payload| {
            let mut request = object(payload)?;
            let attempt = request.remove("attempt").ok_or("it has no attempt")?;
            Ok(vec![Value::Object(request), attempt])
        },
        content: &["arguments"],
    },
    Step {
        of: AggregateType::ToolCall,
        event_type: "ToolCallSent",
        version: 1,
        to: &[("ToolDispatched", 1)],
        up: |payload| Ok(vec![Value::Object(renamed(object(payload)?, "timeout_ms", "wait_ms")?)]),
        content: &[],
    },
];

fn object(payload: Value) -> Result<Map<String, Value>, String> {
    match payload {
        Value::Object(fields) => Ok(fields),
        other => Err(format!("{other} is no object")),
    }
}

fn renamed(mut fields: Map<String, Value>, from: &str, to: &str) -> Result<Map<String, Value>, String> {
    let value = fields.remove(from).ok_or_else(|| format!("it has no {from}"))?;
    fields.insert(to.to_owned(), value);
    Ok(fields)
}
