//! Without a command: the device itself, with its sandbox, its page, its signals and its status lines.

use super::line;
use crate::config::{ConfirmMode, Settings};
use crate::confirm::page::{PageServer, Told};
use crate::confirm::{Both, Confirm, Fixed, Notifier, Page, Terminal};
use crate::connection::{ConnectionStatus, Identity, Server};
use crate::device::{Device, DeviceOptions, Health};
use crate::error::DeviceError;
use crate::pages::Pages;
use crate::policy::Policy;
use crate::sandbox;
use crate::state_dir::{make_state_folder, write_private};
use crate::status_file::DeviceStatus;
use crate::tools::LocalTool;
use crate::{checked_workspace, clock};
use devmind_domain::ErrorCode;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The page's link in the state folder, for where there is no terminal to print it on.
const LINK_FILE: &str = "page-link";

/// Runs until stopped.
pub(super) fn run(settings: &Settings, tools: Vec<Arc<dyn LocalTool>>) -> Result<ExitCode, DeviceError> {
    let mut options = settings.options()?;
    options.tools = tools;
    Device::check(&options)?;
    let workspace = checked_workspace(&options.workspace)?;
    make_state_folder(&options.state_dir)?;
    let has_page = matches!(settings.confirm, ConfirmMode::Page | ConfirmMode::Both);
    let notifier = if has_page && settings.notify { Notifier::start() } else { None };
    // Before the runtime: the sandbox counts for threads that are started inside it.
    let sandbox = sandbox::enter(settings.sandbox, &workspace, &options.state_dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| DeviceError::new(ErrorCode::Internal, "no runtime").caused_by(error))?;
    let ended = runtime.block_on(serve(settings, options, notifier, sandbox));
    // A tool that hangs in the operating system must not hold up the end.
    runtime.shutdown_background();
    ended.map(|()| ExitCode::SUCCESS)
}

async fn serve(
    settings: &Settings,
    options: DeviceOptions,
    notifier: Option<Notifier>,
    sandbox: String,
) -> Result<(), DeviceError> {
    let state = options.state_dir.clone();
    let (server, user) = (options.server.clone(), options.identity.to_string());
    let (confirm, questions, mut page) = confirm(settings.confirm, notifier).await?;
    let (address, identity) = (Server::parse(&options.server, options.allow_plain_http)?, options.identity.clone());
    let device = Device::open(options, confirm).await?;
    let pages = match &mut page {
        Some(page) => server_pages(page, address, identity, &device).await,
        None => None,
    };
    let told = Told {
        workspace: device.workspace().display().to_string(),
        pages: pages.as_ref().map(Pages::url),
        ..Told::default()
    };
    line!("device {}, workspace {}", device.device_id(), device.workspace().display());
    if let Some(page) = &page {
        tell_link(page, &state);
    }
    let policy = Policy::of(&state);
    match policy.rules() {
        Ok(rules) if !rules.is_empty() => {
            line!("{} always-allow rules count: devmind-device policy list", rules.len());
        }
        Ok(_) => {}
        Err(error) => line!("warning: {error}; you are asked about everything"),
    }
    let status = DeviceStatus {
        written_at: clock::now(),
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        device_id: device.device_id().to_string(),
        workspace: device.workspace().to_owned(),
        server,
        user,
        connection: String::new(),
        confirm: format!("{:?}", settings.confirm).to_lowercase(),
        page: page.as_ref().map(|page| format!("http://{}/", page.address())),
        sandbox,
        clock_offset_ms: None,
        workspace_replaced: false,
    };
    let cancel = stop_on_signals()?;
    let page = page.map(|page| tokio::spawn(page.serve()));
    let pages = pages.map(|pages| tokio::spawn(pages.serve()));
    let on_page = questions.map(|page| (page, told));
    let told = tokio::spawn(tell(device.status(), device.health(), status, state, on_page));
    let ended = device.run(cancel).await;
    // The device has dropped what is told: the lines end.
    let _ = told.await;
    for served in page.into_iter().chain(pages) {
        served.abort();
    }
    ended
}

