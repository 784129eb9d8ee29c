//! One who calls a device's tool and waits.

use crate::tool_call::{CancelReason, ToolCall};

/// How a call stands in the ledger, as far as its caller must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stands {
    /// Whether it can never change its outcome again.
    pub is_settled: bool,
    /// The newest attempt.
    pub last_attempt: u32,
}

impl From<&ToolCall> for Stands {
    fn from(call: &ToolCall) -> Self {
        Self { is_settled: call.is_settled(), last_attempt: call.last_attempt() }
    }
}

/// A device will not take an attempt. It does not settle the call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Refusal {
    /// The attempt.
    pub attempt_no: u32,
    /// Why.
    pub code: String,
}

/// What can happen to a call that is being made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// [`Effect::Dispatch`]: the attempt is recorded, or there is nothing to record.
    Dispatched,
    /// [`Effect::Dispatch`]: the rules do not allow it.
    Forbidden,
    /// [`Effect::Read`]: how the call stands.
    Read(Stands),
    /// [`Effect::RecordTimeOut`] or [`Effect::RecordCancel`]: recorded, and how the call stands now.
    Recorded(Stands),
    /// The ledger failed in what was asked of it last. Whether it was recorded is not known.
    InDoubt,
    /// Something about the call was recorded, or the device refused an attempt.
    Woken(Option<Refusal>),
    /// The wait is over.
    WaitTimedOut,
    /// The run was told to stop.
    RunStopped,
    /// The socket's end is recorded.
    SocketLost,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Record the request, where it is new, and the attempt → [`Input::Dispatched`]. The caller has
    /// entered as a waiter before.
    Dispatch,
    /// Read the call → [`Input::Read`].
    Read,
    /// Send the request.
    Send {
        /// As this attempt.
        attempt_no: u32,
    },
    /// Wait → [`Input::Woken`], [`Input::WaitTimedOut`], [`Input::RunStopped`], [`Input::SocketLost`].
    Wait,
    /// While waiting: wake the caller after a short while, although nothing has woken it.
    WakeLater,
    /// Record that the wait is over → [`Input::Recorded`].
    RecordTimeOut {
        /// Of this attempt.
        attempt_no: u32,
    },
    /// Record that the call is taken back → [`Input::Recorded`].
    RecordCancel(CancelReason),
    /// Tell the device that this attempt and earlier ones are not wanted.
    SendCancel {
        /// The attempt.
        attempt_no: u32,
        /// Why.
        reason: CancelReason,
    },
    /// The call has been made.
    End(End),
}

/// How making a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The call is settled: what was read last says how.
    Settled,
    /// The rules do not allow it.
    Forbidden,
    /// The device refused the attempt, with this code.
    Refused(String),
    /// Nobody knows what became of it: the socket is lost.
    Lost,
    /// The wait is over.
    TimedOut,
    /// The run was told to stop. What was read last may say how the call ended all the same.
    Stopped,
    /// The ledger failed. The call may have been dispatched.
    InDoubt,
}

/// What the caller is about to learn.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Awaits {
    /// Whether the attempt is recorded.
    Dispatch,
    /// How the call stands after the commit, before anything is sent.
    ReadBeforeSend,
    /// That anything happens.
    Anything,
    /// How the call stands, having been woken; and with which code the attempt was refused.
    ReadAfterWake { refused: Option<String> },
    /// How the call stands, the socket being lost.
    ReadAfterLoss,
    /// That the end of the wait is recorded.
    TimeOut,
    /// That the call is taken back.
    Cancel(CancelReason),
    /// Nothing: it has ended.
    Nothing,
}

/// A call that is being made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerCall {
    awaits: Awaits,
    /// Whether another caller has sent the attempt, and this one only waits with it.
    joins: bool,
    /// The attempt that is waited for; 0 before it is known.
    attempt_no: u32,
}

impl ServerCall {
    /// A call to be made by one who has entered as a waiter. `joins`: somebody was waiting already.
    pub fn begin(joins: bool) -> (Self, Vec<Effect>) {
        (Self { awaits: Awaits::Dispatch, joins, attempt_no: 0 }, vec![Effect::Dispatch])
    }

    /// Whether the call has been made.
    pub fn has_ended(&self) -> bool {
        self.awaits == Awaits::Nothing
    }

    /// Whether it waits for anything to happen.
    pub fn is_waiting(&self) -> bool {
        self.awaits == Awaits::Anything
    }

