//! The device program around the device: settings, signals, status lines, exit codes.
//!
//! Everything goes to stderr; exit 0 after a stop that was asked for, 1 when refused or failed, 2 for
//! wrong usage.

use crate::config::Args;
use crate::connection::ConnectionStatus;
use crate::device::Device;
use crate::error::DeviceError;
use crate::tools::LocalTool;
use clap::Parser as _;
use devmind_domain::ErrorCode;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// What is logged unless `RUST_LOG` says otherwise: problems; status lines tell the rest.
const DEFAULT_LOG: &str = "warn";

/// Prints a line to stderr, whether somebody reads it or not: `eprintln!` panics when nobody does.
macro_rules! line {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        drop(writeln!(std::io::stderr(), $($words)*));
    }};
}

/// Runs the program with these tools.
pub fn main(tools: Vec<Arc<dyn LocalTool>>) -> ExitCode {
    let dotenv = dotenvy::dotenv();
    let args = Args::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_LOG));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        // A log that cannot be written must not end the program that writes it.
        .log_internal_errors(false)
        .init();
    match dotenv {
        Ok(_) => {}
        Err(error) if error.not_found() => {}
        Err(error) => {
            let error = DeviceError::new(ErrorCode::ConfigInvalid, format!("the .env file cannot be read: {error}"));
            return failed(&error.with_hint("correct it, or remove it"));
        }
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&DeviceError::new(ErrorCode::Internal, error.to_string())),
    };
    let ended = runtime.block_on(run(&args, tools));
    // A tool that hangs in the operating system must not hold up the end.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

async fn run(args: &Args, tools: Vec<Arc<dyn LocalTool>>) -> Result<(), DeviceError> {
    let mut options = args.options()?;
    options.tools = tools;
    let connected = format!("connected as {} to {}", options.identity, options.server);
    let device = Device::open(options, args.confirm()).await?;
    line!("device {}, workspace {}", device.device_id(), device.workspace().display());
    let cancel = stop_on_signals()?;
    let lines = tokio::spawn(tell(device.status(), connected));
    let ended = device.run(cancel).await;
    // The device has dropped the status: the lines end.
    let _ = lines.await;
    ended
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

/// One line per change of the connection.
async fn tell(mut status: watch::Receiver<ConnectionStatus>, connected: String) {
    loop {
        let line = match &*status.borrow_and_update() {
            ConnectionStatus::Connecting => None,
            ConnectionStatus::Online { .. } => Some(connected.clone()),
            ConnectionStatus::Offline { reason, retry_in } => {
                Some(format!("lost: {reason}; trying again in {:.1} s", retry_in.as_secs_f64()))
            }
            // An error is told by the exit.
            ConnectionStatus::Stopped { code: Some(_), .. } => None,
            ConnectionStatus::Stopped { code: None, reason } => Some(reason.clone()),
        };
        if let Some(line) = line {
            line!("{line}");
        }
        if status.changed().await.is_err() {
            return;
        }
    }
}

/// Tells the error, its causes and what to do.
fn failed(error: &DeviceError) -> ExitCode {
    line!("error[{}]: {error}", error.code());
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        line!("  because: {inner}");
        cause = inner.source();
    }
    line!("hint: {}", error.hint());
    ExitCode::FAILURE
}
