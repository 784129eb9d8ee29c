//! Replayed state equals live state, folds are total, and no log that `decide` writes breaks an
//! invariant: checked on pseudo-random command sequences (fixed seeds, so a failure repeats).

mod commands;
mod golden;
mod invariants;
mod random;

use commands::Domain;
use devmind_domain::conversation::Conversation;
use devmind_domain::device::{Device, DeviceEvent};
use devmind_domain::event::{AggregateType, DomainEvent, EventSet};
use devmind_domain::history::History;
use devmind_domain::node::Node;
use devmind_domain::projection::ProjectionSkips;
use devmind_domain::redaction::Redaction;
use devmind_domain::thread::{Thread, ThreadEvent};
use devmind_domain::tool_call::{Decision, Phase, ToolCall, ToolCallEvent};
use devmind_domain::tool_set::ToolSet;
use random::Random;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

const SEEDS: u64 = 400;
const COMMANDS: usize = 60;

/// Runs random commands and gives the log to `inspect`; says how many commands were refused and accepted.
fn run<A: Domain + PartialEq + Debug>(inspect: impl Fn(&[A::Event])) {
    let (mut refused, mut accepted) = (0, 0);
    for seed in 1..=SEEDS {
        let mut random = Random::new(seed);
        let mut live = A::default();
        let mut log: Vec<A::Event> = Vec::new();
        for _ in 0..COMMANDS {
            let command = live.command(&mut random);
            let before = live.clone();
            let Ok(events) = live.decide(command) else {
                refused += 1;
                assert_eq!(live, before, "seed {seed}: a refusal changes nothing");
                continue;
            };
            accepted += usize::from(!events.is_empty());
            for event in events {
                live.evolve(&event);
                // As the ledger gives it back: through its stored text.
                let stored = A::Event::read(event.type_name(), event.version(), &event.payload());
                let stored = stored.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                assert_eq!(stored, event, "seed {seed}: recording changed the event");
                log.push(stored);
            }
        }
        let mut replayed = A::default();
        log.iter().for_each(|event| replayed.evolve(event));
        assert_eq!(replayed, live, "seed {seed}: replay differs from what was lived");
        let stored = serde_json::to_string(&live).expect("a state is JSON");
        let loaded: A = serde_json::from_str(&stored).expect("a stored state loads");
        assert_eq!(loaded, live, "seed {seed}: storing changed the state");
        inspect(&log);
    }
    assert!(accepted > 500 && refused > 100, "the commands explore too little: {accepted} accepted, {refused} refused");
}

#[test]
fn a_replayed_conversation_equals_the_live_one_and_keeps_the_rules_of_runs_and_interrupts() {
    let seen = RefCell::new(BTreeSet::new());
    run::<Conversation>(|log| {
        invariants::conversation(log);
        seen.borrow_mut().extend(log.iter().map(EventSet::type_name));
    });
    let of_conversations =
        DomainEvent::all_types().into_iter().filter(|(kind, ..)| *kind == AggregateType::Conversation);
    let all: BTreeSet<_> = of_conversations.map(|(_, name, _)| name).collect();
    assert_eq!(seen.into_inner(), all, "the commands explore too little");
}

