//! What of events can be erased, and that what is left still is the event it was.

#[allow(dead_code, reason = "shared with the tests of golden files")]
mod golden;

use devmind_domain::event::DomainEvent;
use devmind_domain::redaction::{REDACTED_TEXT, Redacted, without_content};
use golden::{decode, read};

fn every_event() -> impl Iterator<Item = DomainEvent> {
    DomainEvent::all_types().into_iter().map(|(kind, event_type, version)| {
        let payload = read(&format!("{event_type}.v{version}.json")).expect("a golden file");
        decode(kind, event_type, version, &payload).expect("it loads")
    })
}

#[test]
fn content_is_what_people_models_and_tools_said_and_nothing_else_goes() {
    let of = |event: DomainEvent| {
        let name = event.type_name();
        let before: serde_json::Value = serde_json::from_str(&event.payload()).expect("JSON");
        let after: serde_json::Value = serde_json::from_str(&without_content(event)?.payload()).expect("JSON");
        let fields = before.as_object().expect("an object");
        assert_eq!(fields.len(), after.as_object().expect("an object").len(), "{name} keeps its fields");
        let gone: Vec<&str> =
            fields.iter().filter(|(key, value)| after[key.as_str()] != **value).map(|(key, _)| key.as_str()).collect();
        Some(format!("{name}: {}", gone.join(" ")))
    };
    let erasable: Vec<String> = every_event().filter_map(of).collect();
    assert_eq!(
        erasable,
        [
            "ConversationStarted: title",
            "ConversationRenamed: title",
            "TurnPrepared: content",
            "TurnRerunPrepared: content",
            "InterruptRaised: arguments message",
            "ToolGrantGiven: scope",
            "RunSucceeded: answer",
            "RunFailed: error_message partial_text",
            "RunCancelled: partial_text",
            "AnswerProgressed: text",
            "ModelResponded: content reasoning tool_calls",
            "ModelFailed: message",
            "ToolResultObserved: content",
            "ContextDeferred: message",
            "ToolCallRequested: arguments",
            "ToolCallDecided: reason",
            "ToolResultRecorded: error output",
            "DeviceDescribed: computer workspace",
            "ForeignRecordKept: text",
        ]
    );
}

#[test]
fn what_is_left_of_an_event_is_an_event_of_the_same_type_that_says_by_whom_it_was_erased() {
    for event in every_event() {
        assert!(Redacted::parse(&event.payload()).is_none(), "{} looks like a marker", event.type_name());
        let Some(without) = without_content(event.clone()) else { continue };
        let kept = serde_json::from_str(&without.payload()).expect("JSON");
        let marker = Redacted { by: 17, kept, payload_hash: "0".repeat(64) };
        let text = marker.to_text();
        assert_eq!(Redacted::parse(&text), Some(marker.clone()));
        // Another spelling of it is no marker: a change would be hidden.
        assert_eq!(Redacted::parse(&format!("{text} ")), None);
        assert_eq!(Redacted::parse(&text.replacen("17", "017", 1)), None);
        let kinds = DomainEvent::all_types();
        let (kind, ..) = kinds.iter().find(|(_, name, _)| *name == event.type_name()).expect("its kind");
        let read = DomainEvent::decode(kind.as_str(), event.type_name(), event.version(), &marker.readable());
        let read = read.expect("it loads").remove(0).payload();
        assert!(!read.contains(REDACTED_TEXT) || event.type_name() == "ModelResponded", "{read}");
        assert!(read.contains("[redacted by event 17]"), "{read}");
    }
}
