//! The journal's transitions, restarts and refusals, on a real file.

mod crash_images;

use super::*;
use crate::error::DeviceError;
use devmind_domain::limits::{OUTPUT_DAYS, TOMBSTONE_DAYS};
use devmind_domain::tool_call::{Phase, ResultStatus};
use serde_json::json;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

const DAY_MS: i64 = 24 * 3_600 * 1_000;

async fn open(folder: &Path) -> Journal {
    try_open(folder).await.expect("journal opens")
}

async fn try_open(folder: &Path) -> Result<Journal, DeviceError> {
    Journal::open(StateDir::open(&folder.join("state"))?, "instance").await
}

fn owner(name: &str) -> Owner {
    Owner { server_id: name.to_owned(), user_hash: "ada".to_owned() }
}

fn request(id: &str) -> CallRequest {
    CallRequest {
        tool_call_id: id.into(),
        run_id: "run".into(),
        attempt_no: 1,
        tool_name: "workspace.read_file".into(),
        tool_version: "1".into(),
        arguments_json: "{}".into(),
        call_hash: "hash".into(),
        requires_confirmation: true,
        execution_timeout_ms: 1_000,
        ttl_ms: 1_000,
        expires_at: None,
        call_created_at: clock::now(),
        device_id: "device".into(),
        conversation_title: "title".into(),
    }
}

fn success() -> Settlement {
    Settlement::succeeded(&json!({ "content": "x" }))
}

/// Runs a pragma that answers with a number.
fn execute(journal: &Journal, pragma: &str) -> i64 {
    journal.usable().expect("usable").query_row(pragma, [], |row| row.get(0)).expect("pragma")
}

async fn result_of(journal: &Journal, id: &str) -> Option<(ResultStatus, Option<String>)> {
    let row = journal.find(&id.into()).expect("readable")?;
    row.outcome.ok().map(|result| (result.status, result.error.map(|error| error.code)))
}

#[tokio::test]
async fn a_call_goes_forward_only_and_its_first_settlement_stays() {
    let folder = tempfile::tempdir().expect("folder");
    let journal = open(folder.path()).await;
    let id = ToolCallId::from("call");
    assert!(!journal.begin(&id).await.expect("readable"), "nothing begins without a reservation");
    journal.reserve(&request("call"), &owner("s")).await.expect("reserved");
    assert_eq!(journal.find(&id).expect("read").expect("row").outcome, Err(Phase::Reserved));
    assert!(journal.begin(&id).await.expect("begun"));
    assert!(!journal.begin(&id).await.expect("asked"), "a call begins once");
    assert!(journal.settle(&id, &success()).await.expect("settled"));
    let late = Settlement::without_success(ResultStatus::Failed, ErrorCode::ExecutionTimeout, "late");
    assert!(!journal.settle(&id, &late).await.expect("asked"), "a call is settled once");
    assert_eq!(result_of(&journal, "call").await, Some((ResultStatus::Succeeded, None)));
    assert!(!journal.begin(&id).await.expect("asked"), "a settled call does not begin");
}

#[tokio::test]
async fn a_restart_settles_what_was_left_and_never_lets_it_run() {
    let folder = tempfile::tempdir().expect("folder");
    let journal = open(folder.path()).await;
    let (journal_id, epoch) = (journal.journal_id().to_owned(), journal.epoch());
    for id in ["reserved", "executing", "done"] {
        journal.reserve(&request(id), &owner("s")).await.expect("reserved");
    }
    assert!(journal.begin(&"executing".into()).await.expect("begun"));
    journal.settle(&"done".into(), &success()).await.expect("settled");
    let flushes = || journal.commits.watch().flushes.load(Ordering::Relaxed);
    let before = flushes();
    journal.begin_at_once(&request("at once"), &owner("s")).await.expect("begun");
    assert_eq!(flushes(), before + 1, "known and begun in one durable step");
    assert!(!journal.begin(&"at once".into()).await.expect("asked"), "a call begins once");
    // Dropped like a killed process: nothing is closed.
    drop(journal);

    let journal = open(folder.path()).await;
    assert_eq!(journal.journal_id(), journal_id);
    assert_eq!(journal.epoch(), epoch + 1);
    let expected = [
        ("reserved", ResultStatus::Cancelled, Some("NOT_EXECUTED")),
        ("executing", ResultStatus::Indeterminate, Some("DEVICE_RESTARTED")),
        ("at once", ResultStatus::Indeterminate, Some("DEVICE_RESTARTED")),
        ("done", ResultStatus::Succeeded, None),
    ];
    for (id, status, code) in expected {
        assert_eq!(result_of(&journal, id).await, Some((status, code.map(str::to_owned))), "{id}");
        assert!(!journal.begin(&id.into()).await.expect("asked"), "{id} must not run again");
    }
    assert_eq!(journal.pending(&owner("s"), 0, 10).expect("pending").len(), 4, "all are reported");
}

