//! Order and hashes: positions, versions within streams, time, leaves, and the tree over them.

use super::report::{Check, Report};
use crate::merkle::Frontier;
use devmind_domain::Timestamp;
use devmind_domain::canonical::Hash;
use devmind_domain::event::{RecordedEvent, StreamId};
use std::collections::HashMap;

#[derive(Clone, Debug, Default)]
pub(super) struct Chain {
    position: u64,
    recorded_at: Timestamp,
    versions: HashMap<StreamId, u64>,
    /// Over the leaf hashes as computed from the events …
    computed: Frontier,
    /// … and as recorded. Where only one event was changed, one of the two still has the head's
    /// root, so that the change is not reported as a second one of the head.
    recorded: Frontier,
}

impl Chain {
    pub fn see(&mut self, event: &RecordedEvent, report: &mut Report) {
        self.follows(event.position, report);
        let version = self.versions.entry(event.stream.clone()).or_default();
        if event.sequence != *version + 1 {
            let reason = format!("{} goes from version {version} to {}", event.stream, event.sequence);
            report.find(Check::Sequences, event.position, reason);
        }
        *version = event.sequence;
        if event.recorded_at < self.recorded_at {
            let reason = format!("it was recorded at {}, the one before at {}", event.recorded_at, self.recorded_at);
            report.find(Check::Time, event.position, reason);
        }
        self.recorded_at = event.recorded_at;
        let leaf = event.expected_leaf_hash();
        if leaf != event.leaf_hash {
            let reason = format!("it hashes to {}, recorded is {}", hex::encode(leaf), hex::encode(event.leaf_hash));
            report.find(Check::LeafHash, event.position, reason);
        }
        self.computed.push(leaf);
        self.recorded.push(event.leaf_hash);
    }

    /// A row that could not be read has its place all the same.
    pub fn skip(&mut self, position: u64, report: &mut Report) {
        self.follows(position, report);
        self.computed.push([0; 32]);
        self.recorded.push([0; 32]);
    }

    fn follows(&mut self, position: u64, report: &mut Report) {
        if position != self.position + 1 {
            let missing = (position > self.position + 1).then(|| format!(": event {} is not there", self.position + 1));
            let reason = format!("it comes after event {}{}", self.position, missing.unwrap_or_default());
            report.find(Check::Order, position, reason);
        }
        self.position = position;
    }

    pub fn end(&self, size: u64, root: &[u8], frontier: &[u8], report: &mut Report) {
        if self.position != size {
            report.find(
                Check::Head,
                size,
                format!("the head is at position {size}, the last event at {}", self.position),
            );
        }
        let fits = |tree: &Frontier| tree.root().as_slice() == root && tree.to_bytes() == frontier;
        if !fits(&self.computed) && !fits(&self.recorded) {
            let (own, head) = (hex::encode(self.computed.root()), hex::encode(root));
            report.find(Check::Head, size, format!("the events have the root {own}, the head says {head}"));
        }
    }

    /// The number of rows so far.
    pub fn leaves(&self) -> u64 {
        self.computed.size()
    }

    /// Whether the events so far, as they are or as they were recorded, have this root.
    pub fn has_root(&self, root: &Hash) -> bool {
        self.computed.root() == *root || self.recorded.root() == *root
    }

    pub fn root(&self) -> Hash {
        self.computed.root()
    }
}
