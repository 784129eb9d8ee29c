//! What carrying out a command promises.

use super::support::*;
use crate::*;
use devmind_domain::event::{AggregateType, StreamId};
use devmind_domain::node::{Node, NodeCommand, NodeError};
use devmind_domain::thread::{Thread, ThreadCommand, ThreadStarted};
use futures::future::join_all;

fn start() -> NodeCommand {
    NodeCommand::Start { node_id: "n".into(), version: "1".into() }
}

on_both_stores! {
    #[tokio::test(flavor = "multi_thread")]
    async fn sixty_four_executors_on_one_stream_all_get_through_in_some_order(folder: Folder) {
        let ledger = folder.open().await;
        let executors = (0..64).map(|_| {
            let ledger = ledger.clone();
            tokio::spawn(async move { execute::<Node>(&ledger, "n", &metadata(), start(), None).await })
        });
        let mut epochs: Vec<u64> = join_all(executors)
            .await
            .into_iter()
            .map(|done| done.expect("no panic").expect("executed").state.epoch)
            .collect();
        epochs.sort_unstable();
        assert_eq!(epochs, (1..=64).collect::<Vec<_>>(), "each decided on what the one before it had done");
        let (node, version) = load::<Node>(ledger.reader(), "n").await.expect("loaded");
        assert_eq!((node.epoch, version), (64, 64));
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_refusal_stores_nothing_and_what_is_already_so_answers_with_the_head(folder: Folder) {
        let ledger = folder.open().await;
        execute::<Node>(&ledger, "n", &metadata(), start(), None).await.expect("started");
        let refused = execute::<Node>(&ledger, "n", &metadata(), NodeCommand::Stop { epoch: 9 }, None).await;
        assert!(matches!(refused, Err(ExecuteError::Refused(NodeError::Superseded { current: 1 }))));
        let stopped =
            execute::<Node>(&ledger, "n", &metadata(), NodeCommand::Stop { epoch: 1 }, None).await.expect("stopped");
        assert_eq!((stopped.position, stopped.state.ended), (2, true));
        let again = execute::<Node>(&ledger, "n", &metadata(), NodeCommand::Stop { epoch: 1 }, None).await.expect("is so");
        assert_eq!((again.position, again.events.len()), (2, 0));
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_key_that_was_seen_answers_even_where_the_rules_would_refuse_by_now(folder: Folder) {
        let ledger = folder.open().await;
        let stop = NodeCommand::Stop { epoch: 1 };
        execute::<Node>(&ledger, "n", &metadata(), start(), None).await.expect("started");
        let first = execute::<Node>(&ledger, "n", &metadata(), stop.clone(), Some(key("k", "h"))).await.expect("stopped");
        execute::<Node>(&ledger, "n", &metadata(), start(), None).await.expect("started again");
        // By now the rules would refuse it: a newer start exists.
        let again = execute::<Node>(&ledger, "n", &metadata(), stop, Some(key("k", "h"))).await.expect_err("seen");
        assert_eq!(again, ExecuteError::Append(AppendError::KeySeen { same_request: true, events: first.events.clone() }));
        let recorded = first.events[0].metadata().expect("metadata");
        assert_eq!((recorded.idempotency_key.as_deref(), recorded.request_hash.as_deref()), (Some("k"), Some("h")));
    }
}

on_both_stores! {
    #[tokio::test(flavor = "multi_thread")]
    async fn of_parallel_executors_with_one_key_none_is_refused_for_what_another_did(folder: Folder) {
        let ledger = folder.open().await;
        for round in 0..40 {
            let id = format!("thread-{round}");
            let executors = (0..8).map(|_| {
                let (ledger, id) = (ledger.clone(), id.clone());
                let start = ThreadCommand::Start(ThreadStarted {
                    conversation_id: "c".into(),
                    turn_id: "t".into(),
                    run_id: "r".into(),
                    user_id: "ann".into(),
                });
                tokio::spawn(async move { execute::<Thread>(&ledger, &id, &metadata(), start, Some(key(&id, "h"))).await })
            });
            let answers = join_all(executors).await.into_iter().map(|done| done.expect("no panic"));
            let (done, seen): (Vec<_>, Vec<_>) = answers.partition(Result::is_ok);
            assert_eq!(done.len(), 1);
            for answer in seen {
                // Without a look at the key some would hear that the thread has begun already.
                let same = matches!(&answer, Err(ExecuteError::Append(AppendError::KeySeen { same_request: true, .. })));
                assert!(same, "{answer:?}");
            }
        }
    }
}

on_both_stores! {
    #[tokio::test]
    async fn an_aggregate_with_an_unknown_event_is_not_loaded_by_half(folder: Folder) {
        let ledger = folder.open().await;
        execute::<Node>(&ledger, "n", &metadata(), start(), None).await.expect("started");
        ledger.close().await;
        folder.tamper("UPDATE events SET event_type = 'NodeUpgraded'").await;
        let error = load::<Node>(&folder.reader().await, "n").await.expect_err("unknown");
        assert!(matches!(&error, LedgerError::Undecodable { position: 1, stream, .. }
            if *stream == StreamId::new(AggregateType::Node, "n")));
        assert_eq!(error.code(), devmind_domain::ErrorCode::LedgerSchemaNewer);
    }
}

on_both_stores! {
    #[tokio::test]
    async fn what_somebody_else_appended_counts_though_the_aggregate_was_seen_before(folder: Folder) {
        let ledger = folder.open().await;
        execute::<Node>(&ledger, "n", &metadata(), start(), None).await.expect("started");
        // Past the cache, as the server appends to several streams at once.
        let stopped = devmind_domain::node::NodeEvent::from(devmind_domain::node::NodeStopped {
            node_id: "n".into(),
            epoch: 1,
        });
        let append = StreamAppend {
            stream: StreamId::new(AggregateType::Node, "n"),
            expected_version: 1,
            events: vec![new_event(stopped.into())],
        };
        ledger.append(Append { streams: vec![append], idempotency: None }).await.expect("appended");
        let again = execute::<Node>(&ledger, "n", &metadata(), NodeCommand::Stop { epoch: 1 }, None).await;
        assert_eq!(again.expect("it is so already").events.len(), 0, "decided on the log, not on what was seen");
        let next = execute::<Node>(&ledger, "n", &metadata(), start(), None).await.expect("started");
        assert_eq!((next.state.epoch, next.events[0].sequence), (2, 3));
        let (node, version) = load::<Node>(ledger.reader(), "n").await.expect("loaded");
        let (fresh, same) = load::<Node>(&folder.reader().await, "n").await.expect("loaded");
        assert_eq!((&node, version), (&fresh, same), "the cache holds what the log says");
    }
}

on_both_stores! {
    #[tokio::test(flavor = "multi_thread")]
    async fn a_stream_that_this_process_never_saw_is_decided_on_what_it_holds_and_harms_nobody_beside_it(folder: Folder) {
        let ledger = folder.open().await;
        execute::<Node>(&ledger, "old", &metadata(), start(), None).await.expect("started");
        ledger.close().await;
        let ledger = folder.open().await;
        // From here on the writer knows the head, and looks for nothing before it stores.
        execute::<Node>(&ledger, "first", &metadata(), start(), None).await.expect("started");
        let looks = ledger.faults.counts().looks;
        let ids: Vec<String> = (0..16).map(|n| if n % 4 == 0 { "old".to_owned() } else { format!("new {n}") }).collect();
        let executors = ids.iter().map(|id| async { execute::<Node>(&ledger, id, &metadata(), start(), None).await });
        let done = join_all(executors).await;
        let epochs = ids.iter().zip(&done).map(|(id, done)| (id.as_str(), done.as_ref().expect("executed").state.epoch));
        assert!(ledger.faults.counts().looks > looks, "the database refused what was only supposed");
        let (mut old, new): (Vec<_>, Vec<_>) = epochs.partition(|(id, _)| *id == "old");
        old.sort_unstable();
        assert_eq!(old, [2, 3, 4, 5].map(|epoch| ("old", epoch)), "it had begun");
        assert!(new.iter().all(|(_, epoch)| *epoch == 1), "{new:?}");
        // Refused by a beginning, not by what is there.
        ledger.close().await;
        let ledger = folder.open().await;
        let stopped = execute::<Node>(&ledger, "old", &metadata(), NodeCommand::Stop { epoch: 5 }, None).await.expect("stopped");
        assert_eq!((stopped.state.epoch, stopped.events.len()), (5, 1));
        assert!(folder.verify().await.is_sound());
    }
}
