//! `export`, `import` and `verify BUNDLE`: events that others can check without the ledger.

use crate::Verdict;
use crate::cli::ExportArgs;
use crate::failure::Failure;
use crate::output::{Output, Progress, escaped, say};
use crate::store::Source;
use crate::verify::{Seen, broken, cosigned_by, is_key, seen_json};
use devmind_domain::ErrorCode;
use devmind_domain::proof::{Note, NoteKey};
use devmind_ledger::EventFilter;
use devmind_ledger::bundle::{
    BundleError, BundleReport, Importing, Selection, check_bundle, export_bundle, import_bundle,
};
use devmind_ledger::proof::{
    RecordError, RecordedCheckpoint, origin, read_checkpoints, read_cosigned, read_public_key,
};
use serde_json::json;
use std::fs::File;
use std::io::{BufReader, ErrorKind};
use std::path::Path;

pub(crate) async fn export(data: &Source, args: ExportArgs, output: &mut Output) -> Result<Verdict, Failure> {
    if args.content || !args.header.is_empty() {
        let message = "--content and --header are for --format otlp";
        return Err(Failure::new(ErrorCode::ValidationFailed, message)
            .with_hint("a bundle has everything up to the newest checkpoint"));
    }
    let reader = data.open_whole_ledger().await?;
    let filtered = |filter, words: String| Selection::Some(Box::new(filter), words);
    let selection = match (args.conversation, args.run) {
        (Some(id), _) => {
            let words = format!("conversation {id}");
            filtered(EventFilter { conversation_id: Some(id.into()), ..EventFilter::default() }, words)
        }
        (None, Some(id)) => {
            let words = format!("run {id}");
            filtered(EventFilter { run_id: Some(id.into()), ..EventFilter::default() }, words)
        }
        (None, None) => Selection::Everything,
    };
    let own = origin(reader.ledger_id());
    let at = data.position(&reader, args.at).await?;
    let newest = checkpoint(data, &own, args.witness.as_ref(), at)?;
    let key =
        read_public_key(data.folder()).map_err(|error| Failure::new(ErrorCode::ConfigInvalid, error.to_string()))?;
    let done = {
        let progress = Progress::going_on("exporting", "events");
        let done = export_bundle(&reader, &selection, &newest, &key, &args.file, |done, all| progress.set(done, all));
        done.await.map_err(|error| named(&args.file, error))?
    };
    if output.is_json() {
        output.json(&json!({
            "file": args.file, "events": done.events, "resumed": done.resumed, "position": done.size,
            "root": hex::encode(done.root), "fingerprint": done.fingerprint, "head": at,
        }))?;
    } else {
        output.line(format_args!("{} events, proved by the checkpoint of {} events", done.events, done.size))?;
        output.line(format_args!("root {}, key {}", hex::encode(done.root), done.fingerprint))?;
    }
    output.finish()?;
    if done.size < at {
        say(format_args!("events {} to {at} are in no checkpoint yet and were left out", done.size + 1));
    }
    if done.events == 0 {
        say("nothing in the log is of it");
        return Ok(Verdict::Incomplete);
    }
    Ok(Verdict::Holds)
}

/// The newest checkpoint of a log up to a position, or the newest of those that a witness cosigned.
fn checkpoint(data: &Source, own: &str, witness: Option<&NoteKey>, at: u64) -> Result<RecordedCheckpoint, Failure> {
    let is_meant = |recorded: &RecordedCheckpoint| recorded.checkpoint.origin == own && recorded.checkpoint.size <= at;
    let unread = |error: RecordError| Failure::new(error.code(), error.to_string());
    let Some(witness) = witness else {
        let published = read_checkpoints(data.folder()).map_err(unread)?;
        let newest = published.into_iter().rfind(is_meant);
        return Ok(newest.ok_or(BundleError::NoCheckpoint)?);
    };
    let cosigned = read_cosigned(data.folder()).map_err(unread)?.into_iter();
    let by_it = |recorded: &RecordedCheckpoint| {
        is_meant(recorded) && Note::parse(&recorded.note).is_ok_and(|note| note.verify(witness).is_ok())
    };
    cosigned.filter(by_it).max_by_key(|recorded| recorded.checkpoint.size).ok_or_else(|| {
        let message = format!("the witness {} has cosigned nothing of this log", witness.name());
        Failure::new(ErrorCode::NotReady, message)
            .with_hint("`devmind-replay witness ask` has it cosign the newest head")
    })
}

pub(crate) fn verify(
    bundle: &Path,
    expected: Option<&str>,
    witnesses: &[NoteKey],
    output: &mut Output,
) -> Result<Verdict, Failure> {
    let file = File::open(bundle).map_err(|error| named(bundle, error.into()))?;
    let size = file.metadata().map_or(0, |metadata| metadata.len());
    let checked = {
        let progress = Progress::new("verifying", "events");
        let checked = check_bundle(BufReader::new(file), |events| progress.set(events, likely(events, size)));
        checked.inspect(|report| progress.set(report.events, report.events))
    };
    let report = match checked {
        Ok(report) => report,
        // What cannot be read as a bundle is a finding, not a failure of the tool.
        Err(error @ BundleError::Line { .. }) => return broken(&error.to_string(), output),
        Err(error) => return Err(named(bundle, error)),
    };
    let key_fits = expected.is_none_or(|expected| NoteKey::parse(&report.key).is_ok_and(|key| is_key(&key, expected)));
    let seen: Vec<_> = witnesses.iter().map(|witness| cosigned_by(witness, &report.note, report.size)).collect();
    print(&report, key_fits, &seen, output)?;
    output.finish()?;
    if let Some((_, witness)) = seen.iter().zip(witnesses).find(|(seen, _)| seen.is_none()) {
        say(format_args!("verification failed: the witness {} has not cosigned its head", witness.name()));
        return Ok(Verdict::Broken);
    }
    if !key_fits {
        say("verification failed: it is signed by another key than the one that was expected");
        return Ok(Verdict::Broken);
    }
    if report.findings_total > 0 {
        say(format_args!("verification failed: {} findings", report.findings_total));
        return Ok(Verdict::Broken);
    }
    if expected.is_none() {
        say("signed by the key that the bundle itself names: compare its fingerprint, or give it with --key");
    }
    Ok(Verdict::Holds)
}

