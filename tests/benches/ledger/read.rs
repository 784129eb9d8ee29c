//! Reading a whole log, and rebuilding the views from it, on PostgreSQL.

use crate::load::Measure;
use crate::ours;
use crate::postgres::peers;
use crate::table::Table;
use cqrs_es::persist::PersistedEventRepository;
use devmind_domain::Decider;
use devmind_domain::conversation::{Ask, Conversation, ConversationCommand, RunClaimed, RunSucceeded};
use devmind_domain::device::{Device, DeviceEvent};
use devmind_domain::event::{AggregateType, DomainEvent, NewEvent, StreamId};
use devmind_domain::tool_call::{
    Disposition, ResultOrigin, ResultStatus, Risk, Target, ToolCallEvent, ToolCallRequested, ToolDispatched,
    ToolResultAcked, ToolResultRecorded,
};
use devmind_ledger::{Append, Ledger, LedgerReader, PostgresUrl, StreamAppend};
use devmind_projections::{PROJECTIONS, rebuild};
use devmind_test_postgres::Cluster;
use futures::TryStreamExt;
use postgres_es::PostgresEventRepository;
use serde_json::json;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgConnection, Row};
use std::collections::HashMap;
use std::time::Instant;
use uuid::Uuid;

/// Events of one stream.
pub const STREAM: u64 = 100;
/// Events that the peer's views are made of: it is slow.
const PEER_EVENTS: u64 = 2_000;

/// Reads and folds a log beside a raw stream of its rows and beside postgres-es; rebuilds the views.
pub async fn rows(measure: &Measure, table: &mut Table) {
    if !table.wants("read") && !table.wants("rebuild") {
        return;
    }
    let cluster = Cluster::shared();
    let (own, peer) = (cluster.database(), cluster.database());
    let url: PostgresUrl = own.url().parse().expect("a URL");
    if table.wants("read") {
        let reader = filled(&url, measure.events / STREAM, devices).await;
        let raw = raw_stream(own.url()).await;
        let ours = fold(&reader).await;
        let family = family_stream(peer.url(), measure.events).await;
        table.figure("read: postgres-es stream", family, "events/s");
        table.figure("read: raw sqlx stream", raw, "events/s");
        table.at_least("read + decode + upcast + fold", ours, "events/s", ("raw sqlx", raw), 0.8);
    }
    if table.wants("rebuild") {
        let (own, peer) = (cluster.database(), cluster.database());
        let url: PostgresUrl = own.url().parse().expect("a URL");
        let reader = filled(&url, measure.events / STREAM, conversations).await;
        let peer = peers::view_rate(peer.url(), PEER_EVENTS).await;
        table.figure("rebuild: cqrs-es GenericQuery", peer, "rows/s");
        let (changes, before) = (changes(&reader).await, resident_mib());
        let report = rebuild(&url, &reader, |_, _| {}).await.expect("rebuilt");
        assert!(report.failed.is_empty(), "a view that is not built is not measured");
        let seconds = report.elapsed_ms as f64 / 1e3;
        table.at_least("rebuild of all views", changes as f64 / seconds, "rows/s", ("GenericQuery", peer), 50.0);
        let events = reader.head().await.expect("a head").position;
        table.figure("rebuild of all views: of the log", events as f64 / seconds, "events/s");
        table.figure("rebuild: memory grown by", resident_mib() - before, "MiB");
    }
}

/// A log of so many commands' events.
async fn filled(url: &PostgresUrl, commands: u64, streams: fn(u64) -> Vec<StreamAppend>) -> LedgerReader {
    let ledger = Ledger::open(url).await.expect("the ledger opens");
    for n in 0..commands {
        ledger.append(Append { streams: streams(n), idempotency: None }).await.expect("appended");
    }
    ledger.close().await;
    LedgerReader::open(url).await.expect("the ledger opens")
}

/// One device with a hundred events.
pub fn devices(n: u64) -> Vec<StreamAppend> {
    let events = (0..STREAM).flat_map(|_| Device::default().decide(ours::command()).expect("decided"));
    vec![stream(AggregateType::Device, format!("user-1/{n:06}"), events.map(Into::into).collect())]
}

/// Events of one conversation below with its tool call.
const CONVERSATION: u64 = 9;

/// So many answered questions, each in a conversation of its own and with one call of a device's tool, that they have
/// about a hundred events; every event leads to rows of the views.
pub fn conversations(_: u64) -> Vec<StreamAppend> {
    (0..STREAM / CONVERSATION).flat_map(|_| conversation()).collect()
}

