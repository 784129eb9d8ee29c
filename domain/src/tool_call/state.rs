//! The rules of a tool call.

use super::{command::*, error::ToolCallError, event::*};
use crate::aggregate::{Decider, adapt_to_cqrs_es};
use crate::event::AggregateType;
use crate::limits::MAX_REDISPATCH_AGE_DAYS;
use crate::tools::{Approval, POLICY_STAGE, Verdict};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What must be known to decide about a tool call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// What the model wants; absent before the first event.
    pub request: Option<ToolCallRequested>,
    /// The last decision of the pipeline.
    pub decided: Option<ToolCallDecided>,
    /// Every sending, oldest first.
    pub attempts: Vec<ToolDispatched>,
    /// How far the device has said to be, by attempt.
    pub phases: BTreeMap<u32, Phase>,
    /// Whether the wait for the newest attempt ended without a result.
    pub timed_out: bool,
    /// The newest attempt that was taken back.
    pub cancelled_attempt: Option<(u32, CancelReason)>,
    /// The newest attempt that the device refused, and its code.
    pub refused_attempt: Option<(u32, String)>,
    /// The report that settled the call.
    pub result: Option<ToolResultRecorded>,
    /// What later stages changed of what the model sees, in their order.
    pub revisions: Vec<ToolOutcomeRevised>,
    /// Acknowledgements sent.
    pub acks: u32,
}

const DAY_MS: i64 = 86_400_000;

impl ToolCall {
    /// The newest attempt's number; 0 before the first.
    pub fn last_attempt(&self) -> u32 {
        self.attempts.last().map_or(0, |attempt| attempt.attempt_no)
    }

    /// Whether the call can never change its outcome again.
    pub fn is_settled(&self) -> bool {
        self.result.is_some() || self.refusal().is_some()
    }

    /// The newest attempt, where nothing has ended it and nothing has ended the wait for it. Whether the processes
    /// and the socket that carry it are still there, other streams know.
    pub fn open_attempt(&self) -> Option<&ToolDispatched> {
        let newest = self.attempts.last().filter(|_| !self.is_settled() && !self.timed_out)?;
        let taken_back = self.cancelled_attempt.is_some_and(|(no, _)| no >= newest.attempt_no);
        let refused = self.refused_attempt.as_ref().is_some_and(|(no, _)| *no >= newest.attempt_no);
        (!taken_back && !refused).then_some(newest)
    }

    /// The decision that refused the call, if one did.
    pub fn refusal(&self) -> Option<&ToolCallDecided> {
        self.decided.as_ref().filter(|decided| decided.decision == Decision::Deny)
    }

    /// What the policies decided about the call, if that is recorded: it counts, whatever the rules have become. What
    /// was sent was allowed. Where a person's answer stands in its place, a person was asked, and what that person said
    /// is the conversation's to tell; so it is in logs from before there were policies.
    pub fn verdict(&self) -> Option<Verdict> {
        match &self.decided {
            Some(decided) if decided.stage == POLICY_STAGE => Some(Verdict::recorded(decided)),
            Some(decided) if decided.decision == Decision::Ask => Some(Verdict::recorded(decided)),
            Some(_) | None if !self.attempts.is_empty() => Some(Verdict::of_tool(Approval::Never)),
            Some(decided) if decided.stage == "approval" => Some(Verdict::of_tool(Approval::Always)),
            Some(_) => Some(Verdict::of_tool(Approval::Never)),
            None => None,
        }
    }

    /// How a report stands to what is recorded: the disposition of its acknowledgement.
    pub fn disposition_of(&self, report: &ToolResultRecorded) -> Disposition {
        let Some(own) = &self.result else {
            return Disposition::Stored;
        };
        let code = |result: &ToolResultRecorded| result.error.as_ref().map(|error| error.code.clone());
        // A device that no longer keeps the output may leave its hash out as well.
        let same_output = report.output_sha256.is_none() || own.output_sha256 == report.output_sha256;
        let same = own.status == report.status
            && own.executed_attempt_no == report.executed_attempt_no
            && code(own) == code(report)
            && same_output;
        if same { Disposition::Duplicate } else { Disposition::Superseded }
    }

