//! `redact`: erases what events say, with a reason and an operator, and the views that were made of it.

use crate::Verdict;
use crate::cli::RedactArgs;
use crate::failure::Failure;
use crate::output::{Output, Progress, escaped, say};
use crate::store::Source;
use devmind_domain::ErrorCode;
use devmind_domain::event::{Actor, Metadata};
use devmind_ledger::{Erasure, Place, plan_redaction, redact};
use devmind_projections as projections;
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::path::Path;

/// The name under which this program writes to a ledger.
const NODE: &str = "devmind-replay";

pub(crate) async fn run(data: &Source, args: RedactArgs, output: &mut Output) -> Result<Verdict, Failure> {
    let reader = data.open_whole_ledger().await?;
    let mut planned = Vec::with_capacity(args.position.len());
    // All of them before any: half of what was ordered would be worse than nothing.
    for position in &args.position {
        planned.push(plan_redaction(&reader, *position).await?);
    }
    drop(reader);
    if !args.yes {
        planned.iter().try_for_each(|erasure| print(erasure, output))?;
        output.finish()?;
        return Err(Failure::new(ErrorCode::ValidationFailed, "nothing was erased")
            .with_hint("--yes erases the content of these events for good; what is printed above is kept"));
    }
    let metadata = Metadata::new(Actor::operator(&args.operator), NODE.into());
    for position in &args.position {
        let erased = redact(data.ledger(), *position, &args.reason, &metadata).await?;
        print(&erased, output)?;
    }
    output.finish()?;
    forget_in_views(data).await?;
    say("not reached from here: backups, bundles, other events that repeat it, and the device's journal");
    Ok(Verdict::Holds)
}

fn print(erasure: &Erasure, output: &mut Output) -> Result<(), Failure> {
    let Erasure { position, event_type, kept, by } = erasure;
    if output.is_json() {
        let kept: Value = serde_json::from_str(kept).unwrap_or_default();
        return output
            .json(&json!({ "position": position, "event_type": event_type, "kept": kept, "redacted_by": by }));
    }
    let state = by.map_or_else(|| "would keep".to_owned(), |by| format!("redacted by event {by}, keeps"));
    output.line(escaped(&format!("#{position} {event_type} {state} {kept}")))
}

/// The rows were made of what is erased now, and freed pages of a file may still hold it.
async fn forget_in_views(data: &Source) -> Result<(), Failure> {
    let file = match data.views() {
        Place::File(file) => file,
        views @ Place::Postgres(_) => {
            let reader = data.open_whole_ledger().await?;
            let progress = Progress::new("rebuilding", "events");
            projections::forget_unfinished(&views).await?;
            projections::rebuild(&views, &reader, |done, total| progress.set(done, total)).await?.whole()?;
            say("erased; the views were rebuilt without it");
            say("restart the servers of this database: they remember what they read");
            return Ok(());
        }
    };
    for suffix in ["", "-wal", "-shm"] {
        let mut name = file.clone().into_os_string();
        name.push(suffix);
        match std::fs::remove_file(&name) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                let message = format!("{} still holds what was erased: {error}", Path::new(&name).display());
                return Err(Failure::new(ErrorCode::IoError, message).with_hint("remove it by hand"));
            }
        }
    }
    projections::forget_unfinished(&data.views()).await?;
    say("erased; the views were removed and come back without it when the server starts, or with `rebuild --yes`");
    Ok(())
}
