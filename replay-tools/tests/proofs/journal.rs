//! `reconcile` and `prove-once` beside a device's journal that says something else than the log, says nothing of it,
//! or is none.

use super::json_of;
use super::support::{Data, code_of};
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

/// The journal as the device makes it.
const SCHEMA: &str = concat!(
    include_str!("../../../device/migrations/0001_journal.sql"),
    include_str!("../../../device/migrations/0002_history.sql"),
);

/// A journal with one call that it executed, for a ledger.
async fn journal(data: &Data, name: &str, (call, call_hash, ledger): (&str, &str, &str)) -> String {
    let file = data.path().join(name);
    let options = SqliteConnectOptions::new().filename(&file).create_if_missing(true);
    let mut sql = options.connect().await.expect("connected");
    sqlx::raw_sql(SCHEMA).execute(&mut sql).await.expect("the tables");
    sqlx::raw_sql("INSERT INTO journal VALUES (1, 'j', 1, 0)").execute(&mut sql).await.expect("a journal");
    let row = "INSERT INTO calls (tool_call_id, call_hash, tool, phase, instance_id, executed_attempt_no, server_id, \
         user_hash, call_created_at, reserved_at, started_at, status, settled_no, delivery) \
         VALUES ($1, $2, 'workspace.read_file', 'settled', 'i', 1, $3, 'u', 1, 1, 1, 'succeeded', 1, 'acked')";
    sqlx::query(row).bind(call).bind(call_hash).bind(ledger).execute(&mut sql).await.expect("a row");
    sql.close().await.expect("closed");
    file.to_str().expect("a plain path").to_owned()
}

#[tokio::test]
async fn a_journal_that_contradicts_the_log_is_exit_3_one_of_another_ledger_does_not_and_what_is_none_is_refused() {
    let data = Data::with_story().await;
    let told = json_of(&data.run(&["--json", "verify"]).await);
    let own = told["ledger_id"].as_str().expect("an id");
    let unknown = journal(&data, "unknown.sqlite", ("g:unknown", "h", own)).await;
    let broken = data.run(&["--json", "reconcile", "--journal", &unknown]).await;
    assert_eq!(broken.status, 3, "{broken:?}");
    let joined: Value = json_of(&broken)["journal"].clone();
    assert_eq!((&joined["conflicts_total"], &joined["executed_at_most_once"]), (&json!(1), &json!(false)), "{joined}");
    let words = data.run(&["reconcile", "--journal", &unknown]).await;
    assert_eq!(words.status, 3, "{words:?}");
    assert!(words.stdout.contains("conflict: g:unknown: the device has a call of this ledger that the log has not"));
    assert!(words.stderr.contains("contradict each other about 1 calls"), "{words:?}");

    let strange = journal(&data, "strange.sqlite", ("g:unknown", "h", "another")).await;
    let held = data.run(&["reconcile", "--journal", &strange]).await;
    assert!(held.status == 0 && held.stdout.contains("1 of its rows are of other ledgers"), "{held:?}");

    let other = journal(&data, "other.sqlite", ("g:call", "another call", own)).await;
    let proved = data.run(&["prove-once", "--tool-call", "g:call", "--journal", &other]).await;
    assert!(proved.status == 3 && proved.stdout.starts_with("conflict: "), "{proved:?}");

    // Worse than what cannot be understood is what contradicts.
    data.tamper("UPDATE events SET payload = '{}' WHERE position = 9").await;
    let proved = data.run(&["prove-once", "--tool-call", "g:call", "--journal", &other]).await;
    assert!(proved.status == 3 && proved.stderr.contains("event 9 "), "{proved:?}");

    data.write("none.sqlite", "no journal");
    for file in ["none.sqlite", "missing.sqlite", "ledger.sqlite"] {
        for command in [&["reconcile"][..], &["prove-once", "--tool-call", "g:call"]] {
            let refused = data.run(&[command, &["--journal", file]].concat()).await;
            assert_eq!((refused.status, code_of(&refused)), (1, "IO_ERROR"), "{file}: {refused:?}");
            assert!(refused.stdout.is_empty() && refused.stderr.contains("hint: it is journal.sqlite"), "{refused:?}");
        }
    }
    assert!(!data.path().join("missing.sqlite").exists());
}

