//! The projection `tool_call`: every call with its attempts, as specification 02 names them.
//!
//! A call's status is a fold. Settled: `succeeded`, `failed`, `rejected`, `cancelled`,
//! `indeterminate`; never overwritten. Provisional: `created`, `dispatched`, `timed_out`,
//! `unknown`; any of them gives way to a result or to another dispatch. A device that refuses an attempt
//! makes its call `created` again, with the refusal as its cause. What ends a wait without a
//! result acts on `dispatched` alone, so the first cause stays: a call that timed out stays
//! `timed_out` when its socket closes later, because that is what the model was told, and a call
//! lost with its socket keeps `RESULT_UNKNOWN` when the server restarts after that.
//! `error_code` names the cause: of a settled call its own, of a provisional one the reason.
//! A `created` call that waited for a person in vain is concluded to be `rejected` ([`waiting`]): that
//! is shown as settled, and still gives way as a provisional status does.

mod read;
mod rows;
mod summary;
#[cfg(test)]
mod tests;
mod waiting;

pub use read::*;
pub use rows::*;

use crate::change::{Change, change};
use crate::projection::Projection;
use devmind_domain::ErrorCode;
use devmind_domain::conversation::ConversationEvent;
use devmind_domain::device::DeviceEvent;
use devmind_domain::event::{AggregateType, DomainEvent, RecordedEvent};
use devmind_domain::node::NodeEvent;
use devmind_domain::tool_call::*;

/// The projection.
pub(crate) struct ToolCalls;

/// A call that can still be settled by its own stream.
macro_rules! provisional {
    () => {
        "(status IN ('created', 'dispatched', 'timed_out', 'unknown') OR concluded)"
    };
}

/// The two statements that make the outcome of what is under way unknown, for one condition over `$3 …`.
/// Attempts and calls are asked by their own columns: a call's describe its newest attempt, so a socket
/// that carried an older one takes nothing from it.
macro_rules! lose {
    ($attempts:literal, $calls:literal, $reason:expr, $event:expr $(, $value:expr)+) => {
        vec![
            change!(
                concat!(
                    "UPDATE tool_attempts SET status = 'unknown', reason = $1, ended_at = $2 \
                     WHERE status = 'dispatched' AND ",
                    $attempts
                ),
                $reason.as_str(),
                $event.recorded_at
                $(, $value)+
            ),
            change!(
                concat!(
                    "UPDATE tool_calls SET status = 'unknown', error_code = $1, wait_ended_at = $2 \
                     WHERE status = 'dispatched' AND ",
                    $calls
                ),
                $reason.as_str(),
                $event.recorded_at
                $(, $value)+
            ),
        ]
    };
}

impl Projection for ToolCalls {
    fn name(&self) -> &'static str {
        "tool_call"
    }
    fn version(&self) -> u32 {
        2
    }
    fn tables(&self) -> &'static [&'static str] {
        &["tool_calls", "tool_attempts"]
    }
    fn reads(&self) -> &'static [AggregateType] {
        &[AggregateType::ToolCall, AggregateType::Conversation, AggregateType::Device, AggregateType::Node]
    }
    fn independent(&self) -> &'static [AggregateType] {
        &[AggregateType::ToolCall]
    }
    fn changes(&self, event: &RecordedEvent, decoded: &DomainEvent) -> Vec<Change> {
        match decoded {
            DomainEvent::ToolCall(decoded) => tool_call_changes(event, decoded),
            DomainEvent::Conversation(decoded) => {
                [run_ended(event, decoded), waiting::changes(event, decoded)].concat()
            }
            DomainEvent::Device(decoded) => socket_ended(event, decoded),
            DomainEvent::Node(decoded) => process_ended(event, decoded),
            DomainEvent::Thread(_)
            | DomainEvent::Redaction(_)
            | DomainEvent::Projection(_)
            | DomainEvent::History(_)
            | DomainEvent::ToolSet(_) => vec![],
        }
    }
}

