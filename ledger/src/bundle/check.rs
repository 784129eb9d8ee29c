//! Checking a bundle with nothing but itself: signature, proofs or root, every leaf, every byte.

use super::{BundleError, End, Header, Line, Lines};
use crate::merkle::Frontier;
use devmind_domain::canonical::Hash;
use devmind_domain::event::RecordedEvent;
use devmind_domain::proof::{Checkpoint, Note, verify_inclusion};
use devmind_domain::redaction::Redacted;
use sha2::{Digest, Sha256};
use std::io::BufRead;

/// Findings kept, at most; more are counted.
const MAX_FINDINGS: usize = 100;

/// What a bundle is, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleReport {
    /// What was selected, in words.
    pub selection: String,
    /// Whether it is the whole log up to its checkpoint.
    pub complete: bool,
    /// The log's name.
    pub origin: String,
    /// The size of the log.
    pub size: u64,
    /// Its root.
    pub root: Hash,
    /// The fingerprint of the key that signed it: compare it with one that you got otherwise.
    pub fingerprint: String,
    /// The public key.
    pub key: String,
    /// The signed head, with the cosignatures of witnesses that it came with.
    pub note: Note,
    /// The events in it.
    pub events: u64,
    /// Events whose content was erased: their positions, and the events that say so.
    pub redacted: Vec<(u64, u64)>,
    /// What is wrong: line, position (0: not about an event), reason.
    pub findings: Vec<(u64, u64, String)>,
    /// How much is wrong.
    pub findings_total: u64,
}

impl BundleReport {
    fn find(&mut self, line: u64, position: u64, reason: impl Into<String>) {
        self.findings_total += 1;
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push((line, position, reason.into()));
        }
    }
}

/// Reads a bundle through. `progress` is told the events so far.
///
/// # Errors
/// [`BundleError`] where it cannot be read on: a line that is none, a header that does not hold. What is
/// wrong with events is in the report.
pub fn check_bundle(input: impl BufRead, progress: impl FnMut(u64)) -> Result<BundleReport, BundleError> {
    walk(input, progress, |_| Ok(()))
}

/// The same, and every event is handed on after it was looked at; what is wrong with it is in the report.
///
/// # Errors
/// As [`check_bundle`].
pub fn read_bundle(input: impl BufRead, mut each: impl FnMut(RecordedEvent)) -> Result<BundleReport, BundleError> {
    walk(
        input,
        |_| {},
        |item| {
            match item {
                Item::Event(event) => each(event),
                Item::Key(_) => {}
            }
            Ok(())
        },
    )
}

/// What a reader of a bundle is given, in order.
pub(super) enum Item {
    Key(super::KeyLine),
    Event(RecordedEvent),
}

/// The same, with every line handed on after it was checked.
pub(super) fn walk(
    input: impl BufRead,
    mut progress: impl FnMut(u64),
    mut each: impl FnMut(Item) -> Result<(), BundleError>,
) -> Result<BundleReport, BundleError> {
    let mut lines = Lines::new(input);
    let Some(Line::Bundle(header)) = lines.next()? else { return Err(lines.wrong("it does not begin with a header")) };
    let (key, note, checkpoint) = header.checked().map_err(|reason| lines.wrong(reason))?;
    let mut hash = Sha256::new();
    hash.update(&lines.text);
    let mut report = BundleReport {
        selection: header.selection.clone(),
        complete: header.complete,
        origin: checkpoint.origin.clone(),
        size: checkpoint.size,
        root: checkpoint.root,
        fingerprint: key.fingerprint(),
        key: key.to_string(),
        note,
        events: 0,
        redacted: Vec::new(),
        findings: Vec::new(),
        findings_total: 0,
    };
    let (mut tree, mut position) = (Frontier::default(), 0);
    loop {
        match lines.next()? {
            None => return Err(lines.wrong("the bundle ends without its last line")),
            Some(Line::Bundle(_)) => return Err(lines.wrong("a second header")),
            Some(Line::End(end)) => {
                finish(end, hash, &mut lines, &mut report)?;
                break;
            }
            Some(Line::Key(key)) => each(Item::Key(key))?,
            Some(Line::Event(event)) => {
                let (event, proof) = event.event().map_err(|reason| lines.wrong(reason))?;
                let at = event.position;
                let in_order = if header.complete { at == position + 1 } else { at > position };
                if !in_order || at > checkpoint.size {
                    report.find(lines.number, at, format!("it comes after event {position}"));
                }
                position = at;
                check_event(&event, proof.as_deref(), &header, &checkpoint, lines.number, &mut report);
                tree.push(event.expected_leaf_hash());
                if let Some(Redacted { by, .. }) = Redacted::parse(&event.payload) {
                    report.redacted.push((at, by));
                }
                report.events += 1;
                progress(report.events);
                each(Item::Event(event))?;
            }
        }
        hash.update(&lines.text);
    }
    if header.complete && (tree.size() != checkpoint.size || tree.root() != checkpoint.root) {
        let reason = format!(
            "{} events have the root {}, the checkpoint speaks of {} with {}",
            tree.size(),
            hex::encode(tree.root()),
            checkpoint.size,
            hex::encode(checkpoint.root)
        );
        report.find(lines.number, 0, reason);
    }
    Ok(report)
}

fn check_event(
    event: &RecordedEvent,
    proof: Option<&[Hash]>,
    header: &Header,
    checkpoint: &Checkpoint,
    line: u64,
    report: &mut BundleReport,
) {
    if event.expected_leaf_hash() != event.leaf_hash {
        report.find(line, event.position, "it does not have the hash that was recorded for it");
    }
    match proof {
        None if header.complete => {}
        None => report.find(line, event.position, "it has no proof"),
        Some(path) => {
            let leaf = event.position.saturating_sub(1);
            let held = verify_inclusion(leaf, &event.leaf_hash, checkpoint.size, path, &checkpoint.root);
            if let Err(error) = held {
                report.find(line, event.position, error.to_string());
            }
        }
    }
}

fn finish(
    end: End,
    hash: Sha256,
    lines: &mut Lines<impl BufRead>,
    report: &mut BundleReport,
) -> Result<(), BundleError> {
    if end != (End { events: report.events, sha256: hex::encode(hash.finalize()) }) {
        report.find(lines.number, 0, "the lines before are not those that were written: something in them was changed");
    }
    match lines.next()? {
        None => Ok(()),
        Some(_) => Err(lines.wrong("it comes after the end")),
    }
}
