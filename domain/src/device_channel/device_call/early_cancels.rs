//! Cancels that came before their request.
//!
//! A cancel names an attempt and means that one and earlier ones. It is kept until that attempt can
//! no longer begin, and the number kept is bounded.

use std::collections::BTreeMap;
use std::time::Duration;

/// Cancels remembered, at most; the one that is forgotten first makes room.
pub const MAX_EARLY_CANCELS: usize = 1_024;

/// By call: the newest attempt that is not wanted, and until when that matters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EarlyCancels<K: Ord>(BTreeMap<K, (u32, Duration)>);

impl<K: Ord> Default for EarlyCancels<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone> EarlyCancels<K> {
    /// Remembers, at the moment `now`, that this attempt and earlier ones are not wanted. Moments
    /// count from any one start.
    pub fn remember(&mut self, call: &K, attempt_no: u32, until: Duration, now: Duration) {
        if self.0.len() >= MAX_EARLY_CANCELS && !self.0.contains_key(call) {
            self.0.retain(|_, (_, until)| *until > now);
            let first = self.0.iter().min_by_key(|(_, (_, until))| *until).map(|(call, _)| call.clone());
            if let Some(first) = first.filter(|_| self.0.len() >= MAX_EARLY_CANCELS) {
                self.0.remove(&first);
            }
        }
        let kept = self.0.entry(call.clone()).or_insert((attempt_no, until));
        *kept = (kept.0.max(attempt_no), until.max(kept.1));
    }

    /// The newest attempt of the call that is not wanted; 0 where all are.
    pub fn up_to(&self, call: &K, now: Duration) -> u32 {
        self.0.get(call).filter(|(_, until)| *until > now).map_or(0, |(attempt_no, _)| *attempt_no)
    }

    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is remembered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
