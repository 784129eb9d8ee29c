//! The projection `conversation`: conversations, turns, runs, messages and interrupts, as specification 01 names them.
//!
//! A turn's status follows the run that counts for it, and a run that has ended never changes
//! again, whatever a faulty writer appended. Tool calls belong to the projection `tool_call`.

mod read;
mod rows;
#[cfg(test)]
mod tests;

pub use read::*;
pub use rows::*;

use crate::change::{Change, change};
use crate::projection::Projection;
use devmind_domain::conversation::*;
use devmind_domain::event::{AggregateType, DomainEvent, RecordedEvent};
use devmind_domain::ids::*;

/// The projection.
pub(crate) struct Conversations;

/// A run that has not ended.
macro_rules! open_run {
    () => {
        "status IN ('queued', 'running', 'interrupted')"
    };
}

impl Projection for Conversations {
    fn name(&self) -> &'static str {
        "conversation"
    }
    fn version(&self) -> u32 {
        1
    }
    fn tables(&self) -> &'static [&'static str] {
        &["conversations", "turns", "runs", "messages", "interrupts"]
    }
    fn reads(&self) -> &'static [AggregateType] {
        &[AggregateType::Conversation]
    }
    fn changes(&self, event: &RecordedEvent, decoded: &DomainEvent) -> Vec<Change> {
        match decoded {
            DomainEvent::Conversation(decoded) => conversation_changes(event, decoded),
            DomainEvent::Thread(_)
            | DomainEvent::ToolCall(_)
            | DomainEvent::Device(_)
            | DomainEvent::Node(_)
            | DomainEvent::Redaction(_)
            | DomainEvent::Projection(_)
            | DomainEvent::History(_)
            | DomainEvent::ToolSet(_) => vec![],
        }
    }
}

fn conversation_changes(event: &RecordedEvent, decoded: &ConversationEvent) -> Vec<Change> {
    let id = event.stream.aggregate_id.as_str();
    match decoded {
        ConversationEvent::ConversationStarted(e) => vec![change!(
            "INSERT INTO conversations (conversation_id, user_id, title, created_at, updated_at, deleted, last_sequence_no) \
             VALUES ($1, $2, $3, $4, $4, FALSE, 0) ON CONFLICT (conversation_id) DO NOTHING",
            id,
            &e.user_id,
            &e.title,
            event.recorded_at
        )],
        ConversationEvent::ConversationRenamed(e) => {
            vec![change!("UPDATE conversations SET title = $2 WHERE conversation_id = $1", id, &e.title)]
        }
        ConversationEvent::ConversationDeleted(_) => {
            vec![change!("UPDATE conversations SET deleted = TRUE WHERE conversation_id = $1", id)]
        }
        ConversationEvent::ConversationRead(_)
        | ConversationEvent::ToolGrantGiven(_)
        | ConversationEvent::ToolGrantRevoked(_) => vec![],
        ConversationEvent::TurnPrepared(e) => turn_prepared(event, id, e),
        ConversationEvent::TurnRerunPrepared(e) => turn_rerun_prepared(event, id, e),
        ConversationEvent::RunPrepared(e) => run_prepared(event, id, e),
        ConversationEvent::RunClaimed(e) => vec![
            change!(
                "UPDATE turns SET status = 'running' WHERE active_run_id = $1 \
                 AND turn_id = (SELECT turn_id FROM runs WHERE run_id = $1 AND status = 'queued')",
                &e.run_id
            ),
            change!(
                "UPDATE runs SET status = 'running', node_id = $2, epoch = $3, context_hash = $4, claimed_at = $5 \
                 WHERE run_id = $1 AND status = 'queued'",
                &e.run_id,
                &e.node_id,
                e.epoch,
                &e.context_hash,
                event.recorded_at
            ),
        ],
        // The run goes on until it has ended.
        ConversationEvent::RunStopRequested(_) => vec![],
        ConversationEvent::InterruptRaised(e) => vec![interrupt_raised(event, id, e)],
        ConversationEvent::RunInterrupted(e) => vec![
            change!(
                concat!(
                    "UPDATE turns SET status = 'interrupted' WHERE active_run_id = $1 \
                     AND turn_id = (SELECT turn_id FROM runs WHERE run_id = $1 AND ",
                    open_run!(),
                    ")"
                ),
                &e.run_id
            ),
            change!(concat!("UPDATE runs SET status = 'interrupted' WHERE run_id = $1 AND ", open_run!()), &e.run_id),
        ],
        ConversationEvent::InterruptResolved(e) => vec![change!(
            "UPDATE interrupts SET status = 'resolved', approved = $2, resolved_by = $3, closed_at = $4 \
             WHERE interrupt_id = $1 AND status = 'open'",
            &e.interrupt_id,
            e.approved,
            &e.resolved_by,
            event.recorded_at
        )],
        ConversationEvent::InterruptCancelled(e) => vec![change!(
            "UPDATE interrupts SET status = 'cancelled', reason = $2, closed_at = $3 \
             WHERE interrupt_id = $1 AND status = 'open'",
            &e.interrupt_id,
            interrupt_cancel_reason(e.reason),
            event.recorded_at
        )],
        ConversationEvent::InterruptExpired(e) => vec![change!(
            "UPDATE interrupts SET status = 'expired', closed_at = $2 WHERE interrupt_id = $1 AND status = 'open'",
            &e.interrupt_id,
            event.recorded_at
        )],
        ConversationEvent::RunSucceeded(e) => {
            let end =
                End { turn: "completed", run: "succeeded", text: &e.answer, partial: false, code: None, why: None };
            end_run(event, id, &e.run_id, Some(&e.message_id), &end)
        }
        ConversationEvent::RunFailed(e) => {
            let (code, why) = (Some(e.error_code.as_str()), Some(e.error_message.as_str()));
            let end = End { turn: "failed", run: "failed", text: &e.partial_text, partial: true, code, why };
            end_run(event, id, &e.run_id, e.message_id.as_ref(), &end)
        }
        ConversationEvent::RunCancelled(e) => {
            let code = Some(e.error_code.as_str());
            let end =
                End { turn: "cancelled", run: "cancelled", text: &e.partial_text, partial: true, code, why: None };
            end_run(event, id, &e.run_id, e.message_id.as_ref(), &end)
        }
    }
}

