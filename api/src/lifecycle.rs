//! From settings to a serving process, and in order back to nothing.
//!
//! Start: bind, open the ledger, take the lease (where several processes share it), append `NodeStarted`, open the views, settle what an older start
//! left running, then listen. Stop: no new work, runs end (each with its terminal event), sockets
//! close, `NodeStopped`, a checkpoint of the last head, files close. Every step has a deadline: an open stream must not hold the
//! process for ever.

use crate::checkpoints;
use crate::config::ServerConfig;
use crate::device_gateway::{Closing, Gateway};
use crate::error::ApiError;
use crate::http::{MAX_OPEN_STREAMS, router};
use crate::ids::new_id;
use crate::limits::millis;
use crate::mcp::Servers;
use crate::model::{self, Model};
use crate::nodes::lease::{Kept, look_after_others};
use crate::nodes::{self, Nodes, news};
use crate::places::{self, Places};
use crate::policies::Policies;
use crate::runs::expiry::expire_overdue_approvals;
use crate::runs::recover::settle_left_over_runs;
use crate::runs::{ActiveRuns, LiveExecutions, StopReason};
use crate::state::{App, ModelPatience};
use crate::tools::Tools;
use crate::ui::{KeptBundles, Verification};
use axum::Extension;
use devmind_domain::conversation::Claim;
use devmind_domain::event::{Actor, AggregateType, Metadata, NewEvent, StreamId};
use devmind_domain::node::{Node, NodeCommand, NodeEvent};
use devmind_domain::protocol::CloseCode;
use devmind_domain::{Decider, ErrorCode};
use devmind_ledger::{Append, AppendError, Ledger, LedgerError, NodeLease, Place, StreamAppend, execute, load};
use devmind_projections::Views;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Name of the log's file within the data folder.
pub const LEDGER_FILE: &str = "ledger.sqlite";
/// Name of the views' file within the data folder.
pub const VIEWS_FILE: &str = "views.sqlite";

/// Header lines of a request, at most.
const MAX_HEADERS: usize = 64;
/// Bytes of a request's head, at most.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// A peer that acknowledges nothing of what it was sent for this long is gone (milliseconds).
#[cfg(target_os = "linux")]
const TCP_USER_TIMEOUT_MS: u32 = 30_000;
/// Runs and sockets may take this long to end when the process stops.
const DRAIN: Duration = Duration::from_secs(10);

/// Where a request comes from.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The other end.
    pub remote: SocketAddr,
    /// Its place among the connections: a socket keeps it after the upgrade.
    pub place: Arc<places::Place<IpAddr>>,
    /// Its connection, for what only some of them want.
    #[cfg(target_os = "linux")]
    connection: Option<Arc<std::os::fd::OwnedFd>>,
}

impl Peer {
    fn new(remote: SocketAddr, place: places::Place<IpAddr>, stream: &TcpStream) -> Self {
        #[cfg(not(target_os = "linux"))]
        let _ = stream;
        Self {
            remote,
            place: Arc::new(place),
            #[cfg(target_os = "linux")]
            connection: std::os::fd::AsFd::as_fd(stream).try_clone_to_owned().ok().map(Arc::new),
        }
    }

    /// Ends the connection when what is sent is not taken for [`TCP_USER_TIMEOUT_MS`] (RFC 5482): else it is
    /// tried again for a quarter of an hour. For device sockets; whoever reads a stream may take its time.
    pub fn give_up_on_a_dead_network(&mut self) {
        #[cfg(target_os = "linux")]
        if let Some(connection) = self.connection.take() {
            rustix::net::sockopt::set_tcp_user_timeout(connection, TCP_USER_TIMEOUT_MS).ok();
        }
    }
}

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct StartError {
    /// The stable code.
    pub code: ErrorCode,
    /// What is wrong.
    pub message: String,
    /// What to do, where more is known than the code's own help.
    pub hint: Option<String>,
}

impl StartError {
    /// An error with the code's own help.
    pub fn new(code: ErrorCode, message: impl std::fmt::Display) -> Self {
        Self { code, message: message.to_string(), hint: None }
    }
}

impl From<crate::config::ConfigError> for StartError {
    fn from(error: crate::config::ConfigError) -> Self {
        Self::new(error.code, error.message)
    }
}

