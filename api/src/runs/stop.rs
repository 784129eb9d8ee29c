//! Stopping a run, wherever it is.
//!
//! A run that nobody executes is ended by an append; one that a task of this process executes is told,
//! and its own end is awaited; one that another process executes is asked to stop in the log, where its end
//! is awaited, too. Between them there is a race (a claim that is just being made), so all are tried in turn
//! until the log says that the run has ended.

use super::StopReason;
use super::settle::{RunEnd, SettleError, append_end};
use crate::error::{ApiError, ApiResult};
use crate::state::App;
use devmind_domain::ErrorCode;
use devmind_domain::conversation::{Conversation, ConversationCommand, ConversationError, RunCancelReason, RunStatus};
use devmind_domain::event::Actor;
use devmind_domain::ids::UserId;
use devmind_domain::thread::Thread;
use devmind_ledger::{ExecuteError, execute, load};
use devmind_projections::RunRow;
use std::time::Duration;
use tokio::time::timeout;

/// A run that was told to stop must end within this time.
const END_WITHIN: Duration = Duration::from_secs(10);
/// Turns of telling and appending before giving up.
const MAX_TRIES: usize = 8;

/// Stops the run; returns the status it has ended with.
///
/// # Errors
/// `RUN_IN_PROGRESS` when it is executed elsewhere and does not end in time.
pub async fn stop(app: &App, user_id: &UserId, run: &RunRow) -> ApiResult<String> {
    let reason = StopReason::Cancelled(RunCancelReason::Stopped);
    let metadata = app.metadata(Actor::user(user_id)).conversation(&run.conversation_id).run(&run.run_id);
    for _ in 0..MAX_TRIES {
        if timeout(END_WITHIN, app.runs.stop(&run.run_id, reason)).await.is_err() {
            break;
        }
        let command = ConversationCommand::Stop { user_id: user_id.clone(), run_id: run.run_id.clone() };
        match execute::<Conversation>(&app.ledger, run.conversation_id.as_str(), &metadata, command, None).await {
            Ok(_) => return ended_as(app, run).await,
            // Claimed in this very moment: its task is there now and can be told.
            Err(ExecuteError::Refused(ConversationError::RunExecuting)) if app.runs.contains(&run.run_id) => {
                tokio::task::yield_now().await;
            }
            Err(ExecuteError::Refused(ConversationError::RunExecuting)) => {
                end_without_task(app, run).await?;
                match timeout(END_WITHIN, ended_elsewhere(app, user_id, run)).await {
                    Ok(ended) => ended?,
                    Err(_) => break,
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(ApiError::new(ErrorCode::RunInProgress, "the run is executed elsewhere and did not end in time"))
}

/// Ends a run that is claimed by this process and has no task any more: its task broke down before it
/// could record an end.
async fn end_without_task(app: &App, run: &RunRow) -> ApiResult<()> {
    let (thread, _) = load::<Thread>(app.ledger.reader(), run.graph_thread_id.as_str()).await?;
    let (message_id, partial_text) = thread.streamed_text();
    let command = ConversationCommand::CancelRun {
        run_id: run.run_id.clone(),
        claim: app.claim.clone(),
        reason: RunCancelReason::Stopped,
        message_id,
        partial_text,
    };
    match append_end(app, &RunEnd { run, stand_in: ErrorCode::ToolNotStarted, command }).await {
        // Ended meanwhile, or executed by another process: the next turn of the caller sees which.
        Ok(_) | Err(SettleError::Refused(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Asks whoever executes the run to stop it, and waits until it has ended.
async fn ended_elsewhere(app: &App, user_id: &UserId, run: &RunRow) -> ApiResult<()> {
    let id = run.conversation_id.as_str();
    let metadata = app.metadata(Actor::user(user_id)).conversation(&run.conversation_id).run(&run.run_id);
    // From before it is asked: its end comes after.
    let mut follower = app.ledger.reader().follow(app.ledger.reader().head().await?.position);
    let command = ConversationCommand::RequestStop { user_id: user_id.clone(), run_id: run.run_id.clone() };
    execute::<Conversation>(&app.ledger, id, &metadata, command, None).await?;
    loop {
        let (conversation, _) = load::<Conversation>(app.ledger.reader(), id).await?;
        let active = conversation.latest.as_ref().and_then(|turn| turn.run.as_ref());
        if !active.is_some_and(|own| own.run_id == run.run_id && matches!(own.status, RunStatus::Running(_))) {
            return Ok(());
        }
        while !follower.next().await?.iter().any(|event| event.stream.aggregate_id == id) {}
    }
}

async fn ended_as(app: &App, run: &RunRow) -> ApiResult<String> {
    app.caught_up(&["conversation"]).await?;
    let now = app.views.find_run(&run.run_id).await?;
    Ok(now.map_or_else(|| run.status.clone(), |run| run.status))
}
