//! What is counted over a log, and whether a program can read it.

#[allow(dead_code, reason = "shared with another test program")]
mod support;

use devmind_domain::conversation::{Conversation, ConversationCommand};
use devmind_domain::event::{Actor, Metadata};
use devmind_ledger::execute;
use serde_json::{Value, json};
use support::{Data, Ran};

fn told(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

#[tokio::test]
async fn log_and_timeline_at_a_position_are_what_they_were_when_the_log_ended_there() {
    let data = Data::with_story().await;
    let whole = data.run(&["log"]).await.stdout;
    let whole: Vec<_> = whole.lines().collect();
    let mut timelines = Vec::new();
    for position in 0..=data.events() {
        let at = position.to_string();
        let ran = data.run(&["log", "--at", &at]).await;
        assert_eq!(ran.status, 0, "{ran:?}");
        assert_eq!(ran.stdout.lines().collect::<Vec<_>>(), &whole[..position]);
        assert!(ran.stderr.contains(&format!("read at position {position}")), "{}", ran.stderr);
        let ran = data.run(&["timeline", "--run", "r", "--at", &at]).await;
        let lines: Vec<_> = ran.stdout.lines().map(str::to_owned).collect();
        assert!(lines.iter().all(|line| {
            line.split_once(' ').is_some_and(|(n, _)| n[1..].parse::<usize>().expect("as told") <= position)
        }));
        timelines.push(lines.len());
    }
    assert!(timelines.is_sorted() && timelines[1] == 0 && timelines[data.events()] > 8, "{timelines:?}");
    let beyond = data.run(&["timeline", "--run", "r", "--at", "999"]).await;
    assert_eq!((beyond.status, support::code_of(&beyond)), (1, "NOT_FOUND"));
    let both = data.run(&["log", "--at", "3", "--follow"]).await;
    assert_eq!(both.status, 2, "a past log does not grow");
}

#[tokio::test]
async fn stats_count_events_calls_and_tokens_up_to_a_position() {
    let data = Data::with_story().await;
    let all = told(&data.run(&["stats", "--json", "--price", "m=1,2"]).await);
    assert_eq!(all["events"], data.events());
    assert_eq!(all["by_type"]["RunSucceeded"]["events"], 1);
    let sum: u64 =
        all["by_type"].as_object().expect("as told").values().map(|of| of["bytes"].as_u64().expect("as told")).sum();
    assert_eq!(all["bytes"], sum);
    let tool = &all["tools"]["workspace.read_file"];
    assert_eq!((&tool["requested"], &tool["succeeded"], &tool["unknown"]), (&json!(1), &json!(1), &json!(0)));
    assert_eq!(tool["slowest"], "g:call");
    assert_eq!((&all["models"][0]["answers"], &all["models"][0]["uncounted"]), (&json!(1), &json!(1)));
    assert_eq!(all["models"][0]["cost"], 0.0);
    // Before its result the call was waited for; a later start of the process makes it unknown.
    let before = told(&data.run(&["stats", "--json", "--at", "9"]).await);
    assert_eq!((&before["events"], &before["tools"]["workspace.read_file"]["under_way"]), (&json!(9), &json!(1)));
    let ran = data.run(&["stats"]).await;
    assert!(ran.status == 0 && ran.stdout.contains("workspace.read_file (g:call)"), "{ran:?}");
}

#[tokio::test]
async fn stats_call_a_dispatch_unknown_once_its_process_has_ended() {
    let data = Data::with_story().await;
    data.tamper("UPDATE events SET event_type = 'ToolCancelRequested', payload = '{\"attempt_no\":1,\"reason\":\"stop\"}' WHERE event_type = 'ToolResultRecorded'").await;
    let ledger = data.open().await;
    data.append(&ledger, &support::node_stopped(1)).await;
    ledger.close().await;
    let ran = data.run(&["stats", "--json"]).await;
    let tool = told(&ran)["tools"]["workspace.read_file"].clone();
    assert_eq!(
        (&tool["unknown"], &tool["under_way"], &tool["succeeded"]),
        (&json!(1), &json!(0), &json!(0)),
        "{ran:?}"
    );
}

#[tokio::test]
async fn schema_check_tells_compatible_from_needs_upcaster_from_unknown_from_breaking() {
    for (change, verdict, status) in [
        ("", "compatible", 0),
        ("UPDATE events SET event_version = 9 WHERE position = 1", "needs upcaster", 1),
        ("UPDATE events SET event_type = 'NodeUpgraded' WHERE position = 1", "unknown type", 1),
        ("UPDATE events SET payload = '{}' WHERE position = 1", "breaking", 3),
    ] {
        let data = Data::with_story().await;
        if !change.is_empty() {
            data.tamper(change).await;
        }
        let ran = data.run(&["schema", "check", "--json"]).await;
        let report = told(&ran);
        assert_eq!((report["verdict"].as_str(), ran.status), (Some(verdict), status), "{ran:?}");
        let counted: u64 = report["versions"]
            .as_array()
            .expect("as told")
            .iter()
            .map(|v| v["events"].as_u64().expect("as told"))
            .sum();
        assert_eq!(counted, data.events() as u64, "it goes on after what it cannot read");
        let ran = data.run(&["schema", "check"]).await;
        assert_eq!((ran.stdout.lines().last(), ran.status), (Some(verdict), status), "{ran:?}");
    }
}

#[tokio::test]
async fn a_stored_state_that_is_not_what_its_events_lead_to_breaks_the_check_from_its_position_on() {
    let data = Data::with_story().await;
    let ledger = data.open().await;
    let metadata = Metadata::new(Actor::user("ann"), "n".into()).conversation(&"c".into());
    // States are stored now and then.
    for number in 0..150 {
        let rename = ConversationCommand::Rename { title: format!("title {number}"), user_id: "ann".into() };
        execute::<Conversation>(&ledger, "c", &metadata, rename, None).await.expect("renamed");
    }
    ledger.close().await;
    assert_eq!(data.run(&["schema", "check"]).await.status, 0);
    data.tamper("UPDATE snapshots SET state = replace(state, 'title', 'other') WHERE aggregate_id = 'c'").await;
    let broken = data.run(&["schema", "check", "--json"]).await;
    let found = told(&broken)["stored_states_differ"].clone();
    assert_eq!((broken.status, found.as_array().map(Vec::len)), (3, Some(1)), "{broken:?}");
    let before = found[0]["position"].as_u64().expect("a position") - 1;
    let earlier = data.run(&["schema", "check", "--at", &before.to_string()]).await;
    assert_eq!(earlier.status, 0, "{earlier:?}");
}
