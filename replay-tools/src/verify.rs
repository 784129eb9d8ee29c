//! `verify`: whether the log is what its writer left.

use crate::Verdict;
use crate::failure::Failure;
use crate::output::{Output, Progress, say};
use crate::store::Source;
use devmind_domain::ErrorCode;
use devmind_domain::proof::NoteKey;
use devmind_ledger::LedgerError;
use devmind_ledger::proof::{read_checkpoints, read_public_key};
use devmind_ledger::verify::{Check, Published, VerifyReport, verify};
use serde_json::json;

pub(crate) async fn run(data: &Source, expected: Option<&str>, output: &mut Output) -> Result<Verdict, Failure> {
    let reader = data.open_ledger().await?;
    let checkpoints = read_checkpoints(data.folder()).map_err(|error| Failure::new(error.code(), error.to_string()))?;
    let key = match read_public_key(data.folder()) {
        Ok(key) => Some(key),
        Err(error) if error.missing => None,
        Err(error) => return Err(Failure::new(ErrorCode::ConfigInvalid, error.to_string())),
    };
    if let Some(expected) = expected {
        let found = key.as_ref().is_some_and(|key| is_key(key, expected));
        if !found {
            say("verification failed: the key beside the ledger is not the one that was expected");
            return Ok(Verdict::Broken);
        }
    }
    if key.is_none() && !checkpoints.is_empty() {
        say("there is no public key beside the ledger: the signatures of its checkpoints are not checked");
    }
    let verified = {
        let progress = Progress::new("verifying");
        let published = Published { key: key.as_ref(), checkpoints: &checkpoints };
        verify(&reader, published, |done, total| progress.set(done, total)).await
    };
    let report = match verified {
        Ok(report) => report,
        // A file that cannot even be read through is a finding, not a failure of the tool.
        Err(error @ LedgerError::Corrupt { .. }) => {
            say(format_args!("verification failed: {error}"));
            return Ok(Verdict::Broken);
        }
        Err(error) => return Err(error.into()),
    };
    if output.is_json() {
        print_json(&report, reader.ledger_id(), checkpoints.len(), output)?;
    } else {
        print_text(&report, output)?;
        let signed = key.map(|key| format!(", signed by the key {}", key.fingerprint())).unwrap_or_default();
        output.line(format_args!("compared with {} checkpoints{signed}", checkpoints.len()))?;
    }
    output.finish()?;
    if report.is_sound() {
        return Ok(Verdict::Holds);
    }
    say(format_args!("verification failed: {} findings up to position {}", report.findings_total, report.position));
    Ok(Verdict::Broken)
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

fn print_json(report: &VerifyReport, ledger_id: &str, checkpoints: usize, output: &mut Output) -> Result<(), Failure> {
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
        "sound": report.is_sound(),
        "checks": Check::ALL.iter().map(|check| check.as_str()).collect::<Vec<_>>(),
        "findings": findings,
        "findings_total": report.findings_total,
        "notes": notes,
        "notes_total": report.notes_total,
    }))
}
