//! What other processes recorded and this one acts on, read from the log in its order.

use super::Nodes;
use crate::device_gateway::elsewhere;
use crate::runs::StopReason;
use crate::state::App;
use devmind_domain::conversation::{ConversationEvent, RunCancelReason};
use devmind_domain::event::{AggregateType, DomainEvent, RecordedEvent};
use devmind_domain::ids::ToolCallId;
use devmind_domain::node::NodeEvent;
use devmind_ledger::LedgerError;
use std::sync::Arc;
use std::time::Duration;

/// Pause before a log that cannot be read is tried again.
const PAUSE: Duration = Duration::from_millis(250);

/// Follows the log from a position until it is closed.
pub(crate) async fn follow(app: Arc<App>, after: u64) {
    let mut follower = app.ledger.reader().follow(after);
    loop {
        match follower.next().await {
            Ok(events) => {
                for event in &events {
                    hear(&app, event).await;
                }
            }
            Err(LedgerError::Closed) => return,
            Err(error) => {
                tracing::warn!(cause = %error, "what other processes do cannot be read; trying again");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn hear(app: &App, event: &RecordedEvent) {
    // Most events are of threads, which are nobody else's business, or of this process's own calls.
    let is_of = |kind: AggregateType| event.stream.aggregate_type == kind.as_str();
    let is_own = || event.metadata().is_ok_and(|metadata| metadata.node_id == app.claim.node_id);
    if is_of(AggregateType::Thread) || is_of(AggregateType::ToolCall) && is_own() {
        return;
    }
    let Ok(facts) = event.decode() else {
        tracing::warn!(event.position = event.position, "another program's event is not understood here");
        return;
    };
    for fact in facts {
        match fact {
            DomainEvent::ToolCall(inner) => {
                let id = ToolCallId::from(event.stream.aggregate_id.as_str());
                elsewhere::call_changed(app, &id, &inner).await;
            }
            DomainEvent::Device(inner) => elsewhere::device_changed(app, &event.stream.aggregate_id, &inner),
            DomainEvent::Conversation(inner) => run_changed(app, &inner),
            DomainEvent::Node(inner) => node_changed(app, &inner),
            DomainEvent::Thread(_)
            | DomainEvent::Redaction(_)
            | DomainEvent::Projection(_)
            | DomainEvent::History(_)
            | DomainEvent::ToolSet(_) => {}
        }
    }
}

fn run_changed(app: &App, event: &ConversationEvent) {
    match event {
        ConversationEvent::RunStopRequested(e) => {
            app.runs.tell(&e.run_id, StopReason::Cancelled(RunCancelReason::Stopped));
        }
        // By a start that was lost before it noticed: nobody executes that run.
        ConversationEvent::RunClaimed(e) if e.node_id != app.claim.node_id && !app.nodes.runs(&e.node_id, e.epoch) => {
            app.nodes.ended(&e.node_id, e.epoch);
        }
        ConversationEvent::RunClaimed(_)
        | ConversationEvent::ConversationStarted(_)
        | ConversationEvent::ConversationRenamed(_)
        | ConversationEvent::ConversationDeleted(_)
        | ConversationEvent::ConversationRead(_)
        | ConversationEvent::TurnPrepared(_)
        | ConversationEvent::TurnRerunPrepared(_)
        | ConversationEvent::RunPrepared(_)
        | ConversationEvent::InterruptRaised(_)
        | ConversationEvent::RunInterrupted(_)
        | ConversationEvent::InterruptResolved(_)
        | ConversationEvent::InterruptCancelled(_)
        | ConversationEvent::ToolGrantGiven(_)
        | ConversationEvent::ToolGrantRevoked(_)
        | ConversationEvent::InterruptExpired(_)
        | ConversationEvent::RunSucceeded(_)
        | ConversationEvent::RunFailed(_)
        | ConversationEvent::RunCancelled(_) => {}
    }
}

fn node_changed(app: &App, event: &NodeEvent) {
    let (own, nodes): (_, &Nodes) = (&app.claim, &app.nodes);
    let (node_id, epoch, is_over) = match event {
        NodeEvent::NodeStarted(e) => (&e.node_id, e.epoch, false),
        NodeEvent::NodeStopped(e) => (&e.node_id, e.epoch, true),
        NodeEvent::NodeLost(e) => (&e.node_id, e.epoch, true),
    };
    if *node_id == own.node_id {
        // Lost, or another start of this name took over. Its own end in order comes when it is stopping.
        let is_taken = if is_over { epoch == own.epoch } else { epoch > own.epoch };
        if is_taken && !app.stopping.is_cancelled() {
            nodes.lost.cancel();
        }
        return;
    }
    if is_over {
        nodes.ended(node_id, epoch);
    } else {
        nodes.started(node_id, epoch);
    }
    // A call may wait for a socket that this process held.
    app.gateway.waiters.wake_all();
}
