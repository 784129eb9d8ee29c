//! What callers are told when a commit fails, or the writer itself.

use super::support::*;
use crate::store::faults::Fault;
use crate::*;
use devmind_domain::ErrorCode;
use devmind_domain::limits::MAX_PAYLOAD_BYTES;

on_both_stores! {
    #[tokio::test]
    async fn a_commit_that_failed_but_is_stored_is_answered_as_stored(folder: Folder) {
        let ledger = folder.open().await;
        ledger.faults.set(Fault::CommitStored);
        let appended = ledger.append(append("a", 0, "x")).await.expect("it is stored");
        assert_eq!(ledger.reader().read(0, 10).await.expect("read"), appended.events);
        assert_eq!(ledger.append(append("a", 1, "y")).await.map(|appended| appended.position()), Ok(2));
        assert!(folder.verify().await.is_sound());
    }
}

#[tokio::test]
async fn a_commit_that_failed_and_is_not_stored_is_answered_as_an_error_and_the_writer_goes_on() {
    let folder = Folder::new();
    let ledger = folder.open().await;
    ledger.faults.set(Fault::CommitLost);
    let refused = ledger.append(with_key(append("a", 0, "x"), "k", "h")).await.expect_err("not stored");
    assert!(matches!(refused, AppendError::Storage(_)), "{refused}");
    assert_eq!(refused.code(), ErrorCode::LedgerUnavailable);
    let again = ledger.append(with_key(append("a", 0, "x"), "k", "h")).await;
    assert_eq!(again.map(|appended| appended.position()), Ok(1), "nothing is left of the first attempt");
    assert!(folder.verify().await.is_sound());
}

#[tokio::test]
async fn a_commit_whose_flush_failed_is_answered_as_in_doubt_though_it_cannot_be_seen() {
    let folder = Folder::new();
    let ledger = folder.open().await;
    ledger.faults.set(Fault::FlushFailed);
    let doubt = ledger.append(with_key(append("a", 0, "x"), "k", "h")).await.expect_err("nobody knows");
    assert!(matches!(doubt, AppendError::InDoubt(_)), "{doubt}");
    let again = ledger.append(with_key(append("a", 0, "x"), "k", "h")).await;
    assert_eq!(again.map(|appended| appended.position()), Ok(1), "asking again with the key settles it");
}

on_both_stores! {
    #[tokio::test]
    async fn a_commit_of_which_nothing_can_be_known_is_answered_as_in_doubt(folder: Folder) {
        let ledger = folder.open().await;
        ledger.faults.set(Fault::CommitInDoubt);
        let doubt = ledger.append(append("a", 0, "x")).await.expect_err("nobody knows");
        assert!(matches!(doubt, AppendError::InDoubt(_)), "{doubt}");
        assert_eq!(doubt.code(), ErrorCode::LedgerInDoubt);
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_writer_that_panics_leaves_no_caller_waiting(folder: Folder) {
        let ledger = folder.open().await;
        ledger.faults.set(Fault::Panic);
        // The second waits behind the first: they are too large for one batch.
        let large = "x".repeat(MAX_PAYLOAD_BYTES);
        let large = &large[..large.len() - 40];
        let (under_way, waiting) = tokio::join!(ledger.append(append("a", 0, large)), ledger.append(append("b", 0, large)));
        assert!(matches!(under_way, Err(AppendError::InDoubt(_))), "it may have been stored: {under_way:?}");
        assert_eq!(waiting, Err(AppendError::Closed), "it was not begun");
        assert_eq!(ledger.append(append("c", 0, "x")).await, Err(AppendError::Closed));
        assert!(!ledger.is_open());
        assert_eq!(ledger.reader().follow(0).next().await, Err(LedgerError::Closed), "followers are told, too");
        ledger.close().await;
    }
}
