//! The device's shell in the model: performs the effects of the device's call on a model journal.

use crate::ledger::Reported;
use crate::variants::Variant;
use crate::world::{At, DeviceJob, Ending, Row, ToDevice, World};
use devmind_domain::ErrorCode;
use devmind_domain::device_channel::Settlement;
use devmind_domain::device_channel::device_call::{Answer, Asked, Door, Effect, Failure, Input, Known, Said};
use devmind_domain::tool_call::{Phase, ResultStatus};
use std::time::Duration;

/// Cancels are not forgotten within a history.
const NOW: Duration = Duration::ZERO;
const FOREVER: Duration = Duration::MAX;

impl World {
    pub fn device_receives(&mut self, frame: ToDevice, variant: Variant) {
        match frame {
            ToDevice::Request(attempt_no) => {
                let asked = Asked { attempt_no: attempt_no.into(), is_mine: true, is_the_same: true };
                match self.device.request(&(), asked, NOW) {
                    Door::Opened(effects) => self.perform(effects, variant),
                    // Progress alone is said; the model has no use for it.
                    Door::Joined(_) => {}
                    Door::Refused(code) => unreachable!("one call, under one name: {code}"),
                }
            }
            ToDevice::Cancel(attempt_no) => {
                let up_to = if variant == Variant::CancelWithoutFence { u32::MAX } else { attempt_no.into() };
                let effects = self.device.cancel(&(), up_to, FOREVER, NOW);
                self.perform(effects, variant);
            }
            ToDevice::Ack => self.acked(variant),
        }
    }

    fn acked(&mut self, variant: Variant) {
        let Some(Row { at: At::Settled { ending, acked }, .. }) = &mut self.row else { return };
        *acked = true;
        if variant.drops_output_at_ack() {
            ending.has_output = false;
        }
        if self.ledger.result.is_none() && self.spent.rollbacks == 0 {
            self.seen.acked_unpersisted = true;
        }
    }

    /// Brings an input to the machine and performs what follows.
    pub fn device_step(&mut self, input: Input, variant: Variant) {
        let effects = self.device.step(&(), input);
        self.perform(effects, variant);
    }

    /// Reads and what needs no decision from outside are performed at once; what takes time, can fail or can
    /// be cut off by a crash is a job for a later step.
    fn perform(&mut self, effects: Vec<Effect>, variant: Variant) {
        for effect in effects {
            let attempt_no = self.device.get(&()).map(|call| call.attempt_no());
            match effect {
                Effect::LookUp => {
                    let row = self.row.map(|row| ("", &(), matches!(row.at, At::Settled { .. })));
                    let known = Known::of(row, "", &());
                    self.device_step(Input::Found(known), variant);
                }
                Effect::Admit => self.device_step(Input::Admitted, variant),
                Effect::Examine => self.job = Some(DeviceJob::Examine),
                Effect::RecordVerdict(settlement) => {
                    if settlement == Settlement::taken_back() {
                        self.witness_cancel(attempt_no);
                    }
                    self.job = Some(DeviceJob::RecordVerdict(ending(&settlement)));
                }
                Effect::Reserve => self.job = Some(DeviceJob::Reserve),
                Effect::Ask => self.job = Some(DeviceJob::Ask),
                Effect::LookAgain => self.device_step(Input::LookedAgain(Ok(true)), variant),
                Effect::Begin => self.job = Some(DeviceJob::Begin),
                Effect::BeginAtOnce => self.job = Some(DeviceJob::BeginAtOnce),
                Effect::Execute => self.job = Some(DeviceJob::Execute { aborted: false }),
                Effect::Interrupt => self.job = None,
                Effect::Abort => {
                    self.witness_cancel(attempt_no);
                    if let Some(DeviceJob::Execute { aborted }) = &mut self.job {
                        *aborted = true;
                    }
                }
                Effect::Settle(settlement) => {
                    if settlement == Settlement::taken_back() {
                        self.witness_cancel(attempt_no);
                    }
                    self.job = Some(DeviceJob::Settle(ending(&settlement)));
                }
                Effect::Say(Said::StoredResult) | Effect::Announce => self.send_result(),
                // Progress, and refusals that settle nothing.
                Effect::Say(Said::Received { .. } | Said::Refused { .. }) | Effect::End => {}
            }
        }
    }

    /// A call is about to end as taken back: the server must have said so of its newest attempt.
    fn witness_cancel(&mut self, attempt_no: Option<u32>) {
        if attempt_no.is_some_and(|attempt_no| attempt_no > u32::from(self.seen.cancelled_up_to)) {
            self.seen.cancelled_unasked = true;
        }
    }

