//! `verify`: whether the log is what its writer left.

use crate::Verdict;
use crate::failure::Failure;
use crate::output::{Output, Progress, say};
use crate::store::Source;
use crate::witness::moment;
use devmind_domain::proof::{Note, NoteKey};
use devmind_domain::{ErrorCode, Timestamp};
use devmind_ledger::LedgerError;
use devmind_ledger::proof::{
    RecordError, RecordedCheckpoint, origin, read_checkpoints, read_cosigned, read_public_key,
};
use devmind_ledger::verify::{Check, Published, VerifyReport, verify};
use serde_json::{Value, json};

pub(crate) async fn run(
    data: &Source,
    expected: Option<&str>,
    witnesses: &[NoteKey],
    output: &mut Output,
) -> Result<Verdict, Failure> {
    let reader = data.open_whole_ledger().await?;
    let unread = |error: RecordError| Failure::new(error.code(), error.to_string());
    let checkpoints = read_checkpoints(data.folder()).map_err(unread)?;
    let cosigned = read_cosigned(data.folder()).map_err(unread)?;
    let key = match read_public_key(data.folder()) {
        Ok(key) => Some(key),
        Err(error) if error.missing => None,
        Err(error) => return Err(Failure::new(ErrorCode::ConfigInvalid, error.to_string())),
    };
    if let Some(expected) = expected {
        let found = key.as_ref().is_some_and(|key| is_key(key, expected));
        if !found {
            return broken("the key beside the ledger is not the one that was expected", output);
        }
    }
    if key.is_none() && !checkpoints.is_empty() {
        say("there is no public key beside the ledger: the signatures of its checkpoints are not checked");
    }
    let verified = {
        let progress = Progress::new("verifying", "events");
        let published = Published { key: key.as_ref(), checkpoints: &checkpoints, cosigned: &cosigned, witnesses };
        verify(&reader, published, |done, total| progress.set(done, total)).await
    };
    let report = match verified {
        Ok(report) => report,
        // A file that cannot even be read through is a finding, not a failure of the tool.
        Err(error @ (LedgerError::Corrupt { .. } | LedgerError::Damaged { .. })) => {
            return broken(&error.to_string(), output);
        }
        Err(error) => return Err(error.into()),
    };
    let own = origin(reader.ledger_id());
    let seen: Vec<_> = witnesses.iter().map(|witness| last_seen(witness, &own, &cosigned)).collect();
    if output.is_json() {
        print_json(&report, reader.ledger_id(), checkpoints.len(), &seen, output)?;
    } else {
        print_text(&report, output)?;
        let signed = key.map(|key| format!(", signed by the key {}", key.fingerprint())).unwrap_or_default();
        output.line(format_args!("compared with {} checkpoints{signed}", checkpoints.len()))?;
        for Seen { witness, size, at } in seen.iter().flatten() {
            output.line(format_args!("seen to position {size} by the witness {witness} at {at}"))?;
        }
    }
    output.finish()?;
    if let Some((_, witness)) = seen.iter().zip(witnesses).find(|(seen, _)| seen.is_none()) {
        say(format_args!("verification failed: the witness {} has cosigned nothing of this log", witness.name()));
        return Ok(Verdict::Broken);
    }
    if report.is_sound() {
        return Ok(Verdict::Holds);
    }
    say(format_args!("verification failed: {} findings up to position {}", report.findings_total, report.position));
    Ok(Verdict::Broken)
}

/// What ends a verification before anything else can be told.
pub(crate) fn broken(reason: &str, output: &mut Output) -> Result<Verdict, Failure> {
    if output.is_json() {
        output.json(&json!({ "sound": false, "findings": [{ "reason": reason }] }))?;
    }
    output.finish()?;
    say(format_args!("verification failed: {reason}"));
    Ok(Verdict::Broken)
}

/// How far a witness has seen a log.
pub(crate) struct Seen<'a> {
    pub witness: &'a str,
    pub size: u64,
    pub at: Timestamp,
}

/// The largest head that a witness cosigned; whether the log still has it is judged with all others.
fn last_seen<'a>(witness: &'a NoteKey, origin: &str, cosigned: &[RecordedCheckpoint]) -> Option<Seen<'a>> {
    let own = cosigned.iter().filter(|recorded| recorded.checkpoint.origin == origin);
    let seen =
        own.filter_map(|recorded| cosigned_by(witness, &Note::parse(&recorded.note).ok()?, recorded.checkpoint.size));
    seen.max_by_key(|seen| seen.size)
}

/// The cosignature of a witness on a head.
pub(crate) fn cosigned_by<'a>(witness: &'a NoteKey, note: &Note, size: u64) -> Option<Seen<'a>> {
    let at = moment(note.verify(witness).ok()?.moment()?);
    Some(Seen { witness: witness.name(), size, at })
}

pub(crate) fn seen_json(seen: &[Option<Seen<'_>>]) -> Vec<Value> {
    let told = seen.iter().flatten();
    told.map(|Seen { witness, size, at }| json!({ "witness": witness, "position": size, "cosigned_at": at })).collect()
}

/// Whether a key is the one that was named, by itself or by its fingerprint.
pub(crate) fn is_key(key: &NoteKey, expected: &str) -> bool {
    key.to_string() == expected || key.fingerprint().eq_ignore_ascii_case(expected)
}

fn print_text(report: &VerifyReport, output: &mut Output) -> Result<(), Failure> {
    for check in Check::ALL {
        let broken = report.findings.iter().any(|finding| finding.check == *check);
        output.line(format_args!("{:<7} {check}", if broken { "BROKEN" } else { "ok" }))?;
    }
    for finding in &report.findings {
        output.line(format_args!("finding: {finding}"))?;
    }
    let unprinted = report.findings_total - report.findings.len() as u64;
    if unprinted > 0 {
        output.line(format_args!("finding: and {unprinted} more"))?;
    }
    for note in &report.notes {
        output.line(format_args!("note: event {}: {}", note.position, note.text))?;
    }
    let unprinted = report.notes_total - report.notes.len() as u64;
    if unprinted > 0 {
        output.line(format_args!("note: and {unprinted} more"))?;
    }
    output.line(format_args!("position {}, root {}", report.position, hex::encode(report.root)))
}

fn print_json(
    report: &VerifyReport,
    ledger_id: &str,
    checkpoints: usize,
    seen: &[Option<Seen<'_>>],
    output: &mut Output,
) -> Result<(), Failure> {
    let findings: Vec<_> = report
        .findings
        .iter()
        .map(|finding| json!({ "position": finding.position, "check": finding.check.as_str(), "reason": finding.reason }))
        .collect();
    let notes: Vec<_> =
        report.notes.iter().map(|note| json!({ "position": note.position, "text": note.text })).collect();
    output.json(&json!({
        "ledger_id": ledger_id,
        "position": report.position,
        "root": hex::encode(report.root),
        "checkpoints": checkpoints,
        "witnesses": seen_json(seen),
        "sound": report.is_sound(),
        "checks": Check::ALL.iter().map(|check| check.as_str()).collect::<Vec<_>>(),
        "findings": findings,
        "findings_total": report.findings_total,
        "notes": notes,
        "notes_total": report.notes_total,
    }))
}