impl From<ApiError> for StartError {
    fn from(error: ApiError) -> Self {
        Self::new(error.code, error.message)
    }
}

/// A server that is ready to serve.
pub struct Server {
    app: Arc<App>,
    listener: TcpListener,
    address: SocketAddr,
    /// The position before this start.
    before: u64,
    projections: JoinHandle<()>,
    stop_projections: CancellationToken,
}

/// A server that serves.
pub struct ServerHandle {
    /// Where it listens.
    pub address: SocketAddr,
    /// What it shares.
    pub app: Arc<App>,
    stop: CancellationToken,
    serving: JoinHandle<Result<(), StartError>>,
}

impl ServerHandle {
    /// Stops in order and waits for the end.
    pub async fn stop(self) {
        self.stop.cancel();
        match self.serving.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(error.code = %error.code, "{error}"),
            Err(error) => tracing::error!(cause = %error, "the server's task failed"),
        }
    }
}

impl Server {
    /// Opens everything; nothing is served yet.
    ///
    /// # Errors
    /// [`StartError`]: a busy port, a locked folder, a file that cannot be read.
    pub async fn open(config: &ServerConfig) -> Result<Self, StartError> {
        let model = model::open(config.model.as_ref())?;
        Self::open_with_model(config, model).await
    }

    /// The same with a model of the caller's.
    ///
    /// # Errors
    /// As [`Server::open`].
    pub async fn open_with_model(config: &ServerConfig, model: Arc<dyn Model>) -> Result<Self, StartError> {
        let mcp = Servers::new(&config.mcp)?;
        // The port first: a second server must fail before it writes anything.
        let listener = bind(config.address()?).await?;
        let address = listener.local_addr().map_err(|error| StartError::new(ErrorCode::AddressInUse, error))?;
        let (log_place, views_place) = config.places()?;
        create_folder(&config.data)?;
        if matches!(log_place, devmind_ledger::Place::File(_)) {
            refuse_lost_ledger(&config.data)?;
        }
        let ledger = Ledger::open(&log_place).await.map_err(|error| StartError::new(error.code(), error))?;
        // Before anything is appended: a log that lost what was published must not go on from there.
        let checkpoints = checkpoints::open(config, ledger.reader()).await?;
        let nodes = Nodes::default();
        // Before this start: what concerns it comes after.
        let before = ledger.reader().head().await.map_err(|error| StartError::new(error.code(), error))?.position;
        let (claim, lease) = start_node(&ledger, config, &log_place, &nodes).await?;
        let (views, runner) = Views::open(&views_place, ledger.reader().clone())
            .await
            .map_err(|error| StartError::new(error.code(), error))?;
        let stop_projections = CancellationToken::new();
        let projections = tokio::spawn(runner.run(stop_projections.clone()));
        let app = Arc::new(App {
            views_place,
            ledger,
            checkpoints,
            views,
            claim,
            identities: config.identities(),
            allowed_origins: config.allowed_origins.clone(),
            model,
            model_patience: ModelPatience {
                first_byte: Duration::from_millis(config.model_first_byte_ms),
                idle: Duration::from_millis(config.model_idle_ms),
            },
            approval_lifetime_ms: (config.approval_lifetime_ms > 0).then_some(config.approval_lifetime_ms),
            nodes,
            lease,
            tools: Tools::new(&config.code_mode).map_err(|error| StartError::new(ErrorCode::Internal, error))?,
            live: LiveExecutions::new(config.code_mode.limits.recorded_bytes),
            mcp,
            policies: Policies::new(config.rules()?, config.approvals),
            gateway: Gateway::new(&config.limits),
            open_streams: Places::new(u32::MAX, MAX_OPEN_STREAMS),
            limits: config.limits.clone(),
            runs: ActiveRuns::default(),
            run_tasks: TaskTracker::new(),
            socket_tasks: TaskTracker::new(),
            verification: Verification::default(),
            bundles: KeptBundles::default(),
            beginning: places::Turns::default(),
            stopping: CancellationToken::new(),
        });
        settle_left_over_runs(&app).await?;
        Ok(Self { app, listener, address, before, projections, stop_projections })
    }

    /// Where it will listen.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it shares.
    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Serves in the background until the handle stops it.
    pub fn spawn(self) -> ServerHandle {
        let (stop, app, address) = (CancellationToken::new(), self.app.clone(), self.address);
        let serving = tokio::spawn(self.serve(stop.clone()));
        ServerHandle { address, app, stop, serving }
    }

