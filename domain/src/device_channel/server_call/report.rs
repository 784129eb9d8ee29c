//! A device's report: record, wake, acknowledge — in this order.
//!
//! Every well-formed report of a known call is acknowledged, the second one like the first. When the
//! ledger fails nothing is acknowledged: whether the report was stored is not known, and the device
//! brings it again on its next connection.

use crate::tool_call::Disposition;

/// What can happen to a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportInput {
    /// [`ReportEffect::Read`]: whether the call is known.
    Read {
        /// Whether it is.
        is_known: bool,
    },
    /// [`ReportEffect::Record`]: it is durable, or another one was before.
    Recorded(Disposition),
    /// [`ReportEffect::Record`]: the call was never sent to whoever reports.
    Forbidden,
    /// [`ReportEffect::RecordAck`]: recorded.
    AckRecorded,
    /// The ledger failed.
    InDoubt,
}

/// What is to be done, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportEffect {
    /// Read the call → [`ReportInput::Read`].
    Read,
    /// Record the report → [`ReportInput::Recorded`].
    Record,
    /// Wake whoever waits for the call; they read it again.
    Wake,
    /// Record that the report is acknowledged → [`ReportInput::AckRecorded`].
    RecordAck(Disposition),
    /// Acknowledge it.
    SendAck(Disposition),
    /// Tell the device that the report is never going to be taken, and why.
    SendNack,
    /// Close the socket: the device brings the report again.
    CloseSocket,
}

/// A report on its way into the ledger; what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Report {
    /// Whether the call is known.
    Reading,
    /// That the report is durable.
    Recording,
    /// That the acknowledgement is recorded.
    Acknowledging(Disposition),
    /// Nothing.
    Done,
}

impl Report {
    /// A report arrived, and is well-formed or not.
    pub fn arrived(is_well_formed: bool) -> (Self, Vec<ReportEffect>) {
        if is_well_formed {
            (Self::Reading, vec![ReportEffect::Read])
        } else {
            (Self::Done, vec![ReportEffect::SendNack])
        }
    }

    /// The next state, and what is to be done. An input that is not waited for does nothing.
    pub fn step(&mut self, input: ReportInput) -> Vec<ReportEffect> {
        let (next, effects) = match (*self, input) {
            (Self::Reading, ReportInput::Read { is_known: true }) => (Self::Recording, vec![ReportEffect::Record]),
            (Self::Reading, ReportInput::Read { is_known: false }) => {
                (Self::Done, vec![ReportEffect::SendAck(Disposition::UnknownCall)])
            }
            (Self::Recording, ReportInput::Recorded(disposition)) => {
                (Self::Acknowledging(disposition), vec![ReportEffect::Wake, ReportEffect::RecordAck(disposition)])
            }
            (Self::Recording, ReportInput::Forbidden) => (Self::Done, vec![ReportEffect::SendNack]),
            (Self::Acknowledging(disposition), ReportInput::AckRecorded) => {
                (Self::Done, vec![ReportEffect::SendAck(disposition)])
            }
            (Self::Reading | Self::Recording | Self::Acknowledging(_), ReportInput::InDoubt) => {
                (Self::Done, vec![ReportEffect::CloseSocket])
            }
            (unmoved, _) => (unmoved, vec![]),
        };
        *self = next;
        effects
    }
}
