//! The published cqrs-es framework over our log.

use super::support::*;
use crate::cqrs::CqrsStore;
use crate::*;
use cqrs_es::persist::{PersistedEventRepository, PersistedEventStore};
use cqrs_es::{AggregateError, CqrsFramework, EventStore};
use devmind_domain::conversation::Conversation;
use devmind_domain::node::{Node, NodeCommand, NodeError, NodeEvent};
use std::collections::HashMap;

fn start() -> NodeCommand {
    NodeCommand::Start { node_id: "n".into(), version: "1".into() }
}

on_both_stores! {
    #[tokio::test]
    async fn an_aggregate_executed_by_the_cqrs_es_framework_lands_in_our_log(folder: Folder) {
        let ledger = folder.open().await;
        let store = CqrsStore::new(ledger.clone(), metadata());
        let framework = CqrsFramework::<Node, _>::new(store.clone(), vec![], ());
        framework.execute("n", start()).await.expect("executed");
        let extra = HashMap::from([("conversation_id".to_owned(), "c".to_owned())]);
        framework.execute_with_metadata("n", NodeCommand::Stop { epoch: 1 }, extra).await.expect("executed");

        let events = all(ledger.reader()).await;
        let types: Vec<_> = events.iter().map(|event| event.event_type.as_str()).collect();
        assert_eq!(types, ["NodeStarted", "NodeStopped"]);
        assert_eq!(events[1].metadata().expect("metadata").conversation_id, Some("c".into()));
        let (node, version) = load::<Node>(ledger.reader(), "n").await.expect("loaded");
        assert_eq!((node.ended, version), (true, 2));

        let envelopes = EventStore::<Node>::load_events(&store, "n").await.expect("loaded");
        assert!(matches!(envelopes[1].payload, NodeEvent::NodeStopped(_)));
        assert_eq!(envelopes[1].sequence, 2);
        assert_eq!(envelopes[1].metadata.get("actor").map(String::as_str), Some("user:ann"));
        assert!(folder.verify().await.is_sound());
    }
}

on_both_stores! {
    #[tokio::test]
    async fn refusals_lost_races_and_foreign_metadata_are_the_frameworks_own_errors(folder: Folder) {
        let ledger = folder.open().await;
        let store = CqrsStore::new(ledger.clone(), metadata());
        let framework = CqrsFramework::<Node, _>::new(store.clone(), vec![], ());
        let refused = framework.execute("n", NodeCommand::Stop { epoch: 3 }).await;
        assert!(matches!(refused, Err(AggregateError::UserError(NodeError::Superseded { .. }))));

        let context = EventStore::<Node>::load_aggregate(&store, "n").await.expect("loaded");
        framework.execute("n", start()).await.expect("executed meanwhile");
        let event: NodeEvent =
            devmind_domain::node::NodeStarted { node_id: "n".into(), epoch: 1, version: "1".into() }.into();
        let lost = EventStore::<Node>::commit(&store, vec![event], context, HashMap::new()).await;
        assert!(matches!(lost, Err(AggregateError::AggregateConflict)));

        let foreign = HashMap::from([("mood".to_owned(), "good".to_owned())]);
        let refused = framework.execute_with_metadata("n", start(), foreign).await;
        assert!(matches!(refused, Err(AggregateError::UnexpectedError(_))));
        assert_eq!(all(ledger.reader()).await.len(), 1);
    }
}

/// Whether a repository of the family reads what our own store says, and folds to the same aggregate.
async fn reads_the_same<R: PersistedEventRepository>(repository: R, ledger: &Ledger) {
    let theirs = PersistedEventStore::<R, Conversation>::new_event_store(repository);
    let ours = CqrsStore::new(ledger.clone(), metadata());
    let read = EventStore::<Conversation>::load_events(&theirs, "a").await.expect("their crate reads our log");
    let expected = EventStore::<Conversation>::load_events(&ours, "a").await.expect("loaded");
    assert_eq!(read.len(), 4);
    for (read, expected) in read.iter().zip(&expected) {
        assert_eq!((&read.aggregate_id, read.sequence), (&expected.aggregate_id, expected.sequence));
        assert_eq!(read.metadata, expected.metadata);
        // They know nothing of erasing: what is kept is what they get.
        let kept =
            serde_json::to_string(&expected.payload).expect("JSON").replace("[redacted by event 5]", "[redacted]");
        assert_eq!(serde_json::to_string(&read.payload).expect("JSON"), kept);
    }
}

on_both_stores! {
    #[tokio::test(flavor = "multi_thread")]
    async fn the_familys_published_repositories_read_our_log_also_where_content_was_erased(folder: Folder) {
        let ledger = folder.open().await;
        ledger.append(with_key(append_events("a", 0, events(3)), "k", "h")).await.expect("appended");
        ledger.append(append("a", 3, "four")).await.expect("appended");
        ledger.close().await;
        redact(folder.place(), 2, "asked for", &metadata()).await.expect("erased");
        let ledger = folder.open().await;
        match folder.place() {
            Place::File(file) => {
                let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file).read_only(true);
                let pool = sqlx::SqlitePool::connect_with(options).await.expect("connected");
                let repository = sqlite_es::SqliteEventRepository::new(pool).with_tables("cqrs_events", "snapshots");
                reads_the_same(repository, &ledger).await;
            }
            Place::Postgres(url) => {
                let pool = sqlx::PgPool::connect_with(url.options().clone()).await.expect("connected");
                let repository = postgres_es::PostgresEventRepository::new(pool);
                reads_the_same(repository.with_tables("ledger.cqrs_events", "snapshots"), &ledger).await;
            }
        }
        ledger.close().await;
    }
}
