//! Erasing a payload: what stays, what is refused, what is found.

use super::support::*;
use crate::proof::Prover;
use crate::verify::Check;
use crate::*;
use devmind_domain::conversation::{Conversation, ConversationDeleted, ConversationEvent};
use devmind_domain::event::{Actor, Metadata};
use devmind_domain::redaction::Redacted;

fn by_olga() -> Metadata {
    Metadata::new(Actor::operator("olga"), "devmind-replay".into())
}

async fn fill(folder: &Folder) {
    let ledger = folder.open().await;
    ledger
        .append(append_events("a", 0, vec![event("one"), event("the SECRET title"), event("three")]))
        .await
        .expect("appended");
    ledger
        .append(append_events("a", 3, vec![new_event(ConversationEvent::from(ConversationDeleted {}).into())]))
        .await
        .expect("appended");
    ledger.close().await;
}

on_both_stores! {
    #[tokio::test(flavor = "multi_thread")]
    async fn an_erased_payload_is_gone_from_the_file_every_proof_holds_and_every_rule_loads(folder: Folder) {
        fill(&folder).await;
        let before = folder.reader().await;
        let (root, events) = (before.head().await.expect("head").root, all(&before).await);
        drop(before);
        let planned = plan_redaction(&folder.reader().await, 2).await.expect("planned");
        assert_eq!((planned.by, planned.kept.as_str()), (None, r#"{"source":"manual","title":"[redacted]"}"#));
        let done = redact(folder.place(), 2, "asked for", &by_olga()).await.expect("erased");
        assert_eq!((done.by, done.kept.as_str()), (Some(5), r#"{"source":"manual","title":"[redacted by event 5]"}"#));

        let mut left = Vec::new();
        for file in std::fs::read_dir(folder.path()).expect("the folder") {
            left.extend(std::fs::read(file.expect("a file").path()).expect("read"));
        }
        assert!(!left.windows(6).any(|bytes| bytes == b"SECRET"), "the text is still in a file");

        let report = folder.verify().await;
        assert!(report.is_sound(), "{:?}", report.findings);
        assert_eq!(
            report.notes.iter().map(|note| (note.position, note.text.as_str())).collect::<Vec<_>>(),
            [(2, "redacted by event 5: asked for")]
        );
        let reader = folder.reader().await;
        let now = all(&reader).await;
        assert!(now.iter().zip(&events).all(|(now, then)| now.leaf_hash == then.leaf_hash));
        assert_eq!(Prover::new(reader.clone()).root(4).await.expect("a root"), root);
        let told = now[4].metadata().expect("metadata");
        assert_eq!((told.actor.to_string().as_str(), now[4].event_type.as_str()), ("operator:olga", "PayloadRedacted"));
        assert_eq!(Redacted::parse(&now[1].payload).map(|redacted| redacted.by), Some(5));
        let (state, version) = load::<Conversation>(&reader, "a").await.expect("the rules load");
        assert_eq!(version, 4);
        assert!(*state != Conversation::default());
        // Asked again, it is already so.
        let again = redact(folder.place(), 2, "again", &by_olga()).await.expect("already so");
        assert_eq!(again, done);
        assert_eq!(all(&folder.reader().await).await.len(), 5);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_holds_no_content_is_not_there_or_was_tampered_with_is_not_erased(folder: Folder) {
        fill(&folder).await;
        let refused =
            async |position| redact(folder.place(), position, "asked for", &by_olga()).await.expect_err("refused");
        assert!(matches!(refused(4).await, RedactError::NoContent { position: 4, .. }));
        for nowhere in [0, 5] {
            assert!(matches!(refused(nowhere).await, RedactError::NoSuchEvent(_)));
        }
        let no_reason = redact(folder.place(), 2, " ", &by_olga()).await.expect_err("refused");
        assert!(matches!(no_reason, RedactError::Record(ExecuteError::Refused(_))));
        folder.tamper("UPDATE events SET payload = replace(payload, 'SECRET', 'other') WHERE position = 2").await;
        assert!(matches!(refused(2).await, RedactError::Tampered(2)));
        assert_eq!(all(&folder.reader().await).await.len(), 4, "nothing was recorded");
        // A database has room for several processes.
        if folder.is_postgres() {
            return;
        }
        let ledger = folder.open().await;
        assert!(matches!(refused(1).await, RedactError::Ledger(LedgerError::Locked { .. })), "a server has it");
        ledger.close().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_crash_between_the_record_and_the_erasure_is_found_and_finished(folder: Folder) {
        fill(&folder).await;
        let original = all(&folder.reader().await).await[1].payload.clone();
        redact(folder.place(), 2, "asked for", &by_olga()).await.expect("erased");
        // As the crash leaves it: recorded, and not erased.
        folder.tamper(&format!("UPDATE events SET payload = '{original}' WHERE position = 2")).await;
        let findings = folder.verify().await.findings;
        assert_eq!(
            findings.iter().map(|found| (found.check, found.position)).collect::<Vec<_>>(),
            [(Check::Redactions, 5)]
        );
        redact(folder.place(), 2, "asked for", &by_olga()).await.expect("finished");
        assert!(folder.verify().await.is_sound());
        assert_eq!(all(&folder.reader().await).await.len(), 5, "it is recorded once");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_database_itself_lets_nothing_change_but_a_payload_to_the_marker_that_an_event_speaks_of(folder: Folder) {
        fill(&folder).await;
        redact(folder.place(), 2, "asked for", &by_olga()).await.expect("erased");
        let events = all(&folder.reader().await).await;
        let marker = events[1].payload.clone();
        let mut sql = folder.connect().await;
        for (what, position) in [
            (format!("payload = '{marker}'"), 1),
            (format!("payload = '{marker}'"), 2),
            ("payload = '{}'".to_owned(), 1),
            ("payload = 'no json'".to_owned(), 1),
            ("payload = '{\"redacted\":{\"by\":5,\"kept\":{},\"payload_hash\":\"x\"}}'".to_owned(), 1),
            ("metadata = '{}'".to_owned(), 1),
            (format!("payload = '{marker}', metadata = '{{}}'"), 1),
            ("leaf_hash = zeroblob(32)".to_owned(), 2),
        ] {
            let update = format!("UPDATE events SET {what} WHERE position = {position}");
            let refused = sql.run(&update).await.expect_err(&update);
            assert!(refused.to_string().contains("append-only"), "{update}: {refused}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_marker_that_no_event_speaks_of_and_one_that_was_changed_are_tampering(folder: Folder) {
        fill(&folder).await;
        let events = all(&folder.reader().await).await;
        let hash = devmind_domain::canonical::sha256_hex(events[0].payload.as_bytes());
        let kept = serde_json::json!({ "title": "[redacted]", "source": "manual" });
        let forged = Redacted { by: 4, kept, payload_hash: hash }.to_text();
        folder.tamper(&format!("UPDATE events SET payload = '{forged}' WHERE position = 1")).await;
        let findings = folder.verify().await.findings;
        assert_eq!(
            findings.iter().map(|found| (found.check, found.position)).collect::<Vec<_>>(),
            [(Check::Redactions, 1)]
        );

let untouched = format!("UPDATE events SET payload = '{}' WHERE position = 1", events[0].payload);
        folder.tamper(&untouched).await;
        redact(folder.place(), 2, "asked for", &by_olga()).await.expect("erased");
        folder.tamper("UPDATE events SET payload = replace(payload, 'manual', 'derived') WHERE position = 2").await;
        let findings = folder.verify().await.findings;
        assert_eq!(
            findings.iter().map(|found| (found.check, found.position)).collect::<Vec<_>>(),
            [(Check::Redactions, 2)]
        );
    }
}