#[tokio::test]
async fn log_and_journal_are_joined_as_of_a_position_over_the_calls_that_were_sent_to_this_journal_alone() {
    let data = Data::with_story().await;
    let told = json_of(&data.run(&["--json", "verify"]).await);
    let own = told["ledger_id"].as_str().expect("an id");
    data.tamper("UPDATE events SET payload = replace(payload, '\"target\":\"server\"', '\"target\":\"device\",\"device_id\":\"d\"') WHERE position = 8")
        .await;
    data.tamper("UPDATE events SET payload = replace(payload, '\"node_id\"', '\"journal_id\":\"j\",\"node_id\"') WHERE position = 9")
        .await;
    let log = data.run(&["--json", "log", "--type", "ToolCallRequested"]).await;
    let hash = json_of(&log)["payload"]["call_hash"].as_str().expect("a hash").to_owned();
    let file = journal(&data, "journal.sqlite", ("g:call", &hash, own)).await;
    let output =
        json_of(&data.run(&["--json", "log", "--type", "ToolResultRecorded"]).await)["payload"]["output_sha256"]
            .clone();
    change(
        &data,
        "journal.sqlite",
        &format!("UPDATE calls SET output_sha256 = {}", output.to_string().replace('"', "'")),
    )
    .await;
    let joined = async |at: &str| {
        let ran = data.run(&["--json", "reconcile", "--journal", &file, "--at", at]).await;
        let told = json_of(&ran);
        (ran.status, told["journal"]["calls"].clone(), told["open"].as_array().map(Vec::len))
    };
    assert_eq!(joined("10").await, (0, json!({ "executed once": 1 }), Some(0)));
    // The log had no result yet; the journal is as it is now, and no contradiction.
    assert_eq!(joined("9").await, (0, json!({ "executed once": 1 }), Some(1)));
    assert_eq!(joined("8").await, (0, json!({}), Some(1)), "it was not sent yet");
    assert_eq!(joined("7").await, (0, json!({}), Some(0)));
    for (at, status, says) in [("10", 0, "executed once"), ("9", 1, "unknown"), ("8", 0, "never executed")] {
        let ran = data.run(&["prove-once", "--tool-call", "g:call", "--at", at]).await;
        assert!(ran.status == status && ran.stdout.starts_with(says), "{at}: {ran:?}");
    }
    let before = data.run(&["prove-once", "--tool-call", "g:call", "--at", "7"]).await;
    assert_eq!((before.status, code_of(&before)), (1, "NOT_FOUND"), "{before:?}");

    // What the device's next connection brings for a call that is open then.
    let brings = async |at: &str| {
        let told = json_of(&data.run(&["--json", "reconcile", "--journal", &file, "--at", at]).await);
        told["open"][0]["journal"].as_str().expect("words").to_owned()
    };
    assert!(brings("9").await.contains("the server once said that it has it"));
    assert!(brings("8").await.contains("settled as succeeded"), "the journal is as it is now");
    change(&data, "journal.sqlite", "CREATE TABLE kept AS SELECT * FROM calls; DELETE FROM calls").await;
    assert!(brings("8").await.contains("never sent to a device"));
    assert!(brings("9").await.contains("the device never accepted it"));
    change(&data, "journal.sqlite", "UPDATE journal SET purged_through = 9000000000000000000").await;
    assert!(brings("9").await.contains("may have been forgotten"));
    change(&data, "journal.sqlite", "UPDATE journal SET purged_through = 0; INSERT INTO calls SELECT * FROM kept")
        .await;

    // Sent to another journal, or run by the server: this one cannot say anything.
    change(&data, "journal.sqlite", "UPDATE journal SET journal_id = 'other'; UPDATE calls SET status = 'failed'")
        .await;
    assert_eq!(joined("10").await, (0, json!({}), Some(0)));
    let foreign = data.run(&["prove-once", "--tool-call", "g:call", "--journal", &file]).await;
    assert!(foreign.status == 1 && foreign.stdout.starts_with("unknown: the journal other"), "{foreign:?}");
    change(&data, "journal.sqlite", "UPDATE journal SET journal_id = 'j'; DELETE FROM calls").await;
    assert_eq!(joined("10").await, (3, json!({ "conflict": 1 }), Some(0)), "the log has what no device did");
    data.tamper("UPDATE events SET payload = replace(payload, '\"target\":\"device\"', '\"target\":\"server\"') WHERE position = 8")
        .await;
    assert_eq!(joined("10").await, (0, json!({}), Some(0)));

    // More contradictions than are named are counted.
    let rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1001) INSERT INTO calls \
         (tool_call_id, call_hash, tool, phase, instance_id, executed_attempt_no, server_id, user_hash, call_created_at, \
         reserved_at) SELECT 'g:' || i, 'h', 't', 'reserved', 'i', 1, '{own}', 'u', 1, 1 FROM n";
    change(&data, "journal.sqlite", &rows.replace("{own}", own)).await;
    let many = data.run(&["--json", "reconcile", "--journal", &file]).await;
    let told = json_of(&many)["journal"].clone();
    assert_eq!(
        (many.status, told["conflicts"].as_array().map(Vec::len), &told["conflicts_total"]),
        (3, Some(1_000), &json!(1_001))
    );
    let words = data.run(&["reconcile", "--journal", &file]).await;
    assert!(words.stdout.contains("conflict: 1001 calls in all"), "{}", words.stderr);
}

/// Somebody's hand in the journal.
async fn change(data: &Data, name: &str, statements: &str) {
    let mut sql = SqliteConnectOptions::new().filename(data.path().join(name)).connect().await.expect("connected");
    sqlx::raw_sql(statements).execute(&mut sql).await.expect("changed");
    sql.close().await.expect("closed");
}
