//! A log that holds an older shape, which two steps rename in and split, shows on every read path what a log of
//! today's events shows; its stored bytes stay what they are. A newer version than this program's stops a view.

use crate::apply::{Applied, apply};
use crate::registry::PROJECTIONS;
use crate::store::Store;
use crate::testing::*;
use crate::timeline::{timeline, timeline_of_run};
use crate::{ToolCallQuery, Views, check, conversation_at, rebuild};
use devmind_domain::Timestamp;
use devmind_domain::conversation::RunKind;
use devmind_domain::event::{AggregateType, DomainEvent};
use devmind_domain::tool_call::{ResultStatus, ToolCall};
use devmind_ledger::bundle::{Selection, export_bundle, import_bundle, read_bundle};
use devmind_ledger::foreign::{ForeignSource, take_in};
use devmind_ledger::proof::CheckpointRecord;
use devmind_ledger::verify::{Published, verify};
use devmind_ledger::{EventFilter, Ledger, LedgerReader, Place, load};
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;
use std::sync::Arc;

/// The position of the older shape, which says what two events say today.
const OPENED: u64 = 5;

fn story() -> Vec<Fact> {
    vec![
        started("c1", "ann"),
        asked("c1", "t1", 1),
        prepared("c1", "r1", "t1", RunKind::Normal),
        claimed("c1", "r1"),
        requested("k1", "r1"),
        dispatched("k1", 1, 1, None),
        result("k1", 1, ResultStatus::Succeeded),
        succeeded("c1", "r1", "42"),
    ]
}

fn json_of(event: &DomainEvent) -> Value {
    serde_json::from_str(&event.payload()).expect("JSON")
}

fn renamed(value: &mut Value, from: &str, to: &str) {
    let fields = value.as_object_mut().expect("an object");
    let value = fields.remove(from).expect("the field");
    fields.insert(to.to_owned(), value);
}

/// The story's rows in the table of another store, with one old event in the place of request and attempt.
async fn older(bench: &Bench) -> ForeignSource {
    let file = bench.folder.path().join("older.sqlite");
    let options = SqliteConnectOptions::new().filename(&file).create_if_missing(true);
    let pool = sqlx::SqlitePool::connect_with(options).await.expect("a file");
    let table = "CREATE TABLE events (aggregate_type text, aggregate_id text, sequence integer, event_type text, \
                 event_version text, payload text, metadata text)";
    sqlx::query(table).execute(&pool).await.expect("a table");
    let metadata =
        json!({ "actor": "user:ann", "node_id": "n1", "conversation_id": "c1", "correlation_id": "r1" }).to_string();
    let mut rows: Vec<(String, &str, String, Value)> = Vec::new();
    for (id, event) in story() {
        let mut payload = json_of(&event);
        match event.type_name() {
            "ToolCallRequested" => {
                renamed(&mut payload, "arguments", "args");
                rows.push(("tool_call".to_owned(), id, "ToolCallOpened".to_owned(), payload));
            }
            "ToolDispatched" => {
                renamed(&mut payload, "wait_ms", "timeout_ms");
                rows.last_mut().expect("the request").3["attempt"] = payload;
            }
            name => rows.push((stream(id, &event).aggregate_type, id, name.to_owned(), payload)),
        }
    }
    let mut sequences = std::collections::HashMap::new();
    for (kind, id, name, payload) in rows {
        let sequence = sequences.entry(kind.clone()).or_insert(0_i64);
        *sequence += 1;
        let insert = sqlx::query("INSERT INTO events VALUES ($1, $2, $3, $4, '1', $5, $6)").bind(kind).bind(id);
        let insert = insert.bind(*sequence).bind(name).bind(payload.to_string()).bind(&metadata);
        insert.execute(&pool).await.expect("a row");
    }
    pool.close().await;
    ForeignSource::new(&file.to_string_lossy(), None).expect("a source")
}

/// Without what depends on where and when an event was recorded.
fn facts_of(value: impl serde::Serialize) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|name, _| !name.contains("position") && !name.ends_with("_at") && !name.ends_with("_ms"));
                fields.values_mut().for_each(strip);
            }
            Value::Array(values) => values.iter_mut().for_each(strip),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut value = serde_json::to_value(value).expect("JSON");
    strip(&mut value);
    value
}

async fn shown(views: &Views) -> Value {
    let turns = views.turns(&"c1".into()).await.expect("turns");
    let calls = views.tool_calls(ToolCallQuery::Conversation("c1".into())).await.expect("calls");
    assert_eq!((turns.len(), calls.len()), (1, 1));
    facts_of((turns, calls))
}

/// Everything that the log tells, from its beginning.
async fn told(log: &LedgerReader) -> Vec<DomainEvent> {
    let events = log.read(0, 1_000).await.expect("events");
    events.iter().flat_map(|event| event.decode().expect("known")).collect()
}

