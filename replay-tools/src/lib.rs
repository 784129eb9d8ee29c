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
use devmind_domain::ErrorCode;
use failure::{Failure, report};
use output::{Output, tell_damage};
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

/// What a command needs.
enum Reads {
    /// A bundle itself.
    Bundle,
    /// Events, wherever they are.
    Log,
    /// A ledger, for a reason.
    Ledger(&'static str),
}

fn reads(command: &Command) -> Reads {
    match command {
        Command::Verify(_) => Reads::Bundle,
        Command::Log(args) if args.follow => Reads::Ledger("nothing is added to a bundle that could be followed"),
        Command::Log(_)
        | Command::Show(_)
        | Command::Reconcile(_)
        | Command::Replay(_)
        | Command::Timeline(_)
        | Command::ProveOnce(_)
        | Command::Stats(_)
        | Command::Schema(_) => Reads::Log,
        Command::Export(args) if args.format == Format::Otlp => Reads::Log,
        Command::Export(_) => Reads::Ledger("it is a bundle already"),
        Command::Attest(args) if args.at.is_some() => Reads::Log,
        Command::Attest(_) => Reads::Ledger("a bundle has no live views: --at POSITION builds them"),
        Command::Rebuild(_) | Command::Status | Command::Projection(_) => Reads::Ledger("a bundle has no live views"),
        Command::Import(_) => Reads::Ledger("name the bundle alone: import BUNDLE"),
        Command::Redact(_) => Reads::Ledger("what is erased in one copy stays in all others: redact in the ledger"),
        Command::Witness(_) => Reads::Ledger("a witness is asked for a ledger, beside which it is recorded"),
    }
}

/// Runs the program.
pub fn run(cli: Cli) -> ExitCode {
    let Cli { data, database_url, from_bundle, json, completions, command } = cli;
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
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return report(&Failure::internal(error)),
    };
    let mut output = Output::new(json);
    let done = runtime.block_on(async {
        let (data, command) = match from_bundle {
            None => (Source::new(data, database_url)?, command),
            Some(bundle) => match reads(&command) {
                // It is what this command is for.
                Reads::Bundle => (Source::new(data, None)?, command.of_bundle(bundle)),
                Reads::Log => (Source::of_bundle(&bundle).await?, command),
                Reads::Ledger(why) => {
                    return Err(Failure::new(ErrorCode::ValidationFailed, format!("--bundle: {why}"))
                        .with_hint("`import BUNDLE --yes` makes a ledger of a whole one"));
                }
            },
        };
        let done = run_command(&data, command, &mut output).await;
        let verdict = match done.and_then(|verdict| output.finish().map(|()| verdict)) {
            Ok(verdict) => verdict,
            Err(failure) => {
                if !matches!(failure, Failure::ClosedPipe) {
                    tell_damage(&data);
                }
                return Err(failure);
            }
        };
        // Whatever the command says of it, it has not seen everything.
        Ok(match verdict {
            Verdict::Holds if tell_damage(&data) => Verdict::Incomplete,
            Verdict::Holds => Verdict::Holds,
            Verdict::Incomplete | Verdict::Broken => {
                tell_damage(&data);
                verdict
            }
        })
    });
    match done {
        Ok(Verdict::Holds) | Err(Failure::ClosedPipe) => ExitCode::SUCCESS,
        Ok(Verdict::Incomplete) => ExitCode::from(1),
        Ok(Verdict::Broken) => ExitCode::from(3),
        Err(failure) => report(&failure),
    }
}

async fn run_command(data: &Source, command: Command, output: &mut Output) -> Result<Verdict, Failure> {
    match command {
        Command::Log(args) => log::run(data, args, output).await,
        Command::Show(args) => show::run(data, args, output).await,
        Command::Reconcile(args) => reconcile::run(data, args, output).await,
        Command::Replay(args) => replay::run(data, args, output).await,
        Command::Timeline(args) => timeline::run(data, args, output).await,
        Command::Verify(args) => match &args.bundle {
            Some(bundle) => bundle::verify(bundle, args.key.as_deref(), &args.witness, output),
            None => verify::run(data, args.key.as_deref(), &args.witness, output).await,
        },
        Command::Export(args) => match args.format {
            Format::Bundle => bundle::export(data, args, output).await,
            Format::Otlp => otlp::export(data, &args, output).await,
        },
        Command::Import(args) => match &args.bundle {
            Some(bundle) => bundle::import(data, bundle, args.yes, output).await,
            None if args.from_cqrs.is_some() => foreign::run(data, args, output).await,
            None => histories::run(data, &args, output).await,
        },
        Command::ProveOnce(args) => prove_once::run(data, args, output).await,
        Command::Attest(args) => attest::run(data, args, output).await,
        Command::Redact(args) => redact::run(data, args, output).await,
        Command::Rebuild(args) => rebuild::run(data, args, output).await,
        Command::Stats(args) => stats::run(data, args, output).await,
        Command::Witness(command) => witness::run(data, command, output).await,
        Command::Schema(SchemaCommand::Check(args)) => schema::check(data, args.at, output).await,
        Command::Status => projection::status(data, output).await,
        Command::Projection(ProjectionCommand::Resume(args)) => projection::resume(data, &args, output).await,
        Command::Projection(ProjectionCommand::Skip(args)) => projection::skip(data, &args, output).await,
    }
}
