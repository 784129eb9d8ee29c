//! Proofs and checkpoints of real logs.

use super::support::*;
use crate::proof::*;
use crate::verify::{Check, Published, verify};
use crate::*;
use devmind_domain::Timestamp;
use devmind_domain::proof::{Checkpoint, Note, NoteKey, verify_consistency, verify_inclusion};
use std::fs;
use std::io;

const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

fn seed() -> io::Result<[u8; 32]> {
    Ok([7; 32])
}

/// A ledger with so many events, one stream for each thousand.
async fn ledger_of(folder: &Folder, count: usize) -> Ledger {
    let ledger = folder.open().await;
    for start in (0..count).step_by(1_000) {
        let append = append_events(&format!("s{start}"), 0, events((count - start).min(1_000)));
        ledger.append(append).await.expect("appended");
    }
    ledger
}

async fn record(folder: &Folder, ledger: &Ledger) -> Result<CheckpointRecord, RecordError> {
    CheckpointRecord::open(folder.path(), None, ledger.reader().clone(), seed).await
}

on_both_stores! {
    #[tokio::test(flavor = "multi_thread")]
    async fn proofs_of_a_log_of_several_tiles_hold_against_its_heads(folder: Folder) {
        let ledger = ledger_of(&folder, 1_100).await;
        let events = all(ledger.reader()).await;
        let roots: Vec<_> = {
            let mut tree = crate::Frontier::default();
            let grown = events.iter().map(|event| {
                tree.push(event.leaf_hash);
                tree.root()
            });
            std::iter::once(devmind_domain::canonical::sha256(&[])).chain(grown.collect::<Vec<_>>()).collect()
        };
        let prover = Prover::new(ledger.reader().clone());
        // Around the borders of tiles, and where the last one is complete, incomplete or lone.
        for size in [1, 2, 255, 256, 257, 511, 512, 513, 768, 1_023, 1_024, 1_025, 1_100] {
            assert_eq!(prover.root(size).await.expect("a root"), roots[size as usize]);
            for position in [1, 2, 128, 255, 256, 257, 512, 513, 1_000, size - size / 3, size] {
                if position > size {
                    let refused = prover.inclusion(position, size).await;
                    assert_eq!(refused, Err(ProveError::OutOfRange { size: 1_100 }));
                    continue;
                }
                let proof = prover.inclusion(position, size).await.expect("a proof");
                assert_eq!((proof.leaf_hash, proof.root), (events[position as usize - 1].leaf_hash, roots[size as usize]));
                verify_inclusion(position - 1, &proof.leaf_hash, size, &proof.path, &roots[size as usize]).expect("holds");
                let proof = prover.consistency(position, size).await.expect("a proof");
                let (from, to) = ((position, &roots[position as usize]), (size, &roots[size as usize]));
                assert_eq!((proof.from_root, proof.to_root), (*from.1, *to.1));
                verify_consistency(from, to, &proof.path).expect("holds");
            }
        }
        for refused in [prover.inclusion(0, 10).await.err(), prover.inclusion(1, 1_101).await.err()] {
            assert_eq!(refused, Some(ProveError::OutOfRange { size: 1_100 }));
        }
        assert_eq!(prover.consistency(9, 8).await, Err(ProveError::OutOfRange { size: 1_100 }));
        // The log grows under the same prover.
        ledger.append(append_events("more", 0, crate::tests::support::events(300))).await.expect("appended");
        let (proof, head) = (prover.inclusion(1_399, 1_400).await.expect("a proof"), ledger.reader().head().await);
        assert_eq!(proof.root, head.expect("a head").root);
        ledger.close().await;
    }
}

