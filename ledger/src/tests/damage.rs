//! What a reader answers of a log with a row that holds no event.

use super::support::*;
use crate::*;
use devmind_domain::ErrorCode;
use devmind_domain::event::DomainEvent;
use devmind_domain::thread::{ThreadEvent, ToolResultObserved};

/// The row that is damaged: the middle one of its stream.
const DAMAGED: u64 = 3;
const EVENTS: u64 = 5;

/// Columns, and what they are damaged with, in SQLite's words: text that is no UTF-8 where a text is free.
const COLUMNS: &str = include_str!("../../../tests/fixtures/damaged_columns.txt");

async fn filled(folder: &Folder) {
    let ledger = folder.open().await;
    ledger.append(append_events("s", 0, events(EVENTS as usize))).await.expect("appended");
    ledger.close().await;
}

fn positions(events: &[std::sync::Arc<devmind_domain::event::RecordedEvent>]) -> Vec<u64> {
    events.iter().map(|event| event.position).collect()
}

/// All other events are answered, whatever is asked, and the row is named with its column.
async fn is_passed_over(folder: &Folder, column: &str) {
    let damage = Damage::default();
    let reader = folder.reader().await.passing_over(&damage, true).await.expect("opened");
    let others = [1, 2, 4, 5];
    assert_eq!(positions(&reader.read(0, 100).await.expect("read")), others, "{column}");
    let mut one_by_one = Vec::new();
    while let Some(event) = reader.read(one_by_one.last().copied().unwrap_or(0), 1).await.expect("read").pop() {
        one_by_one.push(event.position);
    }
    assert_eq!(one_by_one, others, "{column}: a page without a sound row is not the end");
    let of_stream = reader.read_stream(&stream("s"), 0).await.expect("read");
    // It is no place in a stream that the row has lost.
    let stays = column == "partition";
    assert_eq!(positions(&of_stream), if stays { [1, 2, 3, 4, 5].as_slice() } else { &others }, "{column}");
    let filter = EventFilter { actor: Some("user:ann".into()), ..EventFilter::default() };
    assert_eq!(positions(&reader.query(&filter, 0, 100).await.expect("queried")), others, "{column}");
    let told = damage.rows().into_iter().find(|row| row.position == DAMAGED).expect(column);
    assert!(told.reason.contains(column), "{column}: {told:?}");
    let looked = reader.damaged_of(&EventFilter::default()).await.expect("looked");
    assert!(looked.iter().any(|row| row.position == DAMAGED), "{column}: {looked:?}");

    // Who passes over nothing gets what comes before, and then the error; who must not lack an event also where the row
    // stands elsewhere.
    let strict = folder.reader().await;
    assert_eq!(positions(&strict.read_gapless(0, 100).await.expect("read")), [1, 2], "{column}");
    let refused = strict.read_gapless(2, 100).await.expect_err(column);
    assert!(matches!(&refused, LedgerError::Damaged { position: DAMAGED, .. }), "{column}: {refused}");
    if !["partition", "position"].contains(&column) {
        assert_eq!(positions(&strict.read(0, 100).await.expect("read")), [1, 2], "{column}");
        let refused = strict.read(2, 100).await.expect_err(column);
        assert!(matches!(&refused, LedgerError::Damaged { position: DAMAGED, reason, .. } if reason.contains(column)));
        assert_eq!(refused.code(), ErrorCode::LedgerCorrupt);
    }
    let report = folder.verify().await;
    assert!(report.findings.iter().any(|finding| finding.position <= DAMAGED + 1), "{column}: {report:?}");
}

#[tokio::test]
async fn a_reader_that_passes_over_a_damaged_row_names_it_whichever_column_it_is_and_answers_all_others() {
    let folder = Folder::new();
    filled(&folder).await;
    for (column, value) in COLUMNS.lines().filter_map(|line| line.split_once('|')) {
        let copy = folder.copied().await;
        copy.tamper(&format!(
            "PRAGMA ignore_check_constraints = 1; UPDATE events SET {column} = {value} WHERE position = {DAMAGED}"
        ))
        .await;
        is_passed_over(&copy, column).await;
    }
}

