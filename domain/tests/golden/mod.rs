//! The golden events: one stored payload per event type and version, kept for ever.

use devmind_domain::event::{AggregateType, DomainEvent};
use serde_json::Value;
use std::path::PathBuf;

/// What a failing golden test tells the person who changed an event.
pub const WHAT_TO_DO: &str = "An event that was once recorded must load for ever. Never edit a golden file: \
    give the changed event a new version, write an upcaster from the old one, and add a new golden file \
    tests/fixtures/events/<EventType>.v<version>.json (every optional field present) and, where there are \
    optional fields, <EventType>.v<version>.minimal.json (none of them present).";

/// The folder of the golden files.
pub fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/events"))
}

/// A golden file's JSON, if there is such a file.
pub fn read(file: &str) -> Option<Value> {
    let text = std::fs::read_to_string(folder().join(file)).ok()?;
    Some(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file} is not JSON: {error}")))
}

/// Reads a payload as the event of its type.
pub fn decode(kind: AggregateType, event_type: &str, version: u32, payload: &Value) -> Result<DomainEvent, String> {
    DomainEvent::decode(kind.as_str(), event_type, version, &payload.to_string()).map_err(|error| error.to_string())
}

/// Every golden event that there is, full and minimal.
pub fn events() -> Vec<DomainEvent> {
    let mut events = Vec::new();
    for (kind, event_type, version) in DomainEvent::all_types() {
        for suffix in ["", ".minimal"] {
            if let Some(payload) = read(&format!("{event_type}.v{version}{suffix}.json")) {
                events.push(decode(kind, event_type, version, &payload).expect("a golden event loads"));
            }
        }
    }
    events
}
