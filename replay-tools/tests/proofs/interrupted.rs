//! Work that takes long: it says how far it is, also where nobody looks at a terminal, and what was killed in the
//! middle of it goes on where it was.

use super::support::{Data, Ran};
use super::{json_of, publish};
use serde_json::Value;

/// Events of a log that an import stores in more than one transaction.
const EVENTS: usize = 1_100;

/// Runs the binary until it ends itself at a named place; nothing that it had not handed out is left of it.
async fn killed_at(data: &Data, place: &str, arguments: &[&str]) {
    let status = data.run_until_killed(arguments, &[("DEVMIND_KILL_POINT", place)]).await;
    assert!(status, "{arguments:?} passed {place}");
}

/// Says how much was done, and how fast.
fn assert_tells(ran: &Ran, what: &str) {
    let line = ran.stderr.lines().find(|line| line.starts_with(what));
    let line = line.unwrap_or_else(|| panic!("no line of {what:?}: {ran:?}"));
    assert!(line.contains(" of ") && line.contains("/s, "), "{line}");
}

fn contents(data: &Data, name: &str) -> Vec<u8> {
    std::fs::read(data.path().join(name)).expect("a file")
}

#[tokio::test]
async fn what_was_killed_in_the_middle_goes_on_where_it_was_to_the_same_result_and_tells_its_progress() {
    let data = Data::with_story().await;
    data.fill(EVENTS).await;
    publish(&data).await;
    let file = |name: &str| data.path().join(name).to_str().expect("a plain path").to_owned();
    let (whole, again) = (file("whole.jsonl"), file("again.jsonl"));

    let exported = data.run(&["export", &whole]).await;
    assert_eq!(exported.status, 0, "{exported:?}");
    assert_tells(&exported, "exporting: ");
    killed_at(&data, "export page", &["export", &again]).await;
    assert!(!data.path().join("again.jsonl").exists(), "it is there once it is whole");
    let resumed = data.run(&["--json", "export", &again]).await;
    assert_eq!(resumed.status, 0, "{resumed:?}");
    assert!(json_of(&resumed)["resumed"].as_u64() > Some(0), "{resumed:?}");
    assert!(contents(&data, "again.jsonl") == contents(&data, "whole.jsonl"));

    let target = Data::empty();
    killed_at(&target, "import part", &["import", &whole, "--yes"]).await;
    let imported = target.run(&["--json", "import", &whole, "--yes"]).await;
    assert_eq!(imported.status, 0, "{imported:?}");
    assert_tells(&imported, "importing: ");
    assert_eq!(json_of(&imported)["resumed"], 1_000, "{imported:?}");
    let verified = target.run(&["--json", "verify"]).await;
    assert_eq!((verified.status, &json_of(&verified)["root"]), (0, &json_of(&imported)["root"]), "{verified:?}");
    assert_tells(&verified, "verifying: ");

    // The first page of events is in all views, the second in none.
    killed_at(&data, "fill tool_call", &["rebuild", "--yes"]).await;
    let rebuilt = data.run(&["--json", "rebuild", "--yes"]).await;
    assert_eq!(rebuilt.status, 0, "{rebuilt:?}");
    assert_tells(&rebuilt, "rebuilding: ");
    let told = json_of(&rebuilt);
    let (log, views) = ((data.events() + EVENTS) as u64, 5);
    assert_eq!(told["resumed"], views * 1_000, "{told}");
    assert_eq!(told["events"], views * (log - 1_000), "{told}");
    assert_eq!(data.run(&["rebuild", "--check"]).await.status, 0);
    let left: Vec<_> = data.files().into_iter().filter(|name| name.starts_with("views-rebuild")).collect();
    assert!(left.is_empty(), "{left:?}");
    let attested = data.run(&["attest"]).await.stdout;
    let fresh = data.run(&["attest", "--at", &log.to_string()]).await;
    assert_eq!(fresh.stdout, attested, "{fresh:?}");
}

#[tokio::test]
async fn what_an_interrupted_rebuild_left_is_forgotten_where_an_event_was_erased_meanwhile() {
    let data = Data::with_story().await;
    killed_at(&data, "fill tool_call", &["rebuild", "--yes"]).await;
    let left = |data: &Data| data.files().into_iter().filter(|name| name.starts_with("views-rebuild")).count();
    assert_eq!(left(&data), 1);
    let order = ["redact", "--position", "3", "--reason", "asked for", "--operator", "olga", "--yes"];
    assert_eq!(data.run(&order).await.status, 0);
    assert_eq!(left(&data), 0, "its rows said what was erased");
    let shown: Value = json_of(&data.run(&["--json", "rebuild"]).await);
    assert_eq!((&shown["rebuilt"], &shown["projections"]), (&false.into(), &Value::Array(Vec::new())));
    let rebuilt = data.run(&["--json", "rebuild", "--yes"]).await;
    assert_eq!((rebuilt.status, &json_of(&rebuilt)["resumed"]), (0, &0.into()), "{rebuilt:?}");
    assert_eq!(data.run(&["rebuild", "--check"]).await.status, 0);
    let shown = data.run(&["rebuild"]).await;
    assert!(shown.status == 1 && shown.stdout.contains("conversation v"), "{shown:?}");
}
