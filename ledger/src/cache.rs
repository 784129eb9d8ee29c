//! Aggregates that were loaded or changed lately, so that a command does not read its stream again.
//!
//! What is here was true at its version; it is never believed further than that. Whoever appends on it
//! has its version checked by the writer; whoever concludes something else from it first reads what came
//! after it.

use crate::limits::{MAX_CACHED_AGGREGATES, MAX_CACHED_BYTES};
use devmind_domain::Decider;
use devmind_domain::event::StreamId;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use std::any::Any;
use std::sync::Arc;

/// An aggregate at a version of its stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loaded<A> {
    pub state: A,
    pub version: u64,
    /// Bytes of the events that made it: about what it weighs in memory.
    pub bytes: usize,
}

#[derive(Clone)]
struct Entry {
    state: Arc<dyn Any + Send + Sync>,
    version: u64,
    bytes: usize,
}

#[derive(Clone)]
struct Bytes;

impl Weighter<StreamId, Entry> for Bytes {
    fn weight(&self, stream: &StreamId, entry: &Entry) -> u64 {
        (stream.aggregate_id.len() + entry.bytes).max(1) as u64
    }
}

/// Bounded by number and by bytes; those used least lately give way.
pub(crate) struct AggregateCache(Cache<StreamId, Entry, Bytes>);

impl Default for AggregateCache {
    fn default() -> Self {
        Self(Cache::with_weighter(MAX_CACHED_AGGREGATES, MAX_CACHED_BYTES as u64, Bytes))
    }
}

impl std::fmt::Debug for AggregateCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AggregateCache").field(&self.0.len()).finish()
    }
}

impl AggregateCache {
    /// The aggregate as it was last seen here.
    pub fn get<A: Decider>(&self, stream: &StreamId) -> Option<Loaded<A>> {
        let Entry { state, version, bytes } = self.0.get(stream)?;
        // A stream's kind decides its type, so this is always the same one.
        Some(Loaded { state: state.downcast_ref::<A>()?.clone(), version, bytes })
    }

    /// Keeps an aggregate as the log says it is.
    pub fn put<A: Decider>(&self, stream: &StreamId, Loaded { state, version, bytes }: &Loaded<A>) {
        let (version, bytes) = (*version, *bytes);
        self.0.insert(stream.clone(), Entry { state: Arc::new(state.clone()), version, bytes });
    }
}
