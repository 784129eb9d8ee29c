//! Carrying out a command on an aggregate.
//!
//! A state from memory may be old. The writer's version check finds that out for whatever is
//! appended; what appends nothing (a refusal, "it is so already") is decided again on what the
//! stream says now. For the same reason a stream that nothing is known of is first taken to be new: what only
//! goes on with something is refused by a beginning, so that it is read; what begins something finds nothing
//! there, nearly always, and need not look.

use crate::append::{Append, Idempotency, StreamAppend};
use crate::error::{AppendError, ExecuteError};
use crate::ledger::{Ledger, Submitted};
use crate::limits::MAX_CONFLICT_RETRIES;
use crate::load::{load, remember};
use crate::tips::UnderWay;
use devmind_domain::Decider;
use devmind_domain::event::{Metadata, NewEvent, RecordedEvent, StreamId};
use std::sync::Arc;
use uuid::Uuid;

/// What a command led to.
#[derive(Clone, Debug)]
pub struct Executed<A> {
    /// The aggregate after the events.
    pub state: Arc<A>,
    /// The events; none when it was already so.
    pub events: Vec<Arc<RecordedEvent>>,
    /// The last event's position, or, when nothing had to happen, a position of the log that
    /// includes everything the decision was based on. A view that has passed it shows the outcome.
    pub position: u64,
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
    let mut lane = None;
    let mut retries = 0;
    let mut durable = None;
    let to_do = ToDo { ledger, stream: &stream, metadata, idempotency: idempotency.as_ref() };
    loop {
        let (submitted, under_way, next) = match to_do.hand_over::<A>(command.clone(), durable.take(), retries == 0) {
            Next::Read => {
                durable = Some(load::<A>(ledger.reader(), id).await.map_err(ExecuteError::Ledger)?);
                continue;
            }
            Next::Refused(refusal) => {
                // The rules may refuse just because the same request came through before; where they
                // do not, the writer looks for the key.
                check_key(ledger, idempotency.as_ref()).await?;
                return Err(ExecuteError::Refused(refusal));
            }
            Next::Already(state) => {
                let head = ledger.reader().head().await.map_err(ExecuteError::Ledger)?;
                return Ok(Executed { state, events: Vec::new(), position: head.position });
            }
            Next::NotTaken(error) => return Err(ExecuteError::Append(error)),
            Next::HandedOver(submitted, under_way, next) => (submitted, under_way, next),
        };
        match submitted.stored().await {
            Ok(appended) => {
                under_way.stored();
                remember(ledger.reader(), &stream, &next.state, next.from, next.version);
                let position = appended.position();
                return Ok(Executed { state: next.state, events: appended.events, position });
            }
            Err(AppendError::Conflict { .. }) if retries < MAX_CONFLICT_RETRIES => {
                drop(under_way);
                retries += 1;
                if lane.is_none() {
                    lane = Some(ledger.retry_turn(&stream).await);
                }
                // Another process may have been faster: what is remembered becomes what is there.
                load::<A>(ledger.reader(), id).await.map_err(ExecuteError::Ledger)?;
            }
            Err(error) => return Err(ExecuteError::Append(error)),
        }
    }
}

/// A command's surroundings.
struct ToDo<'a> {
    ledger: &'a Ledger,
    stream: &'a StreamId,
    metadata: &'a Metadata,
    idempotency: Option<&'a Idempotency>,
}

/// What deciding led to.
enum Next<'a, A: Decider> {
    /// Nothing is remembered, or what is remembered may not answer: the stream must be read.
    Read,
    Refused(A::Error),
    /// Nothing has to happen.
    Already(Arc<A>),
    /// The writer did not take it: nothing is stored.
    NotTaken(AppendError),
    HandedOver(Submitted, UnderWay<'a>, State<A>),
}

/// Where a stream will be.
struct State<A> {
    state: Arc<A>,
    from: u64,
    version: u64,
}

impl<'a> ToDo<'a> {
    /// Decides and hands over in one turn. `durable` is the state as just read; without it, what is
    /// remembered and under way, or a beginning, is built on, which an answer without an append must not be.
    fn hand_over<A: Decider>(
        &self,
        command: A::Command,
        durable: Option<(Arc<A>, u64)>,
        may_be_new: bool,
    ) -> Next<'a, A> {
        let turn = self.ledger.tips().turn(self.stream);
        let is_durable = durable.is_some();
        let known = durable
            .or_else(|| turn.tip())
            .or_else(|| self.ledger.reader().cache().get(self.stream))
            .or_else(|| may_be_new.then(Default::default));
        let Some((mut state, from)) = known else { return Next::Read };
        let decided = match state.decide(command) {
            Err(_) if !is_durable => return Next::Read,
            Ok(events) if events.is_empty() && !is_durable => return Next::Read,
            Err(refusal) => return Next::Refused(refusal),
            Ok(events) if events.is_empty() && self.idempotency.is_none() => return Next::Already(state),
            Ok(events) => events,
        };
        let new_event = |event: &A::Event| NewEvent {
            event_id: Uuid::now_v7().to_string(),
            event: event.clone().into(),
            metadata: self.metadata.clone(),
        };
        let events = decided.iter().map(new_event).collect();
        let append = StreamAppend { stream: self.stream.clone(), expected_version: from, events };
        let append = Append { streams: vec![append], idempotency: self.idempotency.cloned() };
        let submitted = match self.ledger.submit(append) {
            Ok(submitted) => submitted,
            Err(error) => return Next::NotTaken(error),
        };
        let after = Arc::make_mut(&mut state);
        decided.iter().for_each(|event| after.evolve(event));
        let version = from + decided.len() as u64;
        let under_way = turn.advance(state.clone(), version);
        Next::HandedOver(submitted, under_way, State { state, from, version })
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