    /// Serves until `stop` is cancelled, then ends in order.
    ///
    /// # Errors
    /// `NODE_LOST` when other processes count this one as lost: then it ends without another word in the log.
    pub async fn serve(self, stop: CancellationToken) -> Result<(), StartError> {
        let Self { app, listener, before, projections, stop_projections, .. } = self;
        Servers::start(&app);
        let news = app.lease.is_some().then(|| tokio::spawn(news::follow(app.clone(), before)));
        let connections = TaskTracker::new();
        let closing = CancellationToken::new();
        let others = tokio::spawn(look_after_others(app.clone()));
        let expiry = tokio::spawn(expire_overdue_approvals(app.clone()));
        let publishing = tokio::spawn(checkpoints::publish_as_the_log_grows(app.clone()));
        let lost = app.nodes.lost.clone();
        tokio::select! {
            () = accept(&app, listener, &connections, &closing, &stop) => {}
            // Whatever was under way here is somebody else's to end, and has been: nothing may be appended.
            () = lost.cancelled() => app.ledger.close().await,
        }

        app.stopping.cancel();
        app.runs.stop_all(StopReason::ShuttingDown);
        closing.cancel();
        drain("runs", &app.run_tasks).await;
        app.mcp.stop().await;
        app.gateway.connections.close_all(&Closing::new(CloseCode::Restarting, "the server is stopping"));
        if let Err(error) = others.await {
            tracing::error!(cause = %error, "the task that looks after other processes failed");
        }
        if let Err(error) = expiry.await {
            tracing::error!(cause = %error, "the task that expires approvals failed");
        }
        if let Err(error) = publishing.await {
            tracing::error!(cause = %error, "the task that publishes checkpoints failed");
        }
        drain("device sockets", &app.socket_tasks).await;
        drain("connections", &connections).await;
        if !lost.is_cancelled() {
            stop_node(&app).await;
            checkpoints::publish(&app).await;
        }
        if let Some(lease) = &app.lease {
            lease.release().await;
        }
        stop_projections.cancel();
        if let Err(error) = projections.await {
            tracing::error!(cause = %error, "the projections' task failed");
        }
        app.views.close().await;
        app.ledger.close().await;
        if let Some(Err(error)) = match news {
            Some(news) => Some(news.await),
            None => None,
        } {
            tracing::error!(cause = %error, "the task that follows other processes failed");
        }
        if lost.is_cancelled() {
            let message = format!("the lease of {} ran out before it was renewed", app.claim.node_id);
            return Err(StartError::new(ErrorCode::NodeLost, message));
        }
        Ok(())
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).await.map_err(|error| {
        let code = match error.kind() {
            std::io::ErrorKind::AddrInUse => ErrorCode::AddressInUse,
            _ => ErrorCode::AddressInvalid,
        };
        StartError::new(code, format!("cannot listen on {address}: {error}"))
    })
}

fn create_folder(folder: &Path) -> Result<(), StartError> {
    std::fs::create_dir_all(folder).map_err(|error| {
        StartError::new(
            ErrorCode::LedgerUnavailable,
            format!("cannot use the data folder {}: {error}", folder.display()),
        )
    })
}

/// Views without their log are what is left of a history: a new log beside them would hide the loss.
fn refuse_lost_ledger(folder: &Path) -> Result<(), StartError> {
    let bytes = |name: &str| std::fs::metadata(folder.join(name)).map_or(0, |file| file.len());
    if bytes(LEDGER_FILE) > 0 || bytes(VIEWS_FILE) == 0 {
        return Ok(());
    }
    let message = format!("{} holds the views of a ledger, and {LEDGER_FILE} is gone or empty", folder.display());
    let hint = format!("restore {LEDGER_FILE} from a copy; to begin a new ledger, remove {VIEWS_FILE}");
    Err(StartError { hint: Some(hint), ..StartError::new(ErrorCode::LedgerCorrupt, message) })
}