#[test]
fn a_replayed_thread_equals_the_live_one_and_every_call_has_at_most_one_result() {
    run::<Thread>(|log| {
        let (mut calls, mut results) = (BTreeSet::new(), BTreeSet::new());
        let (mut succeeded, mut concluded) = (None, false);
        for event in log {
            match event {
                ThreadEvent::ModelRequested(_) => {
                    assert!(calls.len() == results.len() && !concluded, "results missing, or the end: {log:?}");
                }
                ThreadEvent::ModelResponded(e) => {
                    for call in &e.tool_calls {
                        assert!(!call.id.is_empty() && calls.insert(call.id.clone()), "{} stands twice", call.id);
                    }
                }
                ThreadEvent::ToolResultObserved(e) => {
                    let (_, call) = e.tool_call_id.as_str().split_once(':').expect("thread:call");
                    assert!(calls.contains(call) && results.insert(call.to_owned()), "{log:?}");
                    succeeded = e.ok.then(|| e.tool_call_id.clone());
                }
                ThreadEvent::ContextDeferred(e) => assert_eq!(succeeded.as_ref(), Some(&e.tool_call_id), "{log:?}"),
                ThreadEvent::TurnConcluded(e) => {
                    assert_eq!(succeeded.as_ref(), Some(&e.tool_call_id), "{log:?}");
                    concluded = true;
                }
                ThreadEvent::ThreadStarted(_) | ThreadEvent::AnswerProgressed(_) | ThreadEvent::ModelFailed(_) => {}
            }
        }
    });
}

#[test]
fn a_replayed_tool_call_equals_the_live_one_and_is_settled_at_most_once() {
    run::<ToolCall>(|log| {
        let (mut attempts, mut results, mut refused, mut requests) = (0, 0, 0, 0);
        let mut last_decision = None;
        let mut phases: BTreeMap<u32, Phase> = BTreeMap::new();
        let mut said_no = BTreeSet::new();
        for event in log {
            match event {
                ToolCallEvent::ToolCallRequested(_) => requests += 1,
                ToolCallEvent::ToolDispatched(e) => {
                    attempts += 1;
                    assert_eq!((e.attempt_no, requests, results, refused), (attempts, 1, 0, 0), "{log:?}");
                    assert_ne!(last_decision, Some(Decision::Ask), "sent while a person is asked: {log:?}");
                }
                ToolCallEvent::ToolResultRecorded(e) => {
                    results += 1;
                    assert!(results == 1 && (1..=attempts).contains(&e.executed_attempt_no), "{log:?}");
                }
                ToolCallEvent::ToolWaitTimedOut(e) => assert_eq!((e.attempt_no, results), (attempts, 0), "{log:?}"),
                ToolCallEvent::ToolCancelRequested(e) => assert_eq!((e.attempt_no, results), (attempts, 0), "{log:?}"),
                ToolCallEvent::ToolReceived(e) => {
                    assert!(e.attempt_no <= attempts && results == 0, "{log:?}");
                    let before = phases.insert(e.attempt_no, e.phase);
                    assert!(before.is_none_or(|before| before < e.phase), "an attempt that went back: {log:?}");
                }
                ToolCallEvent::ToolResultAcked(_) => assert_eq!(results, 1, "an ack before its result: {log:?}"),
                ToolCallEvent::ToolCallDecided(e) => {
                    assert_eq!((attempts, refused), (0, 0), "a decision after a dispatch or a refusal: {log:?}");
                    refused += u32::from(e.decision == Decision::Deny);
                    last_decision = Some(e.decision);
                }
                ToolCallEvent::ToolAttemptRefused(e) => {
                    assert!(e.attempt_no <= attempts && results == 0, "{log:?}");
                    let before = said_no.insert(e.attempt_no);
                    assert!(before, "said twice: {log:?}");
                }
                ToolCallEvent::ToolOutcomeRevised(_) => panic!("no command of these causes {event:?}"),
            }
        }
    });
}

