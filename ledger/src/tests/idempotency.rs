//! What an idempotency key promises.

use super::support::*;
use crate::*;
use futures::future::join_all;

on_both_stores! {
    #[tokio::test(flavor = "multi_thread")]
    async fn of_twenty_requests_with_one_key_one_is_stored_and_the_others_get_its_events(folder: Folder) {
        let ledger = folder.open().await;
        let requests = (0..20).map(|n| {
            let ledger = ledger.clone();
            // Each would go into a stream of its own: the key alone keeps them out.
            tokio::spawn(async move { ledger.append(with_key(append(&format!("s{n}"), 0, "x"), "k", "h")).await })
        });
        let answers: Vec<_> = join_all(requests).await.into_iter().map(|answer| answer.expect("no panic")).collect();
        let stored: Vec<_> = answers.iter().flatten().collect();
        assert_eq!(stored.len(), 1);
        let seen = AppendError::KeySeen { same_request: true, events: stored[0].events.clone() };
        assert_eq!(answers.iter().filter(|answer| answer.as_ref().err() == Some(&seen)).count(), 19);
        assert_eq!(all(ledger.reader()).await.len(), 1);
    }
}

on_both_stores! {
    #[tokio::test]
    async fn requests_with_one_key_in_one_batch_are_told_apart_by_their_hash(folder: Folder) {
        let ledger = folder.open().await;
        let batch = [("a", "h"), ("b", "h"), ("c", "other")].map(|(id, hash)| with_key(append(id, 0, "x"), "k", hash));
        let answers = join_all(batch.map(|append| ledger.append(append))).await;
        let events = answers[0].as_ref().expect("the first is stored").events.clone();
        assert_eq!(answers[1], Err(AppendError::KeySeen { same_request: true, events: events.clone() }));
        assert_eq!(answers[2], Err(AppendError::KeySeen { same_request: false, events }));
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_key_is_remembered_after_reopening_with_everything_it_caused(folder: Folder) {
        let ledger = folder.open().await;
        let first = ledger.append(with_key(append_events("a", 0, events(3)), "k", "h")).await.expect("stored");
        ledger.close().await;
        let ledger = folder.open().await;
        let again = ledger.append(with_key(append("b", 0, "x"), "k", "h")).await;
        assert_eq!(again, Err(AppendError::KeySeen { same_request: true, events: first.events.clone() }));
        let known = ledger.reader().idempotent("ann", "k").await.expect("read");
        assert_eq!(known, Some(("h".to_owned(), first.events)));
        assert_eq!(ledger.reader().idempotent("bob", "k").await.expect("read"), None, "keys have a scope");
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_refused_command_does_not_use_up_its_key(folder: Folder) {
        let ledger = folder.open().await;
        let late = with_key(append("a", 7, "x"), "k", "h");
        let in_time = with_key(append("a", 0, "x"), "k", "h");
        let answers = join_all([late, in_time].map(|append| ledger.append(append))).await;
        assert!(matches!(answers[0], Err(AppendError::Conflict { .. })));
        assert_eq!(answers[1].as_ref().map(Appended::position), Ok(1));
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_request_that_had_nothing_to_change_is_remembered_too(folder: Folder) {
        let ledger = folder.open().await;
        let nothing = with_key(Append::default(), "k", "h");
        assert_eq!(ledger.append(nothing.clone()).await.map(|appended| appended.position()), Ok(0));
        assert_eq!(ledger.append(nothing).await, Err(AppendError::KeySeen { same_request: true, events: vec![] }));
        ledger.append(append("a", 0, "x")).await.expect("appended");
        assert!(folder.verify().await.is_sound());
    }
}