#[tokio::test]
async fn results_wait_for_their_own_server_and_user_in_the_order_of_settling() {
    let folder = tempfile::tempdir().expect("folder");
    let journal = open(folder.path()).await;
    for (id, server) in [("a", "s"), ("b", "other"), ("c", "s"), ("d", "s")] {
        journal.reserve(&request(id), &owner(server)).await.expect("reserved");
    }
    for id in ["d", "b", "a", "c"] {
        journal.settle(&id.into(), &success()).await.expect("settled");
    }
    let ids = async |after, limit| -> Vec<String> {
        let rows = journal.pending(&owner("s"), after, limit).expect("pending");
        rows.into_iter().map(|row| row.outcome.expect("settled").tool_call_id.0).collect()
    };
    assert_eq!(ids(0, 10).await, ["d", "a", "c"]);
    assert_eq!(ids(0, 1).await, ["d"]);
    assert_eq!(ids(1, 10).await, ["a", "c"]);
    journal.acknowledge(&"a".into(), Disposition::Stored).expect("acked");
    journal.park(&"c".into(), "EVENT_TOO_LARGE").expect("parked");
    assert_eq!(ids(0, 10).await, ["d"]);
    let stranger = Owner { user_hash: "bob".into(), ..owner("s") };
    assert!(journal.pending(&stranger, 0, 10).expect("pending").is_empty());
}

#[tokio::test]
async fn c07_c10_an_output_outlives_its_ack_and_the_memory_of_the_call_outlives_the_output() {
    let folder = tempfile::tempdir().expect("folder");
    let journal = open(folder.path()).await;
    let id = ToolCallId::from("call");
    for name in ["call", "unacked"] {
        journal.reserve(&request(name), &owner("s")).await.expect("reserved");
        journal.settle(&name.into(), &success()).await.expect("settled");
    }
    journal.acknowledge(&id, Disposition::Stored).expect("acked");
    let output = async |id: &str| {
        let row = journal.find(&id.into()).expect("read").expect("remembered");
        let result = row.outcome.expect("settled");
        (result.output.is_some(), result.output_discarded, result.output_sha256.is_some())
    };
    journal.clean(clock::now().plus_millis((OUTPUT_DAYS - 1) * DAY_MS)).await.expect("cleaned");
    assert_eq!(output("call").await, (true, false, true), "kept after the ack");
    journal.clean(clock::now().plus_millis((OUTPUT_DAYS + 1) * DAY_MS)).await.expect("cleaned");
    assert_eq!(output("call").await, (false, true, true), "gone, and says so");
    assert_eq!(output("unacked").await, (true, false, true), "never dropped before the ack");

    let created = request("x").call_created_at;
    journal.admit(created).expect("young");
    journal.clean(clock::now().plus_millis((TOMBSTONE_DAYS + 1) * DAY_MS)).await.expect("cleaned");
    assert_eq!(journal.find(&id).expect("read"), None, "forgotten");
    assert_eq!(journal.admit(Timestamp::from_micros(0)), Err(JournalError::TooOld), "and so not run again");
    journal.admit(clock::now()).expect("new calls are taken");
    assert!(journal.find(&"unacked".into()).expect("read").is_some());
}

#[tokio::test]
async fn too_many_unacknowledged_results_refuse_new_calls() {
    let folder = tempfile::tempdir().expect("folder");
    let journal = open(folder.path()).await;
    let verdict = Settlement::without_success(ResultStatus::Rejected, ErrorCode::PathNotFound, "no");
    for n in 0..MAX_UNACKED_RESULTS {
        journal.admit(clock::now()).expect("room");
        journal.record_verdict(&request(&format!("call {n}")), &owner("s"), &verdict).await.expect("recorded");
    }
    assert_eq!(journal.admit(clock::now()), Err(JournalError::Full));
    journal.acknowledge(&"call 0".into(), Disposition::Duplicate).expect("acked");
    journal.admit(clock::now()).expect("room again");
}

