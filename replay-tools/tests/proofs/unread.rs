//! What a command says of a log that it cannot understand or read all of: everything else, what it lacks and in its
//! place, and by the exit status that it lacks something.

use super::json_of;
use super::support::{Data, Ran, code_of};
use serde_json::{Value, json};

async fn ran(data: &Data, order: &str) -> Ran {
    data.run(&order.split(' ').collect::<Vec<_>>()).await
}

#[tokio::test]
async fn an_event_that_cannot_be_understood_makes_no_success_of_what_is_shown_without_it() {
    let data = Data::with_story().await;
    let limited = ran(&data, "log --follow --limit 3").await;
    assert_eq!((limited.status, limited.stdout.lines().count()), (0, 3), "it ends with the limit: {limited:?}");
    assert_eq!(ran(&data, "rebuild --yes").await.status, 0);
    data.tamper("UPDATE events SET payload = '{}' WHERE event_type = 'ToolDispatched'").await;
    for (order, status) in [
        ("log", 1),
        ("log --at 8", 0),
        ("show --conversation c", 1),
        ("show --conversation c --at 8", 0),
        ("show --conversation c --diff 3 12", 1),
        ("show --conversation c --diff 12 3", 1),
        ("show --conversation c --diff 8 3", 0),
        ("timeline --run r", 1),
        ("timeline --run r --at 8", 0),
        ("reconcile", 1),
        ("reconcile --at 8", 0),
        ("stats", 1),
        ("stats --at 8", 0),
        ("schema check", 3),
        ("schema check --at 8", 0),
        // The result is there, but what was sent is not known.
        ("prove-once --tool-call g:call", 1),
        ("export spans.jsonl --format otlp", 1),
        ("export earlier.jsonl --format otlp --at 8", 0),
        ("rebuild --check", 1),
        ("attest --at 12", 1),
        ("attest --at 8", 0),
    ] {
        let told = ran(&data, order).await;
        assert_eq!(told.status, status, "{order}: {told:?}");
    }
    // Worse than what it lacks is what differs.
    data.change_views("UPDATE conversations SET title = 'not what the log says'").await;
    assert_eq!(ran(&data, "rebuild --check").await.status, 3);
    assert_eq!(ran(&data, "rebuild --yes").await.status, 1);
    let none = ran(&data, "export spans.jsonl --format otlp").await;
    assert_eq!((none.status, code_of(&none)), (1, "IO_ERROR"), "it is there: {none:?}");
    for order in ["export none.jsonl --format otlp --run nobody", "export none.jsonl --format otlp --at 3"] {
        let none = ran(&data, order).await;
        assert_eq!((none.status, code_of(&none)), (1, "RUN_NOT_FOUND"), "{order}: {none:?}");
    }
    let none = ran(&data, "show --tool-call nobody's").await;
    assert!(code_of(&none) == "NOT_FOUND" && none.stderr.contains("knows no tool call"), "{none:?}");
    let first = json_of(&ran(&data, "--json schema check").await);
    let bad: Vec<&Value> =
        first["versions"].as_array().expect("as told").iter().filter(|of| of["first"].is_object()).collect();
    assert_eq!((bad.len(), &bad[0]["first"]["position"]), (1, &json!(9)), "{first}");
}

#[tokio::test]
async fn of_several_events_that_do_not_fit_the_first_is_named_and_of_calls_what_nobody_waits_for_any_more_is_unknown() {
    let data = Data::with_story().await;
    data.fill(4).await;
    let events = data.events();
    data.tamper(&format!("UPDATE events SET payload = '{{}}' WHERE position > {}", events + 2)).await;
    let told = json_of(&ran(&data, "--json schema check").await);
    let stopped = told["versions"].as_array().expect("as told").iter().find(|of| of["event_type"] == "NodeStopped");
    assert_eq!(stopped.expect("counted")["first"]["position"], events + 3);
    for (kind, payload, unknown) in [
        ("ToolWaitTimedOut", json!({ "attempt_no": 1, "after_ms": 1 }), 1),
        ("ToolAttemptRefused", json!({ "attempt_no": 1, "code": "DEVICE_BUSY" }), 0),
    ] {
        data.tamper(&format!("UPDATE events SET event_type = '{kind}', payload = '{payload}' WHERE position = 10"))
            .await;
        let tool = json_of(&ran(&data, "--json stats --at 12").await)["tools"]["workspace.read_file"].clone();
        assert_eq!((&tool["unknown"], &tool["under_way"]), (&json!(unknown), &json!(0)), "{kind}: {tool}");
    }
}