fn turn_prepared(event: &RecordedEvent, conversation: &str, e: &TurnPrepared) -> Vec<Change> {
    vec![
        change!(
            "INSERT INTO turns (turn_id, conversation_id, sequence_no, status, question, question_message_id, partial, \
             device_id, created_at) VALUES ($1, $2, $3, 'pending', $4, $5, FALSE, $6, $7) ON CONFLICT (turn_id) DO NOTHING",
            &e.turn_id,
            conversation,
            e.sequence_no,
            &e.content,
            &e.message_id,
            e.device_id.as_ref(),
            event.recorded_at
        ),
        question_message(event, conversation, &e.turn_id, &e.message_id, &e.content),
        change!(
            "UPDATE conversations SET latest_turn_id = $2, last_sequence_no = $3, updated_at = $4 WHERE conversation_id = $1",
            conversation,
            &e.turn_id,
            e.sequence_no,
            event.recorded_at
        ),
    ]
}

/// The answer is gone in any case; the question when it was edited. Both stay as replaced messages.
fn turn_rerun_prepared(event: &RecordedEvent, conversation: &str, e: &TurnRerunPrepared) -> Vec<Change> {
    let edited_away = (e.previous_message_id != e.message_id).then_some(&e.previous_message_id);
    let replaced = e.replaced_message_ids.iter().chain(edited_away);
    let mut changes: Vec<_> =
        replaced.map(|message| change!("UPDATE messages SET replaced = TRUE WHERE message_id = $1", message)).collect();
    changes.push(question_message(event, conversation, &e.turn_id, &e.message_id, &e.content));
    changes.push(change!(
        "UPDATE turns SET status = 'pending', question = $2, question_message_id = $3, answer = NULL, \
         answer_message_id = NULL, partial = FALSE, error_code = NULL, error_message = NULL, ended_at = NULL \
         WHERE turn_id = $1",
        &e.turn_id,
        &e.content,
        &e.message_id
    ));
    changes.push(change!(
        "UPDATE conversations SET updated_at = $2 WHERE conversation_id = $1",
        conversation,
        event.recorded_at
    ));
    changes
}

fn question_message(
    event: &RecordedEvent,
    conversation: &str,
    turn: &TurnId,
    message: &MessageId,
    content: &str,
) -> Change {
    change!(
        "INSERT INTO messages (message_id, conversation_id, turn_id, role, content, partial, replaced, created_at) \
         VALUES ($1, $2, $3, 'user', $4, FALSE, FALSE, $5) ON CONFLICT (message_id) DO NOTHING",
        message,
        conversation,
        turn,
        content,
        event.recorded_at
    )
}