    fn dispatch(&self, dispatch: Dispatch) -> Result<Vec<ToolCallEvent>, ToolCallError> {
        let mut events = Vec::new();
        match &self.request {
            None => events.push(dispatch.request.into()),
            Some(own) if own.call_hash != dispatch.request.call_hash => return Err(ToolCallError::HashConflict),
            Some(_) if self.is_settled() => return Ok(vec![]),
            Some(_) if self.decided.as_ref().is_some_and(|decided| decided.decision == Decision::Ask) => {
                return Err(ToolCallError::NotApproved);
            }
            Some(own) if own.device_id != dispatch.request.device_id => return Err(ToolCallError::DeviceChanged),
            Some(_) if self.attempts.iter().any(|attempt| attempt.journal_id != dispatch.journal_id) => {
                return Err(ToolCallError::DeviceChanged);
            }
            Some(_) if dispatch.attempt_is_live => return Ok(vec![]),
            Some(_) if dispatch.age_ms > MAX_REDISPATCH_AGE_DAYS * DAY_MS => return Err(ToolCallError::TooOld),
            Some(_) => {}
        }
        events.push(
            ToolDispatched {
                attempt_no: self.last_attempt() + 1,
                run_id: dispatch.run_id,
                node_id: dispatch.node_id,
                epoch: dispatch.epoch,
                connection_id: dispatch.connection_id,
                journal_id: dispatch.journal_id,
                wait_ms: dispatch.wait_ms,
                ttl_ms: dispatch.ttl_ms,
            }
            .into(),
        );
        Ok(events)
    }

    /// A result is taken from the call's own user, device and journal alone.
    fn check_reporter(&self, reporter: &Reporter, attempt_no: u32) -> Result<(), ToolCallError> {
        let request = self.request.as_ref().ok_or(ToolCallError::Unknown)?;
        let attempt = self.attempts.iter().find(|attempt| attempt.attempt_no == attempt_no);
        let attempt = attempt.ok_or(ToolCallError::NoSuchAttempt { attempt_no })?;
        match reporter {
            Reporter::Server if request.target == Target::Server => Ok(()),
            Reporter::Device { user_id, device_id, journal_id, connection_id: _ }
                if *user_id == request.user_id
                    && Some(device_id) == request.device_id.as_ref()
                    && Some(journal_id) == attempt.journal_id.as_ref() =>
            {
                Ok(())
            }
            Reporter::Server | Reporter::Device { .. } => Err(ToolCallError::ForeignReport),
        }
    }
}

impl Decider for ToolCall {
    const TYPE: AggregateType = AggregateType::ToolCall;
    const STATE_VERSION: u32 = 3;
    type Command = ToolCallCommand;
    type Event = ToolCallEvent;
    type Error = ToolCallError;

