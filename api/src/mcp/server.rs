//! Servers that are kept: connected, connected again with growing pauses when they are lost, and their tools
//! registered for the runs that begin from then on.

use super::call::McpTool;
use super::config::{self, Address, McpConfig};
use super::connection::{Connection, answers, list_tools};
use super::secrets::Secrets;
use super::words;
use crate::config::ConfigError;
use crate::limits::millis;
use crate::state::App;
use crate::tools::{ToolSet, Tools};
use devmind_domain::tools::mcp::{self, Offered};
use devmind_domain::tools::{ToolDefinition, always_beside_others};
use futures::FutureExt;
use globset::GlobSet;
use rmcp::service::{Peer, RoleClient};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use utoipa::ToSchema;

/// The pause before a lost server is started again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A server that stood for so long begins with the first pause again.
const STEADY: Duration = Duration::from_secs(60);
/// A server that nobody calls is asked this often whether it is there.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// A server that says that its tools changed is asked which, not more often than this.
const LIST_EVERY: Duration = Duration::from_millis(500);
/// Calls of one server at once, at most.
const MAX_CALLS: usize = 32;
/// Tools of one server, at most.
const MAX_TOOLS: usize = 128;
/// Tools of one server that are named with the reason why they were left out, at most.
const MAX_LEFT_OUT: usize = 100;
/// All servers together may take this long to end.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// How a server stands.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// `stdio` or `http`.
    pub transport: &'static str,
    /// `starting`, `connected` or `away`.
    pub state: &'static str,
    /// Its tools, as the model calls them; those of a server that is away were there before.
    pub tools: Vec<String>,
    /// How many of its tools are not offered, because they cannot be.
    pub left_out: usize,
    /// Why it is away; for operators.
    #[serde(skip)]
    pub reason: Option<String>,
    /// The tools that are left out, and why; for operators.
    #[serde(skip)]
    pub why_left_out: Vec<(String, String)>,
}

/// A server of the settings.
pub(super) struct Server {
    pub name: String,
    pub secrets: Secrets,
    config: McpConfig,
    address: Address,
    wanted: GlobSet,
    now: Mutex<Now>,
    calls: Semaphore,
    lost: Notify,
    /// Cancelled when the first attempt to connect has ended.
    tried: CancellationToken,
}

/// What changes.
struct Now {
    peer: Option<Peer<RoleClient>>,
    state: &'static str,
    reason: Option<String>,
    /// Name there, version, and name for the model.
    offered: BTreeMap<String, (String, String)>,
    left_out: Vec<(String, String)>,
}

