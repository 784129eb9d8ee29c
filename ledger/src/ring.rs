//! The newest events in memory, so that followers need not read the file for what was just
//! committed. Bounded by count and by bytes; who lags further behind reads the file.

use crate::limits::{MAX_RING_BYTES, MAX_RING_EVENTS};
use devmind_domain::event::RecordedEvent;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
pub(crate) struct Ring(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Consecutive positions, oldest first.
    events: VecDeque<Arc<RecordedEvent>>,
    bytes: usize,
}

impl Ring {
    /// Adds committed events; the oldest give way.
    pub fn push(&self, events: &[Arc<RecordedEvent>]) {
        let mut inner = self.lock();
        // Another process appended in between: what is older stands in the database alone.
        let follows = |newest: &Arc<RecordedEvent>| events.first().is_none_or(|e| e.position == newest.position + 1);
        if !inner.events.back().is_none_or(follows) {
            *inner = Inner::default();
        }
        for event in events {
            inner.bytes += weight(event);
            inner.events.push_back(Arc::clone(event));
        }
        while inner.events.len() > MAX_RING_EVENTS || inner.bytes > MAX_RING_BYTES {
            let Some(oldest) = inner.events.pop_front() else { break };
            inner.bytes -= weight(&oldest);
        }
    }

    /// Events after a position, where the ring has the very next one.
    pub fn after(&self, position: u64, limit: usize) -> Option<Vec<Arc<RecordedEvent>>> {
        let inner = self.lock();
        let oldest = inner.events.front()?.position;
        let skip = usize::try_from((position + 1).checked_sub(oldest)?).ok()?;
        let events: Vec<_> = inner.events.iter().skip(skip).take(limit).cloned().collect();
        (!events.is_empty()).then_some(events)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code that can panic runs while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn weight(event: &RecordedEvent) -> usize {
    size_of::<RecordedEvent>() + event.payload.len() + event.metadata.len()
}
