//! One state of the modelled world, and what may happen in it at most how often.

use crate::ledger::{Ledger, Reported};
use devmind_domain::device_channel::device_call::DeviceCalls;
use devmind_domain::device_channel::server_call::{Report, ServerCall};
use devmind_domain::tool_call::{CancelReason, ResultStatus};

/// Frames on their way in one direction, at most; a history that needs more is not followed.
const MAX_ON_THE_WAY: usize = 4;

/// Server and device, the links between them, and what the properties must remember.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub ledger: Ledger,
    pub caller: Option<Caller>,
    pub report: Option<Taking>,
    pub connected: bool,
    pub to_device: Fifo<ToDevice>,
    pub to_server: Fifo<Reported>,
    pub device: DeviceCalls<()>,
    /// Whether the tool is one that a person is asked about.
    pub asks: bool,
    pub job: Option<DeviceJob>,
    pub row: Option<Row>,
    /// What has happened of that which may happen only so often.
    pub spent: Spent,
    pub seen: Seen,
}

/// One who calls, in the server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    pub machine: ServerCall,
    /// The effect whose outcome the machine waits for.
    pub job: CallerJob,
    /// Whether it was woken and has not looked yet.
    pub woken: bool,
    /// What woke it; looked at only by the variant in which a wake-up carries the result.
    pub payload: Option<Reported>,
    /// Whether the socket that it calls on has ended.
    pub lost_socket: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallerJob {
    Dispatch,
    Read,
    Wait,
    RecordTimeOut(u8),
    RecordCancel(CancelReason),
}

/// A report that is being taken, in the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Taking {
    pub machine: Report,
    pub reported: Reported,
    /// Whether the socket that it came on has ended.
    pub lost_socket: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ToDevice {
    Request(u8),
    Cancel(u8),
    Ack,
}

/// The effect whose outcome the device's call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceJob {
    Examine,
    RecordVerdict(Ending),
    Reserve,
    Ask,
    Begin,
    BeginAtOnce,
    Execute {
        aborted: bool,
    },
    /// The effect has taken place, and is not yet told.
    Executed,
    Settle(Ending),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ending {
    pub status: ResultStatus,
    pub has_output: bool,
}

/// The call in the device's journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    pub attempt_no: u8,
    pub at: At,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum At {
    Reserved,
    Executing,
    Settled { ending: Ending, acked: bool },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spent {
    pub disconnects: u8,
    pub device_crashes: u8,
    pub server_restarts: u8,
    pub doubts: u8,
    pub purges: u8,
    pub rollbacks: u8,
}

/// What witnesses saw that trust neither side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seen {
    pub executions: u8,
    /// The newest attempt that the server told the device not to want.
    pub cancelled_up_to: u8,
    /// What the model was told last.
    pub told: Option<Told>,
    pub settlement_overwritten: bool,
    pub cancelled_unasked: bool,
    pub acked_unpersisted: bool,
    /// An output that the ledger had lost had its seven days: nobody can have it any more.
    pub output_aged_out: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Told {
    Success,
    SuccessWithoutOutput,
    Other,
}

impl World {
    pub fn new(asks: bool) -> Self {
        Self {
            ledger: Ledger::default(),
            caller: None,
            report: None,
            connected: true,
            to_device: Fifo::default(),
            to_server: Fifo::default(),
            device: DeviceCalls::default(),
            asks,
            job: None,
            row: None,
            spent: Spent::default(),
            seen: Seen::default(),
        }
    }

    /// Whether nothing is under way: nothing more happens by itself.
    pub fn is_quiescent(&self) -> bool {
        self.connected
            && self.caller.is_none()
            && self.report.is_none()
            && self.to_device.is_empty()
            && self.to_server.is_empty()
            && self.device.get(&()).is_none()
    }

    /// The connection ends: what was on its way is lost.
    pub fn disconnect(&mut self) {
        self.connected = false;
        self.to_device = Fifo::default();
        self.to_server = Fifo::default();
        if let Some(caller) = &mut self.caller {
            caller.lost_socket = true;
        }
        if let Some(report) = &mut self.report {
            report.lost_socket = true;
        }
    }
}

/// A link that keeps the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fifo<T> {
    items: [Option<T>; MAX_ON_THE_WAY],
    /// Whether it was sent more than it holds.
    pub overflowed: bool,
}

impl<T: Copy> Default for Fifo<T> {
    fn default() -> Self {
        Self { items: [None; MAX_ON_THE_WAY], overflowed: false }
    }
}

impl<T: Copy> Fifo<T> {
    pub fn push(&mut self, item: T) {
        match self.items.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(item),
            None => self.overflowed = true,
        }
    }

    pub fn pop(&mut self) -> Option<T> {
        let first = self.items[0].take();
        self.items.rotate_left(1);
        first
    }

    pub fn is_empty(&self) -> bool {
        self.items[0].is_none()
    }
}