fn tool_call_changes(event: &RecordedEvent, decoded: &ToolCallEvent) -> Vec<Change> {
    let id = event.stream.aggregate_id.as_str();
    match decoded {
        ToolCallEvent::ToolCallRequested(e) => vec![requested(event, id, e)],
        ToolCallEvent::ToolCallDecided(e) => match e.decision {
            Decision::Allow | Decision::Ask => vec![],
            Decision::Deny => vec![change!(
                concat!(
                    "UPDATE tool_calls SET status = 'rejected', error_code = $2, error_message = $3, settled_at = $4, \
                     concluded = FALSE WHERE tool_call_id = $1 AND ",
                    provisional!()
                ),
                id,
                &e.code,
                format!("refused by {} at stage {}", e.by, e.stage),
                event.recorded_at
            )],
        },
        ToolCallEvent::ToolDispatched(e) => dispatched(event, id, e),
        ToolCallEvent::ToolReceived(e) => vec![change!(
            "UPDATE tool_attempts SET phase = $3 WHERE tool_call_id = $1 AND attempt_no = $2",
            id,
            e.attempt_no,
            e.phase.as_str()
        )],
        ToolCallEvent::ToolCancelRequested(e) => cancel_requested(event, id, e),
        ToolCallEvent::ToolWaitTimedOut(e) => vec![
            change!(
                "UPDATE tool_attempts SET status = 'timed_out', reason = $3, ended_at = $4 \
                 WHERE tool_call_id = $1 AND attempt_no = $2 AND status = 'dispatched'",
                id,
                e.attempt_no,
                ErrorCode::ToolTimeout.as_str(),
                event.recorded_at
            ),
            change!(
                "UPDATE tool_calls SET status = 'timed_out', error_code = $3, wait_ended_at = $4 \
                 WHERE tool_call_id = $1 AND attempt_no = $2 AND status = 'dispatched'",
                id,
                e.attempt_no,
                ErrorCode::ToolTimeout.as_str(),
                event.recorded_at
            ),
        ],
        ToolCallEvent::ToolAttemptRefused(e) => attempt_refused(event, id, e),
        ToolCallEvent::ToolResultRecorded(e) => result_recorded(event, id, e),
        ToolCallEvent::ToolOutcomeRevised(e) => vec![change!(
            "UPDATE tool_calls SET revised_by = $2, revised_reason = $3 WHERE tool_call_id = $1",
            id,
            &e.by,
            &e.reason
        )],
        ToolCallEvent::ToolResultAcked(e) => {
            // A late result is not recorded a second time: its acknowledgement is its trace.
            let late = match e.disposition {
                Disposition::Duplicate | Disposition::Superseded => 1_u32,
                Disposition::Stored | Disposition::UnknownCall => 0,
            };
            vec![change!(
                "UPDATE tool_calls SET acks = acks + 1, late_results = late_results + $2, acked_at = $3 \
                 WHERE tool_call_id = $1",
                id,
                late,
                event.recorded_at
            )]
        }
    }
}

fn requested(event: &RecordedEvent, id: &str, e: &ToolCallRequested) -> Change {
    change!(
        "INSERT INTO tool_calls (tool_call_id, conversation_id, turn_id, run_id, user_id, graph_thread_id, \
         model_call_id, parent_tool_call_id, tool, tool_version, target, device_id, arguments, call_hash, risk, summary, \
         requested_at, requested_position, status, attempt_no, acks, late_results) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, 'created', 0, 0, 0) \
         ON CONFLICT (tool_call_id) DO NOTHING",
        id,
        &e.conversation_id,
        &e.turn_id,
        &e.run_id,
        &e.user_id,
        &e.graph_thread_id,
        &e.model_call_id,
        e.parent_tool_call_id.as_ref(),
        &e.tool,
        &e.tool_version,
        match e.target {
            Target::Server => "server",
            Target::Device => "device",
        },
        e.device_id.as_ref(),
        &e.arguments,
        &e.call_hash,
        e.risk.as_str(),
        summary::of(&e.arguments),
        event.recorded_at,
        event.position
    )
}

