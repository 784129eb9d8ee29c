//! `devmind demo`: one question, end to end, in one process — a server on a free loopback port, a
//! device over a real socket, a run, a confirmation in the terminal — and then what the ledger says
//! about it, checked. Exit 0 only if all of it held.

mod client;
mod report;

use crate::config::{Flags, ServerConfig};
use crate::lifecycle::{Server, ServerHandle, StartError};
use clap::Args;
use client::{Asked, Client};
use devmind_device::clock::Deadline;
use devmind_device::{
    Answer, Confirm, ConfirmationRequest, ConnectionStatus, Device, DeviceOptions, Fixed, Identity, Terminal,
};
use devmind_domain::ErrorCode;
use devmind_domain::ids::{DeviceId, InterruptId, ToolCallId};
use devmind_domain::limits::CONFIRMATION_MS;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The question that is asked unless another is given.
const QUESTION: &str = "list the files of my workspace root, then read README.md";
/// The user of the demo.
const USER: &str = "demo";
/// The device must be connected within this time.
const CONNECT_WITHIN: Duration = Duration::from_secs(20);

/// Flags of the demo.
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// The folder that the agent's tools may look at
    #[arg(long, value_name = "DIR", default_value = ".", env = "DEVMIND_WORKSPACE")]
    workspace: PathBuf,
    /// What to ask
    #[arg(long, value_name = "TEXT", default_value = QUESTION)]
    question: String,
    /// Allow every file and every call that is asked for, without asking
    #[arg(long, conflicts_with = "no")]
    yes: bool,
    /// Refuse every file and every call that is asked for, without asking
    #[arg(long)]
    no: bool,
    /// Keep the ledger in this folder; otherwise it is removed at the end
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

