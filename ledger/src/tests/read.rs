//! What reading promises.

use super::support::*;
use crate::*;
use devmind_domain::conversation::{ConversationEvent, ConversationRenamed, TitleSource};
use devmind_domain::event::{Actor, AggregateType, DomainEvent, NewEvent, StreamId};
use devmind_domain::thread::{ModelResponded, ModelToolCall, ThreadEvent, TokenUsage, ToolResultObserved};
use devmind_domain::tool_call::{Disposition, ToolCallEvent, ToolResultAcked};

fn renamed() -> DomainEvent {
    ConversationEvent::from(ConversationRenamed { title: "t".into(), source: TitleSource::Manual }).into()
}

fn responded(call_id: &str) -> DomainEvent {
    let call = ModelToolCall { id: call_id.into(), name: "add".into(), arguments: "{}".into() };
    ThreadEvent::from(ModelResponded {
        run_id: "r".into(),
        round: 1,
        message_id: "m".into(),
        content: String::new(),
        reasoning: None,
        tool_calls: vec![call],
        finish_reason: "tool_calls".into(),
        usage: TokenUsage::default(),
        served_model: "demo".into(),
        latency_ms: 1,
    })
    .into()
}

fn observed(call: &str) -> DomainEvent {
    let observed = ToolResultObserved { tool_call_id: call.into(), ok: true, content: "3".into(), error: None };
    ThreadEvent::from(observed).into()
}

fn acked() -> DomainEvent {
    let acked = ToolResultAcked { connection_id: "x".into(), disposition: Disposition::UnknownCall };
    ToolCallEvent::from(acked).into()
}

async fn put(ledger: &Ledger, kind: AggregateType, id: &str, events: Vec<NewEvent>) {
    let stream = StreamId::new(kind, id);
    let expected_version = ledger.reader().read_stream(&stream, 0).await.expect("read").len() as u64;
    let append = StreamAppend { stream, expected_version, events };
    ledger.append(Append { streams: vec![append], idempotency: None }).await.expect("appended");
}

/// What passes a filter, read forwards, and the same backwards.
async fn positions(reader: &LedgerReader, filter: EventFilter) -> Vec<u64> {
    let found: Vec<u64> =
        reader.query(&filter, 0, 100).await.expect("queried").iter().map(|event| event.position).collect();
    let (mut back, mut before) = (Vec::new(), u64::MAX >> 1);
    while let Some(last) = reader.last_before(&filter, before).await.expect("queried") {
        back.insert(0, last);
        before = last;
    }
    assert_eq!(back, found, "{filter:?}");
    found
}

on_both_stores! {
    #[tokio::test]
    async fn every_filter_finds_its_events_and_filters_combine(folder: Folder) {
        let ledger = folder.open().await;
        let of_run = |event: DomainEvent, run: &str| {
            let mut event = new_event(event);
            event.metadata = event.metadata.run(&run.into()).conversation(&"c1".into());
            event
        };
        let mut by_device = new_event(renamed());
        by_device.metadata.actor = Actor::device("laptop");
        put(&ledger, AggregateType::Conversation, "c1", vec![of_run(renamed(), "r1"), of_run(renamed(), "r2")]).await; // 1 2
        put(&ledger, AggregateType::Conversation, "c2", vec![by_device]).await; // 3
        put(&ledger, AggregateType::Thread, "t", vec![of_run(responded("call"), "r1"), new_event(responded("other"))])
            .await; // 4 5
        put(&ledger, AggregateType::ToolCall, "t:call", vec![new_event(acked())]).await; // 6
        put(&ledger, AggregateType::Thread, "t", vec![new_event(observed("t:call")), new_event(observed("t:other"))]).await; // 7 8
        put(&ledger, AggregateType::Thread, "u", vec![new_event(responded("call"))]).await; // 9

        let reader = ledger.reader();
        let any = EventFilter::default;
        assert_eq!(positions(reader, any()).await, (1..=9).collect::<Vec<_>>());
        assert_eq!(positions(reader, EventFilter { conversation_id: Some("c1".into()), ..any() }).await, [1, 2, 4]);
        assert_eq!(positions(reader, EventFilter { run_id: Some("r1".into()), ..any() }).await, [1, 4]);
        assert_eq!(positions(reader, EventFilter { tool_call_id: Some("t:call".into()), ..any() }).await, [4, 6, 7]);
        assert_eq!(positions(reader, EventFilter { stream: Some(stream("c1")), ..any() }).await, [1, 2]);
        assert_eq!(positions(reader, EventFilter { event_type: Some("ModelResponded".into()), ..any() }).await, [4, 5, 9]);
        assert_eq!(positions(reader, EventFilter { actor: Some("device:laptop".into()), ..any() }).await, [3]);
        let both = EventFilter { run_id: Some("r1".into()), event_type: Some("ModelResponded".into()), ..any() };
        assert_eq!(positions(reader, both).await, [4]);
        let after = reader.query(&EventFilter { actor: Some("user:ann".into()), ..any() }, 4, 2).await.expect("queried");
        assert_eq!(after.iter().map(|event| event.position).collect::<Vec<_>>(), [5, 6], "after and limit hold, too");
    }
}

on_both_stores! {
    #[tokio::test]
    async fn pages_are_bounded_and_reading_on_brings_everything_once(folder: Folder) {
        let ledger = folder.open().await;
        let many = MAX_PAGE_EVENTS as usize;
        for n in 0..3 {
            ledger.append(append_events("s", (n * many) as u64, events(many))).await.expect("appended");
        }
        let reader = folder.reader().await;
        assert_eq!(reader.read(0, u32::MAX).await.expect("read").len(), many);
        assert_eq!(reader.read(5, 10).await.expect("read")[0].position, 6);
        let whole = all(&reader).await;
        assert_gapless(&whole);
        assert_eq!(whole.len(), 3 * many);
        let stream = reader.read_stream(&stream("s"), 10).await.expect("read");
        assert_eq!((stream.len(), stream[0].sequence), (3 * many - 10, 11));
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_page_ends_early_when_its_events_are_large(folder: Folder) {
        let ledger = folder.open().await;
        let title = "x".repeat(MAX_PAGE_BYTES / 4);
        for version in 0..6 {
            ledger.append(append("s", version, &title)).await.expect("appended");
        }
        let reader = folder.reader().await;
        let page = reader.read(0, 100).await.expect("read");
        assert!(page.len() < 6, "{} events", page.len());
        assert_eq!(all(&reader).await.len(), 6);
        assert_eq!(reader.read_stream(&stream("s"), 0).await.expect("read").len(), 6);
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_reader_beside_the_writer_sees_what_is_committed_and_keeps_nobody_out(folder: Folder) {
        let ledger = folder.open().await;
        let reader = folder.reader().await;
        assert_eq!(reader.head().await.expect("head").position, 0);
        for version in 0..5 {
            let appended = ledger.append(append("s", version, "x")).await.expect("appended");
            assert_eq!(reader.head().await.expect("head").position, version + 1);
            assert_eq!(reader.read(version, 10).await.expect("read"), appended.events);
        }
        assert_eq!(reader.ledger_id(), ledger.reader().ledger_id());
        assert_eq!(reader.head().await, ledger.reader().head().await);
    }
}
