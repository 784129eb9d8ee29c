//! Rows that hold no event: which ones a reader passed over, and why.
//!
//! For whoever looks at a log that may be damaged and is to see what can be seen
//! ([`crate::LedgerReader::passing_over`]). Who decides on events, or keeps rows made of them, reads without it and
//! stops at such a row.

use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Rows that are named, at most; more are counted.
const MAX_DAMAGED_ROWS: usize = 1_000;

/// A row without an event, or the place of one that is not there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DamagedRow {
    /// Its position; 0 where it has none.
    pub position: u64,
    /// The column that cannot be read, and why.
    pub reason: String,
}

/// What readers passed over; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Damage(Arc<Mutex<Found>>);

#[derive(Debug, Default)]
struct Found {
    rows: BTreeMap<u64, String>,
    unnamed: u64,
}

impl Damage {
    /// The rows, in the order of the log: the first thousand that were met.
    pub fn rows(&self) -> Vec<DamagedRow> {
        self.between(0, u64::MAX)
    }

    /// Those from one position to another, both included.
    pub fn between(&self, first: u64, last: u64) -> Vec<DamagedRow> {
        let of = |(position, reason): (&u64, &String)| DamagedRow { position: *position, reason: reason.clone() };
        if first > last { Vec::new() } else { self.found().rows.range(first..=last).map(of).collect() }
    }

    /// How many there are; those that are not named are counted as often as they were met.
    pub fn count(&self) -> u64 {
        let found = self.found();
        found.rows.len() as u64 + found.unnamed
    }

    pub(crate) fn add(&self, position: u64, reason: impl Into<String>) {
        let mut found = self.found();
        if found.rows.contains_key(&position) {
            return;
        }
        if found.rows.len() >= MAX_DAMAGED_ROWS {
            found.unnamed += 1;
            return;
        }
        found.rows.insert(position, reason.into());
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        // No code that can panic runs while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
