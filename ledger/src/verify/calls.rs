//! What must hold of tool calls over the whole history: requested, dispatched, settled once,
//! acknowledged, and never left without a word.

use super::report::{Check, Report};
use super::runs::Runs;
use devmind_domain::canonical::{call_hash, hash_json};
use devmind_domain::device::DeviceEvent;
use devmind_domain::event::{DomainEvent, RecordedEvent};
use devmind_domain::ids::{ConnectionId, NodeId, RunId};
use devmind_domain::node::NodeEvent;
use devmind_domain::redaction::Redacted;
use devmind_domain::thread::ThreadEvent;
use devmind_domain::tool_call::{Decision, Disposition, ToolCallEvent, ToolDispatched};
use std::collections::{HashMap, HashSet};

#[derive(Debug, Default)]
pub(super) struct Calls {
    calls: HashMap<String, Call>,
    ended_connections: HashSet<ConnectionId>,
    /// The newest epoch of each node that is known to have ended.
    ended_epochs: HashMap<NodeId, u64>,
}

#[derive(Debug, Default)]
struct Call {
    requested: Option<(u64, RunId)>,
    attempts: u32,
    last: Option<(Option<ConnectionId>, NodeId, u64)>,
    settled_at: Option<u64>,
    has_result: bool,
    /// The model was told something, or the wait ended, or the call was taken back.
    reason_stated: bool,
}

impl Calls {
    pub fn see(&mut self, event: &RecordedEvent, decoded: &DomainEvent, report: &mut Report) {
        match decoded {
            DomainEvent::ToolCall(inner) => {
                let call = self.calls.entry(event.stream.aggregate_id.clone()).or_default();
                call.see(event, inner, report);
            }
            DomainEvent::Thread(inner) => self.thread(inner),
            DomainEvent::Device(inner) => self.device(inner),
            DomainEvent::Node(inner) => self.node(inner),
            DomainEvent::Conversation(_)
            | DomainEvent::Redaction(_)
            | DomainEvent::Projection(_)
            | DomainEvent::History(_)
            | DomainEvent::ToolSet(_) => {}
        }
    }

    fn thread(&mut self, inner: &ThreadEvent) {
        match inner {
            ThreadEvent::ToolResultObserved(e) => {
                self.calls.entry(e.tool_call_id.0.clone()).or_default().reason_stated = true;
            }
            ThreadEvent::ThreadStarted(_)
            | ThreadEvent::ModelRequested(_)
            | ThreadEvent::AnswerProgressed(_)
            | ThreadEvent::ModelResponded(_)
            | ThreadEvent::ModelFailed(_)
            | ThreadEvent::ContextDeferred(_)
            | ThreadEvent::TurnConcluded(_) => {}
        }
    }

    fn device(&mut self, inner: &DeviceEvent) {
        match inner {
            DeviceEvent::DeviceDisconnected(e) => drop(self.ended_connections.insert(e.connection_id.clone())),
            DeviceEvent::DeviceReplaced(e) => drop(self.ended_connections.insert(e.old_connection_id.clone())),
            DeviceEvent::DeviceTicketIssued(_)
            | DeviceEvent::DeviceTicketConsumed(_)
            | DeviceEvent::DeviceRead(_)
            | DeviceEvent::DeviceDescribed(_)
            | DeviceEvent::DeviceConnected(_)
            | DeviceEvent::ToolRegistrySynced(_) => {}
        }
    }

    fn node(&mut self, inner: &NodeEvent) {
        let (node_id, ended) = match inner {
            NodeEvent::NodeStarted(e) => (&e.node_id, e.epoch.saturating_sub(1)),
            NodeEvent::NodeStopped(e) => (&e.node_id, e.epoch),
            NodeEvent::NodeLost(e) => (&e.node_id, e.epoch),
        };
        let newest = self.ended_epochs.entry(node_id.clone()).or_default();
        *newest = (*newest).max(ended);
    }

    /// Calls that were left behind by a run that ended well.
    pub fn end(&self, runs: &Runs, report: &mut Report) {
        for (id, call) in &self.calls {
            let Some((requested_at, run)) = &call.requested else { continue };
            let Some(end) = runs.end_of(run).filter(|end| !end.states_reason && end.position > *requested_at) else {
                continue;
            };
            if call.settled_at.is_none() && !call.reason_stated && !self.is_cut_off(call) {
                let reason = format!(
                    "{id} has neither an outcome nor a reason, though its run ended with event {}",
                    end.position
                );
                report.find(Check::Outcome, *requested_at, reason);
            }
        }
    }

