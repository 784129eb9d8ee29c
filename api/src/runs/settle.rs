//! The append that ends a run: its terminal event and, in the same transaction, a result for every call that has none:
//! what is recorded of it, or what stands in for that.

use super::call::requested;
use crate::error::ApiError;
use crate::ids::new_id;
use crate::state::App;
use devmind_domain::agent::{Stages, StandIn, stand_in_results};
use devmind_domain::conversation::{Conversation, ConversationCommand, ConversationError};
use devmind_domain::event::{AggregateType, DomainEvent, NewEvent, RecordedEvent, StreamId};
use devmind_domain::ids::ToolCallId;
use devmind_domain::thread::{Deferred, Thread, ThreadCommand, ThreadError};
use devmind_domain::tool_call::{ToolCall, ToolCallEvent};
use devmind_domain::{Decider, ErrorCode};
use devmind_ledger::{Append, AppendError, LedgerError, LedgerReader, StreamAppend, load};
use devmind_projections::RunRow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Races lost to other writers of the conversation before giving up.
const MAX_TRIES: usize = 8;
/// Before the end of a run is tried again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How a run ends.
pub(super) struct RunEnd<'a> {
    pub run: &'a RunRow,
    /// What is said of calls without a recorded end; of one that was dispatched never that it was not started.
    pub stand_in: ErrorCode,
    /// The command that ends the run, under the claim it was executed under.
    pub command: ConversationCommand,
}

/// Why a run could not be ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum SettleError {
    /// It has ended, or a newer start of this process owns it: the fence has held.
    #[error("the run is not ours to end: {0}")]
    Refused(#[from] ConversationError),
    #[error(transparent)]
    Thread(#[from] ThreadError),
    #[error(transparent)]
    Append(#[from] AppendError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl SettleError {
    /// Whether the same append can never come through: what is stored or the events themselves stand against it.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::Refused(_) | Self::Thread(_) => true,
            Self::Append(error) => matches!(error, AppendError::TooLarge { .. } | AppendError::Invalid { .. }),
            Self::Ledger(error) => matches!(
                error,
                LedgerError::Corrupt { .. } | LedgerError::Damaged { .. } | LedgerError::Undecodable { .. }
            ),
        }
    }
}

impl From<SettleError> for ApiError {
    fn from(error: SettleError) -> Self {
        match error {
            SettleError::Refused(error) => error.into(),
            SettleError::Thread(error) => Self::internal(ErrorCode::Internal, &error),
            SettleError::Append(error) => error.into(),
            SettleError::Ledger(error) => error.into(),
        }
    }
}

/// Ends a run, however long the ledger refuses: a run that is left "running" blocks its conversation
/// until the next start. Gives up where trying again cannot help.
///
/// # Errors
/// [`SettleError::Refused`] when the run is not ours to end; another final one ([`SettleError::is_final`]); the
/// ledger's error once it is closed.
pub(super) async fn settle(app: &App, end: &RunEnd<'_>) -> Result<Vec<Arc<RecordedEvent>>, SettleError> {
    let mut pause = FIRST_PAUSE;
    loop {
        let error = match append_end(app, end).await {
            Ok(recorded) => return Ok(recorded),
            Err(error) if error.is_final() => return Err(error),
            Err(error) => error,
        };
        if !app.ledger.is_open() {
            return Err(error);
        }
        tracing::warn!(run.id = %end.run.run_id, cause = %error, ?pause, "a run's end is not recorded yet; trying again");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Appends a run's end once. Conversation and thread are read anew: an append that was in doubt may
/// have moved the thread on. Where what is recorded of calls cannot be told, the run ends without it.
pub(super) async fn append_end(app: &App, end: &RunEnd<'_>) -> Result<Vec<Arc<RecordedEvent>>, SettleError> {
    let RunEnd { run, stand_in, command } = end;
    let metadata = app.server_metadata().run(&run.run_id).conversation(&run.conversation_id);
    let new = |event: DomainEvent| NewEvent { event_id: new_id(), event, metadata: metadata.clone() };
    let stream = |kind, id: &str, expected_version, events: Vec<DomainEvent>| StreamAppend {
        stream: StreamId::new(kind, id),
        expected_version,
        events: events.into_iter().map(new).collect(),
    };
    let tools = app.tools.current();
    let tool_set = tools.to_record().map(|(id, _)| id.as_str());
    let mut stages = Some(Stages { tools: tools.registry(), tool_set, post_execute: tools.post_execute() });
    let mut tries = 0;
    loop {
        tries += 1;
        let reader = app.ledger.reader();
        let (conversation, version) = load::<Conversation>(reader, run.conversation_id.as_str()).await?;
        let (thread, thread_version) = load::<Thread>(reader, run.graph_thread_id.as_str()).await?;
        let events = conversation.decide(command.clone())?;
        let calls = unanswered_calls(reader, &thread, run).await?;
        let recorded = |id: &ToolCallId| calls.get(id).map(|(call, _)| call.clone()).unwrap_or_default();
        let stand_ins = stand_in_results(&thread, &run.graph_thread_id, recorded, stages, *stand_in);
        let settled = |id: &ToolCallId| calls.get(id).is_some_and(|(call, _)| call.is_settled());
        let tells = stand_ins.iter().any(|told| !told.revisions.is_empty() || settled(&told.observed.tool_call_id));
        // The stand-ins first: the run's terminal event is its last.
        let mut streams = Vec::new();
        let mut thread = Arc::unwrap_or_clone(thread);
        let mut observed = Vec::new();
        for StandIn { observed: told, request, revisions } in stand_ins {
            let request = request.map(|(call, admission)| requested(run, &call.id, &admission));
            let revisions = revisions.into_iter().map(ToolCallEvent::from);
            let facts: Vec<_> = request.map(ToolCallEvent::from).into_iter().chain(revisions).map(Into::into).collect();
            let id = &told.tool_call_id;
            if let Some((_, version)) = calls.get(id).filter(|_| !facts.is_empty()) {
                streams.push(stream(AggregateType::ToolCall, id.as_str(), *version, facts));
            }
            let decided = thread.decide(ThreadCommand::ObserveResult(told, Deferred::default()))?;
            decided.iter().for_each(|event| thread.evolve(event));
            observed.extend(decided.into_iter().map(DomainEvent::from));
        }
        if !observed.is_empty() {
            streams.push(stream(AggregateType::Thread, run.graph_thread_id.as_str(), thread_version, observed));
        }
        let events = events.into_iter().map(DomainEvent::from).collect();
        streams.push(stream(AggregateType::Conversation, run.conversation_id.as_str(), version, events));
        match app.ledger.append(Append { streams, idempotency: None }).await {
            Ok(appended) => return Ok(appended.events),
            Err(AppendError::Conflict { .. }) if tries < MAX_TRIES => {}
            Err(error) if stages.is_some() && tells && tries < MAX_TRIES => {
                tracing::warn!(run.id = %run.run_id, cause = %error, "results of the run are not told at its end");
                stages = None;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// What is recorded of the calls without a result, with the version of each one's stream.
async fn unanswered_calls(
    reader: &LedgerReader,
    thread: &Thread,
    run: &RunRow,
) -> Result<BTreeMap<ToolCallId, (Arc<ToolCall>, u64)>, LedgerError> {
    let mut calls = BTreeMap::new();
    for call in thread.exchanges.last().into_iter().flat_map(|last| last.unanswered()) {
        let id = ToolCallId::of(&run.graph_thread_id, &call.id);
        let loaded = load::<ToolCall>(reader, id.as_str()).await?;
        calls.insert(id, loaded);
    }
    Ok(calls)
}
