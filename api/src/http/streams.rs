//! Streams that people have open to read runs again: each holds a connection and a follower of the log,
//! so one person may have only so many.

use devmind_domain::ids::UserId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Streams of one person that are open at a time, at most.
pub const MAX_OPEN_STREAMS: usize = 6;

/// The streams that are open, by person.
#[derive(Clone, Debug, Default)]
pub struct OpenStreams {
    open: Arc<Mutex<HashMap<UserId, usize>>>,
}

impl OpenStreams {
    /// Counts one more; `None` when that is too many. It counts until it is dropped.
    pub fn enter(&self, user_id: &UserId) -> Option<OpenStream> {
        let mut open = self.lock();
        let count = open.entry(user_id.clone()).or_default();
        if *count == MAX_OPEN_STREAMS {
            return None;
        }
        *count += 1;
        Some(OpenStream { streams: self.clone(), user_id: user_id.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<UserId, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open stream.
#[derive(Debug)]
pub struct OpenStream {
    streams: OpenStreams,
    user_id: UserId,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let mut open = self.streams.lock();
        if let Some(count) = open.get_mut(&self.user_id) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.user_id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_person_has_only_so_many_streams_and_a_closed_one_makes_room() {
        let streams = OpenStreams::default();
        let (ann, bob) = (UserId::from("ann"), UserId::from("bob"));
        let mut open: Vec<_> = (0..MAX_OPEN_STREAMS).map(|_| streams.enter(&ann).expect("room")).collect();
        assert!(streams.enter(&ann).is_none());
        drop(streams.enter(&bob).expect("others are not touched"));
        drop(open.pop());
        open.push(streams.enter(&ann).expect("room again"));
        assert!(streams.enter(&ann).is_none());
        drop(open);
        assert!(streams.lock().is_empty(), "nothing is left of people without streams");
    }
}
