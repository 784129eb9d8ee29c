//! `verify`: whether the log is what its writer left.

use crate::Verdict;
use crate::failure::Failure;
use crate::output::{Output, Progress, say};
use crate::store::Source;
use devmind_ledger::LedgerError;
use devmind_ledger::verify::{Check, VerifyReport, verify};
use serde_json::json;

pub(crate) async fn run(data: &Source, output: &mut Output) -> Result<Verdict, Failure> {
    let reader = data.open_ledger().await?;
    let verified = {
        let progress = Progress::new("verifying");
        verify(&reader, |done, total| progress.set(done, total)).await
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
        print_json(&report, reader.ledger_id(), output)?;
    } else {
        print_text(&report, output)?;
    }
    output.finish()?;
    if report.is_sound() {
        return Ok(Verdict::Holds);
    }
    say(format_args!("verification failed: {} findings up to position {}", report.findings_total, report.position));
    Ok(Verdict::Broken)
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

fn print_json(report: &VerifyReport, ledger_id: &str, output: &mut Output) -> Result<(), Failure> {
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
        "sound": report.is_sound(),
        "checks": Check::ALL.iter().map(|check| check.as_str()).collect::<Vec<_>>(),
        "findings": findings,
        "findings_total": report.findings_total,
        "notes": notes,
        "notes_total": report.notes_total,
    }))
}
