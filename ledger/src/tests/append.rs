//! What an append promises.

use super::support::*;
use crate::*;

#[tokio::test]
async fn an_appended_event_is_read_back_as_it_was_answered() {
    let folder = Folder::new();
    let ledger = folder.open().await;
    let appended = ledger.append(append("c", 0, "one")).await.expect("appended");
    assert_eq!(appended.position(), 1);
    assert_eq!(ledger.reader().read(0, 10).await.expect("read"), appended.events);
    assert_eq!(appended.events[0].leaf_hash, appended.events[0].expected_leaf_hash());
    ledger.close().await;
    let again = folder.open().await;
    assert_eq!(again.reader().read(0, 10).await.expect("read"), appended.events);
    assert_eq!(again.reader().head().await.expect("head").root, appended.events[0].leaf_hash);
}
