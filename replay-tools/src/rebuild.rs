//! `rebuild`: the views anew from the log, in the place of the live ones or compared with them.

use crate::Verdict;
use crate::cli::RebuildArgs;
use crate::failure::Failure;
use crate::output::{Output, Progress, say};
use crate::store::Source;
use devmind_domain::ErrorCode;
use devmind_ledger::{LedgerReader, Place};
use devmind_projections as projections;

pub(crate) async fn run(data: &Source, args: RebuildArgs, output: &mut Output) -> Result<Verdict, Failure> {
    let reader = data.open_ledger().await?;
    let views = data.views();
    match args.check {
        true => check(&views, &reader, args.projection.as_deref(), output).await,
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
            .with_hint("`devmind-replay rebuild` makes them, and so does the server when it starts"));
    }
    let report = {
        let progress = Progress::new("checking");
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
        return Ok(Verdict::Holds);
    }
    say("the live views are not what the log says: `devmind-replay rebuild` replaces them");
    Ok(Verdict::Broken)
}

async fn rebuild(
    views: &Place,
    reader: &LedgerReader,
    projection: Option<&str>,
    output: &mut Output,
) -> Result<Verdict, Failure> {
    let report = {
        let progress = Progress::new("rebuilding");
        let tell = |done, total| progress.set(done, total);
        match projection {
            None => projections::rebuild(views, reader, tell).await?,
            Some(name) => projections::rebuild_one(views, reader, name, tell).await?,
        }
    };
    if output.is_json() {
        output.json(&report)?;
        return Ok(Verdict::Holds);
    }
    for (name, position) in &report.projections {
        output.line(format_args!("{name} rebuilt at position {position}"))?;
    }
    let (events, elapsed, rate) = (report.events, report.elapsed_ms, report.events_per_second());
    say(format_args!("{events} events in {elapsed} ms ({rate} events/s)"));
    Ok(Verdict::Holds)
}
