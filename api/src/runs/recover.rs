//! After a restart, or the loss of another process: nothing is "running" for ever.
//!
//! Other processes that this ledger knows of are gone (a SQLite ledger has one process at a time), or hold a
//! lease (in a database that several share); those that are gone are recorded as lost. Runs that they or an
//! older start of this process had claimed are settled from their thread: finished there → succeeded, asked
//! to stop → cancelled, else failed with `SERVER_RESTARTED` and the streamed text kept. Tool calls need no such pass: `NodeStarted` and `NodeLost` alone make them unknown. A second
//! restart finds nothing to do and appends nothing.

use super::settle::{RunEnd, SettleError, append_end};
use crate::error::ApiError;
use crate::state::App;
use devmind_domain::ErrorCode;
use devmind_domain::agent::{Approvals, Step, next_step};
use devmind_domain::conversation::{Claim, Conversation, ConversationCommand, ConversationError, RunCancelReason};
use devmind_domain::event::AggregateType;
use devmind_domain::ids::NodeId;
use devmind_domain::node::{Node, NodeCommand};
use devmind_domain::thread::Thread;
use devmind_ledger::{EventFilter, execute, load};
use devmind_projections::RunRow;
use std::collections::{BTreeMap, BTreeSet};

/// Events in one page.
const PAGE: u32 = 500;

/// Settles what older starts of this process, and processes that are gone, left running; returns how many runs.
///
/// # Errors
/// When the log or the views fail.
pub async fn settle_left_over_runs(app: &App) -> Result<usize, ApiError> {
    let mut starts = Vec::new();
    for node in known_nodes(app).await? {
        let (state, _) = load::<Node>(app.ledger.reader(), node.as_str()).await?;
        starts.push((node, state.epoch, state.ended));
    }
    // Looked at after the log was read: a start takes its lease before it is recorded.
    let living = match &app.lease {
        Some(lease) => lease.living().await?,
        None => BTreeMap::new(),
    };
    let mut over = Vec::new();
    for (node, epoch, ended) in starts {
        if node == app.claim.node_id {
            over.push((node, app.claim.epoch.saturating_sub(1)));
        } else if living.get(&node) == Some(&epoch) && !ended {
            app.nodes.started(&node, epoch);
        } else {
            lose(app, &node, epoch).await?;
            over.push((node, epoch));
        }
    }
    if !views_are_usable(app).await? {
        return Ok(0);
    }
    let mut settled = 0;
    for (node, last_epoch) in over {
        settled += settle_runs_of(app, &node, last_epoch).await?;
    }
    Ok(settled)
}

/// Records that a start of another process is gone, unless it ended in order, or a newer one began.
///
/// # Errors
/// When the log fails.
pub(crate) async fn lose(app: &App, node: &NodeId, epoch: u64) -> Result<(), ApiError> {
    let command = NodeCommand::Lose { epoch };
    let done = execute::<Node>(&app.ledger, node.as_str(), &app.server_metadata(), command, None).await;
    let done = done.map_err(|error| ApiError::internal(ErrorCode::LedgerUnavailable, &error))?;
    if !done.events.is_empty() {
        tracing::warn!(node.id = %node, node.epoch = epoch, "a server process is gone");
    }
    Ok(())
}

/// Every process that ever began on this ledger.
async fn known_nodes(app: &App) -> Result<BTreeSet<NodeId>, ApiError> {
    let filter = EventFilter { event_type: Some("NodeStarted".to_owned()), ..EventFilter::default() };
    let (mut nodes, mut after) = (BTreeSet::new(), 0);
    loop {
        let page = app.ledger.reader().query(&filter, after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(nodes) };
        after = last.position;
        let own = page.iter().filter(|event| event.stream.aggregate_type == AggregateType::Node.as_str());
        nodes.extend(own.map(|event| NodeId::from(event.stream.aggregate_id.as_str())));
    }
}

/// Waits for the conversation view, however long its rebuild takes. A view that has failed does not
/// keep the server from serving: it is named in `/readyz`, and the runs are settled at the next start.
async fn views_are_usable(app: &App) -> Result<bool, ApiError> {
    let position = app.ledger.reader().head().await?.position;
    loop {
        if app.views.wait_for_one("conversation", position).await.is_ok() {
            return Ok(true);
        }
        let status = app.views.status().await?;
        let Some(view) = status.iter().find(|view| view.name == "conversation") else { return Ok(false) };
        if let Some(failure) = &view.failed {
            tracing::error!(
                event.position = failure.position,
                reason = failure.reason,
                "the conversation view has failed: runs that were under way are settled when it works again"
            );
            return Ok(false);
        }
        tracing::info!(
            view.position = view.position,
            log.position = position,
            "the views are being rebuilt from the log"
        );
    }
}

/// Settles the runs that starts of a process up to this one left running; returns how many.
///
/// # Errors
/// When the log or the views fail.
pub(crate) async fn settle_runs_of(app: &App, node: &NodeId, last_epoch: u64) -> Result<usize, ApiError> {
    let (mut settled, mut seen) = (0, BTreeSet::new());
    loop {
        app.caught_up(&["conversation"]).await?;
        // A page at a time; what could not be settled comes again and is passed over.
        let runs = app.views.runs_running_on(node).await?;
        let fresh: Vec<_> = runs.into_iter().filter(|run| seen.insert(run.run_id.clone())).collect();
        if fresh.is_empty() {
            return Ok(settled);
        }
        for run in fresh {
            let Some(epoch) = run.epoch else { continue };
            if epoch > last_epoch {
                continue;
            }
            match settle(app, &run, Claim { node_id: node.clone(), epoch }).await {
                Ok(()) => {
                    settled += 1;
                    tracing::info!(run.id = %run.run_id, "run settled after a restart");
                }
                // The view found it; the stream decides.
                Err(SettleError::Refused(ConversationError::RunNotActive)) => {}
                // One run that cannot be read or ended keeps nobody from starting.
                Err(error) if error.is_final() => {
                    tracing::error!(run.id = %run.run_id, cause = %error, "a run of an earlier start cannot be settled");
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

async fn settle(app: &App, run: &RunRow, claim: Claim) -> Result<(), SettleError> {
    let (thread, _) = load::<Thread>(app.ledger.reader(), run.graph_thread_id.as_str()).await?;
    let (conversation, _) = load::<Conversation>(app.ledger.reader(), run.conversation_id.as_str()).await?;
    let active = conversation.latest.as_ref().and_then(|turn| turn.run.as_ref());
    let stop_requested = active.is_some_and(|own| own.run_id == run.run_id && own.stop_requested);
    let command = match next_step(&thread, &Approvals::default(), app.tools.current().registry()) {
        Step::Finish { message_id, answer } => {
            ConversationCommand::CompleteRun { run_id: run.run_id.clone(), claim, message_id, answer }
        }
        Step::CallModel { .. } | Step::Judge(_) | Step::RunTools(_) | Step::AwaitApproval(_) | Step::Fail { .. }
            if stop_requested =>
        {
            let (message_id, partial_text) = thread.streamed_text();
            let (run_id, reason) = (run.run_id.clone(), RunCancelReason::Stopped);
            ConversationCommand::CancelRun { run_id, claim, reason, message_id, partial_text }
        }
        Step::CallModel { .. } | Step::Judge(_) | Step::RunTools(_) | Step::AwaitApproval(_) | Step::Fail { .. } => {
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
    append_end(app, &RunEnd { run, stand_in: ErrorCode::ServerRestarted, command }).await.map(drop)
}