    fn send_result(&mut self) {
        if let (true, Some(Row { attempt_no, at: At::Settled { ending, .. } })) = (self.connected, self.row) {
            let Ending { status, has_output } = ending;
            self.to_server.push(Reported { attempt_no, status, has_output });
        }
    }

    /// What takes time on the device goes one step on. `well`: the check passes, the person says yes.
    pub fn device_works(&mut self, well: bool, variant: Variant) {
        let Some(job) = self.job.take() else { return };
        match job {
            DeviceJob::Examine => {
                let failed = Failure { code: ErrorCode::PathNotFound, message: String::new() };
                self.device_step(Input::Examined(if well { Ok(self.asks) } else { Err(failed) }), variant);
            }
            DeviceJob::RecordVerdict(ending) => {
                let row = Row { attempt_no: self.executed_attempt(), at: At::Settled { ending, acked: false } };
                if variant.says_verdict_without_row() {
                    // Said, and not kept.
                    if self.connected {
                        let Ending { status, has_output } = ending;
                        self.to_server.push(Reported { attempt_no: row.attempt_no, status, has_output });
                    }
                } else {
                    self.row = Some(row);
                }
                self.device_step(Input::Settled, variant);
            }
            DeviceJob::Reserve => {
                if variant != Variant::ExecuteBeforeReserve {
                    self.row = Some(Row { attempt_no: self.executed_attempt(), at: At::Reserved });
                }
                self.device_step(Input::Journalled, variant);
            }
            DeviceJob::Ask => {
                let answer = if well { Answer::Allow } else { Answer::Deny };
                self.device_step(Input::Answered(answer), variant);
            }
            DeviceJob::Begin => {
                if let Some(row) = &mut self.row {
                    row.at = At::Executing;
                }
                self.device_step(Input::Journalled, variant);
            }
            DeviceJob::BeginAtOnce => {
                if variant != Variant::ExecuteBeforeReserve {
                    self.row = Some(Row { attempt_no: self.executed_attempt(), at: At::Executing });
                }
                self.device_step(Input::Journalled, variant);
            }
            // An abort wins only before anything took place.
            DeviceJob::Execute { aborted: true } if !well => {
                let failed = Failure { code: ErrorCode::CancelledByServer, message: String::new() };
                // That it is taken back was witnessed when it was aborted.
                for effect in self.device.step(&(), Input::Executed(Err(failed))) {
                    if let Effect::Settle(settlement) = effect {
                        self.job = Some(DeviceJob::Settle(ending(&settlement)));
                    }
                }
            }
            DeviceJob::Execute { .. } => {
                self.seen.executions += 1;
                self.job = Some(DeviceJob::Executed);
            }
            DeviceJob::Executed => {
                let success = Settlement {
                    status: ResultStatus::Succeeded,
                    output: Some(String::new()),
                    output_sha256: None,
                    error: None,
                };
                self.device_step(Input::Executed(Ok(success)), variant);
            }
            DeviceJob::Settle(ending) => {
                let attempt_no = self.row.map_or_else(|| self.executed_attempt(), |row| row.attempt_no);
                self.row = Some(Row { attempt_no, at: At::Settled { ending, acked: false } });
                self.device_step(Input::Settled, variant);
            }
        }
    }

    /// The attempt that the row names. The real one names the attempt that opened the call; the newest will
    /// do where no property looks at it.
    fn executed_attempt(&self) -> u8 {
        let newest = self.device.get(&()).map_or(1, |call| call.attempt_no());
        u8::try_from(newest).expect("few attempts")
    }

    /// The device's program is killed and started again: all but the journal is gone.
    pub fn device_crashes(&mut self) {
        self.disconnect();
        self.device = Default::default();
        self.job = None;
        if let Some(row) = &mut self.row {
            let left_at = match row.at {
                At::Reserved => Phase::Reserved,
                At::Executing => Phase::Executing,
                At::Settled { .. } => return,
            };
            row.at = At::Settled { ending: ending(&Settlement::after_restart(left_at)), acked: false };
        }
    }

    /// The device is back: what is not acknowledged is sent again.
    pub fn reconnects(&mut self) {
        self.connected = true;
        if let Some(Row { at: At::Settled { acked: false, .. }, .. }) = self.row {
            self.send_result();
        }
    }

    /// Seven days after: the output goes, the row stays.
    pub fn purges(&mut self, variant: Variant) {
        let Some(Row { at: At::Settled { ending, .. }, .. }) = &mut self.row else { return };
        if ending.has_output && self.ledger.result.is_none() {
            self.seen.output_aged_out = true;
        }
        ending.has_output = false;
        if variant == Variant::NoTombstones {
            self.row = None;
        }
    }
}

fn ending(settlement: &Settlement) -> Ending {
    Ending { status: settlement.status, has_output: settlement.output.is_some() }
}
