//! What the writer knows of the log since its last batch, so that the next one need not look first.
//!
//! It is right as long as nobody else appends; the store finds out whether somebody did, since it stores a batch only
//! against the head it was planned on. What the batch before did not touch is taken to be new: a stream that is
//! expected to be, and every key; the database refuses a batch for which that is wrong, and then it is looked.

use super::plan::{Asked, Outcome, Plan};
use crate::limits::{KNOWN_FOR, MAX_KNOWN_STREAMS};
use crate::store::{HeadRow, Look};
use devmind_domain::event::StreamId;
use std::collections::HashMap;
use std::time::Instant;

/// The head after the last batch, with the versions of the streams that were written lately.
#[derive(Debug, Default)]
pub(super) struct Known {
    head: Option<(HeadRow, Instant)>,
    versions: HashMap<StreamId, u64>,
    /// Whether another process appended meanwhile: then the batch after this one looks, too.
    overtaken: bool,
}

impl Known {
    /// What a look would say, if it is known; a stream without a version has none.
    pub fn look(&self, asked: &Asked<'_>) -> Option<Look> {
        let (head, at) = self.head.as_ref()?;
        // After a pause the connection may be gone: a look finds that out and harms nothing.
        if at.elapsed() > KNOWN_FOR {
            return None;
        }
        let version = |stream: &&StreamId| self.versions.get(*stream).copied().unwrap_or(0);
        let versions = asked.streams.iter().map(version).collect();
        Some(Look { head: head.clone(), recorded_at: None, versions, seen: Vec::new() })
    }

    /// Whether a plan made without a look may be tried: nobody is refused on what is only supposed, and an unknown
    /// stream counts as new, so that one with a higher expected version is refused.
    pub fn bears(plan: &Plan) -> bool {
        let stored = |outcome: &Outcome| match outcome {
            Outcome::Stored(_) | Outcome::SeenInBatch { .. } => true,
            Outcome::Refused(_) => false,
        };
        !plan.events.is_empty() && plan.outcomes.iter().all(stored)
    }

    /// A batch was not stored because somebody else was faster, and may well be the next time.
    pub fn overtaken(&mut self) {
        self.overtaken = true;
    }

    /// A batch was stored.
    pub fn stored(&mut self, plan: &Plan, head: &HeadRow) {
        if std::mem::take(&mut self.overtaken) {
            return;
        }
        if self.versions.len() > MAX_KNOWN_STREAMS {
            self.versions.clear();
        }
        for event in &plan.events {
            match self.versions.get_mut(&event.stream) {
                Some(version) => *version = event.sequence,
                None => drop(self.versions.insert(event.stream.clone(), event.sequence)),
            }
        }
        self.head = Some((head.clone(), Instant::now()));
    }

    /// Whatever went wrong, nothing is taken for granted after it.
    pub fn forget(&mut self) {
        self.head = None;
        self.versions.clear();
    }
}
