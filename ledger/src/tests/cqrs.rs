//! The published cqrs-es framework over our log.

use super::support::*;
use crate::cqrs::CqrsStore;
use crate::*;
use cqrs_es::{AggregateError, CqrsFramework, EventStore};
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
