//! What remembered and stored states promise: they save reading, and never change an answer.

use super::support::*;
use crate::limits::SNAPSHOT_EVERY;
use crate::store::Snapshot;
use crate::store::faults::Fault;
use crate::verify::Check;
use crate::*;
use devmind_domain::event::{AggregateType, NewEvent, StreamId};
use devmind_domain::node::{Node, NodeCommand, NodeError, NodeStarted};
use futures::future::join_all;
use std::time::Instant;

fn start() -> NodeCommand {
    NodeCommand::Start { node_id: "n".into(), version: "1".into() }
}

fn node() -> StreamId {
    StreamId::new(AggregateType::Node, "n")
}

/// A start that another process appends: this one's memory knows nothing of it.
fn elsewhere(expected_version: u64, epoch: u64) -> Append {
    let started = NodeStarted { node_id: "n".into(), epoch, version: "1".into() };
    let events: Vec<NewEvent> = vec![new_event(devmind_domain::node::NodeEvent::from(started).into())];
    Append { streams: vec![StreamAppend { stream: node(), expected_version, events }], idempotency: None }
}

async fn starts(ledger: &Ledger, count: u64) {
    for _ in 0..count {
        execute::<Node>(ledger, "n", &metadata(), start(), None).await.expect("started");
    }
}

async fn stored(folder: &Folder) -> Option<Snapshot> {
    folder.reader().await.store().snapshot(&node()).await.expect("read")
}

