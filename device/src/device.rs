//! The device put together: everything that can be refused is refused before the network is used.

use crate::call::Calls;
use crate::clock;
use crate::confirm::{Confirm, Decider};
use crate::connection::{self, Backoff, ConnectionStatus, Identity, Link, Server};
use crate::error::DeviceError;
use crate::journal::Journal;
use crate::policy::Policy;
use crate::state_dir::StateDir;
use crate::tools::{self, LocalTool};
use crate::workspace::Workspace;
use devmind_domain::ErrorCode;
use devmind_domain::ids::DeviceId;
use devmind_domain::protocol::Names;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How often the journal forgets what has had its time.
const CLEAN_EVERY: Duration = Duration::from_secs(3_600);

/// How often it is looked whether the workspace is still where it was.
const LOOK_AT_WORKSPACE_EVERY: Duration = Duration::from_secs(2);
/// Clocks further apart than this (milliseconds) are worth a word: times in the record do not agree.
const MAX_CLOCK_OFFSET_MS: i64 = 30_000;

/// What may go wrong with a device besides its connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// How far the server's clock is ahead of this computer's (milliseconds), as far as is known.
    pub clock_offset_ms: Option<i64>,
    /// Whether the workspace's path leads somewhere else by now: calls are refused.
    pub workspace_replaced: bool,
}

impl Health {
    /// What its user should be told, that was not so before.
    pub fn warnings_since(&self, before: &Self) -> Vec<String> {
        let is_far = |health: &Self| health.clock_offset_ms.is_some_and(|ms| ms.abs() > MAX_CLOCK_OFFSET_MS);
        let mut warnings = Vec::new();
        if self.workspace_replaced && !before.workspace_replaced {
            let what = "the workspace's folder was moved, replaced or removed; calls are refused until it is back";
            warnings.push(what.to_owned());
        }
        if is_far(self) && !is_far(before) {
            let seconds = self.clock_offset_ms.unwrap_or_default() / 1_000;
            warnings.push(format!("this computer's clock and the server's are {seconds} s apart; set the wrong one"));
        }
        warnings
    }
}

/// What a device is started with.
#[derive(Clone)]
pub struct DeviceOptions {
    /// `http(s)://host:port`.
    pub server: String,
    /// The only folder its tools may touch.
    pub workspace: PathBuf,
    /// Its own folder: one folder is one device.
    pub state_dir: PathBuf,
    /// Whose device it is.
    pub identity: Identity,
    /// Its id, where it must be a certain one; otherwise made on the first start.
    pub device_id: Option<DeviceId>,
    /// What it offers; every tool of this crate unless a program adds or wraps some.
    pub tools: Vec<Arc<dyn LocalTool>>,
    /// How long it waits before connecting again.
    pub backoff: Backoff,
    /// Whether plain http may go to another computer.
    pub allow_plain_http: bool,
}

impl DeviceOptions {
    /// Options with everything else as usual.
    pub fn new(server: impl Into<String>, workspace: PathBuf, state_dir: PathBuf, identity: Identity) -> Self {
        Self {
            server: server.into(),
            workspace,
            state_dir,
            identity,
            device_id: None,
            tools: tools::all(),
            backoff: Backoff::default(),
            allow_plain_http: false,
        }
    }
}

/// A device that is ready to connect.
pub struct Device {
    link: Arc<Link>,
    status: watch::Sender<ConnectionStatus>,
    health: watch::Sender<Health>,
    workspace: Arc<Workspace>,
}

/// Judges a workspace without starting a device: its path with links resolved.
///
/// # Errors
/// `WORKSPACE_NOT_FOUND`, `WORKSPACE_REFUSED`.
pub fn checked_workspace(path: &Path) -> Result<PathBuf, DeviceError> {
    Workspace::open(path).map(|workspace| workspace.path().to_owned())
}

impl Device {
    /// Judges what can be judged without touching anything.
    ///
    /// # Errors
    /// `CONFIG_INVALID`.
    pub fn check(options: &DeviceOptions) -> Result<(), DeviceError> {
        Server::parse(&options.server, options.allow_plain_http).map(drop)
    }

