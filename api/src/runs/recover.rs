//! After a restart: nothing is "running" for ever.
//!
//! Runs that an older start of this process had claimed are settled from their thread: finished
//! there → succeeded, else failed with `SERVER_RESTARTED` and the streamed text kept. Tool calls need
//! no such pass: the new start's `NodeStarted` alone makes them unknown. A second restart finds
//! nothing to do and appends nothing.

use super::settle::{RunEnd, SettleError, append_end};
use crate::error::ApiError;
use crate::state::App;
use devmind_domain::ErrorCode;
use devmind_domain::agent::{Approvals, Step, next_step};
use devmind_domain::conversation::{Claim, ConversationCommand, ConversationError};
use devmind_domain::thread::Thread;
use devmind_ledger::load;
use devmind_projections::RunRow;

/// Settles what older starts of this process left running; returns how many runs.
///
/// # Errors
/// When the log or the views fail.
pub async fn settle_left_over_runs(app: &App) -> Result<usize, ApiError> {
    app.caught_up(&["conversation"]).await?;
    let mut settled = 0;
    for run in app.views.runs_running_on(&app.claim.node_id).await? {
        let Some(epoch) = run.epoch.filter(|epoch| *epoch < app.claim.epoch) else { continue };
        match settle(app, &run, Claim { node_id: app.claim.node_id.clone(), epoch }).await {
            Ok(()) => {
                settled += 1;
                tracing::info!(run.id = %run.run_id, "run settled after a restart");
            }
            // The view found it; the stream decides.
            Err(SettleError::Refused(ConversationError::RunNotActive)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(settled)
}

async fn settle(app: &App, run: &RunRow, claim: Claim) -> Result<(), SettleError> {
    let (thread, thread_version) = load::<Thread>(app.ledger.reader(), run.graph_thread_id.as_str()).await?;
    let command = match next_step(&thread, &Approvals::default()) {
        Step::Finish { message_id, answer } => {
            ConversationCommand::CompleteRun { run_id: run.run_id.clone(), claim, message_id, answer }
        }
        Step::CallModel { .. } | Step::RunTools(_) | Step::AwaitApproval(_) | Step::Fail { .. } => {
            let (message_id, partial_text) = thread.streamed_text();
            ConversationCommand::FailRun {
                run_id: run.run_id.clone(),
                claim,
                error_code: ErrorCode::ServerRestarted.as_str().to_owned(),
                error_message: ErrorCode::ServerRestarted.help().to_owned(),
                message_id,
                partial_text,
            }
        }
    };
    append_end(app, RunEnd { run, thread: &thread, thread_version, stand_in: ErrorCode::ServerRestarted, command })
        .await
        .map(drop)
}
