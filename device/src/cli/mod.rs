//! The device program around the device: commands, messages, exit codes.
//!
//! What a command found goes to stdout; everything else to stderr. Exit 0 after what was asked for, 1
//! when refused or failed, 2 for wrong usage.

mod check;
mod history;
mod policy;
mod run;
mod status;

use crate::config::{Flags, Settings};
use crate::confirm::notifier_loop;
use crate::error::DeviceError;
use crate::tools::LocalTool;
use clap::{Parser, Subcommand};
use devmind_domain::ErrorCode;
use std::future::Future;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
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
use line;

/// The desktop device of DevMind Ledger: runs a model's tool calls in one folder of this computer,
/// each at most once, and asks before it reads a file.
///
/// Without a command it connects and serves until it is stopped.
#[derive(Parser, Debug)]
#[command(name = "devmind-device", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    flags: Flags,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Say what the path policy would answer: JSON lines {"id", "tool", "path"} on stdin, {"id", "code"} on stdout
    Check(check::CheckArgs),
    /// Show how the device stands: running, connected, what waits, what the kernel forbids it
    Status(status::StatusArgs),
    /// Show what was asked, who allowed it, and what came of it
    History(history::HistoryArgs),
    /// List, add and remove rules that allow certain calls without asking
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Show notifications for the device that started this
    #[command(hide = true)]
    Notifier,
}

/// Runs the program with these tools.
pub fn main(tools: Vec<Arc<dyn LocalTool>>) -> ExitCode {
    let Cli { flags, command } = Cli::parse();
    if let Some(Command::Notifier) = command {
        notifier_loop();
        return ExitCode::SUCCESS;
    }
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_LOG));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        // A log that cannot be written must not end the program that writes it.
        .log_internal_errors(false)
        .init();
    let done = Settings::load(&flags).and_then(|settings| match command {
        None => run::run(&settings, tools),
        Some(Command::Check(args)) => {
            check::check(&settings, &args, &tools, std::io::stdin().lock(), std::io::stdout())
        }
        Some(Command::Status(args)) => wait(status::status(&settings, &args))?,
        Some(Command::History(args)) => wait(history::history(&settings, &args))?,
        Some(Command::Policy(command)) => policy::policy(&settings, command),
        Some(Command::Notifier) => Ok(ExitCode::SUCCESS),
    });
    done.unwrap_or_else(|error| failed(&error))
}

/// Runs a command that reads the journal.
fn wait<T>(command: impl Future<Output = T>) -> Result<T, DeviceError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.map_err(|error| DeviceError::new(ErrorCode::Internal, "no runtime").caused_by(error))?.block_on(command))
}

/// Writes a command's answer. Somebody who has stopped reading is not told of it.
fn print(text: &str) {
    drop(writeln!(std::io::stdout(), "{text}"));
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
