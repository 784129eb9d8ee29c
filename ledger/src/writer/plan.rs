//! What becomes of each command of a batch: decided inside the batch's transaction, before
//! anything is written.

use super::Command;
use crate::append::{Idempotency, PreparedEvent};
use crate::error::AppendError;
use crate::store::{Look, NewKey, PARTITION, Seen};
use devmind_domain::Timestamp;
use devmind_domain::event::{RecordedEvent, StreamId};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// The batch's events in their order, and what each command gets.
#[derive(Debug)]
pub(super) struct Plan {
    pub events: Vec<Arc<RecordedEvent>>,
    pub outcomes: Vec<Outcome>,
    /// The size of the log before the batch.
    pub head: u64,
}

/// What a command gets. Ranges are of [`Plan::events`].
#[derive(Debug)]
pub(super) enum Outcome {
    Stored(Range<usize>),
    Refused(AppendError),
    SeenInBatch { same_request: bool, range: Range<usize> },
}

/// What a batch must know of the log before it can be judged.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    pub streams: Vec<&'a StreamId>,
    pub keys: Vec<&'a Idempotency>,
    /// Which commands the keys belong to.
    indices: Vec<usize>,
}

impl<'a> Asked<'a> {
    pub fn of(batch: &'a [Command]) -> Self {
        let streams: HashSet<_> = batch.iter().flat_map(Command::streams).map(|append| &append.stream).collect();
        let keyed = batch.iter().enumerate().filter_map(|(index, command)| Some((index, command.idempotency()?)));
        let (indices, keys) = keyed.unzip();
        Self { streams: streams.into_iter().collect(), keys, indices }
    }

    /// The refusals of commands whose keys are in the log, by their index in the batch.
    fn refusals(&self, seen: Vec<Seen>) -> HashMap<usize, AppendError> {
        let refusal = |found: Seen| {
            let same_request = found.request_hash == self.keys.get(found.index)?.request_hash;
            Some((*self.indices.get(found.index)?, AppendError::KeySeen { same_request, events: found.events }))
        };
        seen.into_iter().filter_map(refusal).collect()
    }
}

type Key<'a> = (&'a str, &'a str);

fn key_of(idempotency: &Idempotency) -> Key<'_> {
    (&idempotency.scope, &idempotency.key)
}

impl Plan {
    /// Judges the commands in their order, each with what those before it do.
    pub fn make(batch: &[Command], asked: Asked<'_>, look: Look, recorded_at: Timestamp) -> Self {
        let mut seen = asked.refusals(look.seen);
        let mut versions = asked.streams.into_iter().zip(look.versions).collect();
        let head = look.head.frontier.size();
        let mut taken: HashMap<Key<'_>, (&str, Range<usize>)> = HashMap::new();
        let mut plan = Self { events: Vec::new(), outcomes: Vec::with_capacity(batch.len()), head };
        for (index, command) in batch.iter().enumerate() {
            let outcome = if let Some(refusal) = seen.remove(&index) {
                Outcome::Refused(refusal)
            } else if let Some((same_request, range)) = command
                .idempotency()
                .and_then(|own| taken.get(&key_of(own)).map(|(hash, range)| (*hash == own.request_hash, range.clone())))
            {
                Outcome::SeenInBatch { same_request, range }
            } else {
                plan.admit(command, &mut versions, recorded_at)
            };
            if let (Outcome::Stored(range), Some(own)) = (&outcome, command.idempotency()) {
                taken.insert(key_of(own), (&own.request_hash, range.clone()));
            }
            plan.outcomes.push(outcome);
        }
        plan
    }

    /// The keys of the commands that are stored.
    pub fn new_keys<'a>(&self, batch: &'a [Command]) -> Vec<NewKey<'a>> {
        let stored = batch.iter().zip(&self.outcomes).filter_map(|(command, outcome)| match outcome {
            Outcome::Stored(range) => Some((command.idempotency()?, range)),
            Outcome::Refused(_) | Outcome::SeenInBatch { .. } => None,
        });
        stored
            .map(|(idempotency, range)| NewKey {
                idempotency,
                first: self.head + range.start as u64 + 1,
                last: self.head + range.end as u64,
            })
            .collect()
    }

    /// Checks a command's versions, all of them before any takes effect, and numbers its events.
    fn admit<'a>(
        &mut self,
        command: &'a Command,
        versions: &mut HashMap<&'a StreamId, u64>,
        recorded_at: Timestamp,
    ) -> Outcome {
        let mut after: HashMap<&StreamId, u64> = HashMap::new();
        for append in command.streams() {
            let current = after.get(&append.stream).or_else(|| versions.get(&append.stream)).copied().unwrap_or(0);
            if current != append.expected_version {
                return Outcome::Refused(AppendError::Conflict {
                    stream: append.stream.clone(),
                    expected: append.expected_version,
                    actual: current,
                });
            }
            after.insert(&append.stream, current + append.events.len() as u64);
        }
        let start = self.events.len();
        for append in command.streams() {
            for (sequence, event) in (append.expected_version + 1..).zip(&append.events) {
                let position = self.head + self.events.len() as u64 + 1;
                self.events.push(Arc::new(record(position, &append.stream, sequence, event, recorded_at)));
            }
        }
        versions.extend(after);
        Outcome::Stored(start..self.events.len())
    }
}

fn record(
    position: u64,
    stream: &StreamId,
    sequence: u64,
    event: &PreparedEvent,
    recorded_at: Timestamp,
) -> RecordedEvent {
    let mut recorded = RecordedEvent {
        partition: PARTITION,
        position,
        event_id: event.event_id.clone(),
        stream: stream.clone(),
        sequence,
        event_type: event.event_type.to_owned(),
        event_version: event.event_version,
        payload: event.payload.clone(),
        metadata: event.metadata.clone(),
        recorded_at,
        leaf_hash: [0; 32],
    };
    recorded.leaf_hash = recorded.leaf_hash_with(&event.payload_hash, &event.metadata_hash);
    recorded
}
