//! DevMind Ledger's operator tools, behind the binary `devmind-replay`.
//!
//! Everything here reads a ledger, also while a server writes it, but for `redact`, `import` and `projection
//! skip`, which need a file for themselves; nothing here can send a
//! command to a device or a model, because nothing here links them. Data goes to stdout, everything
//! else to stderr. Exit status: 0 ok, 1 refused or failed, 2 usage, 3 verification failed.

mod at;
mod attest;
mod bundle;
mod cli;
mod failure;
mod foreign;
mod histories;
mod http;
mod journal;
mod log;
mod otlp;
mod output;
mod projection;
mod prove_once;
mod rebuild;
mod reconcile;
mod redact;
pub mod replay;
mod schema;
mod show;
mod stats;
mod store;
mod timeline;
pub mod told;
mod verify;
mod witness;

pub use cli::Cli;

use clap::CommandFactory;
use cli::{Command, Format, ProjectionCommand, SchemaCommand};
use failure::{Failure, report};
use output::Output;
use std::process::ExitCode;
use store::Source;

/// How a command ended that did what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Everything holds.
    Holds,
    /// It was shown, but something of it could not be understood.
    Incomplete,
    /// Something does not hold.
    Broken,
}

/// Runs the program.
pub fn run(cli: Cli) -> ExitCode {
    let Cli { data, database_url, json, completions, command } = cli;
    if let Some(shell) = completions {
        clap_complete::generate(shell, &mut Cli::command(), "devmind-replay", &mut std::io::stdout());
        return ExitCode::SUCCESS;
    }
    let Some(command) = command else {
        // A command is required unless completions are asked for; clap cannot say so in one attribute.
        // Help that nobody reads (stderr closed) is no reason to panic.
        drop(Cli::command().write_long_help(&mut std::io::stderr()));
        return ExitCode::from(2);
    };
    let data = match Source::new(data, database_url) {
        Ok(data) => data,
        Err(failure) => return report(&failure),
    };
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return report(&Failure::internal(error)),
    };
    let mut output = Output::new(json);
    let done = runtime.block_on(async {
        match command {
            Command::Log(args) => log::run(&data, args, &mut output).await,
            Command::Show(args) => show::run(&data, args, &mut output).await,
            Command::Reconcile(args) => reconcile::run(&data, args, &mut output).await,
            Command::Replay(args) => replay::run(&data, args, &mut output).await,
            Command::Timeline(args) => timeline::run(&data, args, &mut output).await,
            Command::Verify(args) => match &args.bundle {
                Some(bundle) => bundle::verify(bundle, args.key.as_deref(), &args.witness, &mut output),
                None => verify::run(&data, args.key.as_deref(), &args.witness, &mut output).await,
            },
            Command::Export(args) => match args.format {
                Format::Bundle => bundle::export(&data, args, &mut output).await,
                Format::Otlp => otlp::export(&data, &args, &mut output).await,
            },
            Command::Import(args) => match &args.bundle {
                Some(bundle) => bundle::import(&data, bundle, args.yes, &mut output).await,
                None if args.from_cqrs.is_some() => foreign::run(&data, args, &mut output).await,
                None => histories::run(&data, &args, &mut output).await,
            },
            Command::ProveOnce(args) => prove_once::run(&data, args, &mut output).await,
            Command::Attest(args) => attest::run(&data, args, &mut output).await,
            Command::Redact(args) => redact::run(&data, args, &mut output).await,
            Command::Rebuild(args) => rebuild::run(&data, args, &mut output).await,
            Command::Stats(args) => stats::run(&data, args, &mut output).await,
            Command::Witness(command) => witness::run(&data, command, &mut output).await,
            Command::Schema(SchemaCommand::Check(args)) => schema::check(&data, args.at, &mut output).await,
            Command::Status => projection::status(&data, &mut output).await,
            Command::Projection(ProjectionCommand::Resume(args)) => projection::resume(&data, &args, &mut output).await,
            Command::Projection(ProjectionCommand::Skip(args)) => projection::skip(&data, &args, &mut output).await,
        }
    });
    match done.and_then(|verdict| output.finish().map(|()| verdict)) {
        Ok(Verdict::Holds) | Err(Failure::ClosedPipe) => ExitCode::SUCCESS,
        Ok(Verdict::Incomplete) => ExitCode::from(1),
        Ok(Verdict::Broken) => ExitCode::from(3),
        Err(failure) => report(&failure),
    }
}
