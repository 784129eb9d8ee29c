//! Chains of steps: each older shape leads to facts of today, all of them, and to the same ones from every rung.

mod golden;

use devmind_domain::event::{AggregateType, DecodeError, DomainEvent, Facts};
use devmind_domain::upcast::{generation, steps, stored_as, without_content};
use golden::read;
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn facts(event_type: &str, version: u32, payload: &Value) -> Facts {
    DomainEvent::decode("tool_call", event_type, version, &payload.to_string()).expect("known")
}

/// The request and the attempt, as one event of each older shape.
fn rungs() -> (Vec<(u32, Value)>, [Value; 2]) {
    let request = read("ToolCallRequested.v1.json").expect("a golden file");
    let attempt = read("ToolDispatched.v1.json").expect("a golden file");
    let mut sent = attempt.clone();
    let object = sent.as_object_mut().expect("an object");
    let wait = object.remove("wait_ms").expect("a wait");
    object.insert("timeout_ms".to_owned(), wait);
    let mut second = request.clone();
    second["attempt"] = sent;
    let mut first = second.clone();
    let arguments = first.as_object_mut().and_then(|fields| fields.remove("arguments")).expect("arguments");
    first["args"] = arguments;
    (vec![(1, first), (2, second)], [request, attempt])
}

#[test]
fn every_rung_of_a_chain_tells_the_same_facts_and_a_later_step_reaches_each_half_of_a_split() {
    let (rungs, [request, attempt]) = rungs();
    let today = [facts("ToolCallRequested", 1, &request), facts("ToolDispatched", 1, &attempt)].concat();
    for (version, payload) in rungs {
        assert_eq!(facts("ToolCallOpened", version, &payload).to_vec(), today, "version {version}");
    }
}

#[test]
fn what_is_missing_in_an_older_shape_is_told_and_a_newer_version_is_refused_by_name() {
    for (version, payload) in rungs().0 {
        for field in ["args", "arguments", "attempt", "run_id"].into_iter().filter(|field| payload.get(field).is_some())
        {
            let mut broken = payload.clone();
            broken.as_object_mut().expect("an object").remove(field);
            let told = DomainEvent::decode("tool_call", "ToolCallOpened", version, &broken.to_string());
            assert!(matches!(told, Err(DecodeError::Payload { .. })), "without {field}: {told:?}");
        }
    }
    let newer = DomainEvent::decode("tool_call", "ToolDispatched", 2, "{}").expect_err("a newer version");
    let event_type = "ToolDispatched".to_owned();
    assert_eq!(newer, DecodeError::UnknownVersion { event_type, version: 2, known: 1 });
}

#[test]
fn every_step_leads_to_events_of_today_and_begins_at_no_shape_of_today() {
    let today: BTreeSet<_> =
        DomainEvent::all_types().into_iter().map(|(of, name, version)| (of.as_str(), name, version)).collect();
    let mut seen = BTreeSet::new();
    for step in steps() {
        let from = (step.of.as_str(), step.event_type, step.version);
        assert!(seen.insert(from), "{from:?} has two steps");
        assert!(!today.contains(&from), "{from:?} is recorded today");
        // As many rounds as there are steps: what has not arrived by then goes in a circle.
        let mut open = vec![from];
        for _ in 0..=steps().len() {
            open = open
                .into_iter()
                .filter(|at| !today.contains(at))
                .flat_map(|at| {
                    let next = steps().iter().find(|step| (step.of.as_str(), step.event_type, step.version) == at);
                    let next = next.unwrap_or_else(|| panic!("{at:?} leads nowhere"));
                    next.to.iter().map(|(name, version)| (next.of.as_str(), *name, *version))
                })
                .collect();
        }
        assert!(open.is_empty(), "{from:?} never arrives: {open:?}");
    }
}

#[test]
fn readers_that_look_for_a_type_find_the_older_ones_and_states_know_how_many_steps_made_them() {
    assert_eq!(stored_as("ToolDispatched"), ["ToolDispatched", "ToolCallSent", "ToolCallOpened"]);
    assert_eq!(stored_as("TurnPrepared"), ["TurnPrepared"]);
    assert_eq!((generation(AggregateType::ToolCall), generation(AggregateType::Thread)), (3, 0));
}

#[test]
fn an_erasure_takes_the_content_of_an_older_shape_and_leaves_the_shape() {
    for (version, payload) in rungs().0 {
        let kept = without_content("tool_call", "ToolCallOpened", version, &payload.to_string()).expect("content");
        assert!(!kept.to_string().contains("README.md"), "{kept}");
        let [request, attempt] = &*facts("ToolCallOpened", version, &kept) else { panic!("two facts") };
        let request: Value = serde_json::from_str(&request.payload()).expect("JSON");
        assert_eq!(request["arguments"], json!({ "redacted": "[redacted]" }));
        assert_eq!(attempt.type_name(), "ToolDispatched");
    }
}
