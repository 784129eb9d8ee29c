//! What an append promises.

use super::support::*;
use crate::*;
use devmind_domain::limits::MAX_PAYLOAD_BYTES;
use futures::future::join_all;
use std::collections::BTreeSet;

on_both_stores! {
    #[tokio::test]
    async fn an_appended_event_is_read_back_as_it_was_answered(folder: Folder) {
        let ledger = folder.open().await;
        let appended = ledger.append(append("c", 0, "one \u{1F600} \"\\ \n")).await.expect("appended");
        assert_eq!(appended.position(), 1);
        assert_eq!(appended.events[0].leaf_hash, appended.events[0].expected_leaf_hash());
        assert_eq!(folder.reader().await.read(0, 10).await.expect("read"), appended.events);
        ledger.close().await;
        let again = folder.open().await;
        assert_eq!(again.reader().read(0, 10).await.expect("read"), appended.events);
        assert_eq!(again.reader().head().await.expect("head").root, appended.events[0].leaf_hash);
    }
}

on_both_stores! {
    #[tokio::test]
    async fn right_after_a_batch_the_next_one_is_stored_without_a_look_and_a_refusal_never_is(folder: Folder) {
        let ledger = folder.open().await;
        const APPENDS: u32 = 50;
        for n in 0..APPENDS {
            ledger.append(append("c", n.into(), "x")).await.expect("appended");
        }
        let looks = ledger.faults.counts().looks;
        assert!(0 < looks && looks < APPENDS, "{looks} looks for {APPENDS} batches");
        // What is only supposed refuses nobody.
        ledger.append(append("c", 7, "x")).await.expect_err("somebody was faster");
        assert!(ledger.faults.counts().looks > looks);
    }
}

