//! Waiting for facts.

use std::time::Duration;
use tokio::time::Instant;

/// A fact that has not come by then will not come: the test fails. Long, because machines are slow;
/// never part of what is asserted.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// How often something without a signal of its own is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Looks until `look` gives `Ok`; fails with its last `Err`, which says what was seen.
pub async fn eventually<T, F: Future<Output = Result<T, String>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match look().await {
            Ok(found) => return found,
            Err(seen) if Instant::now() > deadline => panic!("{what}: not within {DEADLINE:?}; seen: {seen}"),
            Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}

/// Waits for a future that must end.
pub async fn within_deadline<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(done) => done,
        Err(_) => panic!("{what}: not within {DEADLINE:?}"),
    }
}