    fn is_cut_off(&self, call: &Call) -> bool {
        call.last.as_ref().is_some_and(|(connection, node, epoch)| {
            connection.as_ref().is_some_and(|id| self.ended_connections.contains(id))
                || self.ended_epochs.get(node).is_some_and(|ended| ended >= epoch)
        })
    }
}

impl Call {
    fn see(&mut self, event: &RecordedEvent, inner: &ToolCallEvent, report: &mut Report) {
        let position = event.position;
        // What was erased cannot be hashed again; the hash itself is kept.
        let erased = Redacted::parse(&event.payload).is_some();
        match inner {
            ToolCallEvent::ToolCallRequested(e) => {
                let hash = call_hash(&e.tool, &e.tool_version, &e.arguments);
                if hash != e.call_hash && !erased {
                    let reason = format!("its tool and arguments hash to {hash}, recorded is {}", e.call_hash);
                    report.find(Check::ResultHash, position, reason);
                }
                self.requested.get_or_insert_with(|| (position, e.run_id.clone()));
            }
            ToolCallEvent::ToolCallDecided(e) => match e.decision {
                Decision::Deny => self.settle(position, report),
                Decision::Allow | Decision::Ask => {}
            },
            ToolCallEvent::ToolDispatched(e) => self.dispatched(position, e, report),
            ToolCallEvent::ToolReceived(e) => self.knows_attempt(position, e.attempt_no, report),
            ToolCallEvent::ToolCancelRequested(_) | ToolCallEvent::ToolWaitTimedOut(_) => self.reason_stated = true,
            ToolCallEvent::ToolAttemptRefused(e) => {
                self.reason_stated = true;
                self.knows_attempt(position, e.attempt_no, report);
            }
            ToolCallEvent::ToolResultRecorded(e) => {
                self.settle(position, report);
                self.has_result = true;
                self.knows_attempt(position, e.executed_attempt_no, report);
                if let (Some(output), Some(recorded)) = (&e.output, &e.output_sha256) {
                    let hash = hash_json(output);
                    if hash != *recorded && !erased {
                        let reason = format!("its output hashes to {hash}, recorded is {recorded}");
                        report.find(Check::ResultHash, position, reason);
                    }
                }
            }
            ToolCallEvent::ToolOutcomeRevised(_) => {}
            ToolCallEvent::ToolResultAcked(e) => match e.disposition {
                Disposition::Stored | Disposition::Duplicate | Disposition::Superseded if !self.has_result => {
                    report.find(Check::AckAfterResult, position, "a result is acknowledged that is not recorded");
                }
                Disposition::Stored | Disposition::Duplicate | Disposition::Superseded | Disposition::UnknownCall => {}
            },
        }
    }

    fn dispatched(&mut self, position: u64, dispatch: &ToolDispatched, report: &mut Report) {
        if self.requested.is_none() {
            report.find(Check::DispatchRequested, position, "the call is dispatched, but was not requested");
        }
        if dispatch.attempt_no != self.attempts + 1 {
            let reason = format!("attempt {} comes after attempt {}", dispatch.attempt_no, self.attempts);
            report.find(Check::Attempts, position, reason);
        }
        if let Some(settled) = self.settled_at {
            let reason = format!("the call is dispatched again, though event {settled} settled it");
            report.find(Check::FinalStatus, position, reason);
        }
        self.attempts = dispatch.attempt_no;
        self.last = Some((dispatch.connection_id.clone(), dispatch.node_id.clone(), dispatch.epoch));
    }

    fn knows_attempt(&self, position: u64, attempt_no: u32, report: &mut Report) {
        if attempt_no == 0 || attempt_no > self.attempts {
            report.find(Check::Attempts, position, format!("attempt {attempt_no} was never dispatched"));
        }
    }

    fn settle(&mut self, position: u64, report: &mut Report) {
        if let Some(first) = self.settled_at {
            report.find(Check::FinalStatus, position, format!("event {first} settled the call already"));
        }
        self.settled_at.get_or_insert(position);
    }
}
