//! What an event of the cqrs-es family becomes here: pure.
//!
//! The family writes a payload as serde writes an enum, `{"TurnPrepared": {…}}`; ours have the type in its column
//! alone. Its metadata are texts by name: those that we know become ours, everything else is kept under
//! `imported`, as is a version that is no whole number.

use super::source::ForeignRow;
use crate::limits::{MAX_ID_BYTES, MAX_METADATA_BYTES};
use devmind_domain::canonical::canonical_json;
use devmind_domain::event::{Actor, ActorKind, DecodeError, DomainEvent, Metadata, RecordedEvent, StreamId};
use devmind_domain::json::parse_strict;
use devmind_domain::limits::MAX_PAYLOAD_BYTES;
use serde::Serialize;
use serde_json::{Map, Value};

/// Who counts as the actor of an event that names none.
const IMPORT: &str = "import";

/// An event that can be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Foreign {
    /// Whether it is of one of our own types.
    pub known: bool,
    pub stream: StreamId,
    pub sequence: u64,
    pub event_type: String,
    pub event_version: u32,
    pub payload: String,
    pub metadata: String,
}

impl Foreign {
    /// Stands for an event that cannot be taken over, which ends the import.
    pub fn placeholder(stream: StreamId, sequence: u64) -> Self {
        Self {
            known: false,
            stream,
            sequence,
            event_type: "?".to_owned(),
            event_version: 0,
            payload: String::new(),
            metadata: String::new(),
        }
    }

    /// `aggregate type / event type`.
    pub fn name(&self) -> String {
        format!("{} / {}", self.stream.aggregate_type, self.event_type)
    }

    /// Whether a stored event is this one.
    pub fn is(&self, stored: &RecordedEvent) -> bool {
        stored.stream == self.stream
            && stored.sequence == self.sequence
            && stored.event_type == self.event_type
            && stored.event_version == self.event_version
            && stored.payload == self.payload
            && stored.metadata == self.metadata
    }
}

/// Ours, and what the other store had besides.
#[derive(Serialize)]
struct Kept {
    #[serde(flatten)]
    own: Metadata,
    imported: Imported,
}

#[derive(Serialize)]
struct Imported {
    from: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    event_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Value>,
}

/// The event, or why it cannot be taken over.
pub(super) fn translate(row: ForeignRow) -> Result<Foreign, String> {
    let ForeignRow { stream, sequence, event_type, event_version, payload, metadata } = row;
    for (what, id) in [
        ("stream's kind", &stream.aggregate_type),
        ("stream's id", &stream.aggregate_id),
        ("event's type", &event_type),
    ] {
        if id.is_empty() || id.len() > MAX_ID_BYTES || id.contains('\0') {
            return Err(format!("the {what} must be 1 to {MAX_ID_BYTES} bytes long and without NUL"));
        }
    }
    let (version, is_plain) = version_of(&event_version);
    // A payload whose numbers canonical JSON would change is kept as the text that it is.
    let parsed = parse_strict(&payload).map(|value| without_tag(value, &event_type));
    let (text, exact) = match parsed {
        Ok(value) => (canonical_json(&value), Ok(())),
        Err(reason) => (canonical_json(&payload), Err(reason)),
    };
    let known = match DomainEvent::decode(&stream.aggregate_type, &event_type, version, &text) {
        Ok(_) => true,
        Err(DecodeError::UnknownType { .. }) => false,
        Err(error @ DecodeError::UnknownVersion { .. }) => return Err(error.to_string()),
        Err(error @ DecodeError::Payload { .. }) => return Err(exact.err().unwrap_or_else(|| error.to_string())),
    };
    if text.len() > MAX_PAYLOAD_BYTES {
        return Err(format!("its payload has more than {MAX_PAYLOAD_BYTES} bytes"));
    }
    let metadata = canonical_json(&kept(&metadata, (!is_plain).then_some(event_version)));
    if metadata.len() > MAX_METADATA_BYTES {
        return Err(format!("its metadata have more than {MAX_METADATA_BYTES} bytes"));
    }
    Ok(Foreign { known, stream, sequence, event_type, event_version: version, payload: text, metadata })
}

/// The whole number before the first point, and whether that says everything.
fn version_of(text: &str) -> (u32, bool) {
    let number = text.split('.').next().and_then(|number| number.parse().ok()).unwrap_or(0);
    (number, text == number.to_string())
}

/// `{"Type": payload}` is the payload.
fn without_tag(value: Value, event_type: &str) -> Value {
    match value {
        Value::Object(mut object) if object.len() == 1 && object.contains_key(event_type) => {
            object.remove(event_type).unwrap_or_default()
        }
        other => other,
    }
}

fn kept(text: &str, event_version: Option<String>) -> Kept {
    let mut own = Metadata::new(Actor::operator(IMPORT), IMPORT.into());
    let rest = match parse_strict(text) {
        Ok(Value::Object(fields)) => own_fields(fields, &mut own),
        Ok(other) => other,
        Err(_) => Value::String(text.to_owned()),
    };
    let metadata = Some(rest).filter(|rest| rest.as_object().is_none_or(|rest| !rest.is_empty()));
    Kept { own, imported: Imported { from: "cqrs-es", event_version, metadata } }
}

