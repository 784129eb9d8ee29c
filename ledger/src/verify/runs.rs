//! What must hold of runs and tickets over the whole history.

use super::report::{Check, Report};
use devmind_domain::conversation::ConversationEvent;
use devmind_domain::device::DeviceEvent;
use devmind_domain::event::{DomainEvent, RecordedEvent};
use devmind_domain::ids::RunId;
use std::collections::HashMap;

#[derive(Debug, Default)]
pub(super) struct Runs {
    runs: HashMap<RunId, Run>,
    /// Queued or running, by conversation.
    active: HashMap<String, RunId>,
    /// By hash, with whether each was consumed.
    tickets: HashMap<String, bool>,
}

#[derive(Debug, Default)]
struct Run {
    claimed_at: Option<u64>,
    ended: Option<RunEnd>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunEnd {
    pub position: u64,
    /// Its error or its cancellation is the reason why a call of it has no outcome.
    pub states_reason: bool,
}

impl Runs {
    pub fn end_of(&self, run: &RunId) -> Option<RunEnd> {
        self.runs.get(run).and_then(|run| run.ended)
    }

    pub fn see(&mut self, event: &RecordedEvent, decoded: &DomainEvent, report: &mut Report) {
        match decoded {
            DomainEvent::Conversation(inner) => self.conversation(event, inner, report),
            DomainEvent::Device(inner) => self.device(event, inner, report),
            DomainEvent::Thread(_)
            | DomainEvent::ToolCall(_)
            | DomainEvent::Node(_)
            | DomainEvent::Redaction(_)
            | DomainEvent::Projection(_)
            | DomainEvent::History(_)
            | DomainEvent::ToolSet(_) => {}
        }
    }

    fn conversation(&mut self, event: &RecordedEvent, inner: &ConversationEvent, report: &mut Report) {
        let position = event.position;
        match inner {
            ConversationEvent::RunPrepared(e) => {
                let conversation = event.stream.aggregate_id.clone();
                if let Some(other) = self.active.insert(conversation, e.run_id.clone()) {
                    let reason = format!("run {} is prepared while run {other} is active", e.run_id);
                    report.find(Check::ActiveRun, position, reason);
                }
                self.runs.entry(e.run_id.clone()).or_default();
            }
            ConversationEvent::RunClaimed(e) => {
                let run = self.runs.entry(e.run_id.clone()).or_default();
                if let Some(first) = run.claimed_at {
                    report.find(Check::RunClaim, position, format!("run {} was claimed by event {first}", e.run_id));
                } else if let Some(end) = run.ended {
                    let reason = format!("run {} is claimed after it ended with event {}", e.run_id, end.position);
                    report.find(Check::RunClaim, position, reason);
                }
                run.claimed_at.get_or_insert(position);
            }
            ConversationEvent::RunSucceeded(e) => self.end(event, &e.run_id, false, report),
            ConversationEvent::RunFailed(e) => self.end(event, &e.run_id, true, report),
            ConversationEvent::RunCancelled(e) => self.end(event, &e.run_id, true, report),
            ConversationEvent::RunInterrupted(e) => self.pause(event, &e.run_id),
            ConversationEvent::RunStopRequested(_)
            | ConversationEvent::InterruptRaised(_)
            | ConversationEvent::InterruptResolved(_)
            | ConversationEvent::InterruptCancelled(_)
            | ConversationEvent::ToolGrantGiven(_)
            | ConversationEvent::ToolGrantRevoked(_)
            | ConversationEvent::InterruptExpired(_)
            | ConversationEvent::ConversationStarted(_)
            | ConversationEvent::ConversationRenamed(_)
            | ConversationEvent::ConversationDeleted(_)
            | ConversationEvent::ConversationRead(_)
            | ConversationEvent::TurnPrepared(_)
            | ConversationEvent::TurnRerunPrepared(_) => {}
        }
    }

    fn end(&mut self, event: &RecordedEvent, run_id: &RunId, states_reason: bool, report: &mut Report) {
        self.pause(event, run_id);
        let run = self.runs.entry(run_id.clone()).or_default();
        if let Some(end) = run.ended {
            let reason = format!("run {run_id} ended with event {} already", end.position);
            report.find(Check::RunEnd, event.position, reason);
        }
        run.ended.get_or_insert(RunEnd { position: event.position, states_reason });
    }

    fn pause(&mut self, event: &RecordedEvent, run_id: &RunId) {
        if self.active.get(&event.stream.aggregate_id) == Some(run_id) {
            self.active.remove(&event.stream.aggregate_id);
        }
    }

    fn device(&mut self, event: &RecordedEvent, inner: &DeviceEvent, report: &mut Report) {
        match inner {
            DeviceEvent::DeviceTicketIssued(e) => {
                self.tickets.entry(e.ticket_hash.clone()).or_default();
            }
            DeviceEvent::DeviceTicketConsumed(e) => {
                let reason = match self.tickets.insert(e.ticket_hash.clone(), true) {
                    Some(false) => return,
                    Some(true) => "was consumed before",
                    None => "was never issued",
                };
                report.find(Check::Ticket, event.position, format!("the ticket with hash {} {reason}", e.ticket_hash));
            }
            DeviceEvent::DeviceConnected(_)
            | DeviceEvent::ToolRegistrySynced(_)
            | DeviceEvent::DeviceDisconnected(_)
            | DeviceEvent::DeviceReplaced(_)
            | DeviceEvent::DeviceDescribed(_)
            | DeviceEvent::DeviceRead(_) => {}
        }
    }
}
