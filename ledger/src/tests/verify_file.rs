//! What `verify` finds in a file that somebody changed.

use super::support::*;
use crate::verify::{Check, Published, verify};

const EVENTS: usize = 10;

async fn ledger_with_events() -> Folder {
    let folder = Folder::new();
    let ledger = folder.open().await;
    ledger.append(with_key(append_events("a", 0, events(EVENTS / 2)), "k", "h")).await.expect("appended");
    ledger.append(append_events("b", 0, events(EVENTS / 2))).await.expect("appended");
    ledger.close().await;
    folder
}

#[tokio::test]
async fn an_untouched_log_is_sound_and_the_root_is_the_heads() {
    let folder = ledger_with_events().await;
    let reader = folder.reader().await;
    let mut told = Vec::new();
    let report = verify(&reader, Published::default(), |done, total| told.push((done, total))).await.expect("verified");
    assert!(report.is_sound(), "{:?}", report.findings);
    assert_eq!((report.position, report.root), (EVENTS as u64, reader.head().await.expect("head").root));
    assert_eq!(told, [(EVENTS as u64, EVENTS as u64)]);
}

#[tokio::test]
async fn an_empty_log_is_sound() {
    let folder = Folder::new();
    folder.open().await.close().await;
    assert!(folder.verify().await.is_sound());
}

#[tokio::test]
async fn a_change_of_any_stored_column_is_found_and_located() {
    let changes = [
        ("partition = 1", Check::Order, 4),
        ("position = 99", Check::Order, 4),
        ("event_id = '019a0000-0000-7000-8000-000000000000'", Check::LeafHash, 3),
        ("event_id = 'x'", Check::Readable, 3),
        ("aggregate_type = 'thread'", Check::LeafHash, 3),
        ("aggregate_id = 'z'", Check::LeafHash, 3),
        ("sequence = 99", Check::LeafHash, 3),
        ("event_type = 'ConversationDeleted'", Check::LeafHash, 3),
        ("event_version = 2", Check::LeafHash, 3),
        ("payload = replace(payload, '\"2\"', '\"3\"')", Check::LeafHash, 3),
        ("payload = payload || ' '", Check::LeafHash, 3),
        ("metadata = replace(metadata, 'ann', 'bob')", Check::LeafHash, 3),
        ("metadata = 'not json'", Check::LeafHash, 3),
        ("recorded_at = '2020-01-01T00:00:00.000000Z'", Check::LeafHash, 3),
        ("recorded_at = replace(recorded_at, 'Z', '+00:00')", Check::Readable, 3),
        ("recorded_at = 'yesterday'", Check::Readable, 3),
        ("leaf_hash = zeroblob(32)", Check::LeafHash, 3),
    ];
    for (change, check, position) in changes {
        let folder = ledger_with_events().await;
        folder.tamper(&format!("UPDATE events SET {change} WHERE position = 3")).await;
        let report = folder.verify().await;
        let located = report.findings.iter().any(|finding| finding.check == check && finding.position == position);
        assert!(located, "{change}: {:?}", report.findings);
        assert!(!report.is_sound());
    }
}

#[tokio::test]
async fn a_change_of_one_events_content_is_reported_as_that_alone() {
    let folder = ledger_with_events().await;
    folder.tamper("UPDATE events SET payload = replace(payload, '\"2\"', '\"3\"') WHERE position = 3").await;
    let found: Vec<_> =
        folder.verify().await.findings.iter().map(|finding| (finding.check, finding.position)).collect();
    assert_eq!(found, [(Check::LeafHash, 3)]);
}

#[tokio::test]
async fn a_change_with_its_leaf_hash_made_to_fit_is_found_by_the_head() {
    let folder = ledger_with_events().await;
    folder.tamper("UPDATE events SET payload = replace(payload, '\"2\"', '\"3\"') WHERE position = 3").await;
    let forged = folder.reader().await.read(2, 1).await.expect("read")[0].expected_leaf_hash();
    let forged = format!("UPDATE events SET leaf_hash = X'{}' WHERE position = 3", hex::encode(forged));
    folder.tamper(&forged).await;
    let found: Vec<_> =
        folder.verify().await.findings.iter().map(|finding| (finding.check, finding.position)).collect();
    assert_eq!(found, [(Check::Head, EVENTS as u64)]);
}