#[tokio::test]
async fn too_many_bytes_that_wait_for_an_acknowledgement_refuse_new_calls() {
    let folder = tempfile::tempdir().expect("folder");
    let journal = open(folder.path()).await;
    for (id, bytes) in [("a", OUTPUT_QUOTA_BYTES - 1), ("b", 1)] {
        journal.admit(clock::now()).expect("room");
        journal.reserve(&request(id), &owner("s")).await.expect("reserved");
        journal.settle(&id.into(), &success()).await.expect("settled");
        // As if the output were that large.
        let grow = "UPDATE calls SET output_bytes = ? WHERE tool_call_id = ?";
        journal.usable().expect("usable").execute(grow, params![bytes.cast_signed(), id]).expect("grown");
    }
    assert_eq!(journal.admit(clock::now()), Err(JournalError::Full));
    journal.acknowledge(&"a".into(), Disposition::Stored).expect("acked");
    journal.admit(clock::now()).expect("room again");
}

#[tokio::test]
async fn a_full_disk_refuses_new_calls_and_stores_a_settlement_without_its_output() {
    let folder = tempfile::tempdir().expect("folder");
    let journal = open(folder.path()).await;
    journal.reserve(&request("call"), &owner("s")).await.expect("reserved");
    let pages: i64 = execute(&journal, "PRAGMA page_count");
    execute(&journal, &format!("PRAGMA max_page_count = {pages}"));
    assert!(journal.begin(&"call".into()).await.expect("begun"));
    let large = Settlement::succeeded(&json!({ "content": "x".repeat(100_000) }));
    assert!(journal.settle(&"call".into(), &large).await.expect("settled without its output"));
    assert_eq!(result_of(&journal, "call").await, Some((ResultStatus::Succeeded, Some("OUTPUT_NOT_STORED".into()))));
    let mut refused = None;
    for n in 0..1_000 {
        refused = journal.reserve(&request(&format!("call {n} {}", "x".repeat(200))), &owner("s")).await.err();
        if refused.is_some() {
            break;
        }
    }
    assert_eq!(refused, Some(JournalError::Full));
    execute(&journal, "PRAGMA max_page_count = 1000000");
    journal.reserve(&request("later"), &owner("s")).await.expect("a full disk does not poison");
}

#[tokio::test]
async fn after_a_failed_write_the_journal_refuses_everything() {
    let folder = tempfile::tempdir().expect("folder");
    let journal = open(folder.path()).await;
    journal.reserve(&request("known"), &owner("s")).await.expect("reserved");
    let rename = |sql: &str| journal.connection.lock().expect("whole").execute_batch(sql).expect("renamed");
    rename("ALTER TABLE calls RENAME TO gone");
    assert!(matches!(journal.reserve(&request("a"), &owner("s")).await, Err(JournalError::Failed(_))));
    rename("ALTER TABLE gone RENAME TO calls");
    assert!(matches!(journal.find(&"a".into()), Err(JournalError::Failed(_))), "it is not trusted again");
    assert_eq!(journal.admit(clock::now()).map_err(|error| error.code()), Err(ErrorCode::DeviceJournalFailed));
    assert!(matches!(journal.begin(&"known".into()).await, Err(JournalError::Failed(_))), "nothing begins");
    drop(journal);
    open(folder.path()).await.admit(clock::now()).expect("a new start looks again");
}

#[tokio::test]
async fn a_damaged_or_newer_journal_is_refused_by_name_and_left_as_it_was() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("state/journal.sqlite");
    open(folder.path()).await.close().await;
    assert_eq!(std::fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);

    let journal = open(folder.path()).await;
    let newer = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
                 VALUES (9999, 'newer', 1, x'00', 0)";
    journal.usable().expect("usable").execute_batch(newer).expect("from the future");
    journal.close().await;
    let error = try_open(folder.path()).await.expect_err("newer");
    assert_eq!(error.code(), ErrorCode::LedgerSchemaNewer);

    let garbage = b"this is no database, it only looks like a file of some length".repeat(100);
    std::fs::write(&file, &garbage).expect("overwritten");
    let error = try_open(folder.path()).await.expect_err("damaged");
    assert_eq!(error.code(), ErrorCode::DeviceJournalFailed);
    assert!(error.hint().contains("keep the file"), "{}", error.hint());
    assert_eq!(std::fs::read(&file).expect("still there"), garbage);
}

