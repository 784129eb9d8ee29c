//! What becomes of a call that waits for a person: `rejected`, once nothing can go on with it.
//!
//! Such a call is `created` and its own stream says no more of it when its run is stopped, edited
//! away or deleted: the conversation does. So the view concludes, from the end of the interrupt or
//! of the run that would go on with the call. A conclusion is no fact of the call's stream, and
//! any such fact that comes later counts instead of it.

use crate::change::{Change, change};
use devmind_domain::ErrorCode;
use devmind_domain::conversation::{ConversationEvent, RunKind, RunPrepared};
use devmind_domain::event::RecordedEvent;
use devmind_domain::ids::RunId;

/// Concludes the calls of one condition over `$1`. Where silence ended the approval, that is the cause, whatever
/// ended the run afterwards.
macro_rules! conclude {
    ($calls:literal, $key:expr, $event:expr, $code:expr) => {
        change!(
            concat!(
                "UPDATE tool_calls SET status = 'rejected', concluded = TRUE, settled_at = $2, \
                 error_code = CASE WHEN approval_expired THEN $3 ELSE $5 END, \
                 error_message = CASE WHEN approval_expired THEN $4 ELSE $6 END \
                 WHERE status = 'created' AND ",
                $calls
            ),
            $key,
            $event.recorded_at,
            ErrorCode::ApprovalExpired.as_str(),
            ErrorCode::ApprovalExpired.help(),
            $code.as_str(),
            $code.help()
        )
    };
}

pub(super) fn changes(event: &RecordedEvent, decoded: &ConversationEvent) -> Vec<Change> {
    match decoded {
        ConversationEvent::InterruptRaised(e) => vec![change!(
            "UPDATE tool_calls SET interrupt_id = $2, waiting_run_id = $3, approval_expired = FALSE \
             WHERE tool_call_id = $1 AND status = 'created'",
            &e.tool_call_id,
            &e.interrupt_id,
            &e.run_id
        )],
        ConversationEvent::InterruptCancelled(e) => {
            vec![conclude!("interrupt_id = $1", &e.interrupt_id, event, ErrorCode::ApprovalCancelled)]
        }
        // No end yet: the run that resumes records the refusal in the call's own stream.
        ConversationEvent::InterruptExpired(e) => vec![change!(
            "UPDATE tool_calls SET approval_expired = TRUE WHERE interrupt_id = $1 AND status = 'created'",
            &e.interrupt_id
        )],
        ConversationEvent::RunPrepared(e) => run_prepared(event, e).into_iter().collect(),
        ConversationEvent::RunCancelled(e) => vec![run_gone(event, &e.run_id)],
        ConversationEvent::RunFailed(e) => vec![run_gone(event, &e.run_id)],
        ConversationEvent::ConversationDeleted(_) => vec![conclude!(
            "conversation_id = $1 AND waiting_run_id IS NOT NULL",
            event.stream.aggregate_id.as_str(),
            event,
            ErrorCode::AbortedBeforeDispatch
        )],
        // A run that succeeds has observed a result of every call, so none of its calls waits.
        ConversationEvent::RunSucceeded(_)
        | ConversationEvent::ConversationStarted(_)
        | ConversationEvent::ConversationRenamed(_)
        | ConversationEvent::ToolGrantGiven(_)
        | ConversationEvent::ToolGrantRevoked(_)
        | ConversationEvent::ConversationRead(_)
        | ConversationEvent::TurnPrepared(_)
        | ConversationEvent::TurnRerunPrepared(_)
        | ConversationEvent::RunClaimed(_)
        | ConversationEvent::RunStopRequested(_)
        | ConversationEvent::RunInterrupted(_)
        | ConversationEvent::InterruptResolved(_) => vec![],
    }
}

/// A run that resumes takes the waiting calls over; one that answers the turn anew leaves them behind.
fn run_prepared(event: &RecordedEvent, e: &RunPrepared) -> Option<Change> {
    let parent = e.parent_run_id.as_ref()?;
    Some(match e.kind {
        RunKind::Resume => change!(
            "UPDATE tool_calls SET waiting_run_id = $2 WHERE waiting_run_id = $1 AND status = 'created'",
            parent,
            &e.run_id
        ),
        RunKind::Normal | RunKind::Retry => run_gone(event, parent),
    })
}

fn run_gone(event: &RecordedEvent, run: &RunId) -> Change {
    conclude!("waiting_run_id = $1", run, event, ErrorCode::AbortedBeforeDispatch)
}
