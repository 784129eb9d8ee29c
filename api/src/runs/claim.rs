//! Claiming a run — once, ever — and starting its execution in a task that the process owns.

use super::active::{ActiveRun, StopReason};
use super::execution::Execution;
use super::settle::{RunEnd, settle};
use super::sink::Sink;
use crate::agui::{AgUiEvent, Audience, RunAgentInput};
use crate::error::{ApiError, ApiResult};
use crate::state::App;
use devmind_domain::agent::{Approvals, Message, assemble, context_hash, prompt};
use devmind_domain::conversation::*;
use devmind_domain::event::{AggregateType, DomainEvent, NewEvent, RecordedEvent, StreamId};
use devmind_domain::ids::*;
use devmind_domain::limits::CONTEXT_TURNS;
use devmind_domain::thread::{Thread, ThreadCommand, ThreadEvent, ThreadStarted};
use devmind_domain::{Decider, ErrorCode};
use devmind_ledger::{Append, AppendError, StreamAppend, load};
use devmind_projections::RunRow;
use futures::{FutureExt, Stream, stream};
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Races lost to other writers of the conversation before giving up.
const MAX_CLAIM_TRIES: usize = 8;

/// Claims the run and starts it; the stream is the run's AG-UI events.
///
/// # Errors
/// `RUN_NOT_FOUND`, `FORBIDDEN`, `RUN_MISMATCH`, `MESSAGE_MISMATCH`, `RUN_ALREADY_CLAIMED`.
pub async fn claim_and_start(
    app: &Arc<App>,
    user: UserId,
    input: RunAgentInput,
) -> ApiResult<impl Stream<Item = AgUiEvent> + Send + use<>> {
    app.caught_up(&["conversation"]).await?;
    let run_id = RunId::from(input.run_id.as_str());
    let run = app.views.find_run(&run_id).await?.ok_or_else(|| ApiError::of(ErrorCode::RunNotFound))?;
    if run.user_id != user {
        return Err(ApiError::of(ErrorCode::Forbidden));
    }
    if run.conversation_id.as_str() != input.thread_id {
        return Err(ApiError::of(ErrorCode::RunMismatch));
    }
    if run.kind == RunKind::Resume.as_str() {
        check_resume(app, &run, &input).await?;
    } else if !input.asks(run.user_message_id.as_str()) {
        return Err(ApiError::of(ErrorCode::MessageMismatch));
    }
    let audience =
        Audience { thread_id: input.thread_id, run_id: input.run_id, declared: input.protocol_version.is_some() };
    start(app, run, audience).await
}

/// Claims and starts a run whose request was checked.
///
/// # Errors
/// `RUN_ALREADY_CLAIMED`, and what the ledger fails with.
pub async fn start(
    app: &Arc<App>,
    run: RunRow,
    audience: Audience,
) -> ApiResult<impl Stream<Item = AgUiEvent> + Send + use<>> {
    let active = app.runs.enter(&run.run_id);
    // Entered first, then looked: whoever stops every run has set this before, or finds this one.
    if app.stopping.is_cancelled() {
        return Err(ApiError::of(ErrorCode::ShuttingDown));
    }
    let (sink, receiver) = Sink::new(active.signal.clone());
    let (claimed, answer) = oneshot::channel();
    // Claiming happens in the task too: a client that leaves now drops this handler's future, and a
    // run must not be left claimed with nobody executing it.
    let task = drive(app.clone(), run, active, sink, audience, claimed);
    drop(app.run_tasks.spawn(task));
    match answer.await {
        Ok(Ok(())) => {
            Ok(stream::unfold(
                receiver,
                |mut receiver| async move { receiver.recv().await.map(|event| (event, receiver)) },
            ))
        }
        Ok(Err(refusal)) => Err(refusal),
        Err(_) => Err(ApiError::internal(ErrorCode::Internal, &"the run's task ended before it answered")),
    }
}

async fn drive(
    app: Arc<App>,
    run: RunRow,
    active: ActiveRun,
    sink: Sink,
    audience: Audience,
    claimed: oneshot::Sender<ApiResult<()>>,
) {
    let signal = active.signal.clone();
    let watched = sink.clone();
    let started = match claim(&app, &run).await {
        Ok(started) => started,
        Err(refusal) => {
            // It may be stored all the same; then nobody else would end it. If it is not, this is refused.
            if refusal.code == ErrorCode::LedgerInDoubt {
                end_broken_run(&app, &run).await;
            }
            drop(claimed.send(Err(refusal)));
            return;
        }
    };
    if claimed.send(Ok(())).is_err() {
        signal.stop(StopReason::Cancelled(RunCancelReason::ClientDisconnected));
    }
    // The first runs of a process have the tools of its MCP servers, where these come up at all.
    tokio::select! {
        () = app.mcp.tried() => {}
        _ = signal.stopped() => {}
    }
    let execution = Execution::new(app.clone(), run.clone(), started, sink, signal.clone(), audience);
    let run_to_end = AssertUnwindSafe(execution.run_to_end()).catch_unwind();
    tokio::pin!(run_to_end);
    let ended = tokio::select! {
        ended = &mut run_to_end => ended,
        () = watched.client_gone() => {
            signal.stop(StopReason::Cancelled(RunCancelReason::ClientDisconnected));
            run_to_end.await
        }
    };
    if ended.is_err() {
        watched.send(end_broken_run(&app, &run).await).await;
    }
    // The run is no longer active when its guard goes, which is after its last append.
    drop(active);
}