#[tokio::test]
async fn the_write_ahead_log_is_folded_into_the_file_and_begins_anew() {
    const CALLS: u64 = 100;
    const BYTES_A_CALL: u64 = 8 << 10;
    let folder = tempfile::tempdir().expect("folder");
    let state = StateDir::open(&folder.path().join("state")).expect("state");
    let journal = Journal::open_with(state, "instance", 4).await.expect("opens");
    for n in 0..CALLS {
        journal.reserve(&request(&format!("call {n}")), &owner("s")).await.expect("reserved");
        journal.commits.until_folded();
    }
    let wal = std::fs::metadata(folder.path().join("state/journal.sqlite-wal")).expect("there").len();
    assert!(wal < CALLS * BYTES_A_CALL / 2, "{wal} bytes");
}

/// Waits until so many steps were committed since the start.
async fn until_committed(journal: &Journal, steps: u64) {
    while journal.commits.watch().committed.load(Ordering::Acquire) < steps {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
#[expect(clippy::await_holding_lock, reason = "it keeps the disk back, on another thread")]
async fn calls_that_wait_for_the_disk_share_a_transaction_and_none_returns_before_it_is_flushed() {
    const CALLS: u64 = 8;
    let folder = tempfile::tempdir().expect("folder");
    let journal = Arc::new(open(folder.path()).await);
    let watch = || journal.commits.watch();
    let (committed, flushes) = (watch().committed.load(Ordering::Acquire), watch().flushes.load(Ordering::Acquire));
    let reserving = |n: u64| {
        let journal = journal.clone();
        tokio::spawn(async move { journal.reserve(&request(&format!("call {n}")), &owner("s")).await })
    };
    let held = watch().disk.lock().expect("whole");
    let mut calls = vec![reserving(0)];
    until_committed(&journal, committed + 1).await;
    calls.extend((1..CALLS).map(reserving));
    while journal.commits.waiting() < CALLS as usize - 1 {
        tokio::task::yield_now().await;
    }
    // One that is refused takes none of the others along.
    let refused = tokio::spawn({
        let journal = journal.clone();
        async move { journal.commits.make(statement("INSERT INTO calls (tool_call_id) VALUES (NULL)", vec![])).await }
    });
    while journal.commits.waiting() < CALLS as usize {
        tokio::task::yield_now().await;
    }
    assert!(calls.iter().all(|call| !call.is_finished()), "nothing is on the disk yet");
    drop(held);
    for call in calls {
        call.await.expect("no panic").expect("reserved");
    }
    assert!(matches!(refused.await.expect("no panic"), Err(Undone::Refused(_))));
    assert_eq!(watch().flushes.load(Ordering::Acquire), flushes + 2);
    assert!((0..CALLS).all(|n| journal.find(&format!("call {n}").as_str().into()).expect("read").is_some()));
}

#[tokio::test]
#[expect(clippy::await_holding_lock, reason = "it keeps the disk back, on another thread")]
async fn a_result_is_not_given_to_be_sent_before_it_is_on_the_disk() {
    let folder = tempfile::tempdir().expect("folder");
    let journal = Arc::new(open(folder.path()).await);
    for id in ["early", "late"] {
        journal.reserve(&request(id), &owner("s")).await.expect("reserved");
    }
    journal.settle(&"early".into(), &success()).await.expect("settled");
    let committed = journal.commits.watch().committed.load(Ordering::Acquire);
    let held = journal.commits.watch().disk.lock().expect("whole");
    let settling = tokio::spawn({
        let journal = journal.clone();
        async move { journal.settle(&"late".into(), &success()).await }
    });
    until_committed(&journal, committed + 1).await;
    let waiting = || journal.pending(&owner("s"), 0, 10).expect("pending").len();
    assert_eq!(waiting(), 1, "the other one may yet be lost");
    drop(held);
    assert!(settling.await.expect("no panic").expect("settled"));
    assert_eq!(waiting(), 2);
}

#[tokio::test]
async fn after_a_failed_flush_the_journal_refuses_everything() {
    let folder = tempfile::tempdir().expect("folder");
    let mut journal = open(folder.path()).await;
    // A device that cannot be flushed.
    journal.commits.astray(std::fs::File::open("/dev/null").expect("a device"));
    assert!(matches!(journal.reserve(&request("a"), &owner("s")).await, Err(JournalError::Failed(_))));
    assert!(matches!(journal.find(&"a".into()), Err(JournalError::Failed(_))), "it is not trusted again");
}
