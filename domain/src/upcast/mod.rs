//! Upcasting: how a stored event of an older shape becomes the facts of today.
//!
//! A [`Step`] takes one version of one event type, as JSON, to the next shape: the same type with a higher version,
//! another type, or several events at once. Steps follow on each other until every part is a type and version that
//! this program records; later steps of a chain are applied to each part of a split. Nothing here is ever
//! stored: bytes, hashes, positions and counts of stored events stay what they are, and all parts of a split have
//! the position and the sequence of the one event that was stored.
//!
//! Which steps there are stands in one file an aggregate or occasion, gathered in [`steps`]. Turning the parts into
//! typed events is left to [`crate::event`], which is the one caller.

use crate::event::AggregateType;
use crate::redaction::{redacted_arguments, redacted_text};
use serde_json::Value;

#[cfg(debug_assertions)]
mod rehearsal;

/// One step up from an older shape.
#[derive(Debug)]
pub struct Step {
    /// The stream's kind; a step never leaves it, nor the stream.
    pub of: AggregateType,
    /// The type that was stored, or that an earlier step made.
    pub event_type: &'static str,
    /// Its version.
    pub version: u32,
    /// What it becomes, in order.
    pub to: &'static [(&'static str, u32)],
    /// The payloads of these, as many as `to` names; an error says what of the old payload is not as it should be.
    pub up: fn(Value) -> Result<Vec<Value>, String>,
    /// The fields of the old payload that hold what people, models and tools said: what an erasure takes.
    pub content: &'static [&'static str],
}

/// A payload on its way up.
#[derive(Debug)]
pub(crate) struct Part {
    pub event_type: &'static str,
    pub version: u32,
    pub payload: Value,
}

/// Every step of this program.
pub fn steps() -> &'static [Step] {
    #[cfg(debug_assertions)]
    return rehearsal::STEPS;
    #[cfg(not(debug_assertions))]
    &[]
}

/// The step that begins at a type and version.
pub(crate) fn step(of: AggregateType, event_type: &str, version: u32) -> Option<&'static Step> {
    steps().iter().find(|step| step.version == version && step.event_type == event_type && step.of == of)
}

/// Goes up from `first` until no step is left.
///
/// # Errors
/// What a step says of a payload.
pub(crate) fn climb(first: &Step, payload: Value) -> Result<Vec<Part>, String> {
    let payloads = (first.up)(payload)?;
    if payloads.len() != first.to.len() {
        return Err(format!("the step from version {} made {} events", first.version, payloads.len()));
    }
    let mut parts = Vec::with_capacity(payloads.len());
    for ((event_type, version), payload) in first.to.iter().zip(payloads) {
        match step(first.of, event_type, *version) {
            Some(next) => parts.extend(climb(next, payload)?),
            None => parts.push(Part { event_type, version: *version, payload }),
        }
    }
    Ok(parts)
}

/// How many steps an aggregate's events have. Steps are only ever added, so that states and rows which were
/// made with fewer of them are known by it.
pub fn generation(of: AggregateType) -> u32 {
    steps().iter().map(|step| u32::from(step.of == of)).sum()
}

/// The stored types that tell of an event type: itself, and every older one that becomes it.
pub fn stored_as(event_type: &str) -> Vec<&str> {
    let mut names = vec![event_type];
    let mut seen = 0;
    while let Some(name) = names.get(seen).copied() {
        seen += 1;
        for step in steps().iter().filter(|step| step.to.iter().any(|(to, _)| *to == name)) {
            if !names.contains(&step.event_type) {
                names.push(step.event_type);
            }
        }
    }
    names
}

/// An old payload in its own shape without its content; `None` for a shape of today, or one without content.
pub fn without_content(aggregate_type: &str, event_type: &str, version: u32, payload: &str) -> Option<Value> {
    let of = AggregateType::ALL.into_iter().find(|kind| kind.as_str() == aggregate_type)?;
    let old = step(of, event_type, version).filter(|step| !step.content.is_empty())?;
    let mut value: Value = serde_json::from_str(payload).ok()?;
    for field in old.content {
        match value.get_mut(field) {
            Some(Value::String(text)) => redacted_text(text),
            Some(other) => *other = redacted_arguments(),
            None => {}
        }
    }
    Some(value)
}
