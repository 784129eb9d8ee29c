//! Aggregates that were loaded or changed lately, so that a command need not read its stream again.
//!
//! An entry is a state and the version it is the state *of*: it is never wrong, only old. Whoever
//! takes one either reads what came after it ([`crate::load`]), or is content with a moment at which nothing
//! had come yet ([`crate::load_since`]), or lets the writer's version check
//! find out ([`crate::execute`]). States enter when their events are durable, never before.

use crate::limits::{MAX_CACHED_AGGREGATES, MAX_CACHED_BYTES};
use devmind_domain::Decider;
use devmind_domain::event::StreamId;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// The cache of one open log; clones of its reader share it.
pub(crate) struct AggregateCache(Cache<StreamId, Entry, ByHeldBytes>);

#[derive(Clone)]
struct Entry {
    state: Arc<dyn Any + Send + Sync>,
    version: u64,
    /// A moment before the stream was asked for and found to be at this version, if it ever was.
    asked_at: Option<Instant>,
    held_bytes: usize,
}

#[derive(Clone)]
struct ByHeldBytes;

impl Weighter<StreamId, Entry> for ByHeldBytes {
    fn weight(&self, stream: &StreamId, entry: &Entry) -> u64 {
        (stream.aggregate_id.len() + entry.held_bytes) as u64
    }
}

impl Default for AggregateCache {
    fn default() -> Self {
        Self(Cache::with_weighter(MAX_CACHED_AGGREGATES, MAX_CACHED_BYTES, ByHeldBytes))
    }
}

impl AggregateCache {
    /// A state of the stream and its version: what was true once, and may be still.
    pub fn get<A: Decider>(&self, stream: &StreamId) -> Option<(Arc<A>, u64)> {
        let entry = self.0.get(stream)?;
        Some((entry.state.downcast().ok()?, entry.version))
    }

    /// The same, where the stream was asked for since that moment.
    pub fn get_since<A: Decider>(&self, stream: &StreamId, since: Instant) -> Option<(Arc<A>, u64)> {
        let entry = self.0.get(stream).filter(|entry| entry.asked_at.is_some_and(|asked_at| asked_at >= since))?;
        Some((entry.state.downcast().ok()?, entry.version))
    }

    /// Keeps a state that is durable, unless a newer one is there; with the moment before the stream was asked for,
    /// where it was.
    pub fn put<A: Decider>(&self, stream: &StreamId, state: &Arc<A>, version: u64, asked_at: Option<Instant>) {
        let known = self.0.peek(stream);
        if known.as_ref().is_some_and(|entry| (entry.version, entry.asked_at) >= (version, asked_at)) {
            return;
        }
        // Of a state that was only asked for again it is known; to count it may take as long as to read it.
        let known = known.filter(|entry| entry.version == version).map(|entry| entry.held_bytes);
        let held_bytes = known.unwrap_or_else(|| size_of::<A>() + state.held_bytes());
        self.0.insert(stream.clone(), Entry { state: state.clone(), version, asked_at, held_bytes });
    }
}

impl fmt::Debug for AggregateCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AggregateCache").field("entries", &self.0.len()).finish()
    }
}
