//! A device's report: record, wake, acknowledge — in this order.
//!
//! That it is acknowledged is recorded with it, in one append: the acknowledgement leaves after both are durable.
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
    /// [`ReportEffect::Record`]: it is durable, or another one was before; and so is that it is acknowledged as this.
    Recorded(Disposition),
    /// [`ReportEffect::Record`]: the call was never sent to whoever reports.
    Forbidden,
    /// The ledger failed.
    InDoubt,
}

/// What is to be done, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportEffect {
    /// Read the call → [`ReportInput::Read`].
    Read,
    /// Record the report, and that it is acknowledged → [`ReportInput::Recorded`].
    Record,
    /// Wake whoever waits for the call; they read it again.
    Wake,
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
                (Self::Done, vec![ReportEffect::Wake, ReportEffect::SendAck(disposition)])
            }
            (Self::Recording, ReportInput::Forbidden) => (Self::Done, vec![ReportEffect::SendNack]),
            (Self::Reading | Self::Recording, ReportInput::InDoubt) => (Self::Done, vec![ReportEffect::CloseSocket]),
            (unmoved, _) => (unmoved, vec![]),
        };
        *self = next;
        effects
    }
}
