//! The golden events: one stored payload per event type and version, kept for ever.

use devmind_domain::event::{AggregateType, DomainEvent};
use serde_json::Value;
use std::path::PathBuf;

/// The folder of the golden files.
pub fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/events"))
}

/// A golden file's JSON, if there is such a file.
pub fn read(file: &str) -> Option<Value> {
    let text = std::fs::read_to_string(folder().join(file)).ok()?;
    Some(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file} is not JSON: {error}")))
}

#[allow(dead_code, reason = "not every test program asks for it")]
/// Reads a payload as the event of its type.
pub fn decode(kind: AggregateType, event_type: &str, version: u32, payload: &Value) -> Result<DomainEvent, String> {
    let facts = DomainEvent::decode(kind.as_str(), event_type, version, &payload.to_string());
    let mut facts = facts.map_err(|error| error.to_string())?;
    match (facts.pop(), facts.is_empty()) {
        (Some(fact), true) => Ok(fact),
        (_, _) => Err("a shape of today is one fact".to_owned()),
    }
}
