//! What stands where a payload was erased.

use super::content::REDACTED_TEXT;
use crate::canonical::{canonical_json, sha256_hex};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What every marker begins with, and no event's payload does.
const PREFIX: &str = r#"{"redacted":"#;

/// The text in the place of an erased payload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redacted {
    /// The position of the event that says so.
    pub by: u64,
    /// The payload without its content.
    pub kept: Value,
    /// SHA-256 of the erased text, hexadecimal.
    pub payload_hash: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Marker<T> {
    redacted: T,
}

impl Redacted {
    /// Reads a stored payload; `None` for one that was not erased.
    pub fn parse(payload: &str) -> Option<Self> {
        let marker = payload.starts_with(PREFIX).then(|| serde_json::from_str::<Marker<Self>>(payload).ok()).flatten();
        // In the one spelling that is written: another would hide a change.
        marker.map(|marker| marker.redacted).filter(|redacted| redacted.to_text() == payload)
    }

    /// The text that is stored.
    pub fn to_text(&self) -> String {
        canonical_json(&Marker { redacted: self })
    }

    /// SHA-256 of what is kept, hexadecimal.
    pub fn kept_hash(&self) -> String {
        sha256_hex(canonical_json(&self.kept).as_bytes())
    }

    /// The payload as readers get it: where content was, it says by which event it was erased.
    pub fn readable(&self) -> String {
        let mut readable = self.kept.clone();
        say(&mut readable, &format!("[redacted by event {}]", self.by));
        canonical_json(&readable)
    }
}

fn say(value: &mut Value, words: &str) {
    match value {
        Value::String(text) if text == REDACTED_TEXT => words.clone_into(text),
        Value::Array(values) => values.iter_mut().for_each(|value| say(value, words)),
        Value::Object(fields) => fields.values_mut().for_each(|value| say(value, words)),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
