//! `status`, `projection resume` and `projection skip`: how the projections stand, and help for one that
//! stopped at an event.

use crate::Verdict;
use crate::cli::{ResumeArgs, SkipArgs};
use crate::failure::Failure;
use crate::output::{Output, escaped, say};
use crate::store::Source;
use devmind_domain::ErrorCode;
use devmind_domain::event::{Actor, Metadata};
use devmind_domain::projection::{ProjectionCommand, ProjectionError, ProjectionEventSkipped, ProjectionSkips};
use devmind_ledger::{ExecuteError, Ledger, Place, execute};
use devmind_projections as projections;
use devmind_projections::{Failure as Stop, ProjectionStatus};
use serde_json::json;

/// The name under which this program writes to a ledger.
const NODE: &str = "devmind-replay";

/// Exit status 1 where a projection has stopped: the views lack something that the log has.
pub(crate) async fn status(data: &Source, output: &mut Output) -> Result<Verdict, Failure> {
    let reader = data.open_ledger().await?;
    let list = projections::status(views(data)?, &reader).await?;
    for status in &list {
        match output.is_json() {
            true => output.json(status)?,
            false => output.line(escaped(&line(status)))?,
        }
    }
    let stopped = list.iter().any(|status| status.failed.is_some());
    Ok(if stopped { Verdict::Incomplete } else { Verdict::Holds })
}

fn line(status: &ProjectionStatus) -> String {
    let ProjectionStatus { name, version, program_version, position, lag, failed, skipped_unknown } = status;
    let mut line = format!("{name} v{version} at {position}, lag {lag}");
    if version != program_version {
        line.push_str(&format!(", to be rebuilt as v{program_version}"));
    }
    if *skipped_unknown > 0 {
        line.push_str(&format!(", {skipped_unknown} events of unknown types skipped"));
    }
    if let Some(stop) = failed {
        line.push_str(&format!(", {}", told(stop)));
    }
    line
}

fn told(stop: &Stop) -> String {
    let Stop { position, reason, attempts, halted } = stop;
    let state = if *halted { "halted" } else { "failing" };
    format!("{state} at {position} after {attempts} attempts: {reason}")
}

pub(crate) async fn resume(data: &Source, args: &ResumeArgs, output: &mut Output) -> Result<Verdict, Failure> {
    let Some((_, stop)) = projections::stopped(views(data)?, &args.name).await? else {
        match output.is_json() {
            true => output.json(&json!({ "projection": args.name, "failed": null }))?,
            false => output.line(format_args!("{} has not stopped", args.name))?,
        }
        return Ok(Verdict::Holds);
    };
    show(&args.name, &stop, output)?;
    if !args.yes {
        return Err(Failure::new(ErrorCode::ValidationFailed, "nothing was changed")
            .with_hint("--yes has it tried again, after what made it fail was mended"));
    }
    projections::resume(views(data)?, &args.name).await?;
    say("resumed: a running server tries it again within a second, else the next start does");
    Ok(Verdict::Holds)
}

pub(crate) async fn skip(data: &Source, args: &SkipArgs, output: &mut Output) -> Result<Verdict, Failure> {
    let (version, stop) = match projections::stopped(views(data)?, &args.name).await? {
        Some((version, stop)) if stop.position == args.position => (version, stop),
        Some((_, stop)) => {
            let message = format!("{} stopped at event {}, not at {}", args.name, stop.position, args.position);
            return Err(Failure::new(ErrorCode::ValidationFailed, message)
                .with_hint("only the event that a projection stopped at can be passed over"));
        }
        None => {
            return Err(Failure::new(ErrorCode::ValidationFailed, format!("{} has not stopped", args.name))
                .with_hint("`devmind-replay status` shows what has"));
        }
    };
    show(&args.name, &stop, output)?;
    if !args.yes {
        return Err(Failure::new(ErrorCode::ValidationFailed, "nothing was changed")
            .with_hint("--yes has the view go on without this event, and says so in the log for ever"));
    }
    let ledger = Ledger::open(&data.ledger()).await?;
    let recorded = record(&ledger, args, version, &stop).await;
    ledger.close().await;
    recorded?;
    projections::resume(views(data)?, &args.name).await?;
    say("recorded; the view goes on without it, and so does every rebuild of this version of it");
    Ok(Verdict::Holds)
}

async fn record(ledger: &Ledger, args: &SkipArgs, version: u32, stop: &Stop) -> Result<(), Failure> {
    let found = ledger.reader().read(args.position.saturating_sub(1), 1).await?;
    let event = found.into_iter().find(|event| event.position == args.position);
    let event =
        event.ok_or_else(|| Failure::new(ErrorCode::NotFound, format!("the log has no event {}", args.position)))?;
    let asked = ProjectionEventSkipped {
        version,
        position: args.position,
        event_id: event.event_id.clone(),
        event_type: event.event_type.clone(),
        failure: stop.reason.clone(),
        reason: args.reason.clone(),
    };
    let metadata = Metadata::new(Actor::operator(&args.operator), NODE.into());
    let command = ProjectionCommand::Skip(asked);
    match execute::<ProjectionSkips>(ledger, &args.name, &metadata, command, None).await {
        Ok(_) => Ok(()),
        Err(ExecuteError::Refused(error @ ProjectionError::NoReason)) => {
            Err(Failure::new(ErrorCode::ValidationFailed, error.to_string()))
        }
        Err(ExecuteError::Append(error)) => Err(Failure::new(error.code(), error.to_string())),
        Err(ExecuteError::Ledger(error)) => Err(error.into()),
    }
}

fn show(name: &str, stop: &Stop, output: &mut Output) -> Result<(), Failure> {
    match output.is_json() {
        true => output.json(&json!({ "projection": name, "failed": stop }))?,
        false => output.line(escaped(&format!("{name} {}", told(stop))))?,
    }
    output.finish()
}

/// Where the views are, if they are.
pub(crate) fn views(data: &Source) -> Result<Place, Failure> {
    match data.views() {
        Place::File(file) if !file.exists() => {
            let message = format!("there are no views yet: {} does not exist", file.display());
            Err(Failure::new(ErrorCode::NotReady, message)
                .with_hint("`devmind-replay rebuild --yes` makes them, and so does the server when it starts"))
        }
        place => Ok(place),
    }
}