fn dispatched(event: &RecordedEvent, id: &str, e: &ToolDispatched) -> Vec<Change> {
    vec![
        change!(
            "INSERT INTO tool_attempts (tool_call_id, attempt_no, run_id, node_id, epoch, connection_id, journal_id, \
             status, wait_ms, ttl_ms, dispatched_at) VALUES ($1, $2, $3, $4, $5, $6, $7, 'dispatched', $8, $9, $10) \
             ON CONFLICT (tool_call_id, attempt_no) DO NOTHING",
            id,
            e.attempt_no,
            &e.run_id,
            &e.node_id,
            e.epoch,
            e.connection_id.as_ref(),
            e.journal_id.as_deref(),
            e.wait_ms,
            e.ttl_ms,
            event.recorded_at
        ),
        change!(
            concat!(
                "UPDATE tool_calls SET status = 'dispatched', error_code = NULL, attempt_no = $2, dispatch_run_id = $3, \
                 node_id = $4, dispatch_epoch = $5, connection_id = $6, cancel_reason = NULL, dispatched_at = $7, \
                 wait_ended_at = NULL, concluded = FALSE, error_message = NULL, settled_at = NULL \
                 WHERE tool_call_id = $1 AND ",
                provisional!()
            ),
            id,
            e.attempt_no,
            &e.run_id,
            &e.node_id,
            e.epoch,
            e.connection_id.as_ref(),
            event.recorded_at
        ),
    ]
}

/// Taking a call back after a time-out changes nothing: the time-out itself is an event of its own.
fn cancel_requested(event: &RecordedEvent, id: &str, e: &ToolCancelRequested) -> Vec<Change> {
    let reason = match e.reason {
        CancelReason::RunCancelled => "RUN_CANCELLED",
        CancelReason::WaitTimedOut => "WAIT_TIMED_OUT",
    };
    let mut changes = vec![change!(
        concat!("UPDATE tool_calls SET cancel_reason = $2 WHERE tool_call_id = $1 AND ", provisional!()),
        id,
        reason
    )];
    match e.reason {
        CancelReason::RunCancelled => changes.extend(lose!(
            "tool_call_id = $3 AND attempt_no <= $4",
            "tool_call_id = $3 AND attempt_no <= $4",
            ErrorCode::RunCancelled,
            event,
            id,
            e.attempt_no
        )),
        CancelReason::WaitTimedOut => {}
    }
    changes
}

/// The attempt did not run and will not: the call is where it was before it was sent, and nobody waits for it.
fn attempt_refused(event: &RecordedEvent, id: &str, e: &ToolAttemptRefused) -> Vec<Change> {
    vec![
        change!(
            "UPDATE tool_attempts SET status = 'refused', reason = $3, ended_at = $4 \
             WHERE tool_call_id = $1 AND attempt_no = $2 AND status = 'dispatched'",
            id,
            e.attempt_no,
            &e.code,
            event.recorded_at
        ),
        change!(
            "UPDATE tool_calls SET status = 'created', error_code = $3, wait_ended_at = $4, waiting_run_id = NULL \
             WHERE tool_call_id = $1 AND attempt_no = $2 AND status = 'dispatched'",
            id,
            e.attempt_no,
            &e.code,
            event.recorded_at
        ),
    ]
}

