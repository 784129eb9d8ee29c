//! The ledger as an event store of the cqrs-es family, so that its framework and its tools work on
//! our log.
//!
//! The seam is [`cqrs_es::EventStore`], not its repository trait, whose snapshots and queries are
//! unsound in 0.5. A lost race is [`AggregateError::AggregateConflict`], which the framework leaves
//! to its caller; [`crate::execute`] is the form that tries again.

use crate::append::{Append, StreamAppend};
use crate::error::{AppendError, LedgerError};
use crate::ledger::Ledger;
use crate::load::load;
use cqrs_es::{Aggregate, AggregateContext, AggregateError, EventEnvelope, EventStore};
use devmind_domain::Decider;
use devmind_domain::event::{DecodeError, Metadata, NewEvent, RecordedEvent, StreamId};
use std::collections::HashMap;
use std::sync::Arc;
use uuid::Uuid;

/// An event store over a [`Ledger`], for any aggregate of the domain.
#[derive(Clone, Debug)]
pub struct CqrsStore {
    ledger: Ledger,
    metadata: Metadata,
}

/// A loaded aggregate and the version it was loaded at.
#[derive(Debug)]
pub struct CqrsContext<A> {
    aggregate_id: String,
    aggregate: A,
    version: u64,
}

impl CqrsStore {
    /// A store whose events carry this metadata. The framework's own metadata is added to it: the
    /// keys `correlation_id`, `causation_id`, `conversation_id` and `traceparent`; any other is
    /// refused, because it would be lost.
    pub fn new(ledger: Ledger, metadata: Metadata) -> Self {
        Self { ledger, metadata }
    }

    fn merged(&self, extra: HashMap<String, String>) -> Result<Metadata, AppendError> {
        let mut metadata = self.metadata.clone();
        for (key, value) in extra {
            match key.as_str() {
                "correlation_id" => metadata.correlation_id = Some(value.into()),
                "causation_id" => metadata.causation_id = Some(value),
                "conversation_id" => metadata.conversation_id = Some(value.into()),
                "traceparent" => metadata.traceparent = Some(value),
                _ => return Err(AppendError::Invalid { reason: format!("the ledger has no metadata {key:?}") }),
            }
        }
        Ok(metadata)
    }
}

impl<A: Aggregate> AggregateContext<A> for CqrsContext<A> {
    fn aggregate(&mut self) -> &mut A {
        &mut self.aggregate
    }
}

impl<A> EventStore<A> for CqrsStore
where
    A: Decider + Aggregate<Event = <A as Decider>::Event>,
{
    type AC = CqrsContext<A>;

    async fn load_events(
        &self,
        aggregate_id: &str,
    ) -> Result<Vec<EventEnvelope<A>>, AggregateError<<A as Aggregate>::Error>> {
        let stream = StreamId::new(<A as Decider>::TYPE, aggregate_id);
        let events = self.ledger.reader().read_stream(&stream, 0).await.map_err(ledger_error)?;
        envelopes(&events)
    }

    async fn load_aggregate(
        &self,
        aggregate_id: &str,
    ) -> Result<CqrsContext<A>, AggregateError<<A as Aggregate>::Error>> {
        let (aggregate, version) = load::<A>(self.ledger.reader(), aggregate_id).await.map_err(ledger_error)?;
        Ok(CqrsContext { aggregate_id: aggregate_id.to_owned(), aggregate: Arc::unwrap_or_clone(aggregate), version })
    }

    async fn commit(
        &self,
        events: Vec<<A as Aggregate>::Event>,
        context: CqrsContext<A>,
        metadata: HashMap<String, String>,
    ) -> Result<Vec<EventEnvelope<A>>, AggregateError<<A as Aggregate>::Error>> {
        let metadata = self.merged(metadata).map_err(append_error)?;
        let new_event = |event: <A as Aggregate>::Event| NewEvent {
            event_id: Uuid::now_v7().to_string(),
            event: event.into(),
            metadata: metadata.clone(),
        };
        let append = StreamAppend {
            stream: StreamId::new(<A as Decider>::TYPE, context.aggregate_id),
            expected_version: context.version,
            events: events.into_iter().map(new_event).collect(),
        };
        let append = Append { streams: vec![append], idempotency: None };
        let appended = self.ledger.append(append).await.map_err(append_error)?;
        envelopes(&appended.events)
    }
}

/// Where an older shape said several facts at once, each has an envelope with the one sequence.
fn envelopes<A>(events: &[Arc<RecordedEvent>]) -> Result<Vec<EventEnvelope<A>>, AggregateError<<A as Aggregate>::Error>>
where
    A: Decider + Aggregate<Event = <A as Decider>::Event>,
{
    let mut envelopes = Vec::with_capacity(events.len());
    for event in events {
        let metadata = event.metadata().map_err(|error| decode_error(event, error))?;
        for payload in event.decode_as().map_err(|error| decode_error(event, error))? {
            envelopes.push(EventEnvelope {
                aggregate_id: event.stream.aggregate_id.clone(),
                sequence: usize::try_from(event.sequence).unwrap_or(usize::MAX),
                payload,
                metadata: flat(&metadata),
            });
        }
    }
    Ok(envelopes)
}

/// The family's metadata are texts by name.
fn flat(metadata: &Metadata) -> HashMap<String, String> {
    let Metadata {
        actor,
        correlation_id,
        causation_id,
        conversation_id,
        idempotency_key,
        request_hash,
        node_id,
        traceparent,
        occurred_at,
    } = metadata;
    [
        ("actor", Some(actor.to_string())),
        ("correlation_id", correlation_id.as_ref().map(ToString::to_string)),
        ("causation_id", causation_id.clone()),
        ("conversation_id", conversation_id.as_ref().map(ToString::to_string)),
        ("idempotency_key", idempotency_key.clone()),
        ("request_hash", request_hash.clone()),
        ("node_id", Some(node_id.to_string())),
        ("traceparent", traceparent.clone()),
        ("occurred_at", occurred_at.as_ref().map(ToString::to_string)),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name.to_owned(), value?)))
    .collect()
}

fn ledger_error<E: std::error::Error>(error: LedgerError) -> AggregateError<E> {
    match error {
        LedgerError::Undecodable { .. }
        | LedgerError::Corrupt { .. }
        | LedgerError::Damaged { .. }
        | LedgerError::SchemaNewer { .. } => AggregateError::DeserializationError(Box::new(error)),
        LedgerError::Unavailable { .. }
        | LedgerError::NotDurable { .. }
        | LedgerError::Locked { .. }
        | LedgerError::Closed => AggregateError::DatabaseConnectionError(Box::new(error)),
    }
}

fn append_error<E: std::error::Error>(error: AppendError) -> AggregateError<E> {
    match error {
        AppendError::Conflict { .. } => AggregateError::AggregateConflict,
        AppendError::Overloaded | AppendError::Closed | AppendError::InDoubt(_) | AppendError::Storage(_) => {
            AggregateError::DatabaseConnectionError(Box::new(error))
        }
        AppendError::KeySeen { .. } | AppendError::TooLarge { .. } | AppendError::Invalid { .. } => {
            AggregateError::UnexpectedError(Box::new(error))
        }
    }
}

fn decode_error<E: std::error::Error>(event: &RecordedEvent, error: DecodeError) -> AggregateError<E> {
    let (position, stream) = (event.position, event.stream.clone());
    ledger_error(LedgerError::Undecodable { position, stream, error })
}
