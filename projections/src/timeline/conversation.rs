//! The words for what happens in a conversation.

use super::{Told, quoted};
use devmind_domain::conversation::{ConversationEvent, GrantScope};

pub(super) fn tell(event: &ConversationEvent) -> Told {
    match event {
        ConversationEvent::ConversationStarted(e) => Told::new(format!("a conversation began: {}", quoted(&e.title))),
        ConversationEvent::ConversationRenamed(e) => {
            Told::new(format!("the conversation is called {} now", quoted(&e.title)))
        }
        ConversationEvent::ConversationRead(e) => Told::new(format!("{} {} read: {}", e.role.as_str(), e.by, e.what)),
        ConversationEvent::ConversationDeleted(_) => Told::new("the conversation was removed"),
        ConversationEvent::TurnPrepared(e) => {
            Told::new(format!("asked question {}: {}", e.sequence_no, quoted(&e.content)))
        }
        ConversationEvent::TurnRerunPrepared(e) => {
            let what = if e.edited { "asked anew, edited" } else { "asked for another answer" };
            Told::new(format!("{what}: {}", quoted(&e.content)))
        }
        ConversationEvent::RunPrepared(e) => {
            let device = e.device_id.as_ref().map_or(String::new(), |id| format!(", may use device {id}"));
            let text = format!("run {} waits ({}){device}", e.run_id, e.kind.as_str());
            Told::new(text).begins(format!("wait {}", e.run_id))
        }
        ConversationEvent::RunClaimed(e) => {
            let text = format!("run claimed by server process {} (start {})", e.node_id, e.epoch);
            Told::new(text).ends(format!("wait {}", e.run_id)).begins(format!("run {}", e.run_id))
        }
        ConversationEvent::InterruptRaised(e) => {
            let text = format!("approval asked for {}: {}", e.tool, quoted(&e.message));
            Told::new(text).begins(format!("interrupt {}", e.interrupt_id))
        }
        ConversationEvent::RunStopRequested(_) => Told::new("the run is asked to stop"),
        ConversationEvent::RunInterrupted(e) => Told::new("run paused").ends(format!("run {}", e.run_id)),
        ConversationEvent::InterruptResolved(e) => {
            let decision = if e.approved { "approved" } else { "refused" };
            Told::new(format!("{decision} by {}", e.resolved_by)).ends(format!("interrupt {}", e.interrupt_id))
        }
        ConversationEvent::InterruptCancelled(e) => {
            Told::new("the approval is not needed any more").ends(format!("interrupt {}", e.interrupt_id))
        }
        ConversationEvent::InterruptExpired(e) => {
            Told::new("nobody decided in time").ends(format!("interrupt {}", e.interrupt_id))
        }
        ConversationEvent::ToolGrantGiven(e) => {
            let scope = match &e.scope {
                GrantScope::Tool => "every call".to_owned(),
                GrantScope::Path { path } => format!("path {}", quoted(path)),
                GrantScope::Folder { path } => format!("folder {}", quoted(path)),
            };
            let (tool, version, by) = (&e.tool, &e.tool_version, &e.given_by);
            Told::new(format!("{tool} {version} allowed by {by} for this conversation, {scope}: grant {}", e.grant_id))
        }
        ConversationEvent::ToolGrantRevoked(e) => {
            Told::new(format!("grant {} revoked by {}", e.grant_id, e.revoked_by))
        }
        ConversationEvent::RunSucceeded(e) => {
            Told::new(format!("run answered: {}", quoted(&e.answer))).ends(format!("run {}", e.run_id))
        }
        ConversationEvent::RunFailed(e) => {
            let text = format!("run failed: {} {}", e.error_code, quoted(&e.error_message));
            Told::new(text).ends(format!("run {}", e.run_id))
        }
        ConversationEvent::RunCancelled(e) => {
            Told::new(format!("run cancelled: {}", e.error_code.as_str())).ends(format!("run {}", e.run_id))
        }
    }
}