    /// The next state, and what is to be done. An input that is not waited for does nothing.
    pub fn step(&mut self, input: Input) -> Vec<Effect> {
        match (std::mem::replace(&mut self.awaits, Awaits::Nothing), input) {
            (Awaits::Dispatch, Input::Dispatched) => self.await_for(Awaits::ReadBeforeSend, Effect::Read),
            (Awaits::Dispatch, Input::Forbidden) => end(End::Forbidden),
            // Nothing was sent, and nothing will be: the attempt may stand in the ledger all the same.
            (Awaits::Dispatch | Awaits::ReadBeforeSend, Input::InDoubt) => end(End::InDoubt),
            // A late result of an earlier attempt may stand there by now: then nothing is sent.
            (Awaits::ReadBeforeSend, Input::Read(stands)) if stands.is_settled => end(End::Settled),
            (Awaits::ReadBeforeSend, Input::Read(stands)) => {
                self.attempt_no = stands.last_attempt;
                let send = Effect::Send { attempt_no: self.attempt_no };
                let mut effects = if self.joins { vec![] } else { vec![send] };
                effects.extend(self.await_for(Awaits::Anything, Effect::Wait));
                effects
            }

            (Awaits::Anything, Input::Woken(refusal)) => {
                // A refusal of another attempt is not this wait's.
                let refused = refusal.filter(|refusal| refusal.attempt_no == self.attempt_no).map(|own| own.code);
                self.await_for(Awaits::ReadAfterWake { refused }, Effect::Read)
            }
            (Awaits::Anything, Input::WaitTimedOut) => {
                self.await_for(Awaits::TimeOut, Effect::RecordTimeOut { attempt_no: self.attempt_no })
            }
            (Awaits::Anything, Input::RunStopped) => self.take_back(CancelReason::RunCancelled),
            (Awaits::Anything, Input::SocketLost) => self.await_for(Awaits::ReadAfterLoss, Effect::Read),

            (Awaits::ReadAfterWake { .. }, Input::Read(stands)) if stands.is_settled => end(End::Settled),
            (Awaits::ReadAfterWake { refused: Some(code) }, Input::Read(_) | Input::InDoubt) => end(End::Refused(code)),
            (Awaits::ReadAfterWake { refused: None }, Input::Read(_)) => self.await_for(Awaits::Anything, Effect::Wait),
            // What woke the caller may be the result: it is looked for again, and the wait goes on.
            (Awaits::ReadAfterWake { refused: None }, Input::InDoubt) => {
                self.awaits = Awaits::Anything;
                vec![Effect::WakeLater, Effect::Wait]
            }

            (Awaits::ReadAfterLoss, Input::Read(stands)) if stands.is_settled => end(End::Settled),
            (Awaits::ReadAfterLoss, Input::Read(_) | Input::InDoubt) => end(End::Lost),

            (Awaits::TimeOut, Input::Recorded(stands)) if stands.is_settled => end(End::Settled),
            (Awaits::TimeOut, Input::Recorded(_)) => self.take_back(CancelReason::WaitTimedOut),
            (Awaits::Cancel(reason), Input::Recorded(stands)) if stands.is_settled => end(match reason {
                CancelReason::WaitTimedOut => End::Settled,
                CancelReason::RunCancelled => End::Stopped,
            }),
            (Awaits::Cancel(reason), Input::Recorded(stands)) => {
                let cancel = Effect::SendCancel { attempt_no: stands.last_attempt, reason };
                let how = match reason {
                    CancelReason::WaitTimedOut => End::TimedOut,
                    CancelReason::RunCancelled => End::Stopped,
                };
                vec![cancel, Effect::End(how)]
            }
            // The device must not go on for nobody, recorded or not: its report decides in any case.
            (Awaits::TimeOut, Input::InDoubt) => self.cancel_in_doubt(CancelReason::WaitTimedOut),
            (Awaits::Cancel(reason), Input::InDoubt) => self.cancel_in_doubt(reason),

            (awaits, _) => {
                self.awaits = awaits;
                vec![]
            }
        }
    }

    fn await_for(&mut self, awaits: Awaits, effect: Effect) -> Vec<Effect> {
        self.awaits = awaits;
        vec![effect]
    }

    fn take_back(&mut self, reason: CancelReason) -> Vec<Effect> {
        self.await_for(Awaits::Cancel(reason), Effect::RecordCancel(reason))
    }

    fn cancel_in_doubt(&mut self, reason: CancelReason) -> Vec<Effect> {
        let how = match reason {
            CancelReason::WaitTimedOut => End::InDoubt,
            // The run ends because it was told to, whatever the ledger does.
            CancelReason::RunCancelled => End::Stopped,
        };
        vec![Effect::SendCancel { attempt_no: self.attempt_no, reason }, Effect::End(how)]
    }
}

fn end(how: End) -> Vec<Effect> {
    vec![Effect::End(how)]
}