/// The attempts are changed first: both statements look whether the call was still open.
fn result_recorded(event: &RecordedEvent, id: &str, e: &ToolResultRecorded) -> Vec<Change> {
    let origin = match e.origin {
        ResultOrigin::Live => "live",
        ResultOrigin::Redelivered => "redelivered",
    };
    vec![
        change!(
            concat!(
                "UPDATE tool_attempts SET status = CASE WHEN attempt_no = $2 THEN $3 ELSE 'superseded' END, \
                 reason = CASE WHEN attempt_no = $2 THEN $4 ELSE reason END, \
                 ended_at = CASE WHEN attempt_no = $2 THEN $5 ELSE COALESCE(ended_at, $5) END \
                 WHERE tool_call_id = $1 AND EXISTS (SELECT 1 FROM tool_calls WHERE tool_call_id = $1 AND ",
                provisional!(),
                ")"
            ),
            id,
            e.executed_attempt_no,
            e.status.as_str(),
            e.error.as_ref().map(|error| error.code.as_str()),
            event.recorded_at
        ),
        change!(
            concat!(
                "UPDATE tool_calls SET status = $2, error_code = $3, error_message = $4, executed_attempt_no = $5, \
                 output = $6, output_sha256 = $7, origin = $8, started_at = $9, finished_at = $10, settled_at = $11, \
                 concluded = FALSE WHERE tool_call_id = $1 AND ",
                provisional!()
            ),
            id,
            e.status.as_str(),
            e.error.as_ref().map(|error| error.code.as_str()),
            e.error.as_ref().map(|error| error.message.as_str()),
            e.executed_attempt_no,
            e.output.as_ref(),
            e.output_sha256.as_deref(),
            origin,
            e.started_at,
            e.finished_at,
            event.recorded_at
        ),
    ]
}

/// A cancelled run waits for nothing any more.
fn run_ended(event: &RecordedEvent, decoded: &ConversationEvent) -> Vec<Change> {
    match decoded {
        ConversationEvent::RunCancelled(e) => {
            lose!("run_id = $3", "dispatch_run_id = $3", ErrorCode::RunCancelled, event, &e.run_id)
        }
        ConversationEvent::ConversationStarted(_)
        | ConversationEvent::ConversationRenamed(_)
        | ConversationEvent::ConversationDeleted(_)
        | ConversationEvent::ConversationRead(_)
        | ConversationEvent::TurnPrepared(_)
        | ConversationEvent::TurnRerunPrepared(_)
        | ConversationEvent::RunPrepared(_)
        | ConversationEvent::RunClaimed(_)
        | ConversationEvent::InterruptRaised(_)
        | ConversationEvent::RunStopRequested(_)
        | ConversationEvent::RunInterrupted(_)
        | ConversationEvent::InterruptResolved(_)
        | ConversationEvent::InterruptCancelled(_)
        | ConversationEvent::ToolGrantGiven(_)
        | ConversationEvent::ToolGrantRevoked(_)
        | ConversationEvent::InterruptExpired(_)
        | ConversationEvent::RunSucceeded(_)
        | ConversationEvent::RunFailed(_) => vec![],
    }
}

fn socket_ended(event: &RecordedEvent, decoded: &DeviceEvent) -> Vec<Change> {
    let connection = match decoded {
        DeviceEvent::DeviceDisconnected(e) => &e.connection_id,
        DeviceEvent::DeviceReplaced(e) => &e.old_connection_id,
        DeviceEvent::DeviceTicketIssued(_)
        | DeviceEvent::DeviceTicketConsumed(_)
        | DeviceEvent::DeviceRead(_)
        | DeviceEvent::DeviceDescribed(_)
        | DeviceEvent::DeviceConnected(_)
        | DeviceEvent::ToolRegistrySynced(_) => return vec![],
    };
    lose!("connection_id = $3", "connection_id = $3", ErrorCode::ResultUnknown, event, connection)
}

/// An orderly `NodeStopped` says nothing of calls: their sockets said it before, or the next start does.
fn process_ended(event: &RecordedEvent, decoded: &NodeEvent) -> Vec<Change> {
    let (node, last_epoch) = match decoded {
        NodeEvent::NodeStarted(e) => (&e.node_id, e.epoch.saturating_sub(1)),
        NodeEvent::NodeLost(e) => (&e.node_id, e.epoch),
        NodeEvent::NodeStopped(_) => return vec![],
    };
    lose!(
        "node_id = $3 AND epoch <= $4",
        "node_id = $3 AND dispatch_epoch <= $4",
        ErrorCode::ServerRestarted,
        event,
        node,
        last_epoch
    )
}