/// Runs the demo.
///
/// # Errors
/// [`StartError`] when it could not begin.
pub async fn run(args: DemoArgs) -> Result<ExitCode, StartError> {
    let temporary = tempfile::tempdir().map_err(|error| failed(ErrorCode::Internal, error))?;
    let data = args.data.clone().unwrap_or_else(|| temporary.path().join("data"));
    let flags = Flags { listen: Some("127.0.0.1:0".to_owned()), data: Some(data.clone()), ..Flags::default() };
    // The demo is about its own folder, whatever database a server here would use.
    let config = ServerConfig { database_url: None, ..ServerConfig::load(None, &flags)? };
    // The device first: an unusable workspace must fail before anything is written.
    let workspace = devmind_device::checked_workspace(&args.workspace).map_err(device_failed)?;
    let server = Server::open(&config).await?.spawn();
    report::banner(&config, &workspace, args.data.is_some(), server.address);

    let confirm: Arc<dyn Confirm> = match (args.yes, args.no) {
        (true, _) => Arc::new(Fixed(true)),
        (_, true) => Arc::new(Fixed(false)),
        _ => Arc::new(Terminal::new()),
    };
    let demo = async {
        let device = start_device(&args, &server, confirm.clone(), temporary.path().join("device")).await?;
        let held = ask_and_report(&args, &server, &device, &*confirm).await;
        device.stop.cancel();
        if device.running.await.is_err() {
            return Err(failed(ErrorCode::Internal, "the device's task failed"));
        }
        held
    };
    let interrupted = crate::cli::first_signal().map_err(|error| failed(ErrorCode::Internal, error))?;
    let outcome = tokio::select! {
        outcome = demo => outcome,
        () = interrupted => {
            Err(failed(ErrorCode::Stopped, "interrupted"))
        }
    };
    server.stop().await;
    Ok(if outcome? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn ask_and_report(
    args: &DemoArgs,
    server: &ServerHandle,
    device: &RunningDevice,
    confirm: &dyn Confirm,
) -> Result<bool, StartError> {
    let client = Client::new(server.address, USER)?;
    let mut runs = vec![client.ask(&args.question, &device.id).await?];
    let mut ended = client.follow(&runs[0]).await?;
    while ended.waits_for_approval() {
        let asked = &runs[runs.len() - 1];
        let Some(decisions) = approve(&client, asked, &args.question, confirm).await? else {
            // Silence is not a refusal: nothing is decided, the run is stopped.
            crate::say!("  nobody answered: the run is stopped\n");
            client.stop(asked).await?;
            break;
        };
        let next = client.answer(asked, &decisions).await?;
        ended = client.follow(&next).await?;
        runs.push(next);
    }
    report::show(&server.app, &runs, &ended).await
}

/// Asks about each call that waits for a person; nothing, when nobody answers.
async fn approve(
    client: &Client,
    asked: &Asked,
    title: &str,
    confirm: &dyn Confirm,
) -> Result<Option<Vec<(InterruptId, bool)>>, StartError> {
    let mut decisions = Vec::new();
    for pending in client.pending_approvals(asked).await? {
        let question = ConfirmationRequest {
            tool_call_id: ToolCallId::default(),
            tool: pending.tool,
            arguments: pending.arguments,
            subject: None,
            conversation_title: title.to_owned(),
            deadline: Deadline::after(Duration::from_millis(CONFIRMATION_MS)),
        };
        let allowed = match confirm.ask(&question, &CancellationToken::new()).await {
            Answer::Allow => true,
            Answer::Deny => false,
            Answer::NoAnswer => return Ok(None),
        };
        crate::say!("  approval of {}: {}\n", question.tool, if allowed { "given" } else { "refused" });
        decisions.push((pending.interrupt_id, allowed));
    }
    Ok(Some(decisions))
}

struct RunningDevice {
    id: DeviceId,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

async fn start_device(
    args: &DemoArgs,
    server: &ServerHandle,
    confirm: Arc<dyn Confirm>,
    state_dir: PathBuf,
) -> Result<RunningDevice, StartError> {
    let options = DeviceOptions::new(
        format!("http://{}", server.address),
        args.workspace.clone(),
        state_dir,
        Identity::DevUser(USER.to_owned()),
    );
    let device = Device::open(options, confirm).await.map_err(device_failed)?;
    let (id, status, stop) = (device.device_id().clone(), device.status(), CancellationToken::new());
    let running = tokio::spawn({
        let stop = stop.clone();
        async move {
            if let Err(error) = device.run(stop).await {
                crate::note!("error[{}]: {error}", error.code());
            }
        }
    });
    connected(status).await?;
    accepted(server, &id).await?;
    crate::say!("  device     {id}, connected over a WebSocket");
    Ok(RunningDevice { id, stop, running })
}

/// Waits until the device is online: registered, and its tools synced.
async fn connected(mut status: watch::Receiver<ConnectionStatus>) -> Result<(), StartError> {
    let online = status.wait_for(|status| matches!(status, ConnectionStatus::Online { .. }));
    match tokio::time::timeout(CONNECT_WITHIN, online).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(_)) => Err(failed(ErrorCode::DeviceOffline, "the device ended before it was connected")),
        Err(_) => Err(failed(ErrorCode::DeviceOffline, "the device did not connect in time")),
    }
}

/// Waits until the server has the device's tools: it is told of them, and says nothing back.
async fn accepted(server: &ServerHandle, id: &DeviceId) -> Result<(), StartError> {
    const LOOK_EVERY: Duration = Duration::from_millis(10);
    let online = async {
        while server.app.gateway.connections.online(&USER.into(), id).is_none() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    let late = |_| failed(ErrorCode::DeviceOffline, "the server did not take the device's tools in time");
    tokio::time::timeout(CONNECT_WITHIN, online).await.map_err(late)
}

fn failed(code: ErrorCode, message: impl std::fmt::Display) -> StartError {
    StartError::new(code, message)
}

fn device_failed(error: devmind_device::DeviceError) -> StartError {
    let hint = error.hint().to_owned();
    StartError { hint: Some(hint), ..failed(error.code(), error) }
}
