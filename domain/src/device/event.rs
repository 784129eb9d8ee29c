//! What can happen to a device.

use crate::event::{Role, event_set};
use crate::ids::*;
use crate::protocol::{Names, RegisteredTool};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A one-time pass to open the socket was given out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceTicketIssued {
    /// SHA-256 of the ticket; the ticket itself is nowhere.
    pub ticket_hash: String,
    /// When it ends.
    pub expires_at: Timestamp,
}

/// A ticket was presented, and is burnt whatever happens next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceTicketConsumed {
    /// SHA-256 of the ticket.
    pub ticket_hash: String,
}

/// The device registered on a socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceConnected {
    /// The socket.
    pub connection_id: ConnectionId,
    /// 1, 2, 3 … with every socket of the device.
    pub connection_epoch: u64,
    /// The server process that holds the socket.
    pub node_id: NodeId,
    /// Which start of it; absent in what was recorded when a ledger had one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_epoch: Option<u64>,
    /// The device program's start.
    pub instance_id: String,
    /// The device's journal.
    pub journal_id: String,
    /// 1, 2, 3 … with every opening of the journal.
    pub journal_epoch: u64,
    /// The device program's version.
    pub version: String,
    /// Where it connected from.
    pub remote: String,
}

/// The device says what it is called: recorded where it differs from what it said last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceDescribed {
    /// The socket.
    pub connection_id: ConnectionId,
    /// The names; absent ones are not said, or no longer.
    #[serde(flatten)]
    pub names: Names,
}

/// The device's tools changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolRegistrySynced {
    /// The socket.
    pub connection_id: ConnectionId,
    /// The full set.
    pub tools: Vec<RegisteredTool>,
}

/// The current socket ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceDisconnected {
    /// The socket.
    pub connection_id: ConnectionId,
    /// The close code.
    pub code: u16,
    /// Why.
    pub reason: String,
}

/// A newer socket took over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceReplaced {
    /// The socket that ended.
    pub old_connection_id: ConnectionId,
    /// The socket that counts now.
    pub new_connection_id: ConnectionId,
}

/// Somebody with a role read what belongs to another: recorded before the answer is sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceRead {
    /// Who read.
    pub by: UserId,
    /// By which right.
    pub role: Role,
    /// What was asked for, for example `turns`.
    pub what: String,
}

event_set! {
    /// What can happen to a device.
    DeviceEvent of Device {
        DeviceTicketIssued = 1,
        DeviceTicketConsumed = 1,
        DeviceConnected = 1,
        DeviceDescribed = 1,
        ToolRegistrySynced = 1,
        DeviceDisconnected = 1,
        DeviceReplaced = 1,
        DeviceRead = 1,
    }
}
