//! `devmind-replay` on the data of a real server, at rest and while it is written.

mod rules;
mod what_if;

use devmind_tests::{Data, Finished, Process, Question, ServerProcess};
use serde_json::Value;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor};

async fn replay(data: &Data, arguments: &[&str]) -> Finished {
    let finished = Process::replay(data, arguments).await;
    finished.assert_no_panic();
    finished
}

/// The output of a success, each line as JSON.
fn json_lines(finished: &Finished) -> Vec<Value> {
    finished.assert_success();
    finished.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON lines")).collect()
}

#[tokio::test]
async fn the_log_the_timeline_the_verification_and_the_check_agree_with_a_running_server_and_after_it() {
    let server = ServerProcess::start(&[]).await;
    let ann = server.client("ann");
    let (asked, _) = ann.converse(&Question::new("add 1 and 2")).await;
    let data = server.data.clone();
    assert_readable(&data, &asked.run_id).await;
    ann.converse(&Question::new("add 3 and 4").within(&asked.conversation_id)).await;
    let everything = ann.everything().await;

    // Rebuilding beside a running server changes nothing that it shows.
    replay(&data, &["rebuild", "--yes"]).await.assert_success();
    assert_eq!(ann.everything().await, everything);
    ann.converse(&Question::new("add 5 and 6").within(&asked.conversation_id)).await;
    server.finish().await;
    assert_readable(&data, &asked.run_id).await;
}

/// Every command reads the data, and tells what the log holds.
async fn assert_readable(data: &Data, run_id: &str) {
    let facts = data.log().await.all().await;
    let lines = json_lines(&replay(data, &["--json", "log"]).await);
    assert_eq!(lines.len(), facts.len());
    for (line, fact) in lines.iter().zip(&facts) {
        assert_eq!((&line["position"], &line["event_type"]), (&fact.position.into(), &fact.kind.as_str().into()));
    }
    let of_run = json_lines(&replay(data, &["--json", "log", "--run", run_id]).await);
    assert!(!of_run.is_empty() && of_run.len() < lines.len());
    let succeeded = json_lines(&replay(data, &["--json", "log", "--run", run_id, "--type", "RunSucceeded"]).await);
    assert_eq!(succeeded.len(), 1);
    let timeline = replay(data, &["timeline", "--run", run_id]).await;
    timeline.assert_success();
    for words in ["run claimed", "model demo", "attempt 1", "run answered"] {
        assert!(timeline.stdout.contains(words), "no {words}: {timeline:#?}");
    }
    replay(data, &["verify"]).await.assert_success();
    replay(data, &["rebuild", "--check"]).await.assert_success();
}

#[tokio::test]
async fn a_changed_row_of_the_views_is_found_with_exit_3_and_a_rebuild_mends_it() {
    let server = ServerProcess::on_sqlite(&[]).await;
    server.client("ann").converse(&Question::new("add 1 and 2")).await;
    let data = server.data.clone();
    server.finish().await;
    let mut views = SqliteConnectOptions::new().filename(data.views_file()).connect().await.unwrap();
    let changed = views.execute("UPDATE turns SET answer = 'forged'").await.unwrap();
    assert_eq!(changed.rows_affected(), 1);
    views.close().await.unwrap();
    let finished = replay(&data, &["rebuild", "--check"]).await;
    assert_eq!(finished.code, Some(3), "{finished:#?}");
    assert!(finished.stdout.contains("forged"), "the difference is shown: {finished:#?}");
    replay(&data, &["rebuild", "--yes"]).await.assert_success();
    replay(&data, &["rebuild", "--check"]).await.assert_success();
    data.check().await;
}

#[tokio::test]
async fn a_folder_without_a_ledger_and_a_run_that_nobody_made_are_refused_and_nothing_is_created() {
    let data = Data::sqlite();
    for arguments in [&["log"][..], &["verify"], &["rebuild", "--check"], &["rebuild"], &["timeline", "--run", "r"]] {
        replay(&data, arguments).await.assert_refused("LEDGER_UNAVAILABLE");
    }
    assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 0, "a reader made files");

    let server = ServerProcess::start(&[]).await;
    let data = server.data.clone();
    replay(&data, &["timeline", "--run", "none"]).await.assert_refused("RUN_NOT_FOUND");
    server.finish().await;
}

