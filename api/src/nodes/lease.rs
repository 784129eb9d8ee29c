//! Keeping this process's lease, and finding the processes that have lost theirs.
//!
//! A process that is gone stops nobody: whoever finds its lease expired records `NodeLost` and settles its
//! runs. A process that finds its own lease taken away ends at once, and appends nothing any more.

use crate::error::ApiError;
use crate::runs::recover::{lose, settle_runs_of};
use crate::state::App;
use devmind_domain::ids::NodeId;
use devmind_ledger::{Ledger, LedgerError, NodeLease};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// Renewals within one lease.
const RENEWALS: u32 = 3;

/// A lease that is renewed in the background from its first moment on, however long the rest of a start takes.
#[derive(Debug)]
pub(crate) struct Kept {
    lease: Arc<Mutex<NodeLease>>,
    term: Duration,
    task: JoinHandle<()>,
}

impl Kept {
    /// Renews until it is given back or dropped; cancels `lost` when it was taken away.
    pub fn keep(lease: NodeLease, term: Duration, ledger: Ledger, lost: CancellationToken) -> Self {
        let lease = Arc::new(Mutex::new(lease));
        let task = tokio::spawn(renew(lease.clone(), term, ledger, lost));
        Self { lease, term, task }
    }

    /// The starts that are alive, with expired leases taken away.
    pub async fn living(&self) -> Result<BTreeMap<NodeId, u64>, LedgerError> {
        self.lease.lock().await.living().await
    }

    /// Gives it back.
    pub async fn release(&self) {
        self.task.abort();
        if let Err(error) = self.lease.lock().await.release().await {
            tracing::warn!(cause = %error, "the lease of this process was not given back; it expires");
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn renew(lease: Arc<Mutex<NodeLease>>, term: Duration, ledger: Ledger, lost: CancellationToken) {
    let mut ticks = interval(term / RENEWALS);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut renewed = Instant::now();
    loop {
        ticks.tick().await;
        let asked = Instant::now();
        match lease.lock().await.renew().await {
            Ok(true) => {
                renewed = asked;
                // By this machine's clock, from before the database was asked: never longer than the lease.
                ledger.append_until((asked + term).into_std());
            }
            Ok(false) => return lost.cancel(),
            // Whether others took it away is not known; a database that cannot be reached takes no events either.
            Err(error) => tracing::warn!(
                cause = %error, silent_ms = renewed.elapsed().as_millis(), "the lease of this process was not renewed"
            ),
        }
    }
}

/// Records the processes whose lease has expired as lost and settles what they left, again and again.
pub(crate) async fn look_after_others(app: Arc<App>) {
    let Some(kept) = &app.lease else { return };
    let mut ticks = interval(kept.term / RENEWALS);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = app.stopping.cancelled() => return,
            _ = ticks.tick() => {}
        }
        if let Err(error) = lose_the_gone(&app, kept).await {
            tracing::warn!(cause = %error, "whether other processes are alive is not known; looking again");
        }
        for (node, epoch) in app.nodes.take_ended() {
            if let Err(error) = settle_runs_of(&app, &node, epoch).await {
                tracing::warn!(node.id = %node, cause = %error, "what a process left is not settled; trying again");
                app.nodes.ended(&node, epoch);
            }
        }
    }
}

async fn lose_the_gone(app: &App, kept: &Kept) -> Result<(), ApiError> {
    // First who is said to be under way, then who has a lease: a start takes its lease before it is recorded.
    let running = app.nodes.running();
    let living = kept.living().await?;
    for (node, epoch) in running {
        if node != app.claim.node_id && living.get(&node) != Some(&epoch) {
            lose(app, &node, epoch).await?;
            app.nodes.ended(&node, epoch);
        }
    }
    Ok(())
}
