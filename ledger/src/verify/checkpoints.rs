//! Whether the log still is what its published checkpoints said: a log that was rewritten with all its
//! hashes is found by them, and where, up to two checkpoints.

use super::chain::Chain;
use super::report::{Check, Report};
use crate::proof::RecordedCheckpoint;
use devmind_domain::proof::{Note, NoteError, NoteKey};
use std::collections::VecDeque;

/// What was published about a log.
#[derive(Clone, Copy, Debug, Default)]
pub struct Published<'a> {
    /// The key of the log, where it is known; without it no signature is checked.
    pub key: Option<&'a NoteKey>,
    /// The checkpoints, in the order they were published.
    pub checkpoints: &'a [RecordedCheckpoint],
    /// Those that witnesses cosigned; each asks when it likes, so they have no order.
    pub cosigned: &'a [RecordedCheckpoint],
    /// The witnesses whose keys are known; the cosignatures of others are not checked.
    pub witnesses: &'a [NoteKey],
}

#[derive(Debug)]
pub(super) struct Checkpoints<'a> {
    /// By size.
    left: VecDeque<&'a RecordedCheckpoint>,
    /// The newest size at which the log is what was published.
    agreed: u64,
}

impl<'a> Checkpoints<'a> {
    /// Judges what can be judged without the log: names, signatures, order.
    pub fn new(published: Published<'a>, origin: &str, report: &mut Report) -> Self {
        let mut left: Vec<&RecordedCheckpoint> = Vec::with_capacity(published.checkpoints.len());
        let own = published.checkpoints.len();
        for (number, recorded) in published.checkpoints.iter().chain(published.cosigned).enumerate() {
            let size = recorded.checkpoint.size;
            if recorded.checkpoint.origin != origin {
                report.note(
                    0,
                    format!("a checkpoint of {size} events is of another log, {}", recorded.checkpoint.origin),
                );
                continue;
            }
            let signed = Note::parse(&recorded.note)
                .and_then(|note| published.key.map_or(Ok(()), |key| note.verify(key).map(drop)));
            if let Err(error) = signed {
                report.find(Check::Checkpoints, size, format!("the checkpoint of {size} events: {error}"));
            }
            let forged = Note::parse(&recorded.note).ok().and_then(|note| {
                let judged = published.witnesses.iter().map(|witness| note.verify(witness));
                judged.filter_map(Result::err).find(|error| matches!(error, NoteError::Forged(_)))
            });
            if let Some(error) = forged {
                report.find(Check::Checkpoints, size, format!("the checkpoint of {size} events: {error}"));
            }
            if let Some(earlier) = left.last().filter(|earlier| number < own && earlier.checkpoint.size > size) {
                let reason = format!("a checkpoint of {size} events comes after one of {}", earlier.checkpoint.size);
                report.find(Check::Checkpoints, size, reason);
            }
            left.push(recorded);
        }
        left.sort_by_key(|recorded| recorded.checkpoint.size);
        Self { left: left.into(), agreed: 0 }
    }

    /// Compares those that end where the log has been read to.
    pub fn see(&mut self, chain: &Chain, report: &mut Report) {
        while let Some(recorded) = self.left.front().copied().filter(|next| next.checkpoint.size <= chain.leaves()) {
            self.left.pop_front();
            let checkpoint = &recorded.checkpoint;
            // Where only one event was changed, one of the two still has the root.
            if checkpoint.size == chain.leaves() && chain.has_root(&checkpoint.root) {
                self.agreed = checkpoint.size;
                continue;
            }
            let reason = format!(
                "a checkpoint published at {} says {}, the events up to there have the root {}: \
                 something between {} and {} is not what it was",
                recorded.at,
                hex::encode(checkpoint.root),
                hex::encode(chain.root()),
                self.agreed + 1,
                checkpoint.size,
            );
            report.find(Check::Checkpoints, checkpoint.size, reason);
        }
    }

    pub fn end(&self, size: u64, report: &mut Report) {
        for recorded in &self.left {
            let checkpoint = &recorded.checkpoint;
            let reason = format!(
                "a checkpoint of {} events was published at {}, the log ends at {size}",
                checkpoint.size, recorded.at
            );
            report.find(Check::Checkpoints, size, reason);
        }
    }
}