/// Ends a run whose execution panicked, or whose claim is in doubt, where nothing else would end it.
///
/// A call that has no result may have been sent: what became of it is not known here.
async fn end_broken_run(app: &App, run: &RunRow) -> AgUiEvent {
    let code = ErrorCode::Internal;
    let (error_code, error_message) = (code.as_str().to_owned(), code.help().to_owned());
    let command = ConversationCommand::FailRun {
        run_id: run.run_id.clone(),
        claim: app.claim.clone(),
        error_code: error_code.clone(),
        error_message: error_message.clone(),
        message_id: None,
        partial_text: String::new(),
    };
    if let Err(error) = settle(app, &RunEnd { run, stand_in: ErrorCode::ResultUnknown, command }).await {
        tracing::error!(run.id = %run.run_id, cause = %error, "a broken run could not be settled");
    }
    AgUiEvent::RunError { message: error_message, code: error_code }
}

/// A claimed run's beginning.
pub(super) struct Started {
    /// The messages before the loop.
    pub context: Vec<Message>,
    /// The new thread.
    pub thread: Thread,
    /// Its version.
    pub thread_version: u64,
    /// What people decided about its calls.
    pub approvals: Approvals,
    /// The claim as it was recorded.
    pub events: Vec<Arc<RecordedEvent>>,
}

/// Appends the claim and, unless the run resumes one, the thread's first event together.
async fn claim(app: &App, run: &RunRow) -> ApiResult<Started> {
    let history = app.views.history(&run.conversation_id, run.sequence_no, context_turns()).await?;
    let context = assemble(app.model.calls_in_answer(), &history, &run.content);
    let metadata = app.server_metadata().run(&run.run_id).conversation(&run.conversation_id);
    let new = |event: DomainEvent| NewEvent { event_id: crate::ids::new_id(), event, metadata: metadata.clone() };
    let (thread, version_before) = load::<Thread>(app.ledger.reader(), run.graph_thread_id.as_str()).await?;
    let mut thread = Arc::unwrap_or_clone(thread);
    let begun = begin(run, &mut thread)?;

    for _ in 0..MAX_CLAIM_TRIES {
        let (conversation, version) = load::<Conversation>(app.ledger.reader(), run.conversation_id.as_str()).await?;
        let command = ConversationCommand::ClaimRun {
            run_id: run.run_id.clone(),
            claim: app.claim.clone(),
            context_hash: context_hash(&prompt(&context, &thread)),
        };
        let events = match conversation.decide(command) {
            Ok(events) => events,
            // An older turn's run is known to the view and not claimable any more.
            Err(ConversationError::RunNotFound) => return Err(ApiError::of(ErrorCode::RunAlreadyClaimed)),
            Err(error) => return Err(error.into()),
        };
        let mut streams = vec![StreamAppend {
            stream: StreamId::new(AggregateType::Conversation, run.conversation_id.as_str()),
            expected_version: version,
            events: events.into_iter().map(|event| new(event.into())).collect(),
        }];
        if !begun.is_empty() {
            streams.push(StreamAppend {
                stream: StreamId::new(AggregateType::Thread, run.graph_thread_id.as_str()),
                expected_version: version_before,
                events: begun.iter().map(|event| new(event.clone().into())).collect(),
            });
        }
        match app.ledger.append(Append { streams, idempotency: None }).await {
            Ok(appended) => {
                let approvals = Approvals::of(&conversation, &run.graph_thread_id);
                let thread_version = version_before + begun.len() as u64;
                return Ok(Started { context, thread, thread_version, approvals, events: appended.events });
            }
            Err(AppendError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(ApiError::of(ErrorCode::VersionConflict))
}

/// The thread's first event; none where the run goes on with a thread.
fn begin(run: &RunRow, thread: &mut Thread) -> ApiResult<Vec<ThreadEvent>> {
    if thread.started.is_some() {
        return Ok(Vec::new());
    }
    let begin = ThreadCommand::Start(ThreadStarted {
        conversation_id: run.conversation_id.clone(),
        turn_id: run.turn_id.clone(),
        run_id: run.run_id.clone(),
        user_id: run.user_id.clone(),
    });
    let begun = thread.decide(begin).map_err(|error| ApiError::internal(ErrorCode::Internal, &error))?;
    begun.iter().for_each(|event| thread.evolve(event));
    Ok(begun)
}

/// The client must name the approvals that were answered; what it says about them is not believed.
async fn check_resume(app: &App, run: &RunRow, input: &RunAgentInput) -> ApiResult<()> {
    let (conversation, _) = load::<Conversation>(app.ledger.reader(), run.conversation_id.as_str()).await?;
    let active = conversation.latest.as_ref().and_then(|turn| turn.run.as_ref());
    if active.is_none_or(|active| active.run_id != run.run_id) {
        // What was decided then is no longer at hand, and cannot matter: the run is over.
        return Err(ApiError::of(ErrorCode::RunAlreadyClaimed));
    }
    let named: BTreeSet<&str> = input.resume.iter().map(|entry| entry.interrupt_id.as_str()).collect();
    let interrupts = || conversation.latest.iter().flat_map(|turn| &turn.interrupts);
    let known = |id: &&str| interrupts().any(|own| own.interrupt_id.as_str() == *id);
    // Those that ended an earlier pause of the same thread were named when that was resumed.
    let parent = interrupts().filter(|own| Some(&own.run_id) == run.parent_run_id.as_ref());
    let answered = parent.filter(|own| matches!(own.status, InterruptStatus::Resolved { .. }));
    let all_named = answered.into_iter().all(|own| named.contains(own.interrupt_id.as_str()));
    if all_named && named.iter().all(known) { Ok(()) } else { Err(ApiError::of(ErrorCode::InterruptMismatch)) }
}

fn context_turns() -> u32 {
    u32::try_from(CONTEXT_TURNS).unwrap_or(u32::MAX)
}
