//! Which events concern a run: its conversation's, its thread's, its tool calls', and those of the
//! devices and server processes that its dispatches depended on.

use super::{TimelineLine, timeline};
use crate::error::ViewError;
use devmind_domain::conversation::ConversationEvent;
use devmind_domain::device::{DeviceEvent, stream_key};
use devmind_domain::event::{AggregateType, DomainEvent, RecordedEvent, StreamId};
use devmind_domain::ids::{ConnectionId, NodeId, RunId, ThreadId, ToolCallId, TurnId};
use devmind_domain::thread::ThreadEvent;
use devmind_domain::tool_call::ToolCallEvent;
use devmind_ledger::{EventFilter, LedgerReader};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Events asked for at once.
const PAGE: u32 = 500;

type Events = BTreeMap<u64, Arc<RecordedEvent>>;

/// The timeline of a run, read from the log; no lines when the log does not know the run.
///
/// # Errors
/// When the log cannot be read.
pub async fn timeline_of_run(ledger: &LedgerReader, run_id: &RunId) -> Result<Vec<TimelineLine>, ViewError> {
    timeline_of_run_at(ledger, run_id, u64::MAX).await
}

/// The timeline of a run as the log told it up to a position.
///
/// # Errors
/// When the log cannot be read.
pub async fn timeline_of_run_at(
    ledger: &LedgerReader,
    run_id: &RunId,
    until: u64,
) -> Result<Vec<TimelineLine>, ViewError> {
    Ok(timeline(&events_of_run(ledger, run_id, until).await?))
}

/// The events that concern a run, up to a position, in the order of the log; none when the log does not know it.
///
/// # Errors
/// When the log cannot be read.
pub async fn events_of_run(
    ledger: &LedgerReader,
    run_id: &RunId,
    until: u64,
) -> Result<Vec<Arc<RecordedEvent>>, ViewError> {
    concerning(&Source::Ledger(ledger), run_id, until).await
}

/// The timeline of a run as some of a log's events tell it, in their order: those of a bundle.
///
/// # Errors
/// Never: nothing is read from elsewhere.
pub async fn timeline_of_run_in(events: &[Arc<RecordedEvent>], run_id: &RunId) -> Result<Vec<TimelineLine>, ViewError> {
    Ok(timeline(&concerning(&Source::Events(events), run_id, u64::MAX).await?))
}

/// Where the events are looked up.
enum Source<'a> {
    Ledger(&'a LedgerReader),
    /// In order.
    Events(&'a [Arc<RecordedEvent>]),
}

async fn concerning(source: &Source<'_>, run_id: &RunId, until: u64) -> Result<Vec<Arc<RecordedEvent>>, ViewError> {
    let mut events = Events::new();
    source.of_run(run_id, until, &mut events).await?;
    let mut found = Found::default();
    found.look(run_id, events.values());

    // What belongs to the run without saying so in its metadata.
    for conversation in found.conversations.clone() {
        let stream = source.stream(AggregateType::Conversation, conversation, until).await?;
        found.look(run_id, &stream);
        let own = stream.iter().filter(|event| found.is_of_run(run_id, event));
        events.extend(own.map(|event| (event.position, Arc::clone(event))));
    }
    for thread in found.threads.clone() {
        let stream = source.stream(AggregateType::Thread, thread.0, until).await?;
        found.look(run_id, &stream);
        events.extend(stream.into_iter().map(|event| (event.position, event)));
    }
    for call in found.calls.clone() {
        let stream = source.stream(AggregateType::ToolCall, call.0, until).await?;
        found.look(run_id, &stream);
        events.extend(stream.into_iter().map(|event| (event.position, event)));
    }

    // Sockets and server processes matter while the run and its calls were under way.
    let (Some(first), Some(last)) = (events.keys().next().copied(), events.keys().next_back().copied()) else {
        return Ok(Vec::new());
    };
    for device in &found.devices {
        let stream = StreamId::new(AggregateType::Device, device);
        source.within(stream, first, last, &mut events, |event| found.is_of_connection(event)).await?;
    }
    for node in &found.nodes {
        let stream = StreamId::new(AggregateType::Node, node.as_str());
        source.within(stream, first, last, &mut events, |_| true).await?;
    }
    Ok(events.into_values().collect())
}

impl Source<'_> {
    /// Adds the events that name the run in their metadata.
    async fn of_run(&self, run_id: &RunId, until: u64, events: &mut Events) -> Result<(), ViewError> {
        match self {
            Self::Ledger(ledger) => {
                let filter = EventFilter { run_id: Some(run_id.clone()), ..EventFilter::default() };
                collect(ledger, &filter, 0, until, events, |_| true).await
            }
            Self::Events(all) => {
                let is_own = |event: &RecordedEvent| {
                    event.metadata().is_ok_and(|metadata| metadata.correlation_id.as_ref() == Some(run_id))
                };
                let own = all.iter().filter(|event| event.position <= until && is_own(event));
                events.extend(own.map(|event| (event.position, Arc::clone(event))));
                Ok(())
            }
        }
    }

    async fn stream(&self, kind: AggregateType, id: String, until: u64) -> Result<Vec<Arc<RecordedEvent>>, ViewError> {
        let id = StreamId::new(kind, id);
        let mut stream = match self {
            Self::Ledger(ledger) => ledger.read_stream(&id, 0).await?,
            Self::Events(all) => all.iter().filter(|event| event.stream == id).cloned().collect(),
        };
        stream.retain(|event| event.position <= until);
        Ok(stream)
    }

    /// Adds a stream's events after `after`, up to `last`, that are wanted.
    async fn within(
        &self,
        stream: StreamId,
        after: u64,
        last: u64,
        events: &mut Events,
        wanted: impl Fn(&RecordedEvent) -> bool,
    ) -> Result<(), ViewError> {
        match self {
            Self::Ledger(ledger) => {
                let filter = EventFilter { stream: Some(stream), ..EventFilter::default() };
                collect(ledger, &filter, after, last, events, wanted).await
            }
            Self::Events(all) => {
                let between = |event: &RecordedEvent| event.position > after && event.position <= last;
                let own = all.iter().filter(|event| event.stream == stream && between(event) && wanted(event));
                events.extend(own.map(|event| (event.position, Arc::clone(event))));
                Ok(())
            }
        }
    }
}