#[test]
fn a_replayed_device_equals_the_live_one_and_a_ticket_is_used_at_most_once() {
    run::<Device>(|log| {
        let (mut issued, mut consumed, mut epochs) = (BTreeMap::new(), BTreeMap::new(), 0);
        let mut journals: BTreeMap<&str, u64> = BTreeMap::new();
        for event in log {
            match event {
                DeviceEvent::DeviceTicketIssued(e) => *issued.entry(&e.ticket_hash).or_insert(0) += 1,
                DeviceEvent::DeviceTicketConsumed(e) => {
                    let times = consumed.entry(&e.ticket_hash).or_insert(0);
                    *times += 1;
                    assert!(issued.get(&e.ticket_hash).is_some_and(|issued| *times <= *issued), "{log:?}");
                }
                DeviceEvent::DeviceConnected(e) => {
                    epochs += 1;
                    assert_eq!(e.connection_epoch, epochs);
                    let before = journals.insert(&e.journal_id, e.journal_epoch);
                    assert!(before.is_none_or(|before| before <= e.journal_epoch), "a journal went back: {log:?}");
                }
                DeviceEvent::ToolRegistrySynced(_)
                | DeviceEvent::DeviceDisconnected(_)
                | DeviceEvent::DeviceReplaced(_)
                | DeviceEvent::DeviceDescribed(_)
                | DeviceEvent::DeviceRead(_) => {}
            }
        }
    });
}

#[test]
fn a_replayed_node_equals_the_live_one() {
    run::<Node>(|_| {});
}

/// Every golden event that there is, full and minimal.
fn golden_events() -> Vec<DomainEvent> {
    let mut events = Vec::new();
    for (kind, event_type, version) in DomainEvent::all_types() {
        for suffix in ["", ".minimal"] {
            if let Some(payload) = golden::read(&format!("{event_type}.v{version}{suffix}.json")) {
                events.push(golden::decode(kind, event_type, version, &payload).expect("a golden event loads"));
            }
        }
    }
    events
}

/// Folds the golden events of one kind in many orders, with repetitions, and decides on what comes out.
fn fold_in_any_order<A: Domain>(kind: AggregateType, pick: impl Fn(DomainEvent) -> Option<A::Event>) {
    let events: Vec<A::Event> = golden_events().into_iter().filter_map(pick).collect();
    assert!(!events.is_empty(), "{kind:?} has golden events");
    let mut states = vec![A::default()];
    for first in &events {
        for second in &events {
            let mut state = A::default();
            state.evolve(first);
            state.evolve(second);
            states.push(state);
        }
    }
    for seed in 1..=SEEDS {
        let mut random = Random::new(seed);
        let mut state = A::default();
        for _ in 0..COMMANDS {
            state.evolve(&events[random.below(events.len())]);
        }
        states.push(state);
    }
    for (seed, state) in (1..).zip(states) {
        let _events_or_refusal = state.decide(state.command(&mut Random::new(seed)));
    }
}

#[test]
fn any_order_of_any_events_folds_and_can_be_decided_upon_without_a_panic() {
    fold_in_any_order::<Conversation>(AggregateType::Conversation, |event| match event {
        DomainEvent::Conversation(event) => Some(event),
        _ => None,
    });
    fold_in_any_order::<Thread>(AggregateType::Thread, |event| match event {
        DomainEvent::Thread(event) => Some(event),
        _ => None,
    });
    fold_in_any_order::<ToolCall>(AggregateType::ToolCall, |event| match event {
        DomainEvent::ToolCall(event) => Some(event),
        _ => None,
    });
    fold_in_any_order::<Device>(AggregateType::Device, |event| match event {
        DomainEvent::Device(event) => Some(event),
        _ => None,
    });
    fold_in_any_order::<Redaction>(AggregateType::Redaction, |event| match event {
        DomainEvent::Redaction(event) => Some(event),
        _ => None,
    });
    fold_in_any_order::<ProjectionSkips>(AggregateType::Projection, |event| match event {
        DomainEvent::Projection(event) => Some(event),
        _ => None,
    });
    fold_in_any_order::<History>(AggregateType::History, |event| match event {
        DomainEvent::History(event) => Some(event),
        _ => None,
    });
    fold_in_any_order::<ToolSet>(AggregateType::ToolSet, |event| match event {
        DomainEvent::ToolSet(event) => Some(event),
        _ => None,
    });
    fold_in_any_order::<Node>(AggregateType::Node, |event| match event {
        DomainEvent::Node(event) => Some(event),
        _ => None,
    });
}