#[tokio::test]
async fn no_proof_is_made_of_a_log_that_is_not_what_its_head_says() {
    let folder = Folder::new();
    ledger_of(&folder, 600).await.close().await;
    folder.tamper("UPDATE events SET leaf_hash = zeroblob(32) WHERE position = 3").await;
    let prover = Prover::new(folder.reader().await);
    assert!(matches!(prover.inclusion(600, 600).await, Err(ProveError::Ledger(LedgerError::Corrupt { .. }))));
    folder.tamper("DELETE FROM events WHERE position = 300").await;
    let prover = Prover::new(folder.reader().await);
    assert!(matches!(prover.inclusion(1, 600).await, Err(ProveError::Ledger(LedgerError::Corrupt { .. }))));
}

#[tokio::test]
async fn a_checkpoint_is_signed_once_for_each_head_and_kept() {
    let folder = Folder::new();
    let ledger = ledger_of(&folder, 3).await;
    let record = record(&folder, &ledger).await.expect("opened");
    let first = record.publish(NOW).await.expect("published");
    assert_eq!(record.publish(NOW.plus_millis(5)).await.expect("published"), first);
    ledger.append(append("more", 0, "x")).await.expect("appended");
    let second = record.publish(NOW).await.expect("published");
    let head = ledger.reader().head().await.expect("a head");
    let origin = format!("devmind-ledger/{}", ledger.reader().ledger_id());
    assert_eq!(second.checkpoint, Checkpoint { origin, size: 4, root: head.root });
    assert_eq!(read_checkpoints(folder.path()).expect("read"), [first, second.clone()]);
    let key = read_public_key(folder.path()).expect("the public key");
    assert_eq!(NoteKey::parse(&record.key().to_string()), Ok(key.clone()));
    Note::parse(&second.note).expect("a note").verify(&key).expect("signed");
    ledger.close().await;
}

#[cfg(unix)]
#[tokio::test]
async fn the_key_is_made_once_and_readable_by_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let ledger = ledger_of(&folder, 1).await;
    let made = record(&folder, &ledger).await.expect("opened").key();
    let file = folder.path().join(KEY_FILE);
    let mode = fs::metadata(&file).expect("the key").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let other = || Ok([8; 32]);
    let again = CheckpointRecord::open(folder.path(), None, ledger.reader().clone(), other).await.expect("opened");
    assert_eq!(again.key(), made);
    // A key of the caller's is used as it is, and never made.
    let own = folder.path().join("own.key");
    let missing = CheckpointRecord::open(folder.path(), Some(&own), ledger.reader().clone(), other).await;
    assert!(matches!(missing, Err(RecordError::Key(KeyError { missing: true, .. }))));
    fs::copy(&file, &own).expect("copied");
    let configured = CheckpointRecord::open(folder.path(), Some(&own), ledger.reader().clone(), other).await;
    assert_eq!(configured.expect("opened").key(), made);
    fs::write(&own, "not a key").expect("written");
    let broken = CheckpointRecord::open(folder.path(), Some(&own), ledger.reader().clone(), other).await;
    assert!(matches!(broken, Err(RecordError::Key(KeyError { missing: false, .. }))));
    ledger.close().await;
}

#[tokio::test]
async fn a_checkpoint_that_was_not_written_to_its_end_counts_as_not_written() {
    let folder = Folder::new();
    let ledger = ledger_of(&folder, 3).await;
    let first = record(&folder, &ledger).await.expect("opened").publish(NOW).await.expect("published");
    let file = folder.path().join(CHECKPOINTS_FILE);
    let whole = fs::read_to_string(&file).expect("read");
    fs::write(&file, format!("{whole}{}", &whole[..50])).expect("written");
    assert_eq!(read_checkpoints(folder.path()).expect("read"), std::slice::from_ref(&first));
    ledger.append(append("more", 0, "x")).await.expect("appended");
    let second = record(&folder, &ledger).await.expect("opened").publish(NOW).await.expect("published");
    assert_eq!(read_checkpoints(folder.path()).expect("read"), [first, second]);
    fs::write(&file, format!("not a checkpoint\n{whole}")).expect("written");
    assert!(matches!(read_checkpoints(folder.path()), Err(RecordError::File { .. })));
    ledger.close().await;
}

