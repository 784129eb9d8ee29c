//! Bundles that were uploaded to be looked at, in memory: for the one who uploaded them, for a while, and only so
//! many bytes of them. What goes is uploaded again.

use crate::ids::new_id;
use devmind_domain::event::RecordedEvent;
use devmind_domain::ids::UserId;
use devmind_ledger::bundle::BundleReport;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long one is kept.
pub const KEPT_FOR: Duration = Duration::from_secs(30 * 60);
/// Of one person, at most: the newest.
const MAX_OF_ONE: usize = 2;
/// Bytes of all events together, at most: the oldest go first. One bundle may have as many.
const MAX_BYTES: usize = 96 << 20;
/// Bytes that an event takes beside its texts, about.
const BYTES_OF_EVENT: usize = 400;

/// A bundle that was read.
pub struct Bundle {
    /// The name of its file.
    pub name: String,
    pub report: BundleReport,
    /// In their order.
    pub events: Vec<Arc<RecordedEvent>>,
    /// When it was checked.
    pub at: devmind_domain::Timestamp,
}

struct Entry<B> {
    key: String,
    owner: UserId,
    since: Instant,
    bytes: usize,
    kept: Arc<B>,
}

/// Those of one server process.
pub struct Kept<B = Bundle>(Mutex<VecDeque<Entry<B>>>);

impl<B> Default for Kept<B> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl Kept {
    /// Keeps a bundle; its key is in the address of its pages.
    pub fn keep(&self, owner: UserId, name: String, report: BundleReport, events: Vec<Arc<RecordedEvent>>) -> String {
        let bytes = events.iter().map(|event| BYTES_OF_EVENT + event.payload.len() + event.metadata.len()).sum();
        self.put(owner, bytes, Bundle { name, report, events, at: crate::ids::now() })
    }
}

impl<B> Kept<B> {
    fn put(&self, owner: UserId, bytes: usize, what: B) -> String {
        let entry = Entry { key: new_id(), owner, since: Instant::now(), bytes, kept: Arc::new(what) };
        let key = entry.key.clone();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push_back(entry);
        forget(&mut all);
        key
    }

    /// What is still kept under a key, for its owner.
    pub fn find(&self, owner: &UserId, key: &str) -> Option<Arc<B>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        forget(&mut all);
        all.iter().find(|entry| entry.key == key && entry.owner == *owner).map(|entry| entry.kept.clone())
    }
}

/// Lets go what has had its time, and the oldest of what is too much. The newest stays.
fn forget<B>(kept: &mut VecDeque<Entry<B>>) {
    kept.retain(|entry| entry.since.elapsed() < KEPT_FOR);
    let Some(newest) = kept.back().map(|entry| entry.owner.clone()) else { return };
    while kept.iter().filter(|entry| entry.owner == newest).count() > MAX_OF_ONE {
        let oldest = kept.iter().position(|entry| entry.owner == newest);
        drop(oldest.and_then(|oldest| kept.remove(oldest)));
    }
    while kept.len() > 1 && kept.iter().map(|entry| entry.bytes).sum::<usize>() > MAX_BYTES {
        kept.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_is_its_owners_alone_and_only_the_two_newest_of_one_person_are_kept() {
        let kept = Kept::default();
        let keep = |owner: &str| kept.put(owner.into(), 1, ());
        let keys = [keep("ann"), keep("bob"), keep("ann"), keep("ann")];
        let found = |owner: &str| keys.clone().map(|key| kept.find(&owner.into(), &key).is_some());
        assert_eq!(found("ann"), [false, false, true, true]);
        assert_eq!(found("bob"), [false, true, false, false]);
    }

    #[test]
    fn more_bytes_than_the_limit_let_the_oldest_go_and_the_newest_stays_whatever_it_takes() {
        let kept = Kept::default();
        let keep = |owner: &str, bytes| kept.put(owner.into(), bytes, ());
        let (first, second) = (keep("ann", MAX_BYTES / 2), keep("bob", MAX_BYTES / 3));
        assert!(kept.find(&"ann".into(), &first).is_some());
        let third = keep("eve", MAX_BYTES / 3);
        assert!(kept.find(&"ann".into(), &first).is_none() && kept.find(&"bob".into(), &second).is_some());
        let huge = keep("joe", 2 * MAX_BYTES);
        assert!(kept.find(&"eve".into(), &third).is_none() && kept.find(&"joe".into(), &huge).is_some());
    }
}
