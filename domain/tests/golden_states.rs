//! Stored states are used without their events being read again: a fold that changes must get another
//! `STATE_VERSION`, so that states of the older fold are not used.

mod golden;

use devmind_domain::Decider;
use devmind_domain::conversation::Conversation;
use devmind_domain::device::Device;
use devmind_domain::event::{DomainEvent, EventSet};
use devmind_domain::history::History;
use devmind_domain::node::Node;
use devmind_domain::projection::ProjectionSkips;
use devmind_domain::redaction::Redaction;
use devmind_domain::thread::Thread;
use devmind_domain::tool_call::ToolCall;
use devmind_domain::tool_set::ToolSet;
use golden::read;
use serde_json::Value;
use std::path::Path;

/// What a failing test tells the person who changed an aggregate.
const WHAT_TO_DO: &str = "The state or its fold has changed, so states that were stored before are wrong: raise the \
    aggregate's STATE_VERSION, run this test with DEVMIND_WRITE_GOLDEN=1, and commit the new file in the old one's place.";

/// The states after each golden event of the aggregate, folded in the order of their names.
fn folded<A: Decider>() -> Value {
    let mut state = A::default();
    let types = DomainEvent::all_types().into_iter().filter(|(kind, _, _)| *kind == A::TYPE);
    let mut names: Vec<_> = types.map(|(_, event_type, version)| (event_type, version)).collect();
    names.sort_unstable();
    let after = names.into_iter().map(|(event_type, version)| {
        let payload = read(&format!("{event_type}.v{version}.json")).expect("a golden file");
        let event = <A::Event as EventSet>::read(event_type, version, &payload.to_string()).expect("it loads");
        state.evolve(&event);
        serde_json::to_value(&state).expect("a state is JSON")
    });
    after.collect()
}

fn check<A: Decider>() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/states"));
    let file = folder.join(format!("{}.v{}.json", A::TYPE.as_str(), A::STATE_VERSION));
    let folded = folded::<A>();
    if std::env::var_os("DEVMIND_WRITE_GOLDEN").is_some() && !file.exists() {
        std::fs::create_dir_all(folder).expect("the folder");
        let text = serde_json::to_string_pretty(&folded).expect("JSON");
        std::fs::write(&file, text + "\n").expect("the golden state is written");
    }
    let golden =
        std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}. {WHAT_TO_DO}", file.display()));
    let golden: Value = serde_json::from_str(&golden).expect("JSON");
    assert_eq!(folded, golden, "{}: {WHAT_TO_DO}", A::TYPE.as_str());
}

#[test]
fn a_fold_that_changes_has_another_state_version() {
    check::<Conversation>();
    check::<Thread>();
    check::<ToolCall>();
    check::<Device>();
    check::<Node>();
    check::<Redaction>();
    check::<ProjectionSkips>();
    check::<History>();
    check::<ToolSet>();
}
