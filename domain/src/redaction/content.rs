//! What of each event is content, that is, what people, models and tools said; everything else is
//! structure, which the rules need.

use crate::conversation::{ConversationEvent, GrantScope};
use crate::device::DeviceEvent;
use crate::event::DomainEvent;
use crate::history::HistoryEvent;
use crate::thread::ThreadEvent;
use crate::tool_call::ToolCallEvent;
use serde_json::{Value, json};

/// What stands where content was.
pub const REDACTED_TEXT: &str = "[redacted]";

/// The event without its content; `None` where it has none, and nothing of it can be erased.
///
/// Arguments of tool calls no longer hash to what was approved afterwards: a call whose arguments were
/// erased is never carried out.
pub fn without_content(event: DomainEvent) -> Option<DomainEvent> {
    match event {
        DomainEvent::Conversation(event) => conversation(event).map(DomainEvent::Conversation),
        DomainEvent::Thread(event) => thread(event).map(DomainEvent::Thread),
        DomainEvent::ToolCall(event) => tool_call(event).map(DomainEvent::ToolCall),
        DomainEvent::History(event) => history(event).map(DomainEvent::History),
        DomainEvent::Device(event) => device(event).map(DomainEvent::Device),
        // What the operator configured: what was a person's own is in the calls.
        DomainEvent::ToolSet(_) => None,
        DomainEvent::Node(_) | DomainEvent::Redaction(_) | DomainEvent::Projection(_) => None,
    }
}

fn redacted() -> String {
    REDACTED_TEXT.to_owned()
}

/// Empty text stays empty: that nothing was said is structure.
pub(crate) fn redacted_text(text: &mut String) {
    if !text.is_empty() {
        REDACTED_TEXT.clone_into(text);
    }
}

/// Arguments stay an object, as every reader of them expects.
pub(crate) fn redacted_arguments() -> Value {
    json!({ "redacted": REDACTED_TEXT })
}

fn conversation(mut event: ConversationEvent) -> Option<ConversationEvent> {
    match &mut event {
        ConversationEvent::ConversationStarted(e) => e.title = redacted(),
        ConversationEvent::ConversationRenamed(e) => e.title = redacted(),
        ConversationEvent::TurnPrepared(e) => e.content = redacted(),
        ConversationEvent::TurnRerunPrepared(e) => e.content = redacted(),
        ConversationEvent::InterruptRaised(e) => {
            e.arguments = redacted_arguments();
            e.message = redacted();
        }
        ConversationEvent::ToolGrantGiven(e) => match &mut e.scope {
            GrantScope::Path { path } | GrantScope::Folder { path } => redacted_text(path),
            GrantScope::Tool => return None,
        },
        ConversationEvent::RunSucceeded(e) => redacted_text(&mut e.answer),
        ConversationEvent::RunFailed(e) => {
            redacted_text(&mut e.error_message);
            redacted_text(&mut e.partial_text);
        }
        ConversationEvent::RunCancelled(e) => redacted_text(&mut e.partial_text),
        ConversationEvent::ConversationDeleted(_)
        | ConversationEvent::RunPrepared(_)
        | ConversationEvent::RunClaimed(_)
        | ConversationEvent::RunStopRequested(_)
        | ConversationEvent::RunInterrupted(_)
        | ConversationEvent::InterruptResolved(_)
        | ConversationEvent::InterruptCancelled(_)
        | ConversationEvent::InterruptExpired(_)
        | ConversationEvent::ToolGrantRevoked(_)
        | ConversationEvent::ConversationRead(_) => return None,
    }
    Some(event)
}

fn device(mut event: DeviceEvent) -> Option<DeviceEvent> {
    match &mut event {
        DeviceEvent::DeviceDescribed(e) => {
            e.names.computer.iter_mut().chain(&mut e.names.workspace).for_each(redacted_text);
        }
        DeviceEvent::DeviceTicketIssued(_)
        | DeviceEvent::DeviceTicketConsumed(_)
        | DeviceEvent::DeviceConnected(_)
        | DeviceEvent::ToolRegistrySynced(_)
        | DeviceEvent::DeviceDisconnected(_)
        | DeviceEvent::DeviceReplaced(_)
        | DeviceEvent::DeviceRead(_) => return None,
    }
    Some(event)
}

fn history(mut event: HistoryEvent) -> Option<HistoryEvent> {
    match &mut event {
        HistoryEvent::ForeignRecordKept(e) => redacted_text(&mut e.text),
        HistoryEvent::HistoryImported(_) => return None,
    }
    Some(event)
}

fn thread(mut event: ThreadEvent) -> Option<ThreadEvent> {
    match &mut event {
        ThreadEvent::AnswerProgressed(e) => redacted_text(&mut e.text),
        ThreadEvent::ModelResponded(e) => {
            redacted_text(&mut e.content);
            e.reasoning.iter_mut().for_each(redacted_text);
            e.tool_calls.iter_mut().for_each(|call| call.arguments = redacted_arguments().to_string());
        }
        ThreadEvent::ModelFailed(e) => redacted_text(&mut e.message),
        ThreadEvent::ToolResultObserved(e) => redacted_text(&mut e.content),
        ThreadEvent::ContextDeferred(e) => redacted_text(&mut e.message),
        ThreadEvent::ThreadStarted(_) | ThreadEvent::ModelRequested(_) | ThreadEvent::TurnConcluded(_) => return None,
    }
    Some(event)
}

fn tool_call(mut event: ToolCallEvent) -> Option<ToolCallEvent> {
    match &mut event {
        ToolCallEvent::ToolCallRequested(e) => e.arguments = redacted_arguments(),
        ToolCallEvent::ToolResultRecorded(e) => {
            e.output = e.output.take().map(|_| Value::String(redacted()));
            e.error.iter_mut().for_each(|error| redacted_text(&mut error.message));
        }
        ToolCallEvent::ToolCallDecided(e) => redacted_text(e.reason.as_mut()?),
        ToolCallEvent::ToolDispatched(_)
        | ToolCallEvent::ToolReceived(_)
        | ToolCallEvent::ToolCancelRequested(_)
        | ToolCallEvent::ToolWaitTimedOut(_)
        | ToolCallEvent::ToolAttemptRefused(_)
        | ToolCallEvent::ToolOutcomeRevised(_)
        | ToolCallEvent::ToolResultAcked(_) => return None,
    }
    Some(event)
}
