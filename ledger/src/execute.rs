//! Loading an aggregate from its stream, and carrying out a command on it.

use crate::append::{Append, Idempotency, StreamAppend};
use crate::cache::Loaded;
use crate::error::{AppendError, ExecuteError, LedgerError};
use crate::ledger::Ledger;
use crate::limits::MAX_CONFLICT_RETRIES;
use crate::reader::LedgerReader;
use devmind_domain::Decider;
use devmind_domain::event::{EventSet, Metadata, NewEvent, RecordedEvent, StreamId};
use std::sync::Arc;
use uuid::Uuid;

/// What a command led to.
#[derive(Clone, Debug)]
pub struct Executed<A> {
    /// The aggregate after the events.
    pub state: A,
    /// The events; none when it was already so.
    pub events: Vec<Arc<RecordedEvent>>,
    /// The last event's position, or, when nothing had to happen, a position of the log that
    /// includes everything the decision was based on. A view that has passed it shows the outcome.
    pub position: u64,
}

/// The aggregate as its stream says, and the stream's version. Only what came after the last load is read.
///
/// # Errors
/// [`LedgerError`] when the stream cannot be read; an event that this program does not know is an
/// error here, because a decision on half the facts could be wrong.
pub async fn load<A: Decider>(reader: &LedgerReader, id: &str) -> Result<(A, u64), LedgerError> {
    let stream = StreamId::new(A::TYPE, id);
    let seen = reader.cache().get(&stream).unwrap_or_default();
    let Loaded { state, version, .. } = go_on::<A>(reader, &stream, seen).await?;
    Ok((state, version))
}

/// Brings an aggregate to where its stream is now.
async fn go_on<A: Decider>(
    reader: &LedgerReader,
    stream: &StreamId,
    mut loaded: Loaded<A>,
) -> Result<Loaded<A>, LedgerError> {
    let events = reader.read_stream(stream, loaded.version).await?;
    for event in &events {
        let decoded = <A::Event as EventSet>::decode(&event.event_type, event.event_version, &event.content());
        loaded.state.evolve(&decoded.map_err(|error| LedgerError::Undecodable {
            position: event.position,
            stream: stream.clone(),
            error,
        })?);
        loaded.version = event.sequence;
        loaded.bytes += event.payload.len();
    }
    if !events.is_empty() {
        reader.cache().put(stream, &loaded);
    }
    Ok(loaded)
}

/// Loads an aggregate, decides, appends, and begins anew when somebody else was faster.
///
/// With an idempotency key that was seen before, the answer is [`AppendError::KeySeen`] with the
/// events of that time, also where the rules would refuse the command by now. A key is stored with what its command caused, also when that was nothing; a refused
/// command does not use up its key.
///
/// # Errors
/// [`ExecuteError::Refused`] by the aggregate's rules; else why it could not be loaded or appended.
pub async fn execute<A: Decider>(
    ledger: &Ledger,
    id: &str,
    metadata: &Metadata,
    command: A::Command,
    idempotency: Option<Idempotency>,
) -> Result<Executed<A>, ExecuteError<A::Error>>
where
    A::Command: Clone,
{
    let stream = StreamId::new(A::TYPE, id);
    let reader = ledger.reader();
    let mut turn = None;
    let mut retries = 0;
    let seen: Option<Loaded<A>> = reader.cache().get(&stream);
    // What was seen earlier is good enough to append on, because the writer checks the version. For any
    // other conclusion it must be what the log says now.
    let mut is_now = seen.is_none();
    let mut loaded = match seen {
        Some(loaded) => loaded,
        None => go_on(reader, &stream, Loaded::default()).await.map_err(ExecuteError::Ledger)?,
    };
    loop {
        let decision = loaded.state.decide(command.clone());
        if !is_now && decision.as_ref().map_or(true, Vec::is_empty) {
            loaded = go_on(reader, &stream, loaded).await.map_err(ExecuteError::Ledger)?;
            is_now = true;
            continue;
        }
        let Loaded { mut state, version, mut bytes } = loaded.clone();
        let decided = match decision {
            Ok(decided) => decided,
            Err(refusal) => {
                // The rules may refuse just because the same request came through before; where they
                // do not, the writer looks for the key.
                check_key(ledger, idempotency.as_ref()).await?;
                return Err(ExecuteError::Refused(refusal));
            }
        };
        if decided.is_empty() && idempotency.is_none() {
            let head = ledger.reader().head().await.map_err(ExecuteError::Ledger)?;
            return Ok(Executed { state, events: Vec::new(), position: head.position });
        }
        let new_event = |event: &A::Event| NewEvent {
            event_id: Uuid::now_v7().to_string(),
            event: event.clone().into(),
            metadata: metadata.clone(),
        };
        let events = decided.iter().map(new_event).collect();
        let append = StreamAppend { stream: stream.clone(), expected_version: version, events };
        match ledger.append(Append { streams: vec![append], idempotency: idempotency.clone() }).await {
            Ok(appended) => {
                decided.iter().for_each(|event| state.evolve(event));
                let position = appended.position();
                if let Some(last) = appended.events.last() {
                    bytes += appended.events.iter().map(|event| event.payload.len()).sum::<usize>();
                    reader.cache().put(&stream, &Loaded { state: state.clone(), version: last.sequence, bytes });
                }
                return Ok(Executed { state, events: appended.events, position });
            }
            Err(AppendError::Conflict { .. }) if retries < MAX_CONFLICT_RETRIES => {
                retries += 1;
                if turn.is_none() {
                    turn = Some(ledger.retry_turn(&stream).await);
                }
                loaded = go_on(reader, &stream, loaded).await.map_err(ExecuteError::Ledger)?;
                is_now = true;
            }
            Err(error) => return Err(ExecuteError::Append(error)),
        }
    }
}

async fn check_key<E>(ledger: &Ledger, idempotency: Option<&Idempotency>) -> Result<(), ExecuteError<E>> {
    let Some(Idempotency { scope, key, request_hash }) = idempotency else { return Ok(()) };
    match ledger.reader().idempotent(scope, key).await {
        Ok(None) => Ok(()),
        Ok(Some((seen, events))) => {
            Err(ExecuteError::Append(AppendError::KeySeen { same_request: seen == *request_hash, events }))
        }
        Err(error) => Err(ExecuteError::Ledger(error)),
    }
}