fn run_prepared(event: &RecordedEvent, conversation: &str, e: &RunPrepared) -> Vec<Change> {
    vec![
        change!(
            "INSERT INTO runs (run_id, turn_id, conversation_id, kind, run_trigger, run_seq, graph_thread_id, \
             parent_run_id, device_id, user_message_id, status, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, \
             (SELECT question_message_id FROM turns WHERE turn_id = $2), 'queued', $10) ON CONFLICT (run_id) DO NOTHING",
            &e.run_id,
            &e.turn_id,
            conversation,
            e.kind.as_str(),
            trigger(e.trigger),
            e.run_seq,
            &e.graph_thread_id,
            e.parent_run_id.as_ref(),
            e.device_id.as_ref(),
            event.recorded_at
        ),
        change!(
            "UPDATE turns SET status = 'pending', active_run_id = $2 WHERE turn_id = $1 \
             AND EXISTS (SELECT 1 FROM runs WHERE run_id = $2 AND status = 'queued')",
            &e.turn_id,
            &e.run_id
        ),
    ]
}

fn interrupt_raised(event: &RecordedEvent, conversation: &str, e: &InterruptRaised) -> Change {
    change!(
        "INSERT INTO interrupts (interrupt_id, conversation_id, run_id, turn_id, kind, tool_call_id, tool, arguments, \
         arguments_hash, message, expires_at, status, raised_at, raised_position) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 'open', $12, $13) ON CONFLICT (interrupt_id) DO NOTHING",
        &e.interrupt_id,
        conversation,
        &e.run_id,
        &e.turn_id,
        match e.kind {
            InterruptKind::ToolApproval => "tool_approval",
        },
        &e.tool_call_id,
        &e.tool,
        &e.arguments,
        &e.arguments_hash,
        &e.message,
        e.expires_at,
        event.recorded_at,
        event.position
    )
}

/// How a run ended, in the words of turn and run.
struct End<'a> {
    turn: &'static str,
    run: &'static str,
    text: &'a str,
    /// Whether the text, if there is any, was cut off.
    partial: bool,
    code: Option<&'a str>,
    why: Option<&'a str>,
}

/// The turn and the message are changed first: both look whether the run was still open.
fn end_run(
    event: &RecordedEvent,
    conversation: &str,
    run: &RunId,
    message: Option<&MessageId>,
    end: &End<'_>,
) -> Vec<Change> {
    // Nothing streamed is no answer; a finished answer may well be empty.
    let has_answer = !end.partial || !end.text.is_empty();
    let answer = has_answer.then_some(end.text);
    let mut changes = vec![change!(
        concat!(
            "UPDATE turns SET status = $2, answer = $3, answer_message_id = $4, partial = $5, error_code = $6, \
             error_message = $7, ended_at = $8 WHERE active_run_id = $1 \
             AND turn_id = (SELECT turn_id FROM runs WHERE run_id = $1 AND ",
            open_run!(),
            ")"
        ),
        run,
        end.turn,
        answer,
        message.filter(|_| has_answer),
        end.partial && has_answer,
        end.code,
        end.why,
        event.recorded_at
    )];
    if let (Some(message), Some(text)) = (message, answer) {
        changes.push(change!(
            concat!(
                "INSERT INTO messages (message_id, conversation_id, turn_id, run_id, role, content, partial, replaced, \
                 created_at) SELECT $2, $3, turn_id, run_id, 'assistant', $4, $5, FALSE, $6 FROM runs \
                 WHERE run_id = $1 AND ",
                open_run!(),
                " ON CONFLICT (message_id) DO NOTHING"
            ),
            run,
            message,
            conversation,
            text,
            end.partial,
            event.recorded_at
        ));
    }
    changes.push(change!(
        concat!("UPDATE runs SET status = $2, error_code = $3, ended_at = $4 WHERE run_id = $1 AND ", open_run!()),
        run,
        end.run,
        end.code,
        event.recorded_at
    ));
    changes
}

const fn trigger(trigger: RunTrigger) -> &'static str {
    match trigger {
        RunTrigger::Ask => "ask",
        RunTrigger::Approval => "approval",
        RunTrigger::Edit => "edit",
        RunTrigger::Retry => "retry",
    }
}

const fn interrupt_cancel_reason(reason: InterruptCancelReason) -> &'static str {
    match reason {
        InterruptCancelReason::Edited => "EDITED",
        InterruptCancelReason::RunStopped => "RUN_STOPPED",
        InterruptCancelReason::ConversationDeleted => "CONVERSATION_DELETED",
    }
}
