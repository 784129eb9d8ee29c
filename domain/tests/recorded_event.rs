//! What a leaf hash commits to, and that its format never changes silently.

use devmind_domain::Timestamp;
use devmind_domain::canonical::{Hash, canonical_json, leaf_hash, node_hash, sha256_hex};
use devmind_domain::event::{Actor, AggregateType, DecodeError, DomainEvent, Metadata, RecordedEvent, StreamId};

fn recorded() -> RecordedEvent {
    let mut event = RecordedEvent {
        partition: 0,
        position: 42,
        event_id: "019acf3e-6b1a-7c41-9d2e-000000000001".into(),
        stream: StreamId::new(AggregateType::Conversation, "c"),
        sequence: 5,
        event_type: "RunSucceeded".into(),
        event_version: 1,
        payload: r#"{"answer":"Ja – „yes“","message_id":"a","run_id":"r"}"#.into(),
        metadata:
            r#"{"actor":{"id":"node-1","kind":"server"},"conversation_id":"c","correlation_id":"r","node_id":"node-1"}"#
                .into(),
        recorded_at: Timestamp::from_micros(1_795_989_891_123_456),
        leaf_hash: [0; 32],
    };
    event.leaf_hash = event.expected_leaf_hash();
    event
}

fn hex(hash: Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_leaf_hash_of_one_event_is_the_one_that_another_program_computed() {
    // SHA-256(0x00 || header) by Python's hashlib, over this RFC 8785 text:
    // {"aggregate_id":"c","aggregate_type":"conversation","event_id":"019acf3e-6b1a-7c41-9d2e-000000000001",
    //  "event_type":"RunSucceeded","event_version":1,"metadata_hash":"666d5ab3…","partition":0,
    //  "payload_hash":"30716f01…","position":42,"recorded_at":"2026-11-29T22:04:51.123456Z","sequence":5}
    // When this fails, the format has changed, and no log that was ever written verifies any more.
    assert_eq!(hex(recorded().leaf_hash), "2cc446043d3f6bf7c5bfaa49f58d36b1c478ceafbb5699c90f05af279112d8a1");
}

#[test]
fn a_change_of_any_field_changes_the_leaf_hash() {
    type Change = fn(&mut RecordedEvent);
    let changes: [(&str, Change); 11] = [
        ("partition", |event| event.partition += 1),
        ("position", |event| event.position += 1),
        ("event_id", |event| event.event_id.push('x')),
        ("aggregate_type", |event| event.stream.aggregate_type.push('x')),
        ("aggregate_id", |event| event.stream.aggregate_id.push('x')),
        ("sequence", |event| event.sequence += 1),
        ("event_type", |event| event.event_type.push('x')),
        ("event_version", |event| event.event_version += 1),
        ("payload", |event| event.payload = event.payload.replace("yes", "yep")),
        ("metadata", |event| event.metadata = event.metadata.replace("node-1", "node-2")),
        ("recorded_at", |event| event.recorded_at = Timestamp::from_micros(event.recorded_at.as_micros() + 1)),
    ];
    let original = recorded();
    let mut hashes = std::collections::BTreeSet::from([original.leaf_hash]);
    for (field, change) in changes {
        let mut event = original.clone();
        change(&mut event);
        assert_ne!(event, original, "{field} was not changed by its own test");
        assert!(hashes.insert(event.expected_leaf_hash()), "the leaf does not commit to {field}");
    }
}

#[test]
fn the_leaf_commits_to_the_exact_text_and_not_only_to_its_meaning() {
    let mut event = recorded();
    event.payload.push(' ');
    assert_ne!(event.expected_leaf_hash(), event.leaf_hash);
}

#[test]
fn the_boundary_between_two_fields_is_part_of_the_hash() {
    let mut event = recorded();
    event.stream.aggregate_id = "1c".into();
    let mut shifted = recorded();
    shifted.stream.aggregate_type = "conversation1".into();
    assert_ne!(event.expected_leaf_hash(), shifted.expected_leaf_hash());
}

#[test]
fn leaf_and_node_hashes_are_those_of_rfc_6962() {
    // The leaves and the root that the Certificate Transparency projects test with.
    let inputs: [&[u8]; 8] = [
        &[],
        &[0x00],
        &[0x10],
        &[0x20, 0x21],
        &[0x30, 0x31],
        &[0x40, 0x41, 0x42, 0x43],
        &[0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57],
        &[0x60, 0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x6b, 0x6c, 0x6d, 0x6e, 0x6f],
    ];
    let mut level: Vec<Hash> = inputs.iter().map(|input| leaf_hash(input)).collect();
    assert_eq!(hex(level[0]), "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d");
    assert_eq!(hex(level[1]), "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7");
    assert_eq!(
        hex(node_hash(&level[0], &level[1])),
        "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"
    );
    while level.len() > 1 {
        level = level.chunks(2).map(|pair| node_hash(&pair[0], &pair[1])).collect();
    }
    assert_eq!(hex(level[0]), "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328");
}

#[test]
fn a_recorded_event_gives_back_its_event_and_its_metadata() {
    let event = recorded();
    assert_eq!(event.decode().expect("decodes")[0].payload(), event.payload);
    let expected = Metadata::new(Actor::server(&"node-1".into()), "node-1".into());
    assert_eq!(event.metadata(), Ok(expected.run(&"r".into()).conversation(&"c".into())));
    let broken = RecordedEvent { metadata: "{}".into(), payload: "{}".into(), ..event };
    assert!(matches!(broken.metadata(), Err(DecodeError::Payload { .. })));
    assert!(matches!(broken.decode(), Err(DecodeError::Payload { .. })));
}

#[test]
fn metadata_leaves_out_what_it_does_not_know_and_reads_back_what_it_does() {
    let actor = Actor::user("alice");
    let bare = Metadata::new(actor.clone(), "node-1".into());
    assert_eq!(bare.text(), r#"{"actor":{"id":"alice","kind":"user"},"node_id":"node-1"}"#);
    let full = Metadata {
        correlation_id: Some("r".into()),
        causation_id: Some("e".into()),
        conversation_id: Some("c".into()),
        idempotency_key: Some("k".into()),
        request_hash: Some("h".into()),
        traceparent: Some("00-1-2-01".into()),
        ..bare
    };
    assert_eq!(serde_json::from_str::<Metadata>(&full.text()).expect("reads"), full);
    let actors = [actor, Actor::device("d"), Actor::server(&"n".into())].map(|actor| actor.to_string());
    assert_eq!(actors, ["user:alice", "device:d", "server:n"]);
}

#[test]
fn every_kind_of_stream_has_the_name_that_serde_and_the_column_share() {
    for kind in AggregateType::ALL {
        assert_eq!(serde_json::to_value(kind).expect("writes"), kind.as_str());
        assert_eq!(StreamId::new(kind, "x").to_string(), format!("{}/x", kind.as_str()));
        assert!(DomainEvent::all_types().iter().any(|(of, ..)| *of == kind), "{kind:?} has no event");
    }
}

#[test]
fn the_header_is_canonical_json_whatever_its_texts_hold() {
    let odd = "\u{0}\u{1}\u{8}\t\n\u{b}\u{c}\r\u{1f}\"\\/\u{7f}\u{80}é\u{2028}\u{d7ff}\u{e000}\u{fffd}😀";
    let mut event = recorded();
    event.event_id = odd.into();
    event.stream.aggregate_type = odd.into();
    event.stream.aggregate_id = odd.into();
    event.event_type = odd.into();
    let header = canonical_json(&serde_json::json!({
        "partition": event.partition,
        "position": event.position,
        "event_id": odd,
        "aggregate_type": odd,
        "aggregate_id": odd,
        "sequence": event.sequence,
        "event_type": odd,
        "event_version": event.event_version,
        "recorded_at": event.recorded_at.to_string(),
        "metadata_hash": sha256_hex(event.metadata.as_bytes()),
        "payload_hash": sha256_hex(event.payload.as_bytes()),
    }));
    assert_eq!(hex(event.expected_leaf_hash()), hex(leaf_hash(header.as_bytes())));
}