    fn decide(&self, command: ToolCallCommand) -> Result<Vec<ToolCallEvent>, ToolCallError> {
        match command {
            ToolCallCommand::Request(request) => match &self.request {
                Some(own) if own.call_hash != request.call_hash => Err(ToolCallError::HashConflict),
                Some(_) => Ok(vec![]),
                None => Ok(vec![(*request).into()]),
            },
            ToolCallCommand::Decide { request, decided } => match &self.request {
                Some(own) if own.call_hash != request.call_hash => Err(ToolCallError::HashConflict),
                // What was sent or settled is past every decision; the same one twice is one.
                Some(_) if self.is_settled() || !self.attempts.is_empty() => Ok(vec![]),
                Some(_) if self.decided.as_ref() == Some(&decided) => Ok(vec![]),
                Some(_) => Ok(vec![decided.into()]),
                None => Ok(vec![(*request).into(), decided.into()]),
            },
            ToolCallCommand::Dispatch(dispatch) => self.dispatch(*dispatch),
            ToolCallCommand::Receive { attempt_no, phase } => {
                if !self.attempts.iter().any(|attempt| attempt.attempt_no == attempt_no) {
                    return Err(ToolCallError::NoSuchAttempt { attempt_no });
                }
                // Only forward: what a device repeats or takes back would let it write without end.
                if self.is_settled() || self.phases.get(&attempt_no).is_some_and(|reached| *reached >= phase) {
                    return Ok(vec![]);
                }
                Ok(vec![ToolReceived { attempt_no, phase }.into()])
            }
            ToolCallCommand::Refuse { attempt_no, code } => {
                if !self.attempts.iter().any(|attempt| attempt.attempt_no == attempt_no) {
                    return Err(ToolCallError::NoSuchAttempt { attempt_no });
                }
                // Said once: what a device repeats would let it write without end.
                if self.is_settled() || self.refused_attempt.as_ref().is_some_and(|(no, _)| *no >= attempt_no) {
                    return Ok(vec![]);
                }
                Ok(vec![ToolAttemptRefused { attempt_no, code }.into()])
            }
            ToolCallCommand::Cancel { reason } => {
                let attempt_no = self.last_attempt();
                let again = self.cancelled_attempt.is_some_and(|(no, _)| no >= attempt_no);
                if self.is_settled() || attempt_no == 0 || again {
                    return Ok(vec![]);
                }
                Ok(vec![ToolCancelRequested { attempt_no, reason }.into()])
            }
            ToolCallCommand::TimeOut { attempt_no, after_ms } => {
                if self.is_settled() || attempt_no == 0 || attempt_no != self.last_attempt() || self.timed_out {
                    return Ok(vec![]);
                }
                Ok(vec![ToolWaitTimedOut { attempt_no, after_ms }.into()])
            }
            ToolCallCommand::RecordResult { result, reporter } => {
                self.check_reporter(&reporter, result.executed_attempt_no)?;
                let disposition = self.disposition_of(&result);
                let recorded = if self.is_settled() { None } else { Some((*result).into()) };
                let acked = match reporter {
                    Reporter::Server => None,
                    // A log that a faulty program wrote: what is acknowledged is a result.
                    Reporter::Device { .. } if self.is_settled() && self.result.is_none() => {
                        return Err(ToolCallError::NoResult);
                    }
                    Reporter::Device { connection_id, .. } => {
                        Some(ToolResultAcked { connection_id, disposition }.into())
                    }
                };
                Ok(recorded.into_iter().chain(acked).collect())
            }
            // A call without a result has an outcome, too: that it is unknown, or why it was not sent.
            ToolCallCommand::Revise(revised) => match &self.request {
                None => Err(ToolCallError::Unknown),
                // A settled call that is asked for again is seen again, and what was made of it is the same.
                Some(_) if self.revisions.ends_with(&revised) => Ok(vec![]),
                Some(_) => Ok(revised.into_iter().map(ToolCallEvent::from).collect()),
            },
        }
    }

    fn held_bytes(&self) -> usize {
        let output = self.result.as_ref().and_then(|result| result.output.as_ref());
        let texts = self.request.iter().map(|request| &request.arguments).chain(output);
        texts.map(|value| value.to_string().len()).sum()
    }

    fn evolve(&mut self, event: &ToolCallEvent) {
        match event {
            ToolCallEvent::ToolCallRequested(e) => self.request = Some(e.clone()),
            ToolCallEvent::ToolCallDecided(e) => {
                // Order cannot turn a refusal into permission.
                if self.refusal().is_none() {
                    self.decided = Some(e.clone());
                }
            }
            ToolCallEvent::ToolDispatched(e) => {
                self.attempts.push(e.clone());
                self.timed_out = false;
            }
            ToolCallEvent::ToolReceived(e) => {
                let reached = self.phases.entry(e.attempt_no).or_insert(e.phase);
                *reached = e.phase.max(*reached);
            }
            ToolCallEvent::ToolCancelRequested(e) => self.cancelled_attempt = Some((e.attempt_no, e.reason)),
            ToolCallEvent::ToolWaitTimedOut(_) => self.timed_out = true,
            ToolCallEvent::ToolAttemptRefused(e) => self.refused_attempt = Some((e.attempt_no, e.code.clone())),
            ToolCallEvent::ToolResultRecorded(e) => {
                // First wins: a log that a faulty program wrote still folds to one settlement.
                self.result.get_or_insert_with(|| e.clone());
            }
            ToolCallEvent::ToolOutcomeRevised(e) => self.revisions.push(e.clone()),
            ToolCallEvent::ToolResultAcked(_) => self.acks += 1,
        }
    }
}

adapt_to_cqrs_es!(ToolCall, "tool_call");