/// Adds the events after `after`, up to `last`, that pass both filters.
async fn collect(
    ledger: &LedgerReader,
    filter: &EventFilter,
    after: u64,
    last: u64,
    events: &mut Events,
    wanted: impl Fn(&RecordedEvent) -> bool,
) -> Result<(), ViewError> {
    let mut after = after;
    loop {
        let page = ledger.query(filter, after, PAGE).await?;
        let Some(end) = page.last().map(|event| event.position) else { return Ok(()) };
        let own = page.into_iter().filter(|event| event.position <= last && wanted(event));
        events.extend(own.map(|event| (event.position, event)));
        if end >= last {
            return Ok(());
        }
        after = end;
    }
}

/// What the events of a run name.
#[derive(Default)]
struct Found {
    conversations: BTreeSet<String>,
    turns: BTreeSet<TurnId>,
    threads: BTreeSet<ThreadId>,
    calls: BTreeSet<ToolCallId>,
    devices: BTreeSet<String>,
    connections: BTreeSet<ConnectionId>,
    nodes: BTreeSet<NodeId>,
}

impl Found {
    fn look<'a>(&mut self, run_id: &RunId, events: impl IntoIterator<Item = &'a Arc<RecordedEvent>>) {
        for event in events {
            if let Some(conversation) = event.metadata().ok().and_then(|metadata| metadata.conversation_id) {
                self.conversations.insert(conversation.0);
            }
            for fact in event.decode().unwrap_or_default() {
                match fact {
                    DomainEvent::Conversation(ConversationEvent::RunPrepared(e)) if e.run_id == *run_id => {
                        self.turns.insert(e.turn_id);
                        self.threads.insert(e.graph_thread_id);
                    }
                    DomainEvent::Thread(inner) => self.look_at_thread(event, &inner),
                    DomainEvent::ToolCall(inner) => self.look_at_call(event, &inner),
                    DomainEvent::Conversation(_)
                    | DomainEvent::Device(_)
                    | DomainEvent::Node(_)
                    | DomainEvent::Redaction(_)
                    | DomainEvent::Projection(_)
                    | DomainEvent::History(_)
                    | DomainEvent::ToolSet(_) => {}
                }
            }
        }
    }

    fn look_at_thread(&mut self, event: &RecordedEvent, inner: &ThreadEvent) {
        let thread = ThreadId(event.stream.aggregate_id.clone());
        match inner {
            ThreadEvent::ModelResponded(e) => {
                self.calls.extend(e.tool_calls.iter().map(|call| ToolCallId::of(&thread, &call.id)));
            }
            ThreadEvent::ThreadStarted(_)
            | ThreadEvent::ModelRequested(_)
            | ThreadEvent::AnswerProgressed(_)
            | ThreadEvent::ModelFailed(_)
            | ThreadEvent::ToolResultObserved(_)
            | ThreadEvent::ContextDeferred(_)
            | ThreadEvent::TurnConcluded(_) => {}
        }
        self.threads.insert(thread);
    }

    fn look_at_call(&mut self, event: &RecordedEvent, inner: &ToolCallEvent) {
        self.calls.insert(ToolCallId(event.stream.aggregate_id.clone()));
        match inner {
            ToolCallEvent::ToolCallRequested(e) => {
                self.devices.extend(e.device_id.iter().map(|device| stream_key(&e.user_id, device)));
            }
            ToolCallEvent::ToolDispatched(e) => {
                self.nodes.insert(e.node_id.clone());
                self.connections.extend(e.connection_id.clone());
            }
            ToolCallEvent::ToolResultRecorded(e) => self.connections.extend(e.connection_id.clone()),
            ToolCallEvent::ToolResultAcked(e) => {
                self.connections.insert(e.connection_id.clone());
            }
            ToolCallEvent::ToolCallDecided(_)
            | ToolCallEvent::ToolReceived(_)
            | ToolCallEvent::ToolCancelRequested(_)
            | ToolCallEvent::ToolWaitTimedOut(_)
            | ToolCallEvent::ToolAttemptRefused(_)
            | ToolCallEvent::ToolOutcomeRevised(_) => {}
        }
    }

    fn is_of_run(&self, run_id: &RunId, event: &RecordedEvent) -> bool {
        event.decode().unwrap_or_default().iter().any(|fact| self.tells_of_run(run_id, fact))
    }

    fn tells_of_run(&self, run_id: &RunId, fact: &DomainEvent) -> bool {
        let DomainEvent::Conversation(inner) = fact else { return false };
        match inner {
            ConversationEvent::TurnPrepared(e) => self.turns.contains(&e.turn_id),
            ConversationEvent::TurnRerunPrepared(e) => self.turns.contains(&e.turn_id),
            ConversationEvent::RunPrepared(e) => e.run_id == *run_id,
            ConversationEvent::RunClaimed(e) => e.run_id == *run_id,
            ConversationEvent::InterruptRaised(e) => e.run_id == *run_id,
            ConversationEvent::RunStopRequested(e) => e.run_id == *run_id,
            ConversationEvent::RunInterrupted(e) => e.run_id == *run_id,
            ConversationEvent::RunSucceeded(e) => e.run_id == *run_id,
            ConversationEvent::RunFailed(e) => e.run_id == *run_id,
            ConversationEvent::RunCancelled(e) => e.run_id == *run_id,
            // Known by their metadata alone.
            ConversationEvent::ConversationStarted(_)
            | ConversationEvent::ConversationRenamed(_)
            | ConversationEvent::ConversationDeleted(_)
            | ConversationEvent::ConversationRead(_)
            | ConversationEvent::InterruptResolved(_)
            | ConversationEvent::InterruptCancelled(_)
            | ConversationEvent::ToolGrantGiven(_)
            | ConversationEvent::ToolGrantRevoked(_)
            | ConversationEvent::InterruptExpired(_) => false,
        }
    }

    fn is_of_connection(&self, event: &RecordedEvent) -> bool {
        event.decode().unwrap_or_default().iter().any(|fact| self.tells_of_connection(fact))
    }

    fn tells_of_connection(&self, fact: &DomainEvent) -> bool {
        let DomainEvent::Device(inner) = fact else { return false };
        match inner {
            DeviceEvent::DeviceConnected(e) => self.connections.contains(&e.connection_id),
            DeviceEvent::DeviceDisconnected(e) => self.connections.contains(&e.connection_id),
            DeviceEvent::DeviceReplaced(e) => self.connections.contains(&e.old_connection_id),
            DeviceEvent::DeviceTicketIssued(_)
            | DeviceEvent::DeviceTicketConsumed(_)
            | DeviceEvent::DeviceRead(_)
            | DeviceEvent::DeviceDescribed(_)
            | DeviceEvent::ToolRegistrySynced(_) => false,
        }
    }
}
