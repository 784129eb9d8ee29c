//! Streams with appends under way, and the states those lead to.
//!
//! Many commands on one stream need not wait for each other's flush: each is decided on what the one
//! before it *will* have led to, and handed to the writer right behind it, with the version that
//! follows. The writer takes both or refuses the second as a lost race. Nothing of such a state is
//! ever shown: an answer waits for its own commit, and what appends nothing is decided on what is
//! durable.

use devmind_domain::Decider;
use devmind_domain::event::StreamId;
use std::any::Any;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Locks that streams share by their hash.
const SHARDS: usize = 64;

/// The streams of one ledger that have appends under way.
#[derive(Debug)]
pub(crate) struct Tips([Mutex<HashMap<StreamId, Tip>>; SHARDS]);

#[derive(Debug)]
struct Tip {
    state: Arc<dyn Any + Send + Sync>,
    version: u64,
    /// Appends that led here and have no answer yet.
    under_way: usize,
}

/// The turn to decide on a stream: nobody else decides on it meanwhile.
pub(crate) struct Turn<'a> {
    all: &'a Tips,
    stream: &'a StreamId,
    tips: MutexGuard<'a, HashMap<StreamId, Tip>>,
}

impl Default for Tips {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl Tips {
    /// Waits for the turn, which is short: deciding and handing over.
    pub fn turn<'a>(&'a self, stream: &'a StreamId) -> Turn<'a> {
        Turn { all: self, stream, tips: self.lock(stream) }
    }

    /// An append has its answer. One that was not stored takes all that was built on it along.
    fn answered(&self, stream: &StreamId, stored: bool) {
        let mut tips = self.lock(stream);
        if let Some(tip) = tips.get_mut(stream) {
            // A tip that went with a failed append may have been followed by a new one: then this
            // counts wrong, and the worst of it is a state that is loaded once more.
            tip.under_way = tip.under_way.saturating_sub(1);
            if tip.under_way == 0 || !stored {
                tips.remove(stream);
            }
        }
    }

    fn lock(&self, stream: &StreamId) -> MutexGuard<'_, HashMap<StreamId, Tip>> {
        let mut hasher = DefaultHasher::new();
        stream.hash(&mut hasher);
        let shard = usize::try_from(hasher.finish() % SHARDS as u64).unwrap_or_default();
        self.0[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An append that was handed to the writer. Dropped without an answer, it counts as not stored.
pub(crate) struct UnderWay<'a> {
    tips: &'a Tips,
    stream: &'a StreamId,
    stored: bool,
}

impl UnderWay<'_> {
    /// Its events are durable.
    pub fn stored(mut self) {
        self.stored = true;
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.tips.answered(self.stream, self.stored);
    }
}

impl<'a> Turn<'a> {
    /// What the appends under way lead to, if there are any.
    pub fn tip<A: Decider>(&self) -> Option<(Arc<A>, u64)> {
        let tip = self.tips.get(self.stream)?;
        Some((tip.state.clone().downcast().ok()?, tip.version))
    }

    /// An append was handed to the writer that leads to this state. Ends the turn.
    pub fn advance<A: Decider>(mut self, state: Arc<A>, version: u64) -> UnderWay<'a> {
        let under_way = self.tips.get(self.stream).map_or(0, |tip| tip.under_way) + 1;
        self.tips.insert(self.stream.clone(), Tip { state, version, under_way });
        UnderWay { tips: self.all, stream: self.stream, stored: false }
    }
}