#[tokio::test]
async fn the_same_on_postgres() {
    let folder = Folder::postgres();
    filled(&folder).await;
    folder.tamper(&format!("CREATE TABLE sound AS SELECT * FROM events WHERE position = {DAMAGED}")).await;
    for (column, value) in [
        ("partition", "7"),
        ("event_id", "'no UUID'"),
        ("sequence", "-3"),
        ("leaf_hash", "'\\x00'"),
        ("recorded_at", "'yesterday'"),
    ] {
        folder.tamper(&format!("UPDATE events SET {column} = {value} WHERE position = {DAMAGED}")).await;
        is_passed_over(&folder, column).await;
        let was = format!("(SELECT {column} FROM sound)");
        folder.tamper(&format!("UPDATE events SET {column} = {was} WHERE position = {DAMAGED}")).await;
    }
}

#[tokio::test]
async fn a_row_that_is_gone_is_told_by_who_reads_a_whole_log_and_by_nobody_who_reads_a_part() {
    let folder = Folder::new();
    filled(&folder).await;
    folder.tamper(&format!("DELETE FROM events WHERE position = {DAMAGED}")).await;
    for (whole, told) in [(true, 2), (false, 0)] {
        let damage = Damage::default();
        let reader = folder.reader().await.passing_over(&damage, whole).await.expect("opened");
        assert_eq!(reader.read(0, 100).await.expect("read").len(), 4);
        assert_eq!(reader.read_stream(&stream("s"), 0).await.expect("read").len(), 4);
        // As a place of the log, and as a number of its stream before the next.
        assert_eq!(damage.count(), told, "{:?}", damage.rows());
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_payload_that_is_no_json_may_be_about_any_call_and_keeps_no_other_event_from_being_found(folder: Folder) {
        let ledger = folder.open().await;
        let stream = devmind_domain::event::StreamId::new(devmind_domain::event::AggregateType::Thread, "t");
        let answers = |calls: &str| {
            let payload = serde_json::json!({
                "run_id": "r", "round": 1, "message_id": "m", "content": "", "finish_reason": "tool_calls", "usage": {},
                "tool_calls": [{ "id": calls, "name": "add", "arguments": "{}" }], "served_model": "m", "latency_ms": 1,
            });
            DomainEvent::decode("thread", "ModelResponded", 1, &payload.to_string()).expect("known").remove(0)
        };
        let observed = |call: &str| {
            let (tool_call_id, content) = (call.into(), "3".into());
            ThreadEvent::from(ToolResultObserved { tool_call_id, ok: true, content, error: None }).into()
        };
        let facts = [
            answers("call"), answers("other"), answers("call"), observed("t:call"), observed("t:other"), observed("t:call"),
            answers("list"),
        ];
        let mut thread = events(facts.len());
        thread.iter_mut().zip(facts).for_each(|(event, fact)| event.event = fact);
        let append =
            Append { streams: vec![StreamAppend { stream, expected_version: 0, events: thread }], idempotency: None };
        ledger.append(append).await.expect("appended");
        ledger.close().await;
        let filter = EventFilter { tool_call_id: Some("t:call".into()), ..EventFilter::default() };
        let found = async || positions(&folder.reader().await.query(&filter, 0, 9).await.expect("queried"));
        assert_eq!(found().await, [1, 3, 4, 6]);
        // An answer and a result that cannot be read, and JSON that is no answer.
        folder.tamper("UPDATE events SET payload = 'no JSON' WHERE position IN (1, 5)").await;
        folder.tamper("UPDATE events SET payload = '{\"tool_calls\":5}' WHERE position = 2").await;
        folder.tamper("UPDATE events SET payload = '{\"tool_calls\":[\"call\",7]}' WHERE position = 7").await;
        assert_eq!(found().await, [1, 3, 4, 5, 6]);
        let reader = folder.reader().await;
        assert_eq!(reader.last_before(&filter, 6).await.expect("looked"), Some(5));
        assert!(reader.read(0, 1).await.expect("read")[0].decode().is_err(), "whoever shows it says so");
    }
}
