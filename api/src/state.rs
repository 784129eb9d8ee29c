//! What the parts of one server process share.

use crate::device_gateway::Gateway;
use crate::identity::Identities;
use crate::limits::Limits;
use crate::mcp::Servers;
use crate::model::Model;
use crate::nodes::Nodes;
use crate::nodes::lease::Kept;
use crate::places::{Places, Turns};
use crate::policies::Policies;
use crate::runs::{ActiveRuns, LiveExecutions};
use crate::tools::Tools;
use crate::ui::{KeptBundles, Verification};
use devmind_domain::conversation::Claim;
use devmind_domain::event::{Actor, Metadata};
use devmind_domain::ids::UserId;
use devmind_ledger::proof::CheckpointRecord;
use devmind_ledger::{Ledger, Place};
use devmind_projections::Views;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long a model may be silent.
#[derive(Clone, Copy, Debug)]
pub struct ModelPatience {
    /// Before its answer begins.
    pub first_byte: Duration,
    /// Within its answer.
    pub idle: Duration,
}

/// One server process.
pub struct App {
    /// Where the views are kept.
    pub views_place: Place,
    /// The log.
    pub ledger: Ledger,
    /// Proofs about the log, and its signed heads.
    pub checkpoints: CheckpointRecord,
    /// The read models.
    pub views: Views,
    /// This start of this process: what its runs and dispatches belong to.
    pub claim: Claim,
    /// Who may ask.
    pub identities: Identities,
    /// Browser origins that may open the device socket.
    pub allowed_origins: Vec<String>,
    /// The model.
    pub model: Arc<dyn Model>,
    /// How long the model may be silent.
    pub model_patience: ModelPatience,
    /// How long a person may take to answer an approval (milliseconds); absent: for ever.
    pub approval_lifetime_ms: Option<i64>,
    /// The tools there are.
    pub tools: Tools,
    /// MCP servers, which give some of them.
    pub mcp: Servers,
    /// What is allowed, asked about and refused of their calls.
    pub policies: Policies,
    /// Executions of tools that may call tools.
    pub live: LiveExecutions,
    /// Devices and their calls.
    pub gateway: Gateway,
    /// The other processes of this ledger.
    pub nodes: Nodes,
    /// This process's lease, in a database that several may share.
    pub(crate) lease: Option<Kept>,
    /// How much others may have of it.
    pub limits: Limits,
    /// Streams that are open to read runs again: each holds a connection and a follower of the log.
    pub open_streams: Places<UserId>,
    /// People's turns to begin a run from a page: how many run already is looked at in it.
    pub beginning: Turns<UserId>,
    /// Runs under way.
    pub runs: ActiveRuns,
    /// Tasks that execute runs; a run outlives its request.
    pub run_tasks: TaskTracker,
    /// Tasks that serve device sockets.
    pub socket_tasks: TaskTracker,
    /// The check of the whole log that a page asked for.
    pub verification: Verification,
    /// Bundles that were uploaded to be looked at.
    pub bundles: KeptBundles,
    /// Cancelled when the process begins to stop.
    pub stopping: CancellationToken,
}

impl App {
    /// Metadata of an event that this process causes.
    pub fn server_metadata(&self) -> Metadata {
        self.metadata(Actor::server(&self.claim.node_id))
    }

    /// Metadata of an event that `actor` causes.
    pub fn metadata(&self, actor: Actor) -> Metadata {
        Metadata::new(actor, self.claim.node_id.clone())
    }

    /// Waits until these projections show everything that is in the log now, so that a caller reads
    /// its own writes. A projection that has failed refuses its own readers and nobody else's.
    ///
    /// # Errors
    /// When the log cannot be read, or a projection does not catch up in time.
    pub async fn caught_up(&self, projections: &[&str]) -> Result<u64, crate::error::ApiError> {
        let position = self.ledger.reader().head().await?.position;
        for projection in projections {
            self.views.wait_for_one(projection, position).await?;
        }
        Ok(position)
    }
}
