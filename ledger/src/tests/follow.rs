//! What following promises.

use super::support::*;
use crate::*;

/// Follows from `after` until `last` was seen; asserts that each position came once, in order.
async fn follow_to(reader: LedgerReader, after: u64, last: u64) {
    let mut follower = reader.follow(after);
    let mut expected = after + 1;
    while expected <= last {
        let events = follower.next().await.expect("events");
        assert!(!events.is_empty());
        for event in events {
            assert_eq!(event.position, expected);
            assert_eq!(event.leaf_hash, event.expected_leaf_hash());
            expected += 1;
        }
        assert_eq!(follower.position(), expected - 1);
    }
}

on_both_stores! {
    #[tokio::test(flavor = "multi_thread")]
    async fn followers_see_every_position_once_in_order_while_appends_go_on(folder: Folder) {
        let ledger = folder.open().await;
        ledger.append(append_events("before", 0, events(100))).await.expect("appended");
        let starts = [0, 42, 100];
        let followers = starts.map(|after| tokio::spawn(follow_to(ledger.reader().clone(), after, 900)));
        // Another process's view of the same file.
        let outside = tokio::spawn(follow_to(folder.reader().await, 7, 900));
        for round in 0..200 {
            ledger.append(append_events("live", round * 4, events(4))).await.expect("appended");
        }
        for follower in followers {
            follower.await.expect("in order");
        }
        outside.await.expect("in order");
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_follower_that_lags_beyond_the_memory_reads_the_file(folder: Folder) {
        let ledger = folder.open().await;
        let last = MAX_RING_EVENTS as u64 + 1_000;
        let mut version = 0;
        while version < last {
            let count = (last - version).min(MAX_APPEND_EVENTS as u64);
            ledger.append(append_events("s", version, events(count as usize))).await.expect("appended");
            version += count;
        }
        follow_to(ledger.reader().clone(), 0, last).await;
        follow_to(ledger.reader().clone(), last - 10, last).await;
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_follower_at_the_head_waits_until_something_is_appended_and_ends_with_the_ledger(folder: Folder) {
        let ledger = folder.open().await;
        let mut follower = ledger.reader().follow(0);
        assert!(futures::poll!(std::pin::pin!(follower.next())).is_pending());
        ledger.append(append("s", 0, "x")).await.expect("appended");
        assert_eq!(follower.next().await.expect("events").len(), 1);
        ledger.close().await;
        assert_eq!(follower.next().await, Err(LedgerError::Closed));
    }
}

on_both_stores! {
    #[tokio::test]
    async fn what_was_just_committed_is_followed_from_memory(folder: Folder) {
        let ledger = folder.open().await;
        let appended = ledger.append(append("s", 0, "x")).await.expect("appended");
        let followed = ledger.reader().follow(0).next().await.expect("events");
        assert!(std::sync::Arc::ptr_eq(&appended.events[0], &followed[0]));
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_hole_in_the_log_is_not_followed_over(folder: Folder) {
        let ledger = folder.open().await;
        ledger.append(append_events("s", 0, events(5))).await.expect("appended");
        ledger.close().await;
        folder.tamper("DELETE FROM events WHERE position = 3").await;
        let mut follower = folder.reader().await.follow(0);
        let error = follower.next().await.expect_err("a hole");
        assert!(error.to_string().contains("after event 2 comes event 4"), "{error}");
    }
}