#[tokio::test]
async fn removed_added_swapped_events_and_a_changed_head_are_found() {
    let copy = "partition, 11, 'new', aggregate_type, 'c', 1, event_type, event_version, payload, metadata, recorded_at, leaf_hash";
    let add = format!(
        "INSERT INTO events (partition, position, event_id, aggregate_type, aggregate_id, sequence, event_type, \
         event_version, payload, metadata, recorded_at, leaf_hash) SELECT {copy} FROM events WHERE position = 10"
    );
    let cases = [
        ("DELETE FROM events WHERE position = 3", Check::Order, 4),
        ("DELETE FROM events WHERE position = 10", Check::Head, 10),
        (add.as_str(), Check::Head, 11),
        (
            "UPDATE events SET position = 99 WHERE position = 2; UPDATE events SET position = 2 WHERE position = 3; \
             UPDATE events SET position = 3 WHERE position = 99",
            Check::LeafHash,
            2,
        ),
        ("UPDATE head SET root = zeroblob(32)", Check::Head, 10),
        ("UPDATE head SET frontier = zeroblob(64)", Check::Head, 10),
        ("UPDATE head SET size = 9", Check::Head, 10),
        ("UPDATE events SET sequence = 9 WHERE position = 5", Check::Sequences, 5),
        ("DELETE FROM idempotency", Check::Keys, 1),
        ("UPDATE idempotency SET key = 'other'", Check::Keys, 1),
        ("UPDATE idempotency SET request_hash = 'other'", Check::Keys, 1),
        ("UPDATE idempotency SET first_position = 2", Check::Keys, 1),
        ("UPDATE idempotency SET last_position = 7", Check::Keys, 6),
        ("UPDATE idempotency SET last_position = 99", Check::Keys, 1),
    ];
    for (statement, check, position) in cases {
        let folder = ledger_with_events().await;
        folder.tamper(statement).await;
        let report = folder.verify().await;
        let located = report.findings.iter().any(|finding| finding.check == check && finding.position == position);
        assert!(located, "{statement}: {:?}", report.findings);
    }
}

#[tokio::test]
async fn a_missing_trigger_is_found() {
    let folder = ledger_with_events().await;
    let mut sql = folder.sql().await;
    sqlx::query("DROP TRIGGER events_no_delete").execute(&mut sql).await.expect("dropped");
    drop(sql);
    let report = folder.verify().await;
    assert_eq!(report.findings.iter().map(|finding| finding.check).collect::<Vec<_>>(), [Check::Triggers]);
    assert!(report.findings[0].reason.contains("events_no_delete"));
}

#[tokio::test]
async fn an_event_of_a_newer_program_is_a_note_and_an_unreadable_payload_a_finding() {
    for (change, checks, notes) in
        [("event_type = 'ConversationStarred'", vec![], 1), ("payload = '{}'", vec![Check::Decoding], 0)]
    {
        let folder = Folder::new();
        let ledger = folder.open().await;
        ledger.append(append("a", 0, "x")).await.expect("appended");
        ledger.close().await;
        folder.forge(&format!("UPDATE events SET {change}")).await;
        let report = folder.verify().await;
        assert_eq!(report.findings.iter().map(|finding| finding.check).collect::<Vec<_>>(), checks, "{change}");
        assert_eq!(report.notes_total, notes, "{change}");
    }
}

#[tokio::test]
async fn time_that_goes_back_is_found_even_in_a_forged_log_whose_hashes_fit() {
    let folder = Folder::new();
    let ledger = folder.open().await;
    ledger.append(append_events("a", 0, events(2))).await.expect("appended");
    ledger.close().await;
    folder.forge("UPDATE events SET recorded_at = '2020-01-01T00:00:00.000000Z' WHERE position = 2").await;
    let report = folder.verify().await;
    let found: Vec<_> = report.findings.iter().map(|finding| (finding.check, finding.position)).collect();
    assert_eq!(found, [(Check::Time, 2)]);
}

#[tokio::test]
async fn findings_are_counted_beyond_those_that_are_kept() {
    let folder = Folder::new();
    let ledger = folder.open().await;
    ledger.append(append_events("a", 0, events(500))).await.expect("appended");
    ledger.close().await;
    folder.tamper("UPDATE events SET payload = '{}'").await;
    let report = folder.verify().await;
    assert!(report.findings_total >= 500);
    assert!(report.findings.len() <= 100);
}