fn conversation() -> [StreamAppend; 2] {
    let id = || Uuid::now_v7().to_string();
    let (conversation, run, call, text) = (id(), id(), id(), "word ".repeat(ours::PAYLOAD_BYTES / 10));
    let ask = Ask {
        user_id: "user-1".into(),
        existing: false,
        turn_id: id().into(),
        message_id: id().into(),
        run_id: run.as_str().into(),
        graph_thread_id: id().into(),
        content: text.clone(),
        device_id: None,
    };
    let requested = ToolCallRequested {
        conversation_id: conversation.as_str().into(),
        turn_id: ask.turn_id.clone(),
        run_id: ask.run_id.clone(),
        user_id: ask.user_id.clone(),
        graph_thread_id: ask.graph_thread_id.clone(),
        model_call_id: "call_1".to_owned(),
        parent_tool_call_id: None,
        tool: "workspace.read_file".to_owned(),
        tool_version: "1".to_owned(),
        target: Target::Device,
        device_id: Some("device-1".into()),
        arguments: json!({"path": "README.md"}),
        call_hash: "0".repeat(64),
        risk: Risk::Low,
    };
    let dispatched = ToolDispatched {
        attempt_no: 1,
        run_id: ask.run_id.clone(),
        node_id: "node-1".into(),
        epoch: 1,
        connection_id: Some("connection-1".into()),
        journal_id: Some("journal-1".to_owned()),
        wait_ms: 30_000,
        ttl_ms: 30_000,
    };
    let recorded = ToolResultRecorded {
        executed_attempt_no: 1,
        status: ResultStatus::Succeeded,
        output: Some(json!(text)),
        output_sha256: Some("0".repeat(64)),
        error: None,
        started_at: None,
        finished_at: None,
        origin: ResultOrigin::Live,
        connection_id: Some("connection-1".into()),
    };
    let acked = ToolResultAcked { connection_id: "connection-1".into(), disposition: Disposition::Stored };
    let of_call: [ToolCallEvent; 4] = [requested.into(), dispatched.into(), recorded.into(), acked.into()];
    let claimed =
        RunClaimed { run_id: ask.run_id.clone(), node_id: "node-1".into(), epoch: 1, context_hash: "0".repeat(64) };
    let succeeded = RunSucceeded { run_id: ask.run_id.clone(), answer: text, message_id: id().into() };
    let asked = Conversation::default().decide(ConversationCommand::Ask(ask)).expect("decided");
    let of_conversation = asked.into_iter().chain([claimed.into(), succeeded.into()]);
    [
        stream(AggregateType::Conversation, conversation, of_conversation.map(Into::into).collect()),
        stream(AggregateType::ToolCall, call, of_call.into_iter().map(Into::into).collect()),
    ]
}

/// The row changes that a log leads to in all views.
async fn changes(reader: &LedgerReader) -> u64 {
    let (mut after, mut count) = (0, 0);
    loop {
        let page = reader.read(after, u32::MAX).await.expect("read");
        let Some(last) = page.last() else { return count };
        after = last.position;
        for event in &page {
            for fact in event.decode().expect("an event") {
                count += PROJECTIONS.iter().map(|view| view.changes(event, &fact).len() as u64).sum::<u64>();
            }
        }
    }
}

fn stream(kind: AggregateType, id: String, events: Vec<DomainEvent>) -> StreamAppend {
    let metadata = ours::metadata();
    let new = |event| NewEvent { event_id: Uuid::now_v7().to_string(), event, metadata: (*metadata).clone() };
    StreamAppend { stream: StreamId::new(kind, id), expected_version: 0, events: events.into_iter().map(new).collect() }
}

/// Pages in order, each event decoded and folded into its aggregate.
async fn fold(reader: &LedgerReader) -> f64 {
    let (began, mut after, mut count) = (Instant::now(), 0, 0);
    let mut devices: HashMap<StreamId, Device> = HashMap::new();
    loop {
        let page = reader.read(after, u32::MAX).await.expect("read");
        let Some(last) = page.last() else { break };
        after = last.position;
        count += page.len();
        for event in &page {
            let facts = event.decode_as::<DeviceEvent>().expect("a device's event");
            let device = match devices.get_mut(&event.stream) {
                Some(device) => device,
                None => devices.entry(event.stream.clone()).or_default(),
            };
            facts.iter().for_each(|fact| device.evolve(fact));
        }
    }
    assert!(!devices.is_empty());
    count as f64 / began.elapsed().as_secs_f64()
}

/// The same rows as sqlx hands them out, looked at and dropped.
async fn raw_stream(url: &str) -> f64 {
    let mut connection = PgConnection::connect(url).await.expect("the database is there");
    let (began, mut count, mut bytes) = (Instant::now(), 0_u64, 0);
    let sql = "SELECT position, event_id, aggregate_type, aggregate_id, sequence, event_type, event_version, payload, \
               metadata, recorded_at, leaf_hash FROM ledger.events ORDER BY position";
    let mut rows = sqlx::query(sql).fetch(&mut connection);
    while let Some(row) = rows.try_next().await.expect("a row") {
        bytes += row.get::<&str, _>(7).len();
        count += 1;
    }
    assert!(bytes > 0);
    count as f64 / began.elapsed().as_secs_f64()
}

/// postgres-es's own stream of all events, decoded.
async fn family_stream(url: &str, events: u64) -> f64 {
    let framework = peers::postgres_es(url).await;
    let pool = PgPoolOptions::new().connect(url).await.expect("the database is there");
    let payload = serde_json::to_value(Device::default().decide(ours::command()).expect("decided").pop());
    sqlx::query(
        "INSERT INTO events SELECT 'device', 'user-1/' || (n / 100), 1 + n % 100, 'DeviceRead', '1', $1, '{}' \
         FROM generate_series(0, $2 - 1) AS n",
    )
    .bind(payload.expect("a payload"))
    .bind(i64::try_from(events).expect("a number"))
    .execute(&pool)
    .await
    .expect("rows");
    drop(framework);
    let repository = PostgresEventRepository::new(pool);
    let mut stream = repository.stream_all_events::<Device>().await.expect("a stream");
    let (began, mut count) = (Instant::now(), 0_u64);
    while let Some(event) = stream.next::<Device>(&[]).await {
        event.expect("an event");
        count += 1;
    }
    assert_eq!(count, events, "a peer that loses events is not measured");
    count as f64 / began.elapsed().as_secs_f64()
}

fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1024.0
}
