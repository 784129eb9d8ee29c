//! `verify` against checkpoints and of bundles, `export`, `import`, `attest`, `redact`, `prove-once`, `witness`:
//! the real binary over real files.

#[path = "proofs/bundles.rs"]
mod bundles;
#[path = "proofs/interrupted.rs"]
mod interrupted;
#[path = "proofs/journal.rs"]
mod journal;
#[allow(dead_code, reason = "shared with another test program")]
mod support;
#[path = "proofs/unread.rs"]
mod unread;
#[path = "proofs/witness.rs"]
mod witness;
#[path = "proofs/witness_answers.rs"]
mod witness_answers;

use devmind_ledger::Ledger;
use devmind_ledger::proof::CheckpointRecord;
use serde_json::Value;
use support::{Data, Ran, code_of};

fn json_of(ran: &Ran) -> Value {
    serde_json::from_str(ran.stdout.lines().next().unwrap_or_default()).unwrap_or_else(|_| panic!("JSON: {ran:?}"))
}

/// What a server does at its stop.
async fn publish(data: &Data) {
    let ledger: Ledger = data.open().await;
    let seed = || Ok([7; 32]);
    let record = CheckpointRecord::open(data.path(), None, ledger.reader().clone(), seed).await.expect("a key");
    record.publish(devmind_domain::Timestamp::from_micros(1)).await.expect("published");
    ledger.close().await;
}

#[tokio::test]
async fn a_run_is_exported_and_verified_with_nothing_but_the_file_and_the_key_that_is_expected() {
    let data = Data::with_story().await;
    let file = data.path().join("run.jsonl");
    let file = file.to_str().expect("a plain path");
    let early = data.run(&["export", file, "--conversation", "c"]).await;
    assert_eq!((early.status, code_of(&early)), (1, "NOT_READY"), "{early:?}");
    publish(&data).await;
    let ran = data.run(&["--json", "export", file]).await;
    assert_eq!(ran.status, 0, "{ran:?}");
    let told = json_of(&ran);
    assert_eq!(told["events"], data.events());
    let nowhere = Data::empty();
    let fingerprint = told["fingerprint"].as_str().expect("a fingerprint");
    for (arguments, status) in [
        (vec!["verify", file], 0),
        (vec!["verify", file, "--key", fingerprint], 0),
        (vec!["verify", file, "--key", "another"], 3),
    ] {
        let ran = nowhere.run(&arguments).await;
        assert_eq!(ran.status, status, "{arguments:?}: {ran:?}");
    }
    let changed = std::fs::read_to_string(file).expect("read").replacen("README.md", "readme.md", 1);
    std::fs::write(file, changed).expect("written");
    let ran = nowhere.run(&["--json", "verify", file]).await;
    assert_eq!(ran.status, 3, "{ran:?}");
    assert_eq!(json_of(&ran)["sound"], false);
}

#[tokio::test]
async fn a_whole_ledger_is_exported_and_imported_with_the_same_root() {
    let data = Data::with_story().await;
    publish(&data).await;
    let file = data.path().join("all.jsonl");
    let file = file.to_str().expect("a plain path");
    let exported = json_of(&data.run(&["--json", "export", file]).await);
    let other = Data::empty();
    assert_eq!(other.run(&["import", file]).await.status, 1, "only checked");
    let ran = other.run(&["--json", "import", file, "--yes"]).await;
    assert_eq!(ran.status, 0, "{ran:?}");
    let imported = json_of(&ran);
    assert_eq!((&imported["root"], &imported["position"]), (&exported["root"], &exported["position"]));
    assert_eq!(other.run(&["verify"]).await.status, 0);
    let same = |ran: Ran| ran.stdout;
    assert_eq!(same(other.run(&["--json", "log"]).await), same(data.run(&["--json", "log"]).await));
}

#[tokio::test]
async fn verify_compares_a_ledger_with_its_checkpoints() {
    let data = Data::with_story().await;
    publish(&data).await;
    let ran = data.run(&["verify"]).await;
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(ran.stdout.contains("compared with 1 checkpoints, signed by the key"), "{}", ran.stdout);
    let file = data.path().join("checkpoints.jsonl");
    let text = std::fs::read_to_string(&file).expect("read");
    std::fs::write(&file, text.replacen(&format!("\\n{}\\n", data.events()), "\\n5\\n", 1)).expect("written");
    let ran = data.run(&["verify"]).await;
    assert_eq!(ran.status, 3, "{ran:?}");
    assert!(ran.stdout.contains("BROKEN  the log is what its checkpoints said"), "{}", ran.stdout);
}