#[tokio::test]
async fn a_row_that_holds_no_event_is_shown_in_its_place_up_to_the_position_that_is_asked_for() {
    let data = Data::with_story().await;
    data.tamper("UPDATE events SET recorded_at = 'yesterday' WHERE position IN (5, 12)").await;
    let whole = ran(&data, "log").await;
    let starts = |line: &str| line.split(' ').next().expect("a word").to_owned();
    let expected: Vec<String> = (1..=12).map(|position| format!("#{position}")).collect();
    assert_eq!(whole.stdout.lines().map(starts).collect::<Vec<_>>(), expected);
    for position in [5, 12] {
        assert!(whole.stdout.contains(&format!("#{position} cannot be read: recorded_at")), "{whole:?}");
    }
    for (at, status) in [(4, 0), (5, 1), (11, 1)] {
        let told = ran(&data, &format!("log --at {at}")).await;
        let lines = told.stdout.lines().count();
        assert_eq!((told.status, lines, told.stderr.contains("event 12 ")), (status, at, false), "{told:?}");
    }

    // What nothing can be proved of is not proved, whatever the call's own events say.
    let data = Data::with_story().await;
    data.tamper("UPDATE events SET leaf_hash = zeroblob(32) WHERE position = 1").await;
    let told = ran(&data, "prove-once --tool-call g:call").await;
    assert!(told.status == 1 && told.stdout.starts_with("executed once"), "{told:?}");
    assert!(told.stderr.contains("nothing of it can be proved"), "{told:?}");

    // A thousand rows are named, and the others counted.
    data.fill(1_100).await;
    data.tamper("UPDATE events SET recorded_at = 'yesterday'").await;
    let many = ran(&data, "stats").await;
    let named = many.stderr.lines().filter(|line| line.starts_with("event ")).count();
    assert!(many.status == 1 && named == 1_000 && many.stderr.contains("more\n"), "{named}");
    // Why nothing is known of a run that there was.
    let unknown = ran(&data, "timeline --run r").await;
    assert_eq!((unknown.status, code_of(&unknown)), (1, "RUN_NOT_FOUND"), "{unknown:?}");
    assert!(unknown.stderr.contains("event 5 [LEDGER_CORRUPT]"), "{unknown:?}");
}

#[tokio::test]
async fn what_is_erased_is_erased_from_all_files_of_the_views_and_what_cannot_be_removed_is_named() {
    let order = "redact --position 3 --reason asked --operator olga --yes";
    let data = Data::with_story().await;
    for missing in ["status", "attest"] {
        let none = ran(&data, missing).await;
        assert_eq!((none.status, code_of(&none)), (1, "NOT_READY"), "{none:?}");
    }
    for file in ["views.sqlite", "views.sqlite-wal", "views.sqlite-shm"] {
        data.write(file, "read README.md");
    }
    assert_eq!(ran(&data, order).await.status, 0);
    assert!(!data.files().iter().any(|name| name.starts_with("views")), "{:?}", data.files());
    std::fs::create_dir_all(data.path().join("views.sqlite/in the way")).expect("made");
    let order = order.replace("--position 3", "--position 7");
    let left = ran(&data, &order).await;
    assert!(left.status == 1 && left.stderr.contains("still holds what was erased"), "{left:?}");
}
