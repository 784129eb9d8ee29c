//! The server's shell in the model: performs the effects of a call and of a report on a model ledger.

use crate::ledger::Reported;
use crate::variants::Variant;
use crate::world::{Caller, CallerJob, Taking, ToDevice, Told, World};
use devmind_domain::device_channel::server_call::{
    Effect, End, Input, Report, ReportEffect, ReportInput, ServerCall, Stands,
};
use devmind_domain::tool_call::{Disposition, ResultStatus};

/// How the ledger takes an append or a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    Sure,
    /// It fails, and what was asked is stored all the same.
    InDoubtStored,
    /// It fails, and nothing is stored.
    InDoubtLost,
}

impl World {
    /// A run calls the tool, for the first time or once more.
    pub fn calls(&mut self) {
        let (machine, _dispatch) = ServerCall::begin(false);
        self.caller =
            Some(Caller { machine, job: CallerJob::Dispatch, woken: false, payload: None, lost_socket: false });
    }

    /// What the caller asked of the ledger is done.
    pub fn caller_works(&mut self, commit: Commit, variant: Variant) {
        let Some(caller) = &self.caller else { return };
        let (job, payload) = (caller.job, caller.payload);
        let stored = commit != Commit::InDoubtLost;
        if stored && variant == Variant::UnconditionalUnknown && is_end_of_wait(job) {
            self.ledger.result = None;
        }
        let input = match job {
            CallerJob::Dispatch => {
                if stored && !self.ledger.dispatch() {
                    Input::Forbidden
                } else {
                    Input::Dispatched
                }
            }
            CallerJob::Read if variant.wakes_with_payload() => {
                let last_attempt = self.ledger.stands().last_attempt;
                Input::Read(Stands { is_settled: payload.is_some(), last_attempt })
            }
            CallerJob::Read => Input::Read(self.ledger.stands()),
            CallerJob::RecordTimeOut(attempt_no) => {
                if stored {
                    self.ledger.time_out(attempt_no.into());
                }
                Input::Recorded(self.ledger.stands())
            }
            CallerJob::RecordCancel(reason) => {
                if stored {
                    self.ledger.take_back(reason);
                }
                Input::Recorded(self.ledger.stands())
            }
            CallerJob::Wait => return,
        };
        self.caller_step(if commit == Commit::Sure { input } else { Input::InDoubt }, variant);
    }

    /// Brings an input to the caller's machine and performs what follows.
    pub fn caller_step(&mut self, input: Input, variant: Variant) {
        let Some(caller) = &mut self.caller else { return };
        let effects = caller.machine.step(input);
        let (payload, reaches) = (caller.payload, self.connected && !caller.lost_socket);
        for effect in effects {
            match effect {
                Effect::Dispatch => caller.job = CallerJob::Dispatch,
                Effect::Read => caller.job = CallerJob::Read,
                Effect::Wait => caller.job = CallerJob::Wait,
                Effect::WakeLater => caller.woken = true,
                Effect::RecordTimeOut { attempt_no } => caller.job = CallerJob::RecordTimeOut(small(attempt_no)),
                Effect::RecordCancel(reason) => caller.job = CallerJob::RecordCancel(reason),
                Effect::Send { attempt_no } if reaches => self.to_device.push(ToDevice::Request(small(attempt_no))),
                Effect::SendCancel { attempt_no, .. } => {
                    self.seen.cancelled_up_to = self.seen.cancelled_up_to.max(small(attempt_no));
                    if reaches {
                        self.to_device.push(ToDevice::Cancel(small(attempt_no)));
                    }
                }
                Effect::Send { .. } => {}
                Effect::End(end) => {
                    let own = if variant.wakes_with_payload() { payload } else { self.ledger.result };
                    self.seen.told = Some(told(&end, own));
                    self.caller = None;
                    return;
                }
            }
        }
    }

    pub fn report_arrives(&mut self, reported: Reported, variant: Variant) {
        let (mut machine, _read) = Report::arrived(true);
        let effects = machine.step(ReportInput::Read { is_known: self.ledger.attempts > 0 });
        self.report = Some(Taking { machine, reported, lost_socket: false });
        self.perform_report(effects, variant);
    }

    /// What the report asked of the ledger is done.
    pub fn report_works(&mut self, commit: Commit, variant: Variant) {
        let Some(mut report) = self.report else { return };
        let stored = commit != Commit::InDoubtLost;
        if stored && variant == Variant::OverwriteSettledAndVerdictNotJournalled {
            self.ledger.result = None;
        }
        let recorded = if stored { self.ledger.record(report.reported) } else { None };
        let input = recorded.map_or(ReportInput::Forbidden, ReportInput::Recorded);
        let effects = report.machine.step(if commit == Commit::Sure { input } else { ReportInput::InDoubt });
        self.report = Some(report);
        self.perform_report(effects, variant);
    }

    fn perform_report(&mut self, effects: Vec<ReportEffect>, variant: Variant) {
        for effect in effects {
            let Some(report) = &mut self.report else { return };
            let reaches = self.connected && !report.lost_socket;
            match effect {
                ReportEffect::Record => {
                    if variant == Variant::AckBeforePersist && reaches {
                        self.to_device.push(ToDevice::Ack);
                    }
                }
                ReportEffect::Wake => {
                    if let Some(caller) = &mut self.caller {
                        caller.woken = true;
                        caller.payload = Some(report.reported);
                    }
                }
                ReportEffect::SendAck(disposition) => {
                    let is_sent = match variant {
                        Variant::AckBeforePersist => false,
                        Variant::AckOnlyOnChange => disposition == Disposition::Stored,
                        _ => true,
                    };
                    if is_sent && reaches {
                        self.to_device.push(ToDevice::Ack);
                    }
                    self.report = None;
                }
                ReportEffect::SendNack => unreachable!("every report is of an attempt that was made"),
                ReportEffect::CloseSocket => {
                    let closes = reaches;
                    self.report = None;
                    if closes {
                        self.disconnect();
                    }
                }
                ReportEffect::Read => {}
            }
        }
    }

    /// The server's process is killed and started again: all but the ledger is gone.
    pub fn server_restarts(&mut self) {
        self.disconnect();
        self.caller = None;
        self.report = None;
    }
}

fn is_end_of_wait(job: CallerJob) -> bool {
    matches!(job, CallerJob::RecordTimeOut(_) | CallerJob::RecordCancel(_))
}

fn told(end: &End, own: Option<Reported>) -> Told {
    let is_told = matches!(end, End::Settled | End::Stopped);
    match own.filter(|own| is_told && own.status == ResultStatus::Succeeded) {
        None => Told::Other,
        Some(own) if own.has_output => Told::Success,
        Some(_) => Told::SuccessWithoutOutput,
    }
}

fn small(attempt_no: u32) -> u8 {
    u8::try_from(attempt_no).expect("few attempts")
}
