//! `rebuild`: the views anew from the log, in the place of the live ones or compared with them.

use crate::Verdict;
use crate::cli::RebuildArgs;
use crate::failure::Failure;
use crate::output::{Output, Progress, escaped, say};
use crate::store::Source;
use devmind_domain::ErrorCode;
use devmind_ledger::{LedgerReader, Place};
use devmind_projections as projections;
use devmind_projections::{HeldView, ProjectionCheck, Unbuilt};
use serde_json::json;

pub(crate) async fn run(data: &Source, args: RebuildArgs, output: &mut Output) -> Result<Verdict, Failure> {
    let reader = data.open_whole_ledger().await?;
    let views = data.views();
    match args.check {
        true => check(&views, &reader, args.projection.as_deref(), output).await,
        false if !args.yes => plan(&views, args.projection.as_deref(), output).await,
        false => rebuild(&views, &reader, args.projection.as_deref(), output).await,
    }
}

async fn check(
    views: &Place,
    reader: &LedgerReader,
    projection: Option<&str>,
    output: &mut Output,
) -> Result<Verdict, Failure> {
    if let Place::File(file) = views
        && !file.exists()
    {
        let message = format!("there are no views yet: {} does not exist", file.display());
        return Err(Failure::new(ErrorCode::NotReady, message)
            .with_hint("`devmind-replay rebuild --yes` makes them, and so does the server when it starts"));
    }
    let report = {
        let progress = Progress::new("checking", "events");
        let tell = |done, total| progress.set(done, total);
        match projection {
            None => projections::check(views, reader, tell).await?,
            Some(name) => projections::check_one(views, reader, name, tell).await?,
        }
    };
    match output.is_json() {
        true => output.json(&report)?,
        false => output.line(&report)?,
    }
    output.finish()?;
    if report.is_equal() {
        let stopped: Vec<_> = report.projections.iter().filter(|found| found.stopped.is_some()).collect();
        for ProjectionCheck { name, .. } in &stopped {
            say(format_args!(
                "{name} is right as far as it goes, and stopped: `devmind-replay projection resume` or `skip` helps it on"
            ));
        }
        return Ok(if stopped.is_empty() { Verdict::Holds } else { Verdict::Incomplete });
    }
    if tell_unbuilt(&report.failed) && report.projections.iter().all(ProjectionCheck::is_equal) {
        return Ok(Verdict::Incomplete);
    }
    say("the live views are not what the log says: `devmind-replay rebuild --yes` replaces them");
    Ok(Verdict::Broken)
}

/// What would be replaced, and nothing else.
async fn plan(views: &Place, projection: Option<&str>, output: &mut Output) -> Result<Verdict, Failure> {
    let held = projections::held(views, projection).await?;
    if output.is_json() {
        output.json(&json!({ "projections": held, "rebuilt": false }))?;
    } else {
        for HeldView { name, version, position, rows } in &held {
            output.line(format_args!("{name} v{version} at {position}: {rows} rows would be replaced"))?;
        }
        if held.is_empty() {
            output.line("there are no views yet: nothing would be replaced")?;
        }
    }
    output.finish()?;
    Err(Failure::new(ErrorCode::ValidationFailed, "nothing was changed")
        .with_hint("--yes builds these views anew from the log and swaps them in; the server may go on meanwhile"))
}

async fn rebuild(
    views: &Place,
    reader: &LedgerReader,
    projection: Option<&str>,
    output: &mut Output,
) -> Result<Verdict, Failure> {
    let report = {
        let progress = Progress::going_on("rebuilding", "events");
        let tell = |done, total| progress.set(done, total);
        match projection {
            None => projections::rebuild(views, reader, tell).await?,
            Some(name) => projections::rebuild_one(views, reader, name, tell).await?,
        }
    };
    if output.is_json() {
        let rows: Vec<_> =
            report.projections.iter().map(|(name, at)| json!({ "name": name, "position": at })).collect();
        output.json(&json!({
            "projections": rows, "rebuilt": true, "failed": report.failed, "events": report.events,
            "resumed": report.resumed, "elapsed_ms": report.elapsed_ms,
        }))?;
    } else {
        for (name, position) in &report.projections {
            output.line(format_args!("{name} rebuilt at position {position}"))?;
        }
    }
    output.finish()?;
    if report.resumed > 0 {
        say(format_args!("{} events had been applied by a rebuild that was interrupted", report.resumed));
    }
    Ok(if tell_unbuilt(&report.failed) { Verdict::Incomplete } else { Verdict::Holds })
}

/// Says which views could not be built; whether there are any.
pub(crate) fn tell_unbuilt(failed: &[Unbuilt]) -> bool {
    for Unbuilt { name, position, reason } in failed {
        say(escaped(&format!("{name} cannot be built: event {position}: {reason}")));
    }
    !failed.is_empty()
}