#[tokio::test]
async fn the_state_at_an_earlier_position_is_what_the_server_showed_then_in_the_api_and_in_the_tool() {
    let server = ServerProcess::start(&[]).await;
    let ann = server.client("ann");
    let (asked, _) = ann.converse(&Question::new("add 1 and 2")).await;
    let then = server.log().await.head().await;
    let (turns, call) = (ann.turns(&asked.conversation_id).await, ann.tool_call(&asked).await);
    ann.converse(&Question::new("add 3 and 4").within(&asked.conversation_id)).await;

    let path = format!("/api/ledger/state?conversation_id={}", asked.conversation_id);
    let now = ann.get(&path).await.ok();
    assert_eq!(now["turns"].as_array().map(Vec::len), Some(2));
    let was = ann.get(&format!("{path}&at={then}")).await.ok();
    assert_eq!(was["turns"], serde_json::to_value(&turns).unwrap());
    assert_eq!(was["tool_calls"][0], call);
    let event = ann.get(&format!("/api/ledger/events?after={}&limit=1", then - 1)).await.ok();
    let recorded_at = event["events"][0]["recorded_at"].as_str().unwrap();
    assert_eq!(ann.get(&format!("{path}&at={recorded_at}")).await.ok(), was, "a time stands for its last event");
    assert_eq!(ann.get(&format!("{path}&at=1")).await.status, 404, "it had not begun");
    assert_eq!(ann.get(&format!("{path}&at=999999")).await.status, 404);
    assert_eq!(ann.get(&format!("{path}&at=yesterday")).await.status, 422);

    let data = server.data.clone();
    let then = then.to_string();
    let of = ["--conversation", asked.conversation_id.as_str()];
    let shown = replay(&data, &["--json", "show", of[0], of[1], "--at", &then]).await;
    assert_eq!(json_lines(&shown)[0]["state"], was);
    let words = replay(&data, &["show", of[0], of[1], "--at", &then]).await;
    assert!(words.stdout.contains("of ann") && words.stdout.contains("turn 1 completed"), "{words:#?}");
    assert!(
        words.stderr.contains(&format!("read at position {then}")) && !words.stdout.contains("turn 2"),
        "{words:#?}"
    );
    let head = server.log().await.head().await.to_string();
    let changed = replay(&data, &["show", of[0], of[1], "--diff", &then, &head]).await;
    assert!(changed.stdout.contains(".question: (nothing) → \"add 3 and 4\""), "{changed:#?}");
    let call_id = call["tool_call_id"].as_str().unwrap();
    assert_eq!(json_lines(&replay(&data, &["--json", "show", "--tool-call", call_id]).await)[0]["state"], call);
    let open = json_lines(&replay(&data, &["--json", "reconcile"]).await);
    assert_eq!(open[0]["open"], serde_json::json!([]), "everything is final");
    server.finish().await;
}

#[tokio::test]
async fn a_run_replays_to_the_same_decisions_and_one_whose_recorded_answer_was_altered_to_the_first_difference() {
    let server = ServerProcess::on_sqlite(&[]).await;
    let (asked, _) = server.client("ann").converse(&Question::new("add 1 and 2")).await;
    let data = server.data.clone();
    let run = ["--json", "replay", "--run", asked.run_id.as_str()];
    let same = json_lines(&replay(&data, &run).await);
    assert_eq!(same[0]["run"]["outcome"], "same", "{same:#?}");
    assert!(same[0]["run"]["decisions"].as_u64() >= Some(3), "{same:#?}");
    let rules = |name: &str, text: &str| {
        std::fs::write(data.path().join(name), text).unwrap();
        format!("policy={}", data.path().join(name).display())
    };
    let rule = "[[policies]]\nid = \"sums\"\ntool = \"add\"\ndecision = ";
    // What the tool itself says, what a rule says of other calls, and what no rule says.
    for (name, text) in [
        ("allow", format!("{rule}\"allow\"")),
        ("others", format!("{rule}\"deny\"\nuser = \"bob\"")),
        ("none", "policies = []".to_owned()),
    ] {
        let told = json_lines(&replay(&data, &[run.as_slice(), &["--with", &rules(name, &text)]].concat()).await);
        assert_eq!(told[0]["run"]["outcome"], "same", "{name}: {told:#?}");
    }
    let (deny, ask) =
        (rules("deny", &format!("{rule}\"deny\"\ncode = \"NO_SUMS\"")), rules("ask", &format!("{rule}\"ask\"")));
    for (with, replayed) in [
        (deny.as_str(), "deny add with {\"a\":1,\"b\":2}"),
        (deny.as_str(), "NO_SUMS by policy:sums"),
        (ask.as_str(), "APPROVAL_REQUIRED by policy:sums"),
        ("add=deny", "refused"),
        ("add=ask", "refused"),
        ("rounds=1", "MODEL_ROUND_LIMIT"),
        ("calls=0", "TOOL_LIMIT_REACHED"),
        ("model=another", "is not in the log"),
        ("system=Be brief.", "with the messages"),
    ] {
        let told = json_lines(&replay(&data, &[run.as_slice(), &["--with", with]].concat()).await);
        let told = &told[0]["run"];
        assert_eq!(told["outcome"], "differs", "{with}: {told:#?}");
        assert!(told["replay"].as_str().unwrap().contains(replayed), "{with}: {told:#?}");
    }
    replay(&data, &["replay", "--run", "none"]).await.assert_refused("RUN_NOT_FOUND");
    let facts = data.log().await.all().await;
    server.finish().await;

    let position = facts.iter().find(|fact| fact.kind == "ToolCallRequested").unwrap().position;
    data.change_ledger(
        r#"DROP TRIGGER events_no_update;
           UPDATE events SET payload = replace(payload, '\"a\":1', '\"a\":7') WHERE event_type = 'ModelResponded'"#,
    )
    .await;
    let altered = replay(&data, &run).await;
    assert_eq!(altered.code, Some(3), "{altered:#?}");
    let told: Value = serde_json::from_str(altered.stdout.lines().next().unwrap()).unwrap();
    assert_eq!((&told["run"]["outcome"], &told["run"]["position"]), (&"differs".into(), &position.into()), "{told:#?}");
    assert!(told["run"]["replay"].as_str().unwrap().contains('7'), "{told:#?}");
}
