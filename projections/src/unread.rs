//! Views that are made although some events cannot be understood: these are passed over, and named.
//!
//! For whoever looks at a log once, with rows that go away afterwards. Rows that are kept stop at such an event
//! instead ([`crate::runner`]): nobody who reads them would learn what they lack.

use crate::apply::{Applied, apply};
use crate::db::Pool;
use crate::error::ViewError;
use crate::projection::Projection;
use crate::skips;
use devmind_domain::ErrorCode;
use devmind_domain::event::RecordedEvent;
use devmind_ledger::{LedgerError, LedgerReader};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Events that are named, at most; more are counted.
pub const MAX_TOLD_UNREAD: usize = 100;

/// An event that a view was made without.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnreadEvent {
    /// Which.
    pub position: u64,
    /// A stable code: `LEDGER_CORRUPT`, `LEDGER_SCHEMA_NEWER`, or `INTERNAL` where the view itself has a fault.
    pub code: ErrorCode,
    /// What is wrong with it.
    pub reason: String,
    /// The first view that could not be made with it.
    #[serde(skip)]
    projection: &'static str,
}

impl UnreadEvent {
    /// What it is where nothing may be missing.
    pub(crate) fn error(&self) -> ViewError {
        let Self { position, reason, projection, .. } = self;
        ViewError::Failed { projection, position: *position, reason: reason.clone() }
    }
}

/// Everything that views were made without.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    events: BTreeMap<u64, UnreadEvent>,
    untold: u64,
}

impl Unread {
    /// The first ones, in the order of the log.
    pub fn events(&self) -> impl Iterator<Item = &UnreadEvent> {
        self.events.values()
    }

    /// The first one.
    pub fn first(&self) -> Option<&UnreadEvent> {
        self.events.values().next()
    }

    /// Whether nothing is missing.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// How many there are; of those that are not named, each view that was made counts its own.
    pub fn count(&self) -> u64 {
        self.events.len() as u64 + self.untold
    }

    /// Adds an event that a reader of its own could not understand.
    pub fn add(&mut self, event: &RecordedEvent) {
        if let Err(error) = event.decode() {
            self.tell(event.position, error.code(), error.to_string(), "");
        }
    }

    fn tell(&mut self, position: u64, code: ErrorCode, reason: String, projection: &'static str) {
        if self.events.contains_key(&position) {
            return;
        }
        if self.events.len() >= MAX_TOLD_UNREAD {
            self.untold += 1;
            return;
        }
        self.events.insert(position, UnreadEvent { position, code, reason, projection });
    }

    /// What operators said a projection is to pass over; what cannot be read of that is told like everything else.
    pub(crate) async fn skips(
        &mut self,
        ledger: &LedgerReader,
        projection: &'static dyn Projection,
    ) -> Result<BTreeSet<u64>, ViewError> {
        match skips::of(ledger, projection).await {
            Err(LedgerError::Undecodable { position, error, .. }) => {
                self.tell(position, error.code(), error.to_string(), projection.name());
                Ok(BTreeSet::new())
            }
            found => Ok(found?),
        }
    }
}

/// Applies events that follow on `from`, without those that fail. Answers where the projection stands then.
pub(crate) async fn apply_what_can(
    pool: &Pool,
    projection: &'static dyn Projection,
    skips: &BTreeSet<u64>,
    mut from: u64,
    mut events: &[Arc<RecordedEvent>],
    unread: &mut Unread,
) -> Result<u64, ViewError> {
    let mut skips = skips.clone();
    while !events.is_empty() {
        let now = match apply(pool, projection, &skips, from, events).await? {
            Applied::Now(now) => now,
            Applied::Moved(_) | Applied::Superseded { .. } => {
                let reason = "its temporary rows were changed by somebody else".to_owned();
                return Err(ViewError::Contended { projection: projection.name(), reason });
            }
        };
        from = now.position;
        events = &events[events.partition_point(|event| event.position <= from)..];
        let Some(failure) = now.failed else { continue };
        let found = events.iter().find(|event| event.position == failure.position);
        let code = found.and_then(|event| event.decode().err()).map_or(ErrorCode::Internal, |error| error.code());
        unread.tell(failure.position, code, failure.reason, projection.name());
        skips.insert(failure.position);
    }
    Ok(from)
}
