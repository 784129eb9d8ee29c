//! Faults that other event stores were found to have, by the numbers they have in our collection of cases.

use super::support::*;
use crate::store::faults::Fault;
use crate::verify::Check;
use crate::*;
use devmind_domain::ErrorCode;
use devmind_domain::conversation::Conversation;
use futures::future::join_all;
use std::time::Duration;

on_both_stores! {
    #[tokio::test]
    async fn b32_an_append_that_failed_leaves_no_hole_and_no_reader_behind(folder: Folder) {
        let ledger = folder.open().await;
        let mut follower = ledger.reader().follow(0);
        for round in 0..3 {
            ledger.faults.set(Fault::CommitLost);
            ledger.append(append("lost", 0, "x")).await.expect_err("not stored");
            let stored = ledger.append(append("kept", round, "x")).await.expect("stored");
            assert_eq!(stored.position(), round + 1);
            assert_eq!(follower.next().await.expect("events"), stored.events);
        }
        assert!(folder.verify().await.is_sound());
    }

    #[tokio::test]
    async fn b33_an_event_that_this_program_does_not_know_keeps_its_position_and_its_bytes(folder: Folder) {
        let ledger = folder.open().await;
        ledger.append(append_events("c", 0, events(3))).await.expect("appended");
        ledger.close().await;
        let later = r#"{"of":"a newer program"}"#;
        folder.forge(&format!("UPDATE events SET event_type = 'Frozen', payload = '{later}' WHERE position = 3")).await;
        let ledger = folder.open().await;
        let error = load::<Conversation>(ledger.reader(), "c").await.expect_err("half the facts");
        assert_eq!(error.code(), ErrorCode::LedgerSchemaNewer);
        assert!(error.to_string().contains("event 3 of conversation/c"), "{error}");
        let next = ledger.append(append("c", 3, "goes on")).await.expect("appended");
        assert_eq!((next.position(), next.events[0].sequence), (4, 4), "no number is used twice");
        let log = all(ledger.reader()).await;
        assert_gapless(&log);
        assert_eq!((log[2].event_type.as_str(), log[2].payload.as_str()), ("Frozen", later));
        let report = folder.verify().await;
        assert!(report.is_sound(), "{:?}", report.findings);
        assert_eq!(report.notes.iter().map(|note| note.position).collect::<Vec<_>>(), [3], "it is told of, not hidden");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn b36_untouched_data_verifies_in_every_form_and_each_change_is_found_at_its_position(folder: Folder) {
        let ledger = folder.open().await;
        let writers = (0..8).map(|writer| {
            let ledger = ledger.clone();
            tokio::spawn(async move {
                for version in 0..125 {
                    ledger.append(append(&format!("s{writer}"), version, "z \u{1F600} a")).await.expect("appended");
                }
            })
        });
        for writer in join_all(writers).await {
            writer.expect("no panic");
        }
        ledger.close().await;
        let untouched = folder.verify().await;
        assert!(untouched.is_sound(), "{:?}", untouched.findings);
        assert_eq!(untouched.position, 1_000);
        let copy = || async {
            let copy = folder.copied().await;
            assert_eq!(copy.verify().await.root, untouched.root, "dumped and restored, it is the same log");
            copy
        };
        for (change, check, position) in [
            ("UPDATE events SET payload = replace(payload, 'z', 'y') WHERE position = 500", Check::LeafHash, 500),
            ("DELETE FROM events WHERE position = 700", Check::Order, 701),
            (
                "UPDATE events SET position = 9999 WHERE position = 300; \
                 UPDATE events SET position = 300 WHERE position = 301; \
                 UPDATE events SET position = 301 WHERE position = 9999",
                Check::LeafHash,
                300,
            ),
        ] {
            let copy = copy().await;
            copy.tamper(change).await;
            let report = copy.verify().await;
            let found = report.findings.iter().any(|found| found.check == check && found.position == position);
            assert!(found, "{change}: {:?}", report.findings);
        }
    }
}

/// Until `ask` answers with at least one row; not for ever.
async fn until(sql: &mut sqlx::PgConnection, ask: &'static str) {
    let asking = async {
        while sqlx::query(ask).fetch_optional(&mut *sql).await.expect("asked").is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asking).await.expect(ask);
}

#[tokio::test(flavor = "multi_thread")]
async fn b32_no_reader_passes_an_append_that_is_still_open_and_it_comes_in_order_or_not_at_all() {
    for commits in [true, false] {
        let folder = Folder::postgres();
        let (one, two) = (folder.open().await, folder.open().await);
        let (Sql::Postgres(mut gate), Sql::Postgres(mut watch)) = (folder.connect().await, folder.connect().await)
        else {
            panic!("PostgreSQL")
        };
        // Whoever appends to `slow` has stored its events and cannot commit before the gate opens.
        let slow = "CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS \
            $$ BEGIN IF NEW.aggregate_id = 'slow' THEN PERFORM pg_advisory_xact_lock(7); END IF; RETURN NEW; END $$; \
            CREATE TRIGGER gate AFTER INSERT ON events FOR EACH ROW EXECUTE FUNCTION wait_at_gate(); \
            SELECT pg_advisory_lock(7)";
        sqlx::Executor::execute(&mut gate, slow).await.expect("a gate");
        let mut follower = folder.reader().await.follow(0);
        let first = tokio::spawn({
            let one = one.clone();
            async move { one.append(append("slow", 0, "x")).await }
        });
        until(&mut watch, "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND NOT granted").await;
        let second = tokio::spawn({
            let two = two.clone();
            async move { two.append(append("fast", 0, "x")).await }
        });
        until(
            &mut watch,
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event <> 'advisory' \
            AND datname = current_database()",
        )
        .await;
        assert!(futures::poll!(std::pin::pin!(follower.next())).is_pending(), "nothing is seen while it is open");
        assert_eq!(folder.reader().await.head().await.expect("head").position, 0);
        if !commits {
            sqlx::query(
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND NOT granted",
            )
            .execute(&mut watch)
            .await
            .expect("ended");
        }
        sqlx::query("SELECT pg_advisory_unlock(7)").execute(&mut gate).await.expect("opened");
        let (first, second) = (first.await.expect("no panic"), second.await.expect("no panic"));
        let second = second.expect("stored").position();
        match commits {
            true => assert_eq!((first.expect("stored").position(), second), (1, 2)),
            false => {
                assert_eq!(first.expect_err("its connection was ended").code(), ErrorCode::LedgerUnavailable);
                assert_eq!(second, 1, "no hole");
            }
        }
        let mut seen = Vec::new();
        while (seen.len() as u64) < second {
            seen.extend(follower.next().await.expect("events"));
        }
        assert_gapless(&seen);
        assert!(folder.verify().await.is_sound());
    }
}
