//! Every event type has a golden file, every golden file still loads, and none of them lost a field.

mod golden;

use devmind_domain::canonical::canonical_json;
use devmind_domain::event::{AggregateType, DecodeError, DomainEvent};
use devmind_domain::upcast::steps;
use golden::{decode, folder, read};
use serde_json::Value;
use std::collections::BTreeSet;

/// What a failing golden test tells the person who changed an event.
const WHAT_TO_DO: &str = "An event that was once recorded must load for ever. Never edit a golden file: \
    give the changed event a new version, write an upcaster from the old one, and add a new golden file \
    tests/fixtures/events/<EventType>.v<version>.json (every optional field present) and, where there are \
    optional fields, <EventType>.v<version>.minimal.json (none of them present).";

/// The payload without the keys that the event type does not insist on.
fn without_optionals(kind: AggregateType, event_type: &str, version: u32, full: &Value) -> (Value, Vec<String>) {
    let object = full.as_object().expect("a payload is an object");
    let is_optional = |key: &&String| {
        let mut without = object.clone();
        without.remove(*key);
        decode(kind, event_type, version, &Value::Object(without)).is_ok()
    };
    let optional: Vec<String> = object.keys().filter(is_optional).cloned().collect();
    let mut minimal = object.clone();
    minimal.retain(|key, _| !optional.contains(key));
    (Value::Object(minimal), optional)
}

#[test]
fn every_event_type_has_a_golden_file_that_loads_and_writes_back_the_same_canonical_json() {
    for (kind, event_type, version) in DomainEvent::all_types() {
        let file = format!("{event_type}.v{version}.json");
        let payload = read(&file).unwrap_or_else(|| panic!("there is no golden file {file}. {WHAT_TO_DO}"));
        let event = decode(kind, event_type, version, &payload)
            .unwrap_or_else(|error| panic!("{file} does not load: {error}. {WHAT_TO_DO}"));
        assert_eq!(event.payload(), canonical_json(&payload), "{file} changed on its way through. {WHAT_TO_DO}");
        assert_eq!((event.type_name(), event.version()), (event_type, version));
        assert!(!format!("{event:?}").contains("None"), "{file} leaves an optional field out: {event:?}");
    }
}

#[test]
fn every_event_type_with_optional_fields_has_a_minimal_golden_file_that_loads_without_them() {
    for (kind, event_type, version) in DomainEvent::all_types() {
        let full = read(&format!("{event_type}.v{version}.json")).expect("the test above");
        let (_, optional) = without_optionals(kind, event_type, version, &full);
        let file = format!("{event_type}.v{version}.minimal.json");
        let Some(minimal) = read(&file) else {
            assert!(optional.is_empty(), "{event_type} has optional fields {optional:?} but no {file}. {WHAT_TO_DO}");
            continue;
        };
        assert!(!optional.is_empty(), "{file} is superfluous: {event_type} has no optional field");
        let present: Vec<_> = optional.iter().filter(|key| minimal.get(key).is_some()).collect();
        assert!(present.is_empty(), "{file} has the optional fields {present:?}");
        let event = decode(kind, event_type, version, &minimal)
            .unwrap_or_else(|error| panic!("{file} does not load: {error}. {WHAT_TO_DO}"));
        assert_eq!(event.payload(), canonical_json(&minimal), "{file} changed on its way through. {WHAT_TO_DO}");
    }
}

#[test]
fn a_field_that_is_missing_and_not_optional_is_told_and_not_guessed() {
    for (kind, event_type, version) in DomainEvent::all_types() {
        let full = read(&format!("{event_type}.v{version}.json")).expect("a golden file");
        let (minimal, _) = without_optionals(kind, event_type, version, &full);
        for key in minimal.as_object().expect("an object").keys() {
            let mut broken = minimal.clone();
            broken.as_object_mut().expect("an object").remove(key);
            let error = DomainEvent::decode(kind.as_str(), event_type, version, &broken.to_string());
            assert!(matches!(error, Err(DecodeError::Payload { .. })), "{event_type} without {key}: {error:?}");
        }
    }
}

#[test]
fn every_golden_file_belongs_to_an_event_type_of_this_program() {
    // Old versions stay here for ever: they are known by the step that takes them up.
    let older = steps().iter().map(|step| (step.of, step.event_type, step.version));
    let known: BTreeSet<String> = DomainEvent::all_types()
        .into_iter()
        .chain(older)
        .flat_map(|(_, event_type, version)| {
            [format!("{event_type}.v{version}.json"), format!("{event_type}.v{version}.minimal.json")]
        })
        .collect();
    for entry in std::fs::read_dir(folder()).expect("the folder of golden files") {
        let file = entry.expect("an entry").file_name().into_string().expect("a plain name");
        assert!(known.contains(&file), "{file} belongs to no event type: was one renamed or removed? {WHAT_TO_DO}");
    }
}

#[test]
fn event_type_names_are_distinct_within_and_across_streams() {
    let mut seen = BTreeSet::new();
    for (_, event_type, version) in DomainEvent::all_types() {
        assert!(seen.insert((event_type, version)), "{event_type} version {version} stands twice");
    }
}

#[test]
fn a_type_a_version_or_a_stream_kind_that_is_unknown_is_said_to_be_unknown() {
    for (kind, event_type, version) in [
        ("conversation", "TurnPrepared", 2),
        ("conversation", "TurnPrepared", 0),
        ("conversation", "ToolDispatched", 1),
        ("conversation", "turnPrepared", 1),
        ("conversation", "", 1),
        ("approval", "TurnPrepared", 1),
    ] {
        let error = DomainEvent::decode(kind, event_type, version, "{}").expect_err("unknown");
        let event_type = event_type.to_owned();
        let expected = match event_type.as_str() {
            "TurnPrepared" if kind == "conversation" => DecodeError::UnknownVersion { event_type, version, known: 1 },
            _ => DecodeError::UnknownType { aggregate_type: kind.into(), event_type, version },
        };
        assert_eq!(error, expected);
    }
}

#[test]
fn a_payload_that_a_newer_program_gave_more_fields_still_loads() {
    let payload = r#"{"run_id":"r","colour":"blue"}"#;
    let facts = DomainEvent::decode("conversation", "RunInterrupted", 1, payload).expect("loads");
    assert_eq!(facts[0].payload(), r#"{"run_id":"r"}"#);
}