impl Server {
    /// A place for one more call.
    pub fn place(&self) -> Option<SemaphorePermit<'_>> {
        self.calls.try_acquire().ok()
    }

    /// The way to the server, while it is connected.
    pub fn peer(&self) -> Option<Peer<RoleClient>> {
        self.now().peer.clone()
    }

    /// Whether the tool is what it was when it was registered.
    pub fn still_offers(&self, tool: &str, version: &str) -> bool {
        self.now().offered.get(tool).is_some_and(|(now, _)| now == version)
    }

    /// The connection is of no use any more.
    pub fn lost(&self, reason: &str) {
        tracing::warn!(mcp.server = self.name, cause = self.shown(reason), "an MCP server did not take a call");
        self.lost.notify_one();
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shown(&self, text: &str) -> String {
        words(&self.secrets.without(text))
    }

    fn status(&self) -> Status {
        let now = self.now();
        Status {
            name: self.name.clone(),
            transport: self.address.transport(),
            state: now.state,
            tools: now.offered.values().map(|(_, name)| name.clone()).collect(),
            left_out: now.left_out.len(),
            reason: now.reason.clone(),
            why_left_out: now.left_out.clone(),
        }
    }

    /// Keeps the server connected until the process stops.
    async fn keep(self: Arc<Self>, tools: &Tools, stop: &CancellationToken) {
        let (changed, mut pause) = (Arc::new(Notify::new()), FIRST_PAUSE);
        let start = millis(self.config.start_ms);
        while !stop.is_cancelled() {
            let opening = Connection::open(&self.name, &self.address, &self.secrets, start, changed.clone(), stop);
            let reason = match opening.await {
                Ok((mut connection, offered)) => {
                    self.offer(tools, &offered);
                    self.is_connected(connection.peer.clone());
                    self.tried.cancel();
                    let since = Instant::now();
                    let reason = self.watch(&mut connection, tools, &changed, stop).await;
                    self.is_away(&reason);
                    connection.close().await;
                    if since.elapsed() >= STEADY {
                        pause = FIRST_PAUSE;
                    }
                    reason
                }
                Err(reason) => {
                    self.is_away(&reason);
                    self.tried.cancel();
                    reason
                }
            };
            if !stop.is_cancelled() {
                tracing::warn!(mcp.server = self.name, cause = self.shown(&reason), ?pause, "an MCP server is away");
            }
            timeout(pause, stop.cancelled()).await.ok();
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Until the connection is lost: why.
    async fn watch(
        self: &Arc<Self>,
        connection: &mut Connection,
        tools: &Tools,
        changed: &Notify,
        stop: &CancellationToken,
    ) -> String {
        let (peer, start) = (connection.peer.clone(), millis(self.config.start_ms));
        // What was said of the connection before is not said of this one.
        self.lost.notified().now_or_never();
        let look_after = async {
            loop {
                tokio::select! {
                    () = self.lost.notified() => return "it did not take a call".to_owned(),
                    () = changed.notified() => {
                        sleep(LIST_EVERY).await;
                        match list_tools(&peer, start).await {
                            Ok(offered) => self.offer(tools, &offered),
                            Err(reason) => return reason,
                        }
                    }
                    () = sleep(ASK_EVERY) => {
                        // One that is busy with a call may have no time to answer.
                        if self.calls.available_permits() == MAX_CALLS && !answers(&peer, start).await {
                            return "it does not answer any more".to_owned();
                        }
                    }
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => "this server is stopping".to_owned(),
            () = connection.ended() => "it ended the connection".to_owned(),
            reason = look_after => reason,
        }
    }

    fn is_connected(&self, peer: Peer<RoleClient>) {
        let mut now = self.now();
        (now.peer, now.state, now.reason) = (Some(peer), "connected", None);
        let (offered, left_out) = (now.offered.len(), now.left_out.len());
        drop(now);
        tracing::info!(
            mcp.server = self.name,
            tools = offered,
            tools.left_out = left_out,
            "an MCP server is connected"
        );
    }

    fn is_away(&self, reason: &str) {
        let reason = self.shown(reason);
        let mut now = self.now();
        (now.peer, now.state, now.reason) = (None, "away", Some(reason));
    }

    /// Registers what the server offers now, in place of what it offered before.
    fn offer(self: &Arc<Self>, tools: &Tools, offered: &[Offered]) {
        let (mut definitions, mut left_out) = (Vec::new(), Vec::new());
        for tool in offered.iter().filter(|tool| self.wanted.is_match(&tool.name)) {
            match self.definition(tool) {
                Ok(_) if definitions.len() == MAX_TOOLS => {
                    left_out.push((tool.name.clone(), format!("a server has {MAX_TOOLS} tools at most")));
                }
                Ok(definition) => definitions.push((tool.name.clone(), definition)),
                Err(reason) => left_out.push((tool.name.clone(), reason)),
            }
        }
        let before = self.now().offered.clone();
        let offered = tools.change(|set| self.replace(set, &before, definitions, &mut left_out));
        left_out.truncate(MAX_LEFT_OUT);
        for (tool, reason) in &mut left_out {
            *reason = self.shown(reason);
            tracing::warn!(mcp.server = self.name, tool.name = ?tool, cause = reason, "a tool is left out");
        }
        let mut now = self.now();
        (now.offered, now.left_out) = (offered, left_out);
    }

    fn definition(&self, tool: &Offered) -> Result<ToolDefinition, String> {
        let McpConfig { risk, approval, parallel, call_ms, .. } = &self.config;
        let definition = mcp::definition(&self.name, &self.address.identity(), tool)?;
        let concurrency_safe = always_beside_others().filter(|_| *parallel);
        Ok(ToolDefinition {
            risk: *risk,
            approval: *approval,
            timeout_ms: Some(*call_ms),
            concurrency_safe,
            ..definition
        })
    }

    fn replace(
        self: &Arc<Self>,
        set: &mut ToolSet,
        before: &BTreeMap<String, (String, String)>,
        definitions: Vec<(String, ToolDefinition)>,
        left_out: &mut Vec<(String, String)>,
    ) -> BTreeMap<String, (String, String)> {
        for name in before.keys() {
            set.remove(&format!("{}{}_{name}", mcp::PREFIX, self.name));
        }
        let mut offered = BTreeMap::new();
        for (name, definition) in definitions {
            let (version, model_name) = (definition.version.clone(), definition.model_name());
            let body = McpTool { server: self.clone(), name: name.clone(), version: version.clone() };
            match set.register(definition, Arc::new(body)) {
                Ok(()) => {
                    offered.insert(name, (version, model_name));
                }
                Err(error) => left_out.push((name, error.to_string())),
            }
        }
        offered
    }
}

/// All servers of the settings.
pub struct Servers {
    all: Vec<Arc<Server>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Servers {
    /// The servers of the settings; nothing is started yet.
    ///
    /// # Errors
    /// `CONFIG_INVALID` naming the server and the setting.
    pub fn new(settings: &[McpConfig]) -> Result<Self, ConfigError> {
        config::check(settings)?;
        let server = |config: &McpConfig| {
            let (address, wanted, secrets) = config.resolve(|name| std::env::var(name).ok())?;
            let now = Now { peer: None, state: "starting", reason: None, offered: BTreeMap::new(), left_out: vec![] };
            Ok(Arc::new(Server {
                name: config.name.clone(),
                secrets,
                config: config.clone(),
                address,
                wanted,
                now: Mutex::new(now),
                calls: Semaphore::new(MAX_CALLS),
                lost: Notify::new(),
                tried: CancellationToken::new(),
            }))
        };
        let all = settings.iter().map(server).collect::<Result<_, ConfigError>>()?;
        Ok(Self { all, tasks: TaskTracker::new(), stop: CancellationToken::new() })
    }

    /// Begins to connect them.
    pub(crate) fn start(app: &Arc<App>) {
        for server in &app.mcp.all {
            let (server, app) = (server.clone(), app.clone());
            app.mcp.tasks.clone().spawn(async move { server.keep(&app.tools, &app.mcp.stop).await });
        }
        app.mcp.tasks.close();
    }

    /// Waits until each server has been tried once, so that the first runs of a process have the tools they should
    /// have; `start_ms` bounds it.
    pub async fn tried(&self) {
        for server in &self.all {
            server.tried.cancelled().await;
        }
    }

    /// How they stand.
    pub fn status(&self) -> Vec<Status> {
        self.all.iter().map(|server| server.status()).collect()
    }

    /// Ends them all, with every program that was started.
    pub(crate) async fn stop(&self) {
        self.stop.cancel();
        if timeout(STOP_WITHIN, self.tasks.wait()).await.is_err() {
            tracing::warn!("an MCP server did not end in {} s", STOP_WITHIN.as_secs());
        }
    }
}
