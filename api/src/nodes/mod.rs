//! Several server processes that share a ledger in a database: who is alive, and what one does about facts
//! that others recorded.
//!
//! The log is the only thing between them. Each process has a name and, for each start, an epoch and a lease
//! ([`lease`]); each follows the log ([`news`]) and acts on what concerns it: calls for sockets that it holds,
//! results that its runs wait for, stops of its runs, processes that are lost. A SQLite ledger has one
//! process, and nothing of this runs.

pub(crate) mod lease;
mod name;
pub(crate) mod news;

pub(crate) use name::name;

use devmind_domain::conversation::Claim;
use devmind_domain::ids::NodeId;
use devmind_domain::node::Node;
use devmind_ledger::{LedgerError, LedgerReader, load};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio_util::sync::CancellationToken;

/// A process that did not renew its lease for so long counts as lost (milliseconds).
pub const NODE_LEASE_MS: u64 = 30_000;
/// Its bounds (milliseconds): below, a busy machine loses processes that are well.
pub const MIN_NODE_LEASE_MS: u64 = 1_000;
/// See [`MIN_NODE_LEASE_MS`].
pub const MAX_NODE_LEASE_MS: u64 = 600_000;

/// The processes of this ledger, as one of them has read them from the log.
#[derive(Debug, Default)]
pub struct Nodes {
    /// Cancelled when others count this process as lost: it must not go on.
    pub lost: CancellationToken,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// The starts that are under way.
    running: BTreeMap<NodeId, u64>,
    /// Starts that have ended, whose runs may be unsettled.
    ended: BTreeMap<NodeId, u64>,
}

impl Nodes {
    pub(crate) fn started(&self, node: &NodeId, epoch: u64) {
        self.lock().running.insert(node.clone(), epoch);
    }

    pub(crate) fn ended(&self, node: &NodeId, epoch: u64) {
        let mut seen = self.lock();
        if seen.running.get(node).is_some_and(|running| *running <= epoch) {
            seen.running.remove(node);
        }
        let newest = seen.ended.entry(node.clone()).or_default();
        *newest = epoch.max(*newest);
    }

    /// Whether this start is under way, as far as this process has read.
    pub(crate) fn runs(&self, node: &NodeId, epoch: u64) -> bool {
        self.lock().running.get(node) == Some(&epoch)
    }

    fn running(&self) -> BTreeMap<NodeId, u64> {
        self.lock().running.clone()
    }

    /// Takes the ended starts; who cannot settle them puts them back.
    fn take_ended(&self) -> BTreeMap<NodeId, u64> {
        std::mem::take(&mut self.lock().ended)
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether this start of a process is under way, as far as the log knows.
///
/// # Errors
/// When the log cannot be read.
pub(crate) async fn is_running(reader: &LedgerReader, start: &Claim) -> Result<bool, LedgerError> {
    let (node, _) = load::<Node>(reader, start.node_id.as_str()).await?;
    Ok(node.runs(start.epoch))
}