on_both_stores! {
    #[tokio::test(flavor = "multi_thread")]
    async fn positions_are_gapless_under_64_callers_over_own_and_contested_streams(folder: Folder) {
        let ledger = folder.open().await;
        let callers = (0..64).map(|caller| {
            let ledger = ledger.clone();
            tokio::spawn(async move {
                let (mut won, mut lost) = (0, 0);
                for round in 0..10 {
                    let own = ledger.append(append(&format!("own-{caller}"), round, "mine")).await.expect("nobody else");
                    won += own.events.len();
                    match ledger.append(append("contested", round, "ours")).await {
                        Ok(appended) => won += appended.events.len(),
                        Err(AppendError::Conflict { expected, .. }) if expected == round => lost += 1,
                        Err(other) => panic!("{other}"),
                    }
                }
                (won, lost)
            })
        });
        let (mut won, mut lost) = (0, 0);
        for caller in join_all(callers).await {
            let (caller_won, caller_lost) = caller.expect("no panic");
            won += caller_won;
            lost += caller_lost;
        }
        let events = all(ledger.reader()).await;
        assert_gapless(&events);
        assert_eq!(events.len(), won);
        assert_eq!(won + lost, 64 * 20, "every command was answered once");
        let contested = ledger.reader().read_stream(&stream("contested"), 0).await.expect("read");
        assert_eq!(contested.len(), won - 640, "each version of the contested stream was won once");
        assert!(events.is_sorted_by_key(|event| event.recorded_at));
        assert_eq!(ledger.reader().head().await.expect("head").position, won as u64);
        assert!(folder.verify().await.is_sound());
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_refused_command_does_not_disturb_its_batch(folder: Folder) {
        let ledger = folder.open().await;
        let first = ledger.append(append("a", 0, "before")).await.expect("appended");
        let mut poisonous = append("p", 0, "its event id was used before");
        poisonous.streams[0].events[0].event_id = first.events[0].event_id.clone();
        // On one thread, all of these wait before the writer looks: one batch.
        let batch = [append("b", 0, "good"), append("a", 0, "late"), poisonous, append("c", 0, "good")];
        let answers = join_all(batch.map(|append| ledger.append(append))).await;
        assert_eq!(answers[0].as_ref().map(Appended::position), Ok(2));
        assert_eq!(answers[1], Err(AppendError::Conflict { stream: stream("a"), expected: 0, actual: 1 }));
        assert!(matches!(&answers[2], Err(AppendError::Invalid { reason }) if reason.contains("event_id")));
        assert_eq!(answers[3].as_ref().map(Appended::position), Ok(3));
        assert_gapless(&all(ledger.reader()).await);
        assert!(folder.verify().await.is_sound());
    }
}

on_both_stores! {
    #[tokio::test]
    async fn commands_of_one_batch_see_what_those_before_them_do(folder: Folder) {
        let ledger = folder.open().await;
        let batch = [append("a", 0, "1"), append("a", 1, "2"), append("a", 1, "loses"), append("a", 2, "3")];
        let answers = join_all(batch.map(|append| ledger.append(append))).await;
        let positions: Vec<_> = answers.iter().map(|answer| answer.as_ref().map(Appended::position).ok()).collect();
        assert_eq!(positions, [Some(1), Some(2), None, Some(3)]);
        assert_eq!(answers[2], Err(AppendError::Conflict { stream: stream("a"), expected: 1, actual: 2 }));
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_command_over_several_streams_is_stored_as_a_whole_or_not_at_all(folder: Folder) {
        let ledger = folder.open().await;
        let both = |version| Append {
            streams: ["a", "b"]
                .map(|id| StreamAppend { stream: stream(id), expected_version: version, events: events(2) })
                .into(),
            idempotency: None,
        };
        assert_eq!(ledger.append(both(0)).await.map(|appended| appended.position()), Ok(4));
        ledger.append(append("b", 2, "makes b newer")).await.expect("appended");
        let refused = ledger.append(both(2)).await;
        assert_eq!(refused, Err(AppendError::Conflict { stream: stream("b"), expected: 2, actual: 3 }));
        assert_eq!(all(ledger.reader()).await.len(), 5, "stream a was not touched");

        // What is not written to is compared all the same.
        let while_b_is = |expected_version| Append {
            streams: vec![
                StreamAppend { stream: stream("a"), expected_version: 2, events: events(1) },
                StreamAppend { stream: stream("b"), expected_version, events: Vec::new() },
            ],
            idempotency: None,
        };
        let refused = ledger.append(while_b_is(2)).await;
        assert_eq!(refused, Err(AppendError::Conflict { stream: stream("b"), expected: 2, actual: 3 }));
        assert_eq!(ledger.append(while_b_is(3)).await.map(|appended| appended.position()), Ok(6));
    }
}

on_both_stores! {
    #[tokio::test]
    async fn what_can_never_be_stored_is_refused_alone(folder: Folder) {
        let ledger = folder.open().await;
        let huge = append("a", 0, &"x".repeat(MAX_PAYLOAD_BYTES));
        let bad_id = append("a\0b", 0, "NUL");
        let many = append_events("a", 0, events(MAX_APPEND_EVENTS + 1));
        let answers = join_all([huge, bad_id, many, append("a", 0, "fine")].map(|append| ledger.append(append))).await;
        assert!(matches!(answers[0], Err(AppendError::TooLarge { bytes }) if bytes > MAX_PAYLOAD_BYTES));
        assert!(matches!(answers[1], Err(AppendError::Invalid { .. })));
        assert!(matches!(answers[2], Err(AppendError::Invalid { .. })));
        assert_eq!(answers[3].as_ref().map(Appended::position), Ok(1));
    }
}

on_both_stores! {
    #[tokio::test]
    async fn more_than_the_queue_holds_is_refused_as_overload_and_the_rest_is_stored(folder: Folder) {
        let ledger = folder.open().await;
        let ids: Vec<String> = (0..MAX_QUEUED_COMMANDS + 8).map(|n| format!("s{n}")).collect();
        let answers = join_all(ids.iter().map(|id| ledger.append(append(id, 0, "x")))).await;
        let refused: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
        assert_eq!(refused, [&AppendError::Overloaded; 8]);
        assert!(AppendError::Overloaded.code().retriable());
        let positions: BTreeSet<u64> = answers.iter().flatten().map(Appended::position).collect();
        assert_eq!(positions.len(), MAX_QUEUED_COMMANDS);
        assert_gapless(&all(ledger.reader()).await);
    }
}

on_both_stores! {
    #[tokio::test]
    async fn more_bytes_than_the_queue_holds_are_refused_as_overload(folder: Folder) {
        let ledger = folder.open().await;
        let title = "x".repeat(MAX_PAYLOAD_BYTES - 1_000);
        let ids: Vec<String> = (0..10).map(|n| format!("s{n}")).collect();
        let answers = join_all(ids.iter().map(|id| ledger.append(append(id, 0, &title)))).await;
        let stored = answers.iter().filter(|answer| answer.is_ok()).count();
        assert_eq!(stored, MAX_QUEUED_BYTES / MAX_PAYLOAD_BYTES);
        assert!(
            answers.iter().flatten().count() + answers.iter().filter(|a| **a == Err(AppendError::Overloaded)).count() == 10
        );
    }
}

on_both_stores! {
    #[tokio::test]
    async fn time_in_the_log_never_goes_back_even_when_a_clock_did(folder: Folder) {
        let ledger = folder.open().await;
        ledger.append(append("s", 0, "by a clock that ran ahead")).await.expect("appended");
        ledger.close().await;
        let ahead = "2999-01-01T00:00:00.000000Z";
        folder.forge(&format!("UPDATE events SET recorded_at = '{ahead}'")).await;
        let appended = folder.open().await.append(append("s", 1, "x")).await.expect("appended");
        assert_eq!(appended.events[0].recorded_at.to_string(), ahead);
    }
}

on_both_stores! {
    #[tokio::test]
    async fn nothing_to_store_is_answered_with_the_head(folder: Folder) {
        let ledger = folder.open().await;
        ledger.append(append_events("a", 0, events(3))).await.expect("appended");
        let nothing = ledger.append(Append::default()).await.expect("nothing to do");
        assert_eq!((nothing.position(), nothing.events.len()), (3, 0));
    }
}

on_both_stores! {
    #[tokio::test]
    async fn rows_of_the_log_can_be_neither_changed_nor_deleted(folder: Folder) {
        let ledger = folder.open().await;
        ledger.append(with_key(append("a", 0, "x"), "k", "h")).await.expect("appended");
        let mut sql = folder.connect().await;
        for statement in [
            "UPDATE events SET payload = '{}'",
            "DELETE FROM events",
            "UPDATE idempotency SET request_hash = 'other'",
            "DELETE FROM idempotency",
            "UPDATE head SET size = 0",
            "UPDATE head SET partition = 1",
            "DELETE FROM head",
            "UPDATE ledger_meta SET ledger_id = 'other'",
            "DELETE FROM ledger_meta",
        ] {
            let refused = sql.run(statement).await.expect_err(statement);
            // https://www.sqlite.org/rescode.html#constraint_trigger, restrict_violation
            let code = if folder.is_postgres() { "23001" } else { "1811" };
            assert_eq!(refused.as_database_error().and_then(|error| error.code()).as_deref(), Some(code), "{statement}");
        }
        drop(sql);
        assert!(folder.verify().await.is_sound());
    }
}
