//! Places that are taken and given back: connections, sockets that have not registered, open streams.
//! There are so many in all, and so many for one holder (an address, a person).

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// A number of places.
#[derive(Clone, Debug)]
pub struct Places<K: Eq + Hash> {
    in_all: u32,
    for_one: u32,
    taken: Arc<Mutex<Taken<K>>>,
}

#[derive(Debug)]
struct Taken<K> {
    count: u32,
    by: HashMap<K, u32>,
}

impl<K: Clone + Eq + Hash> Places<K> {
    /// Places, `in_all` and `for_one` holder.
    pub fn new(in_all: u32, for_one: u32) -> Self {
        Self { in_all, for_one, taken: Arc::new(Mutex::new(Taken { count: 0, by: HashMap::new() })) }
    }

    /// Takes one; `None` when there is none left. It is given back when it is dropped. A holder that is
    /// `None` may have as many as there are.
    pub fn take(&self, holder: Option<K>) -> Option<Place<K>> {
        let mut taken = self.lock();
        if taken.count == self.in_all {
            return None;
        }
        if let Some(holder) = &holder {
            let own = taken.by.get(holder).copied().unwrap_or_default();
            if own == self.for_one {
                return None;
            }
            taken.by.insert(holder.clone(), own + 1);
        }
        taken.count += 1;
        Some(Place { places: self.clone(), holder })
    }

    fn lock(&self) -> MutexGuard<'_, Taken<K>> {
        lock(&self.taken)
    }
}

/// Turns, one after the other for each holder: what is looked at in one's turn is still so when one acts on it, as
/// far as others take turns as well. They count in this process.
#[derive(Clone, Debug)]
pub struct Turns<K>(Arc<Mutex<HashMap<K, Arc<AsyncMutex<()>>>>>);

/// A turn, until it is dropped.
#[derive(Debug)]
pub struct Turn(#[expect(dead_code, reason = "held")] OwnedMutexGuard<()>);

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Clone + Eq + Hash> Turns<K> {
    /// Waits for the holder's turn.
    pub async fn take(&self, holder: &K) -> Turn {
        let own = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Those that nobody has or waits for.
            all.retain(|_, turn| Arc::strong_count(turn) > 1);
            all.entry(holder.clone()).or_default().clone()
        };
        Turn(own.lock_owned().await)
    }
}

fn lock<K>(taken: &Mutex<Taken<K>>) -> MutexGuard<'_, Taken<K>> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A place that is taken.
#[derive(Debug)]
pub struct Place<K: Eq + Hash> {
    places: Places<K>,
    holder: Option<K>,
}

impl<K: Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = lock(&self.places.taken);
        taken.count -= 1;
        let Some(holder) = &self.holder else { return };
        if let Some(own) = taken.by.get_mut(holder) {
            *own -= 1;
            if *own == 0 {
                taken.by.remove(holder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_has_only_so_many_places_and_one_given_back_makes_room() {
        let places = Places::new(100, 6);
        let mut own: Vec<_> = (0..6).map(|_| places.take(Some("ann")).expect("room")).collect();
        assert!(places.take(Some("ann")).is_none());
        drop(places.take(Some("bob")).expect("others are not touched"));
        drop(own.pop());
        own.push(places.take(Some("ann")).expect("room again"));
        assert!(places.take(Some("ann")).is_none());
        drop(own);
        assert!(places.lock().by.is_empty() && places.lock().count == 0, "nothing is left of who has none");
    }

    #[test]
    fn there_are_only_so_many_places_in_all_whoever_holds_them() {
        let places = Places::new(2, 2);
        let (first, _second) = (places.take(None), places.take(Some("ann")).expect("room"));
        assert!(places.take(Some("bob")).is_none() && places.take(None).is_none());
        drop(first);
        assert!(places.take(Some("bob")).is_some());
    }
}
