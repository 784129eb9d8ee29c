//! The protocol as it is, and with one fault planted. A fault is planted in the shells around the step
//! functions, which are the real ones in every variant.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// As it is.
    Sound,
    /// A refusal before the reservation is said, and is no row of the journal.
    VerdictNotJournalled,
    /// A caller does not read the call again: a wake-up carries the result. The device keeps no output
    /// after the acknowledgement, or there would be nothing to miss.
    WakeWithPayloadAndOutputDropped,
    /// What was acknowledged is forgotten altogether after seven days.
    NoTombstones,
    /// A cancel means every attempt of the call.
    CancelWithoutFence,
    /// The device keeps no output after the acknowledgement.
    OutputDropped,
    /// A report is acknowledged before it is recorded.
    AckBeforePersist,
    /// A call is a row of the journal only when it has ended.
    ExecuteBeforeReserve,
    /// A report takes the place of one that settled the call before. The journal alone already lets a
    /// device report but one end of a call, so this is seen only with a refusal that is no row.
    OverwriteSettledAndVerdictNotJournalled,
    /// The end of a wait takes the place of a result that was recorded a moment before.
    UnconditionalUnknown,
    /// Only a report that changes something is acknowledged.
    AckOnlyOnChange,
}

impl Variant {
    pub fn wakes_with_payload(self) -> bool {
        self == Self::WakeWithPayloadAndOutputDropped
    }

    pub fn says_verdict_without_row(self) -> bool {
        matches!(self, Self::VerdictNotJournalled | Self::OverwriteSettledAndVerdictNotJournalled)
    }

    pub fn drops_output_at_ack(self) -> bool {
        matches!(self, Self::WakeWithPayloadAndOutputDropped | Self::OutputDropped)
    }
}
