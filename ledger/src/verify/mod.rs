//! Whether a log is what its writer left: order, hashes, head, keys, and the rules of the domain
//! that must hold over the whole history.
//!
//! Everything is read in pages and reported, not stopped at: memory stays flat apart from one small
//! entry for each stream, run, interrupt and call.

mod calls;
mod chain;
mod checkpoints;
mod filing;
mod interrupts;
mod keys;
mod redactions;
mod report;
mod runs;
mod snapshots;

pub use checkpoints::Published;
pub use report::{Check, Finding, Note, VerifyReport};

use crate::error::LedgerError;
use crate::limits::MAX_PAGE_EVENTS;
use crate::proof::origin;
use crate::reader::LedgerReader;
use calls::Calls;
use chain::Chain;
use checkpoints::Checkpoints;
use devmind_domain::event::{DecodeError, DomainEvent, RecordedEvent};
use interrupts::Interrupts;
use redactions::Redactions;
use report::Report;
use runs::Runs;

/// Checks the log up to its head at the time of the call; a live log may grow meanwhile.
///
/// The published checkpoints are compared with it. `progress` is told, page by page, how many events of how many were checked.
///
/// # Errors
/// [`LedgerError`] when the file cannot be read at all; what is wrong with its contents is in the
/// report.
pub async fn verify(
    reader: &LedgerReader,
    published: Published<'_>,
    mut progress: impl FnMut(u64, u64),
) -> Result<VerifyReport, LedgerError> {
    let failed = |error| reader.error("verify", &error);
    let mut report = Report::default();
    let look = reader.store().integrity().await.map_err(failed)?;
    for trigger in &look.missing_triggers {
        report.find(Check::Triggers, 0, format!("the trigger {trigger} is missing"));
    }
    if look.strays > 0 {
        report.find(Check::Order, 0, format!("{} events stand in a partition that does not exist", look.strays));
    }
    let size = u64::try_from(look.size).unwrap_or(0);
    let newest = u64::try_from(look.newest).unwrap_or(0);
    if newest > size {
        report.find(Check::Head, newest, format!("the head is at position {size}, the newest event at {newest}"));
    }

    let mut chain = Chain::default();
    let mut checkpoints = Checkpoints::new(published, &origin(reader.ledger_id()), &mut report);
    let mut redactions = Redactions::default();
    let mut runs = Runs::default();
    let mut interrupts = Interrupts::default();
    let mut calls = Calls::default();
    let mut position = 0;
    while position < size {
        let page = match reader.read_stored(position, MAX_PAGE_EVENTS).await {
            Ok(page) => page,
            Err(error) => {
                report.find(
                    Check::Readable,
                    position + 1,
                    format!("nothing after event {position} is readable: {error}"),
                );
                break;
            }
        };
        let Some(end) = page.last().map(|stored| stored.position.min(size)) else { break };
        let keys = reader.store().keys_of(position + 1, end).await.map_err(failed)?;
        let mut events = Vec::with_capacity(page.len());
        for stored in page.into_iter().filter(|stored| stored.position <= size) {
            match stored.event {
                Ok(event) => {
                    chain.see(&event, &mut report);
                    redactions.see(&event, &mut report);
                    if let Some(decoded) = decode(&event, &mut report) {
                        runs.see(&event, &decoded, &mut report);
                        interrupts.see(&event, &decoded, &mut report);
                        calls.see(&event, &decoded, &mut report);
                    }
                    events.push(event);
                }
                Err(reason) => {
                    report.find(Check::Readable, stored.position, reason);
                    chain.skip(stored.position, &mut report);
                }
            }
            checkpoints.see(&chain, &mut report);
        }
        keys::check(&events, &keys, position + 1, end, &mut report);
        filing::check(&events, &reader.store().filed(position + 1, end).await.map_err(failed)?, &mut report);
        position = end;
        progress(position, size);
    }
    chain.end(size, &look.root, &look.frontier, &mut report);
    checkpoints.end(size, &mut report);
    redactions.end(&mut report);
    calls.end(&runs, &mut report);
    snapshots::check(reader, &mut report).await?;
    let beyond = reader.store().keys_beyond(size).await.map_err(failed)?;
    for key in beyond {
        report.find(Check::Keys, key.range().0, format!("the key {:?} names positions after the head", key.key));
    }
    if let Some(reason) = reader.store().integrity_check().await.map_err(failed)? {
        report.find(Check::Readable, 0, reason);
    }
    Ok(report.finish(size, chain.root()))
}

/// Whether every stored state is what its events fold to; what is not, by position.
///
/// # Errors
/// [`LedgerError`] when the file cannot be read.
pub async fn stored_states(reader: &LedgerReader) -> Result<Vec<Finding>, LedgerError> {
    let mut report = Report::default();
    snapshots::check(reader, &mut report).await?;
    Ok(report.finish(0, [0; 32]).findings)
}

fn decode(event: &RecordedEvent, report: &mut Report) -> Option<DomainEvent> {
    match event.decode() {
        Ok(decoded) => Some(decoded),
        Err(error @ DecodeError::UnknownType { .. }) => {
            report.note(event.position, error.to_string());
            None
        }
        Err(error @ DecodeError::Payload { .. }) => {
            report.find(Check::Decoding, event.position, error.to_string());
            None
        }
    }
}

#[cfg(test)]
mod tampering;