on_both_stores! {
    #[tokio::test(flavor = "multi_thread")]
    async fn an_older_shape_shows_the_facts_of_today_on_every_read_path_and_its_bytes_stay(bench: Bench) {
        let mut bench = bench;
        let mut today = Bench::new().await;
        today.append(story()).await;
        let expected = shown(&today.views().await).await;
        let source = older(&bench).await;
        let place = match bench.views_place() {
            Place::File(_) => Place::from(&bench.folder.path().join("ledger.sqlite")),
            postgres @ Place::Postgres(_) => postgres,
        };
        bench.ledger.close().await;
        take_in(&source, place.clone(), |_, _| {}).await.expect("taken in");
        bench.ledger = Ledger::open(place).await.expect("a ledger");
        let log = bench.ledger.reader();

        // Stored: one event fewer than today's log, in its old shape, and the proof of it holds.
        let stored = log.read(OPENED - 1, 1).await.expect("read").remove(0);
        assert_eq!((stored.event_type.as_str(), stored.event_version), ("ToolCallOpened", 1));
        assert!(stored.payload.contains("\"args\"") && stored.payload.contains("\"timeout_ms\""), "{}", stored.payload);
        assert_eq!((log.head().await.expect("a head").position, stored.leaf_hash), (7, stored.expected_leaf_hash()));
        let report = verify(log, Published::default(), |_, _| {}).await.expect("verified");
        let reasons: Vec<_> = report.findings.iter().map(|found| &found.reason).collect();
        let of_today = verify(today.ledger.reader(), Published::default(), |_, _| {}).await.expect("verified");
        assert_eq!(reasons, of_today.findings.iter().map(|found| &found.reason).collect::<Vec<_>>(), "{report:?}");

        // The stream from the beginning, a search by type, and the aggregate that decides.
        assert_eq!(told(log).await, told(today.ledger.reader()).await);
        for of in ["ToolCallRequested", "ToolDispatched"] {
            let filter = EventFilter { event_type: Some(of.to_owned()), ..EventFilter::default() };
            let found = log.query(&filter, 0, 10).await.expect("found");
            assert_eq!(found.iter().map(|event| event.position).collect::<Vec<_>>(), [OPENED], "{of}");
        }
        let (call, version) = load::<ToolCall>(log, "k1").await.expect("loaded");
        assert_eq!((call, version), (load::<ToolCall>(today.ledger.reader(), "k1").await.expect("loaded").0, 2));

        // Live, rebuilt, and as it was.
        let served = bench.serve().await;
        served.views.wait_for(7).await.expect("caught up");
        assert_eq!(shown(&served.views).await, expected, "live");
        rebuild(&bench.views_place(), log, |_, _| {}).await.expect("rebuilt");
        assert_eq!(shown(&served.views).await, expected, "rebuilt");
        let checked = check(&bench.views_place(), log, |_, _| {}).await.expect("checked");
        assert!(checked.is_equal(), "{checked}");
        served.stop().await;
        let was = conversation_at(log, &"c1".into(), OPENED).await.expect("read").expect("the conversation");
        // Both halves are there at the one position: requested, and dispatched.
        let before = conversation_at(today.ledger.reader(), &"c1".into(), OPENED + 1).await.expect("read");
        assert_eq!(facts_of(was.tool_calls), facts_of(before.expect("the conversation").tool_calls));

        // The timeline: a line for each half.
        let lines = timeline_of_run(log, &"r1".into()).await.expect("a timeline");
        let halves: Vec<_> = lines.iter().filter(|line| line.position == OPENED).map(|line| &*line.event_type).collect();
        assert_eq!(halves, ["ToolCallRequested", "ToolDispatched"]);
        let texts = async |log: &LedgerReader| {
            let lines = timeline(&log.read(0, 1_000).await.expect("events"));
            lines.into_iter().map(|line| line.text).collect::<Vec<_>>()
        };
        assert_eq!(texts(log).await, texts(today.ledger.reader()).await);

        // Exported, checked without the ledger, and imported: the same bytes, the same facts.
        let folder = bench.folder.path();
        let record = CheckpointRecord::open(folder, None, log.clone(), || Ok([7; 32])).await.expect("a record");
        let checkpoint = record.publish(Timestamp::from_micros(1)).await.expect("published");
        let (file, key) = (folder.join("bundle.jsonl"), record.key());
        export_bundle(log, &Selection::Everything, &checkpoint, &key, &file, |_, _| {}).await.expect("exported");
        let mut inside = Vec::new();
        let input = BufReader::new(File::open(&file).expect("the bundle"));
        read_bundle(input, |event| inside.push(event)).expect("it proves itself");
        assert_eq!(*stored, inside[OPENED as usize - 1]);
        // A folder has one ledger that is written.
        let copy = tempfile::tempdir().expect("a folder");
        let into = copy.path().join("ledger.sqlite");
        import_bundle(&file, &into, |_| {}).await.expect("imported").expect("it proves itself");
        let copied = LedgerReader::open(&into).await.expect("the copy");
        assert_eq!((copied.head().await, told(&copied).await), (log.head().await, told(log).await));
        bench.ledger.close().await;
    }
}

#[tokio::test]
async fn a_newer_version_of_a_known_type_stops_the_view_at_its_position_with_a_code_and_is_not_dropped() {
    let mut events = recorded(&story());
    let newer = Arc::make_mut(&mut events[4]);
    newer.event_version = 2;
    let projection = PROJECTIONS.iter().copied().find(|one| one.reads().contains(&AggregateType::ToolCall));
    let projection = projection.expect("a view of tool calls");
    let store = Store::in_memory(&vec![projection]).await.expect("in memory");
    let applied = apply(&store.write, projection, &BTreeSet::new(), 0, &events).await.expect("the store works");
    let Applied::Now(now) = applied else { panic!("{applied:?}") };
    let failed = now.failed.expect("it stopped");
    assert_eq!((now.position, failed.position, now.skipped_unknown), (4, 5, 0));
    assert!(failed.reason.starts_with("LEDGER_SCHEMA_NEWER: version 2 of ToolCallRequested"), "{}", failed.reason);
}