    /// Opens workspace, state folder and journal. Calls that an earlier start left open are settled
    /// here, and will be reported.
    ///
    /// # Errors
    /// `CONFIG_INVALID`, `WORKSPACE_NOT_FOUND`, `WORKSPACE_REFUSED`, `STATE_LOCKED`,
    /// `DEVICE_JOURNAL_FAILED`, `LEDGER_SCHEMA_NEWER`.
    pub async fn open(options: DeviceOptions, confirm: Arc<dyn Confirm>) -> Result<Self, DeviceError> {
        let server = Server::parse(&options.server, options.allow_plain_http)?;
        let workspace = Arc::new(Workspace::open(&options.workspace)?);
        let state = StateDir::open(&options.state_dir)?;
        let device_id = state.device_id(options.device_id)?;
        let instance_id = uuid::Uuid::now_v7().to_string();
        let opening = Journal::open(state, &instance_id);
        let journal = Arc::new(kill_point::around(|| "open journal".to_owned(), opening).await?);
        let decider = Decider {
            policy: Policy::of(&options.state_dir),
            workspace: workspace.path().to_owned(),
            person: confirm,
            journal: journal.clone(),
        };
        let confirm = Arc::new(decider);
        let calls = Calls::new(device_id.clone(), options.tools, workspace.clone(), journal.clone(), confirm);
        install_crypto();
        let health = watch::Sender::new(Health::default());
        let link = Link {
            server,
            identity: options.identity,
            backoff: options.backoff,
            device_id,
            instance_id,
            names: names(workspace.path()),
            journal,
            calls,
            health: health.clone(),
        };
        let status = watch::Sender::new(ConnectionStatus::Connecting);
        Ok(Self { link: Arc::new(link), status, health, workspace })
    }

    /// Its id, kept across starts.
    pub fn device_id(&self) -> &DeviceId {
        &self.link.device_id
    }

    /// Its workspace, links resolved.
    pub fn workspace(&self) -> &Path {
        self.workspace.path()
    }

    /// What goes wrong with it besides its connection, as it changes.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// How it stands with its server, as it changes.
    pub fn status(&self) -> watch::Receiver<ConnectionStatus> {
        self.status.subscribe()
    }

    /// Serves until cancelled, then stops in order: no new calls, open questions closed, what
    /// executes ended, results sent, journal closed.
    ///
    /// # Errors
    /// When the server says that connecting again cannot help; the code says why.
    pub async fn run(self, cancel: CancellationToken) -> Result<(), DeviceError> {
        let Self { link, status, health, workspace } = self;
        let hang_up = CancellationToken::new();
        let connection = {
            let (link, hang_up, status) = (link.clone(), hang_up.clone(), status.clone());
            async move { connection::run(link, hang_up, &status).await }
        };
        let mut connection = tokio::spawn(connection);
        let mut cleaning = tokio::time::interval(CLEAN_EVERY);
        let mut looking = tokio::time::interval(LOOK_AT_WORKSPACE_EVERY);
        let ended = loop {
            tokio::select! {
                () = cancel.cancelled() => {
                    link.calls.stop().await;
                    hang_up.cancel();
                    break (&mut connection).await;
                }
                ended = &mut connection => {
                    link.calls.stop().await;
                    break ended;
                }
                _ = looking.tick() => {
                    let replaced = !workspace.is_in_place();
                    health.send_if_modified(|health| std::mem::replace(&mut health.workspace_replaced, replaced) != replaced);
                }
                _ = cleaning.tick() => {
                    if let Err(error) = link.journal.clean(clock::now()).await {
                        tracing::error!(%error, "the journal could not be cleaned");
                    }
                }
            }
        };
        let ended = ended.unwrap_or_else(|error| {
            Err(DeviceError::new(ErrorCode::Internal, "the connection's task failed").caused_by(error))
        });
        status.send_replace(match &ended {
            Ok(()) => ConnectionStatus::Stopped { code: None, reason: "the device was stopped".to_owned() },
            Err(error) => ConnectionStatus::Stopped { code: Some(error.code()), reason: error.to_string() },
        });
        // A tool that does not end may still hold the calls; the journal is then recovered later.
        if let Some(Link { journal, calls, .. }) = Arc::into_inner(link) {
            drop(calls);
            if let Some(journal) = Arc::into_inner(journal) {
                journal.close().await;
            }
        }
        ended
    }
}

/// What its user tells this device from others by: the computer, and the last part of the workspace's path.
fn names(workspace: &Path) -> Names {
    let computer = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let workspace = workspace.file_name().map(|name| name.to_string_lossy().into_owned());
    Names::new(Some(computer), workspace)
}

/// TLS needs one provider of cryptography for the whole process. Installing it twice is harmless:
/// the first stays.
fn install_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