#[tokio::test]
async fn a_redaction_is_shown_first_and_then_told_by_every_reader() {
    let data = Data::with_story().await;
    let order = ["redact", "--position", "3", "--reason", "asked for", "--operator", "olga"];
    let shown = data.run(&order).await;
    assert_eq!(shown.status, 1, "{shown:?}");
    assert!(shown.stdout.contains("would keep") && shown.stdout.contains("[redacted]"), "{shown:?}");
    assert_eq!(data.run(&["verify"]).await.status, 0);
    let ran = data.run(&[order.as_slice(), &["--yes"]].concat()).await;
    assert_eq!(ran.status, 0, "{ran:?}");
    let by = data.events() + 1;
    let verified = data.run(&["verify"]).await;
    assert_eq!(verified.status, 0, "{verified:?}");
    assert!(verified.stdout.contains(&format!("event 3: redacted by event {by}: asked for")), "{verified:?}");
    let timeline = data.run(&["timeline", "--run", "r"]).await;
    assert_eq!(timeline.status, 0, "{timeline:?}");
    assert!(timeline.stdout.contains(&format!("[redacted by event {by}]")), "{timeline:?}");
    for with in [&[][..], &["--with", "model=other"]] {
        let cannot = data.run(&[&["replay", "--run", "r"], with].concat()).await;
        let says = format!("cannot be replayed [EVENT_REDACTED]: event 3 was redacted by event {by}");
        assert!(cannot.status == 1 && cannot.stdout.contains(&says), "{cannot:?}");
    }
    let refused = data.run(&["redact", "--position", "1", "--reason", "x", "--operator", "olga", "--yes"]).await;
    assert_eq!((refused.status, code_of(&refused)), (1, "VALIDATION_FAILED"), "{refused:?}");
}

#[tokio::test]
async fn a_rebuild_to_the_same_size_attests_the_same_state_under_the_same_root() {
    let data = Data::with_story().await;
    assert_eq!(data.run(&["rebuild", "--yes"]).await.status, 0);
    let live = data.run(&["attest"]).await;
    assert_eq!(live.status, 0, "{live:?}");
    assert!(live.stdout.contains("conversation v"), "{live:?}");
    let rebuilt = data.run(&["attest", "--at", &data.events().to_string()]).await;
    assert_eq!((rebuilt.status, &rebuilt.stdout), (0, &live.stdout), "{rebuilt:?}");
    let earlier = data.run(&["attest", "--at", "3", "--projection", "conversation"]).await;
    assert!(earlier.status == 0 && !live.stdout.contains(earlier.stdout.trim()), "{earlier:?}");
}

#[tokio::test]
async fn the_exit_status_of_prove_once_says_what_became_of_the_call() {
    let data = Data::with_story().await;
    let ran = data.run(&["--json", "prove-once", "--tool-call", "g:call"]).await;
    assert_eq!(ran.status, 0, "{ran:?}");
    let told = json_of(&ran);
    assert_eq!(told["conclusion"], "executed once");
    assert_eq!(told["log"]["events"].as_array().map(Vec::len), Some(3));
    let unknown = data.run(&["prove-once", "--tool-call", "g:other"]).await;
    assert_eq!((unknown.status, code_of(&unknown)), (1, "NOT_FOUND"), "{unknown:?}");
}

#[tokio::test]
async fn a_log_of_a_cqrs_es_store_is_imported_on_demand_and_events_of_other_programs_only_when_they_are_to_be_kept() {
    let data = Data::empty();
    let file = data.path().join("theirs.sqlite");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&file).create_if_missing(true);
    let mut sql = sqlx::ConnectOptions::connect(&options).await.expect("connected");
    let rows = "CREATE TABLE journal (aggregate_type text, aggregate_id text, sequence integer, event_type text, \
         event_version text, payload text, metadata text); INSERT INTO journal VALUES \
         ('node', 'n', 1, 'NodeStarted', '1', '{\"NodeStarted\":{\"node_id\":\"n\",\"epoch\":1,\"version\":\"1\"}}', '{}'), \
         ('account', 'a', 1, 'Closed', '1.0', '\"Closed\"', '{\"mood\":\"good\"}')";
    sqlx::raw_sql(rows).execute(&mut sql).await.expect("written");
    sqlx::Connection::close(sql).await.expect("closed");
    let order = ["import", "--from-cqrs", file.to_str().expect("a plain path"), "--table", "journal"];
    let with = |more: &'static [&'static str]| [order.as_slice(), more].concat();

    let refused = data.run(&with(&["--yes"])).await;
    assert_eq!((refused.status, code_of(&refused)), (1, "VALIDATION_FAILED"), "{refused:?}");
    assert!(refused.stdout.contains("account / Closed"), "{refused:?}");
    let change = async |statement: &str| {
        let mut sql = sqlx::ConnectOptions::connect(&options).await.expect("connected");
        sqlx::raw_sql(statement).execute(&mut sql).await.expect("changed");
        sqlx::Connection::close(sql).await.expect("closed");
    };
    change("INSERT INTO journal VALUES ('node', 'n', 2, 'NodeStopped', '1', '{\"NodeStopped\":{}}', '{}')").await;
    let broken = data.run(&with(&["--keep-unknown", "--yes"])).await;
    assert!(broken.status == 3 && broken.stdout.contains("finding: "), "{broken:?}");
    change("DELETE FROM journal WHERE sequence = 2").await;
    assert_eq!(data.run(&with(&["--keep-unknown"])).await.status, 1, "only checked");
    assert!(!data.path().join("ledger.sqlite").exists(), "nothing is made without --yes");
    for resumed in [0, 2] {
        let ran = data.run(&[&["--json"], with(&["--keep-unknown", "--yes"]).as_slice()].concat()).await;
        assert_eq!(ran.status, 0, "{ran:?}");
        let told = json_of(&ran);
        assert_eq!((&told["imported"]["position"], &told["imported"]["resumed"]), (&2.into(), &resumed.into()));
        assert_eq!(told["unknown_events"], 1);
    }
    let verified = data.run(&["verify"]).await;
    assert_eq!(verified.status, 0, "{verified:?}");
    assert!(verified.stdout.contains("note: event 2"), "{verified:?}");
}
