//! What must hold of interrupts over the whole history: raised before they end, ended once, decided
//! as they were shown, and a call that a person was asked about sent only as it was approved.

use super::report::{Check, Report};
use devmind_domain::conversation::{ConversationEvent, InterruptResolved};
use devmind_domain::event::{DomainEvent, RecordedEvent};
use devmind_domain::ids::InterruptId;
use devmind_domain::tool_call::ToolCallEvent;
use std::collections::{HashMap, HashSet};

#[derive(Debug, Default)]
pub(super) struct Interrupts {
    interrupts: HashMap<InterruptId, Interrupt>,
    /// The calls that a person was asked about, with the hashes that are approved.
    asked: HashMap<String, HashSet<String>>,
    /// What was requested, by call that is not settled.
    requested: HashMap<String, String>,
}

#[derive(Debug)]
struct Interrupt {
    raised_at: u64,
    ended_at: Option<u64>,
    call: String,
    arguments_hash: String,
}

impl Interrupts {
    pub fn see(&mut self, event: &RecordedEvent, decoded: &DomainEvent, report: &mut Report) {
        match decoded {
            DomainEvent::Conversation(inner) => self.conversation(event.position, inner, report),
            DomainEvent::ToolCall(inner) => {
                self.tool_call(event.position, event.stream.aggregate_id.as_str(), inner, report);
            }
            DomainEvent::Thread(_)
            | DomainEvent::Device(_)
            | DomainEvent::Node(_)
            | DomainEvent::Redaction(_)
            | DomainEvent::Projection(_)
            | DomainEvent::History(_)
            | DomainEvent::ToolSet(_) => {}
        }
    }

    fn conversation(&mut self, position: u64, inner: &ConversationEvent, report: &mut Report) {
        match inner {
            ConversationEvent::InterruptRaised(e) => {
                if let Some(first) = self.interrupts.get(&e.interrupt_id) {
                    let reason = format!("interrupt {} was raised by event {}", e.interrupt_id, first.raised_at);
                    report.find(Check::Interrupts, position, reason);
                    return;
                }
                let (call, arguments_hash) = (e.tool_call_id.0.clone(), e.arguments_hash.clone());
                self.asked.entry(call.clone()).or_default();
                let raised = Interrupt { raised_at: position, ended_at: None, call, arguments_hash };
                self.interrupts.insert(e.interrupt_id.clone(), raised);
            }
            ConversationEvent::InterruptResolved(e) => self.resolved(position, e, report),
            ConversationEvent::InterruptCancelled(e) => drop(self.end(position, &e.interrupt_id, report)),
            ConversationEvent::InterruptExpired(e) => drop(self.end(position, &e.interrupt_id, report)),
            ConversationEvent::ConversationStarted(_)
            | ConversationEvent::ConversationRenamed(_)
            | ConversationEvent::ConversationDeleted(_)
            | ConversationEvent::ToolGrantGiven(_)
            | ConversationEvent::ToolGrantRevoked(_)
            | ConversationEvent::ConversationRead(_)
            | ConversationEvent::TurnPrepared(_)
            | ConversationEvent::TurnRerunPrepared(_)
            | ConversationEvent::RunPrepared(_)
            | ConversationEvent::RunClaimed(_)
            | ConversationEvent::RunStopRequested(_)
            | ConversationEvent::RunInterrupted(_)
            | ConversationEvent::RunSucceeded(_)
            | ConversationEvent::RunFailed(_)
            | ConversationEvent::RunCancelled(_) => {}
        }
    }

    fn resolved(&mut self, position: u64, e: &InterruptResolved, report: &mut Report) {
        let Some((call, shown)) = self.end(position, &e.interrupt_id, report) else { return };
        if shown != e.arguments_hash {
            let reason =
                format!("interrupt {} showed {shown}, the answer is about {}", e.interrupt_id, e.arguments_hash);
            report.find(Check::Interrupts, position, reason);
            return;
        }
        let approved = self.asked.entry(call).or_default();
        if e.approved {
            approved.insert(shown);
        } else {
            approved.remove(&shown);
        }
    }

    /// Ends an interrupt that was open; answers its call and what was shown.
    fn end(&mut self, position: u64, id: &InterruptId, report: &mut Report) -> Option<(String, String)> {
        let Some(interrupt) = self.interrupts.get_mut(id) else {
            report.find(Check::Interrupts, position, format!("interrupt {id} was never raised"));
            return None;
        };
        if let Some(first) = interrupt.ended_at {
            report.find(Check::Interrupts, position, format!("interrupt {id} ended with event {first} already"));
            return None;
        }
        interrupt.ended_at = Some(position);
        Some((interrupt.call.clone(), interrupt.arguments_hash.clone()))
    }

    fn tool_call(&mut self, position: u64, id: &str, inner: &ToolCallEvent, report: &mut Report) {
        match inner {
            ToolCallEvent::ToolCallRequested(e) => {
                self.requested.entry(id.to_owned()).or_insert_with(|| e.call_hash.clone());
            }
            ToolCallEvent::ToolDispatched(_) => {
                let (Some(approved), Some(hash)) = (self.asked.get(id), self.requested.get(id)) else { return };
                if !approved.contains(hash) {
                    let reason = format!("a person was asked about the call, and {hash} is not what was approved");
                    report.find(Check::ResultHash, position, reason);
                }
            }
            ToolCallEvent::ToolResultRecorded(_) => drop(self.requested.remove(id)),
            ToolCallEvent::ToolCallDecided(_)
            | ToolCallEvent::ToolReceived(_)
            | ToolCallEvent::ToolCancelRequested(_)
            | ToolCallEvent::ToolWaitTimedOut(_)
            | ToolCallEvent::ToolAttemptRefused(_)
            | ToolCallEvent::ToolOutcomeRevised(_)
            | ToolCallEvent::ToolResultAcked(_) => {}
        }
    }
}