/// The failure, with the file's name where it is the file that cannot be used.
pub(crate) fn named(file: &Path, error: BundleError) -> Failure {
    match error {
        BundleError::Io(error) => {
            let message = format!("the bundle {} cannot be read or written: {error}", file.display());
            let hint = match error.kind() {
                ErrorKind::AlreadyExists => "name a file that is not there yet",
                _ => "check the file and its folder",
            };
            Failure::new(ErrorCode::IoError, message).with_hint(hint)
        }
        // The line alone does not say of which file.
        error @ BundleError::Line { .. } => match Failure::from(error) {
            Failure::Error { code, message, hint } => {
                Failure::new(code, format!("the bundle {}, {message}", file.display())).with_hint(hint)
            }
            Failure::ClosedPipe => Failure::ClosedPipe,
        },
        error => error.into(),
    }
}

/// How many events a file of a size may have: it is not known before they are read.
fn likely(read: u64, bytes: u64) -> u64 {
    read.max(bytes / 1_024)
}

fn print(report: &BundleReport, key_fits: bool, seen: &[Option<Seen<'_>>], output: &mut Output) -> Result<(), Failure> {
    let root = hex::encode(report.root);
    if output.is_json() {
        let findings: Vec<_> = report
            .findings
            .iter()
            .map(|(line, position, reason)| json!({ "line": line, "position": position, "reason": reason }))
            .collect();
        return output.json(&json!({
            "selection": report.selection, "complete": report.complete, "origin": report.origin,
            "events": report.events, "position": report.size, "root": root, "key": report.key,
            "fingerprint": report.fingerprint, "key_expected": key_fits, "redacted": report.redacted,
            "sound": report.findings_total == 0 && key_fits && seen.iter().all(Option::is_some), "findings": findings,
            "findings_total": report.findings_total, "witnesses": seen_json(seen),
        }));
    }
    output.line(escaped(&format!("{} of {}: {} events", report.selection, report.origin, report.events)))?;
    for (position, by) in &report.redacted {
        output.line(format_args!("note: event {position}: redacted by event {by}"))?;
    }
    for (line, position, reason) in &report.findings {
        output.line(escaped(&format!("finding: line {line}, event {position}: {reason}")))?;
    }
    output.line(format_args!("position {}, root {root}, key {}", report.size, report.fingerprint))?;
    seen.iter().flatten().try_for_each(|Seen { witness, size, at }| {
        output.line(format_args!("seen to position {size} by the witness {witness} at {at}"))
    })
}

/// How far a bundle is checked, and then stored.
pub(crate) struct Told {
    bytes: u64,
    storing: fn() -> Progress,
    checked: Option<Progress>,
    stored: Option<Progress>,
}

impl Told {
    /// `storing`: of what is stored.
    pub fn of(bundle: &Path, storing: fn() -> Progress) -> Self {
        let bytes = std::fs::metadata(bundle).map_or(0, |metadata| metadata.len());
        Self { bytes, storing, checked: Some(Progress::new("checking", "events")), stored: None }
    }

    pub fn tell(&mut self, now: Importing) {
        match now {
            Importing::Checked(events) => {
                self.checked.as_ref().inspect(|bar| bar.set(events, likely(events, self.bytes)));
            }
            Importing::Stored(done, all) => {
                if let Some(bar) = self.checked.take() {
                    bar.set(all, all);
                }
                self.stored.get_or_insert_with(self.storing).set(done, all);
            }
        }
    }
}

pub(crate) async fn import(data: &Source, bundle: &Path, yes: bool, output: &mut Output) -> Result<Verdict, Failure> {
    if !yes {
        let verdict = verify(bundle, None, &[], output)?;
        say("checked, and nothing was imported: --yes imports it into the folder of --data");
        return Ok(if verdict == Verdict::Holds { Verdict::Incomplete } else { verdict });
    }
    std::fs::create_dir_all(data.folder()).map_err(BundleError::from)?;
    let imported = {
        let mut told = Told::of(bundle, || Progress::going_on("importing", "events"));
        let imported = import_bundle(bundle, data.ledger(), |now| told.tell(now)).await;
        imported.map_err(|error| named(bundle, error))?
    };
    let done = match imported {
        Ok(done) => done,
        Err(report) => {
            print(&report, true, &[], output)?;
            output.finish()?;
            say("nothing was imported: the bundle does not hold");
            return Ok(Verdict::Broken);
        }
    };
    if output.is_json() {
        output.json(&json!({
            "position": done.size, "root": hex::encode(done.root), "resumed": done.resumed,
            "fingerprint": done.fingerprint,
        }))?;
    } else {
        output.line(format_args!("position {}, root {}", done.size, hex::encode(done.root)))?;
    }
    Ok(Verdict::Holds)
}