/// Takes the fields that are ours out of the others. A key of a request stays among them: whose it was is not
/// said, and a key counts for its owner alone.
fn own_fields(mut fields: Map<String, Value>, own: &mut Metadata) -> Value {
    let mut take = |name: &str| match fields.remove(name) {
        Some(Value::String(text)) if !text.is_empty() => Some(text),
        Some(other) => {
            fields.insert(name.to_owned(), other);
            None
        }
        None => None,
    };
    let actor = take("actor");
    own.correlation_id = take("correlation_id").map(Into::into);
    own.causation_id = take("causation_id");
    own.conversation_id = take("conversation_id").map(Into::into);
    own.traceparent = take("traceparent");
    if let Some(node) = take("node_id") {
        own.node_id = node.into();
    }
    if let Some(text) = actor {
        match actor_of(&text) {
            Some(actor) => own.actor = actor,
            None => drop(fields.insert("actor".to_owned(), Value::String(text))),
        }
    }
    Value::Object(fields)
}

/// `user:ann` is an actor.
fn actor_of(text: &str) -> Option<Actor> {
    let (kind, id) = text.split_once(':')?;
    let kind = [ActorKind::User, ActorKind::Device, ActorKind::Server, ActorKind::Operator]
        .into_iter()
        .find(|known| Actor { kind: *known, id: id.to_owned() }.to_string() == text && !kind.is_empty())?;
    Some(Actor { kind, id: id.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(event_type: &str, event_version: &str, payload: &str, metadata: &str) -> ForeignRow {
        ForeignRow {
            stream: StreamId { aggregate_type: "node".into(), aggregate_id: "n".into() },
            sequence: 1,
            event_type: event_type.into(),
            event_version: event_version.into(),
            payload: payload.into(),
            metadata: metadata.into(),
        }
    }

    fn metadata_of(row: ForeignRow) -> Value {
        serde_json::from_str(&translate(row).expect("taken over").metadata).expect("JSON")
    }

    #[test]
    fn an_own_event_loses_its_tag_and_an_event_of_another_type_keeps_everything() {
        let own = translate(row("NodeStopped", "1", r#"{"NodeStopped":{"node_id":"n","epoch":1}}"#, "{}"));
        let own = own.expect("taken over");
        assert_eq!((own.known, own.payload.as_str()), (true, r#"{"epoch":1,"node_id":"n"}"#));
        let other = translate(row("Opened", "2.1", r#"{"Opened":{"b":1,"a":2}}"#, "{}")).expect("taken over");
        assert_eq!((other.known, other.event_version, other.payload.as_str()), (false, 2, r#"{"a":2,"b":1}"#));
        let unit = translate(row("Closed", "1", r#""Closed""#, "{}")).expect("taken over");
        assert_eq!(unit.payload, r#""Closed""#);
        let inexact =
            translate(row("Counted", "1", r#"{"Counted":{"n":9007199254740993}}"#, "{}")).expect("taken over");
        let text: String = serde_json::from_str(&inexact.payload).expect("a text");
        assert_eq!(text, r#"{"Counted":{"n":9007199254740993}}"#, "no digit is lost");
    }

    #[test]
    fn an_own_type_whose_payload_is_not_its_shape_cannot_be_taken_over() {
        for payload in [r#"{"NodeStopped":{"node_id":"n"}}"#, "[", r#"{"NodeStopped":{"node_id":"n","epoch":1e400}}"#] {
            assert!(translate(row("NodeStopped", "1", payload, "{}")).is_err(), "{payload}");
        }
    }

    #[test]
    fn metadata_that_are_ours_become_ours_and_no_other_is_lost() {
        let text = json!({
            "actor": "user:ann", "node_id": "n1", "conversation_id": "c", "idempotency_key": "k", "mood": "good",
        });
        let kept = metadata_of(row("Opened", "1.0", "{}", &text.to_string()));
        assert_eq!(kept["actor"], json!({ "kind": "user", "id": "ann" }));
        assert_eq!((&kept["node_id"], &kept["conversation_id"]), (&json!("n1"), &json!("c")));
        assert_eq!(kept["imported"]["metadata"], json!({ "idempotency_key": "k", "mood": "good" }));
        assert_eq!(kept["imported"]["event_version"], "1.0");
        assert!(kept.get("idempotency_key").is_none(), "a key without an owner counts for nobody");
        let strange = metadata_of(row("Opened", "1", "{}", r#"{"actor":"ghost:ann","node_id":7}"#));
        assert_eq!(strange["imported"]["metadata"], json!({ "actor": "ghost:ann", "node_id": 7 }));
        assert_eq!(metadata_of(row("Opened", "1", "{}", "no JSON"))["imported"]["metadata"], "no JSON");
    }
}
