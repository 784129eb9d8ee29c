//! What can be asked of a tool call.

use super::event::*;
use crate::ids::*;

/// A command.
#[derive(Clone, Debug)]
pub enum ToolCallCommand {
    /// Requests the call where it is new.
    Request(Box<ToolCallRequested>),
    /// Requests the call where it is new, and records what a stage decided about it.
    Decide {
        /// What the model wants.
        request: Box<ToolCallRequested>,
        /// The decision.
        decided: ToolCallDecided,
    },
    /// Requests the call where it is new, and dispatches it.
    Dispatch(Box<Dispatch>),
    /// The device said how far it has got.
    Receive {
        /// The attempt.
        attempt_no: u32,
        /// How far.
        phase: Phase,
    },
    /// The device will not run the attempt.
    Refuse {
        /// The attempt.
        attempt_no: u32,
        /// Why: a stable code.
        code: String,
    },
    /// Takes the call back.
    Cancel {
        /// Why.
        reason: CancelReason,
    },
    /// Gives up waiting.
    TimeOut {
        /// The attempt.
        attempt_no: u32,
        /// How long it had waited.
        after_ms: u64,
    },
    /// Records the report that settles the call, unless one did before. A device's is acknowledged, the first like
    /// those after it, and how is recorded with it.
    RecordResult {
        /// The report.
        result: Box<ToolResultRecorded>,
        /// Who reports it.
        reporter: Reporter,
    },
    /// Records what later stages changed of what the model sees of the result, in their order.
    Revise(Vec<ToolOutcomeRevised>),
}

/// One sending of a call.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// What the model wants.
    pub request: ToolCallRequested,
    /// The run that sends it.
    pub run_id: RunId,
    /// The server process.
    pub node_id: NodeId,
    /// Which start of it.
    pub epoch: u64,
    /// The socket.
    pub connection_id: Option<ConnectionId>,
    /// The device journal.
    pub journal_id: Option<String>,
    /// How long the server waits.
    pub wait_ms: u64,
    /// How long the device may take to begin.
    pub ttl_ms: u64,
    /// Whether an attempt is under way and waited for: then it is joined.
    pub attempt_is_live: bool,
    /// How long ago the call was requested; 0 where it is new.
    pub age_ms: i64,
}

/// Who brings a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reporter {
    /// The server itself ran the tool.
    Server,
    /// A device, over an authenticated socket.
    Device {
        /// The socket's user.
        user_id: UserId,
        /// The socket's device.
        device_id: DeviceId,
        /// The device's journal.
        journal_id: String,
        /// The socket, which the acknowledgement leaves on.
        connection_id: ConnectionId,
    },
}