/// Appends this start; everything that an older one had under way is unknown from here on. Where several
/// processes share the ledger, the start's lease is taken first: two of one name would be one to everybody else.
async fn start_node(
    ledger: &Ledger,
    config: &ServerConfig,
    place: &Place,
    nodes: &Nodes,
) -> Result<(Claim, Option<Kept>), StartError> {
    let node_id = nodes::name(config, place)?;
    let failed = |error: LedgerError| StartError::new(error.code(), error);
    let in_use = || StartError::new(ErrorCode::NodeIdInUse, format!("a server process named {node_id} is running"));
    let (node, version) = load::<Node>(ledger.reader(), node_id.as_str()).await.map_err(failed)?;
    let epoch = node.epoch + 1;
    let lease = match place {
        Place::File(_) => None,
        Place::Postgres(url) => {
            let term = millis(config.node_lease_ms);
            let lease = NodeLease::take(url, &node_id, epoch, term).await.map_err(failed)?.ok_or_else(in_use)?;
            Some(Kept::keep(lease, term, ledger.clone(), nodes.lost.clone()))
        }
    };
    let command = NodeCommand::Start { node_id: node_id.clone(), version: env!("CARGO_PKG_VERSION").to_owned() };
    let decided = node.decide(command).map_err(|error| StartError::new(ErrorCode::LedgerUnavailable, error))?;
    let metadata = Metadata::new(Actor::server(&node_id), node_id.clone());
    let new = |event: NodeEvent| NewEvent { event_id: new_id(), event: event.into(), metadata: metadata.clone() };
    let start = StreamAppend {
        stream: StreamId::new(AggregateType::Node, node_id.as_str()),
        // Of this very epoch: a start that came between has another lease.
        expected_version: version,
        events: decided.into_iter().map(new).collect(),
    };
    match ledger.append(Append { streams: vec![start], idempotency: None }).await {
        Ok(_) => Ok((Claim { node_id, epoch }, lease)),
        Err(AppendError::Conflict { .. }) => Err(in_use()),
        Err(error) => Err(StartError::new(error.code(), error)),
    }
}

async fn stop_node(app: &App) {
    let command = NodeCommand::Stop { epoch: app.claim.epoch };
    let id = app.claim.node_id.as_str();
    if let Err(error) = execute::<Node>(&app.ledger, id, &app.server_metadata(), command, None).await {
        tracing::error!(cause = %error, "the end of this process was not recorded");
    }
}

async fn drain(what: &str, tasks: &TaskTracker) {
    tasks.close();
    if tokio::time::timeout(DRAIN, tasks.wait()).await.is_err() {
        tracing::warn!(tasks.left = tasks.len(), "{what} did not end in {} s", DRAIN.as_secs());
    }
}

async fn accept(
    app: &Arc<App>,
    listener: TcpListener,
    connections: &TaskTracker,
    closing: &CancellationToken,
    stop: &CancellationToken,
) {
    let router = router(app.clone());
    let places = Places::new(app.limits.connections, app.limits.connections_per_address);
    let head_within = millis(app.limits.head_within_ms);
    loop {
        let (stream, remote) = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of file descriptors, a connection that was gone: the next may work.
                    tracing::warn!(cause = %error, "a connection was not accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let Some(place) = places.take(app.limits.counted(remote.ip())) else {
            tracing::warn!(peer = %remote, "too many connections");
            continue;
        };
        let service = router.clone().layer(Extension(Peer::new(remote, place, &stream)));
        connections.spawn(serve_connection(stream, service, head_within, closing.clone()));
    }
}

async fn serve_connection(stream: TcpStream, service: axum::Router, head_within: Duration, closing: CancellationToken) {
    // Small frames must not wait for each other (a 40 ms shoulder otherwise).
    stream.set_nodelay(true).ok();
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // `axum::serve` has no such limit.
        .header_read_timeout(head_within)
        .max_headers(MAX_HEADERS)
        .max_header_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
        .with_upgrades();
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = closing.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(cause = %error, "a connection ended early");
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_device_socket_gives_up_on_a_dead_network_and_a_reader_may_take_its_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (_client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (stream, remote) = accepted.expect("a connection");
        let timeout_ms = || rustix::net::sockopt::tcp_user_timeout(&stream).expect("an option");
        let place = Places::new(1, 1).take(Some(remote.ip())).expect("a place");
        let mut peer = Peer::new(remote, place, &stream);
        assert_eq!(timeout_ms(), 0, "the system's own");
        peer.give_up_on_a_dead_network();
        assert_eq!(timeout_ms(), TCP_USER_TIMEOUT_MS);
    }
}
