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