#[tokio::test]
async fn a_log_that_lost_or_changed_what_was_published_is_not_signed_again() {
    let folder = Folder::new();
    let ledger = ledger_of(&folder, 10).await;
    record(&folder, &ledger).await.expect("opened").publish(NOW).await.expect("published");
    ledger.append(append("more", 0, "x")).await.expect("appended");
    ledger.close().await;
    // Forged so that every hash and the head fit.
    folder.forge("UPDATE events SET payload = replace(payload, '\"2\"', '\"3\"') WHERE position = 3").await;
    let ledger = folder.open().await;
    assert!(matches!(record(&folder, &ledger).await, Err(RecordError::Forked { size: 10, .. })));
    ledger.close().await;

    let folder = Folder::new();
    let ledger = ledger_of(&folder, 10).await;
    record(&folder, &ledger).await.expect("opened").publish(NOW).await.expect("published");
    ledger.close().await;
    folder.forge("DELETE FROM events WHERE position = 10; DROP TRIGGER IF EXISTS x; UPDATE head SET size = 9").await;
    let ledger = folder.open().await;
    assert!(matches!(record(&folder, &ledger).await, Err(RecordError::Forked { size: 10, .. })));
    ledger.close().await;
}

#[tokio::test]
async fn a_history_that_was_forked_with_all_its_hashes_is_found_between_two_checkpoints() {
    let folder = Folder::new();
    let ledger = folder.open().await;
    let record = record(&folder, &ledger).await.expect("opened");
    for stream in ["a", "b", "c"] {
        ledger.append(append_events(stream, 0, events(5))).await.expect("appended");
        record.publish(NOW).await.expect("published");
    }
    ledger.close().await;
    let published = read_checkpoints(folder.path()).expect("read");
    let key = record.key();
    let findings = async |checkpoints: &[RecordedCheckpoint], key: &NoteKey| {
        let published = Published { key: Some(key), checkpoints, ..Published::default() };
        let report = verify(&folder.reader().await, published, |_, _| {}).await.expect("verified");
        report.findings.iter().map(|found| (found.check, found.position, found.reason.clone())).collect::<Vec<_>>()
    };
    assert_eq!(findings(&published, &key).await, []);

    folder.forge("UPDATE events SET payload = replace(payload, '\"2\"', '\"3\"') WHERE position = 8").await;
    let found = findings(&published, &key).await;
    let places: Vec<_> = found.iter().map(|(check, position, _)| (*check, *position)).collect();
    assert_eq!(places, [(Check::Checkpoints, 10), (Check::Checkpoints, 15)]);
    assert!(found[0].2.contains("between 6 and 10"), "{found:?}");
    // Without checkpoints nobody could tell.
    assert_eq!(findings(&[], &key).await, []);

    // Cut off behind the second one.
    folder.forge("DELETE FROM events WHERE position > 12; UPDATE head SET size = 12").await;
    let found = findings(&published, &key).await;
    let cut = |reason: &str| reason.contains("the log ends at 12");
    assert!(found.iter().any(|(check, at, why)| (*check, *at) == (Check::Checkpoints, 12) && cut(why)), "{found:?}");

    // A checkpoint that nobody signed, and one by another key.
    let mut forged = published.clone();
    forged[0].note = forged[0].note.replace("\n5\n", "\n4\n");
    assert!(
        findings(&forged, &key).await.iter().any(|(check, position, _)| (*check, *position) == (Check::Checkpoints, 5))
    );
    let other = devmind_domain::proof::NoteSigner::from_seed(key.name(), key.kind(), &[9; 32]).expect("a key").public();
    assert!(
        findings(&published, &other)
            .await
            .iter()
            .any(|(_, position, reason)| *position == 5 && reason.contains("no signature"))
    );
}
