//! `devmind-replay` on the data of a real server, at rest and while it is written.

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
    replay(&data, &["rebuild"]).await.assert_success();
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
    let server = ServerProcess::on_sqlite().await;
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
    replay(&data, &["rebuild"]).await.assert_success();
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
