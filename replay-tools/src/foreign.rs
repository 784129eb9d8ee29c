//! `import --from-cqrs`: a log that a store of the cqrs-es family wrote, taken into an empty ledger.
//!
//! Events of types that this program does not know are never dropped: they are kept on demand, else the import
//! refuses and names them.

use crate::Verdict;
use crate::cli::ImportArgs;
use crate::failure::Failure;
use crate::output::{Output, Progress, escaped, say};
use crate::store::Source;
use devmind_domain::ErrorCode;
use devmind_ledger::foreign::{ForeignReport, ForeignSource, inspect, take_in};
use serde_json::json;

pub(crate) async fn run(data: &Source, args: ImportArgs, output: &mut Output) -> Result<Verdict, Failure> {
    let place = args.from_cqrs.as_deref().unwrap_or_default();
    let source = ForeignSource::new(place, args.table.as_deref())
        .map_err(|reason| Failure::new(ErrorCode::ConfigInvalid, format!("--from-cqrs: {reason}")))?;
    let report = {
        let progress = Progress::new("reading", "events");
        inspect(&source, |done, all| progress.set(done, all)).await?
    };
    if report.problems_total > 0 {
        print(&report, None, output)?;
        output.finish()?;
        say(format_args!("nothing was imported: {} events cannot be taken over", report.problems_total));
        return Ok(Verdict::Broken);
    }
    let unknown = report.unknown_events();
    if unknown > 0 && !args.keep_unknown {
        print(&report, None, output)?;
        output.finish()?;
        let message = format!("nothing was imported: {unknown} events are of types that this program does not know");
        return Err(Failure::new(ErrorCode::ValidationFailed, message)
            .with_hint("--keep-unknown takes them as they are; no view shows them, `log` and `verify` do"));
    }
    if !args.yes {
        print(&report, None, output)?;
        output.finish()?;
        say("checked, and nothing was imported: --yes imports it into the ledger of --data or DATABASE_URL");
        return Ok(Verdict::Incomplete);
    }
    std::fs::create_dir_all(data.folder())
        .map_err(|error| Failure::new(ErrorCode::IoError, format!("{}: {error}", data.folder().display())))?;
    let taken = {
        let progress = Progress::new("importing", "events");
        take_in(&source, data.ledger(), |done, all| progress.set(done, all)).await?
    };
    print(&report, Some((taken.size, hex::encode(taken.root), taken.resumed)), output)?;
    output.finish()?;
    say("the other store recorded no times and no order between streams: the events have the time of their import");
    say("`verify` says whether the rules of the domain hold over them");
    Ok(Verdict::Holds)
}

fn print(report: &ForeignReport, taken: Option<(u64, String, u64)>, output: &mut Output) -> Result<(), Failure> {
    if output.is_json() {
        let problems: Vec<_> =
            report.problems.iter().map(|(event, reason)| json!({ "event": event, "reason": reason })).collect();
        return output.json(&json!({
            "events": report.events, "streams": report.streams, "known": report.known, "unknown": report.unknown,
            "unknown_events": report.unknown_events(), "problems": problems, "problems_total": report.problems_total,
            "imported": taken.map(|(position, root, resumed)| {
                json!({ "position": position, "root": root, "resumed": resumed })
            }),
        }));
    }
    output.line(format_args!("{} events in {} streams", report.events, report.streams))?;
    for (name, count) in &report.known {
        output.line(escaped(&format!("{count:>9}  {name}")))?;
    }
    for (name, count) in &report.unknown {
        output.line(escaped(&format!("{count:>9}  {name}  (of another program)")))?;
    }
    for (event, reason) in &report.problems {
        output.line(escaped(&format!("finding: {event}: {reason}")))?;
    }
    if let Some((position, root, resumed)) = taken {
        output.line(format_args!("position {position}, root {root}, {resumed} of the events were there before"))?;
    }
    Ok(())
}