/// How the person is asked; and, where there is one, the page and its server.
async fn confirm(
    mode: ConfirmMode,
    notifier: Option<Notifier>,
) -> Result<(Arc<dyn Confirm>, Option<Arc<Page>>, Option<PageServer>), DeviceError> {
    let page = Arc::new(Page::new(notifier));
    let confirm: Arc<dyn Confirm> = match mode {
        ConfirmMode::Allow => return Ok((Arc::new(Fixed(true)), None, None)),
        ConfirmMode::Deny => return Ok((Arc::new(Fixed(false)), None, None)),
        ConfirmMode::Terminal => return Ok((Arc::new(Terminal::new()), None, None)),
        ConfirmMode::Page => page.clone(),
        ConfirmMode::Both => Arc::new(Both::new(page.clone())),
    };
    let server = PageServer::bind(page.clone()).await.map_err(|error| {
        DeviceError::new(ErrorCode::AddressInUse, "the local page has no port")
            .with_hint("use --confirm terminal")
            .caused_by(error)
    })?;
    Ok((confirm, Some(page), Some(server)))
}

/// The server's pages under the device's own; without them it still asks.
async fn server_pages(page: &mut PageServer, server: Server, identity: Identity, device: &Device) -> Option<Pages> {
    match Pages::bind(server, identity, device.device_id().clone(), page.address()).await {
        Ok(pages) => {
            page.frame(&pages.url());
            Some(pages)
        }
        Err(error) => {
            line!("warning: the server's pages are not shown on the local page: {error}");
            None
        }
    }
}

/// The link is for the user alone: a terminal may show it, a log may not.
fn tell_link(page: &PageServer, state: &Path) {
    let file = state.join(LINK_FILE);
    if let Err(error) = write_private(&file, &page.link()) {
        line!("warning: {} cannot be written: {error}", file.display());
    }
    if std::io::stderr().is_terminal() {
        line!("questions also at {}", page.link());
    } else {
        line!("questions also at http://{}/ by the link in {}", page.address(), file.display());
    }
}

/// The first SIGTERM or Ctrl-C stops in order; the second, at once.
fn stop_on_signals() -> Result<CancellationToken, DeviceError> {
    let no_signals = |error: std::io::Error| DeviceError::new(ErrorCode::Internal, "no signals").caused_by(error);
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let cancel = CancellationToken::new();
    let stopping = cancel.clone();
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        next().await;
        line!("stopping");
        stopping.cancel();
        next().await;
        std::process::exit(1);
    });
    Ok(cancel)
}

/// One line per change, and the status file with it.
async fn tell(
    mut connection: watch::Receiver<ConnectionStatus>,
    mut health: watch::Receiver<Health>,
    mut status: DeviceStatus,
    state: PathBuf,
    on_page: Option<(Arc<Page>, Told)>,
) {
    let mut told = Health::default();
    loop {
        let now = connection.borrow_and_update().clone();
        let words = in_words(&now, &status);
        if let Some((page, told)) = &on_page {
            page.tell(Told {
                connected: matches!(now, ConnectionStatus::Online { .. }),
                words: words.clone().unwrap_or_else(|| "connecting …".to_owned()),
                ..told.clone()
            });
        }
        if let Some(words) = words.filter(|words| *words != status.connection) {
            line!("{words}");
            status.connection = words;
        }
        let now = health.borrow_and_update().clone();
        for warning in now.warnings_since(&told) {
            line!("warning: {warning}");
        }
        status.clock_offset_ms = now.clock_offset_ms;
        status.workspace_replaced = now.workspace_replaced;
        told = now;
        status.written_at = clock::now();
        if let Err(error) = status.write(&state) {
            tracing::warn!(%error, "the status file cannot be written");
        }
        let changed = tokio::select! {
            changed = connection.changed() => changed,
            changed = health.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// What there is to say about the connection; an error is told by the exit.
fn in_words(connection: &ConnectionStatus, status: &DeviceStatus) -> Option<String> {
    match connection {
        ConnectionStatus::Connecting => None,
        ConnectionStatus::Online { .. } => Some(format!("connected as {} to {}", status.user, status.server)),
        ConnectionStatus::Offline { reason, retry_in } => {
            Some(format!("lost: {reason}; trying again in {:.1} s", retry_in.as_secs_f64()))
        }
        ConnectionStatus::Stopped { code: Some(_), .. } => None,
        ConnectionStatus::Stopped { code: None, reason } => Some(reason.clone()),
    }
}