on_both_stores! {
    #[tokio::test]
    async fn a_refusal_and_an_empty_answer_are_decided_on_what_is_in_the_log_not_on_what_is_remembered(folder: Folder) {
        let ledger = folder.open().await;
        starts(&ledger, 1).await;
        ledger.append(elsewhere(1, 2)).await.expect("appended");
        // Remembered: epoch 1. It would refuse this.
        let stopped = execute::<Node>(&ledger, "n", &metadata(), NodeCommand::Stop { epoch: 2 }, None).await.expect("stopped");
        assert_eq!((stopped.state.epoch, stopped.events.len()), (2, 1));
        // Remembered: ended. It would call this done already.
        ledger.append(elsewhere(3, 3)).await.expect("appended");
        let lost = execute::<Node>(&ledger, "n", &metadata(), NodeCommand::Lose { epoch: 3 }, None).await.expect("lost");
        assert_eq!((lost.state.epoch, lost.events.len()), (3, 1));
        // Remembered: epoch 3. It would accept this.
        ledger.append(elsewhere(5, 4)).await.expect("appended");
        let refused = execute::<Node>(&ledger, "n", &metadata(), NodeCommand::Stop { epoch: 3 }, None).await;
        assert!(matches!(refused, Err(ExecuteError::Refused(NodeError::Superseded { current: 4 }))), "{refused:?}");
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_read_shows_what_other_processes_appended_though_an_older_state_is_remembered(folder: Folder) {
        let ledger = folder.open().await;
        starts(&ledger, 1).await;
        ledger.append(elsewhere(1, 2)).await.expect("appended");
        let (state, version) = load::<Node>(ledger.reader(), "n").await.expect("loaded");
        assert_eq!((state.epoch, version), (2, 2));
    }
}

on_both_stores! {
    #[tokio::test]
    async fn what_was_read_since_a_moment_is_not_read_again_and_what_was_only_remembered_is(folder: Folder) {
        let ledger = folder.open().await;
        let version_since = async |since| load_since::<Node>(ledger.reader(), "n", since).await.expect("loaded").1;
        let before = Instant::now();
        assert_eq!(version_since(before).await, 0, "nobody has read it yet");
        ledger.append(elsewhere(0, 1)).await.expect("appended");
        assert_eq!(version_since(before).await, 0, "as it stood after that moment");
        assert_eq!(version_since(Instant::now()).await, 1, "as it stands");
        // What this process did itself, it did not look at: others may have been there since.
        starts(&ledger, 1).await;
        ledger.append(elsewhere(2, 3)).await.expect("appended");
        assert_eq!(version_since(before).await, 3);
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_stream_that_was_found_empty_is_decided_on_anew_where_another_process_began_it_since(folder: Folder) {
        let ledger = folder.open().await;
        assert_eq!(load::<Node>(ledger.reader(), "n").await.expect("loaded").1, 0);
        assert_eq!(remembered::<Node>(ledger.reader(), "n").expect("remembered").epoch, 0);
        ledger.append(elsewhere(0, 7)).await.expect("appended");
        let started = execute::<Node>(&ledger, "n", &metadata(), start(), None).await.expect("started");
        assert_eq!((started.state.epoch, started.events[0].sequence), (8, 2));
    }
}

on_both_stores! {
    #[tokio::test(flavor = "multi_thread")]
    async fn commands_on_one_stream_that_wait_for_the_same_flush_fail_with_it_and_leave_nothing_behind(folder: Folder) {
        let ledger = folder.open().await;
        starts(&ledger, 1).await;
        ledger.faults.set(Fault::CommitLost);
        let starts = (0..8).map(|_| async { execute::<Node>(&ledger, "n", &metadata(), start(), None).await });
        let all = join_all(starts).await;
        assert!(all.iter().any(Result::is_err), "the flush failed");
        let (state, version) = load::<Node>(ledger.reader(), "n").await.expect("loaded");
        assert_eq!(state.epoch, version, "every start in the log has the next epoch");
        let acknowledged: Vec<_> = all.iter().flatten().map(|done| done.state.epoch).collect();
        assert!(acknowledged.iter().all(|epoch| *epoch <= version), "{acknowledged:?} of {version}");
        let next = execute::<Node>(&ledger, "n", &metadata(), start(), None).await.expect("started");
        assert_eq!(next.state.epoch, version + 1, "nothing was built on what was not stored");
        assert!(folder.verify().await.is_sound());
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_long_stream_has_a_stored_state_to_which_only_later_events_are_applied(folder: Folder) {
        let ledger = folder.open().await;
        starts(&ledger, 3 * SNAPSHOT_EVERY).await;
        // A state is stored with the next batch, whatever that is.
        ledger.append(append("a", 0, "x")).await.expect("appended");
        ledger.close().await;
        let snapshot = stored(&folder).await.expect("a state is stored");
        assert_eq!(snapshot.sequence, 3 * SNAPSHOT_EVERY);
        let (state, version) = load::<Node>(&folder.reader().await, "n").await.expect("loaded");
        assert_eq!((state.epoch, version), (3 * SNAPSHOT_EVERY, 3 * SNAPSHOT_EVERY));
        // It is really used: a state that says otherwise shows, and is found.
        let other = snapshot.state.replace(r#""epoch":192"#, r#""epoch":1000"#);
        folder.tamper(&format!("UPDATE snapshots SET state = '{other}'")).await;
        let (state, _) = load::<Node>(&folder.reader().await, "n").await.expect("loaded");
        assert_eq!(state.epoch, 1000);
        let ledger = folder.open().await;
        ledger.append(elsewhere(3 * SNAPSHOT_EVERY, 7)).await.expect("appended");
        let (state, version) = load::<Node>(ledger.reader(), "n").await.expect("loaded");
        assert_eq!((state.epoch, version), (7, 3 * SNAPSHOT_EVERY + 1), "later events are applied, once");
        let finding = folder.verify().await.findings.into_iter().find(|finding| finding.check == Check::StoredStates);
        assert_eq!(finding.expect("it is found").position, 3 * SNAPSHOT_EVERY);
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_stored_state_of_another_program_or_one_that_cannot_be_read_is_not_used(folder: Folder) {
        let ledger = folder.open().await;
        starts(&ledger, 2 * SNAPSHOT_EVERY).await;
        starts(&ledger, 1).await;
        ledger.close().await;
        for change in ["UPDATE snapshots SET state_version = 99, state = '{}'", "UPDATE snapshots SET state = 'torn'"] {
            folder.tamper(change).await;
            let (state, version) = load::<Node>(&folder.reader().await, "n").await.expect("loaded");
            assert_eq!((state.epoch, version), (2 * SNAPSHOT_EVERY + 1, 2 * SNAPSHOT_EVERY + 1));
        }
    }
}
