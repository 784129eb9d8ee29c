//! The projection `device`: every user's devices, their sockets and tools, and the server processes
//! that hold the sockets.
//!
//! A device is online when a socket counts for it and its tools are known. Tools are appended only
//! when they differ from the last known set: so the first socket of a device is online from its
//! `ToolRegistrySynced` on, a later one from its `DeviceConnected` on, and corrects the set a moment
//! later if it changed. Whether a frame can be sent right now, the gateway alone knows.

mod read;
mod rows;
#[cfg(test)]
mod tests;

pub use read::*;
pub use rows::*;

use crate::change::{Change, change};
use crate::projection::Projection;
use devmind_domain::ErrorCode;
use devmind_domain::canonical::canonical_json;
use devmind_domain::device::*;
use devmind_domain::event::{AggregateType, DomainEvent, RecordedEvent};
use devmind_domain::ids::*;
use devmind_domain::node::NodeEvent;

/// The projection.
pub(crate) struct Devices;

impl Projection for Devices {
    fn name(&self) -> &'static str {
        "device"
    }
    fn version(&self) -> u32 {
        2
    }
    fn tables(&self) -> &'static [&'static str] {
        &["devices", "nodes"]
    }
    fn reads(&self) -> &'static [AggregateType] {
        &[AggregateType::Device, AggregateType::Node]
    }
    fn changes(&self, event: &RecordedEvent, decoded: &DomainEvent) -> Vec<Change> {
        match decoded {
            // A stream with another kind of name was made by no version of this program: there is no device to show.
            DomainEvent::Device(decoded) => parse_stream_key(&event.stream.aggregate_id)
                .map(|(user, device)| device_changes(event, &user, &device, decoded))
                .unwrap_or_default(),
            DomainEvent::Node(decoded) => node_changes(event, decoded),
            DomainEvent::Conversation(_)
            | DomainEvent::Thread(_)
            | DomainEvent::ToolCall(_)
            | DomainEvent::Redaction(_)
            | DomainEvent::Projection(_)
            | DomainEvent::History(_)
            | DomainEvent::ToolSet(_) => vec![],
        }
    }
}

fn device_changes(event: &RecordedEvent, user: &UserId, device: &DeviceId, decoded: &DeviceEvent) -> Vec<Change> {
    match decoded {
        DeviceEvent::DeviceTicketIssued(_) | DeviceEvent::DeviceTicketConsumed(_) | DeviceEvent::DeviceRead(_) => {
            vec![]
        }
        DeviceEvent::DeviceConnected(e) => vec![change!(
            "INSERT INTO devices (user_id, device_id, online, connection_id, connection_epoch, node_id, node_epoch, \
             instance_id, journal_id, version, remote, last_seen, connected_at) \
             VALUES ($1, $2, FALSE, $3, $4, $5, (SELECT epoch FROM nodes WHERE node_id = $5), $6, $7, $8, $9, $10, $10) \
             ON CONFLICT (user_id, device_id) DO UPDATE SET online = devices.tools IS NOT NULL, \
             connection_id = excluded.connection_id, connection_epoch = excluded.connection_epoch, \
             node_id = excluded.node_id, node_epoch = excluded.node_epoch, instance_id = excluded.instance_id, \
             journal_id = excluded.journal_id, version = excluded.version, remote = excluded.remote, \
             last_seen = excluded.last_seen, connected_at = excluded.connected_at, disconnected_at = NULL, \
             close_code = NULL, close_reason = NULL",
            user,
            device,
            &e.connection_id,
            e.connection_epoch,
            &e.node_id,
            &e.instance_id,
            &e.journal_id,
            &e.version,
            &e.remote,
            event.recorded_at
        )],
        DeviceEvent::DeviceDescribed(e) => vec![change!(
            "UPDATE devices SET computer = $3, workspace = $4 WHERE user_id = $1 AND device_id = $2",
            user,
            device,
            e.names.computer.as_deref(),
            e.names.workspace.as_deref()
        )],
        DeviceEvent::ToolRegistrySynced(e) => vec![change!(
            "UPDATE devices SET tools = $4, last_seen = $5, online = COALESCE(connection_id = $3, FALSE) \
             WHERE user_id = $1 AND device_id = $2",
            user,
            device,
            &e.connection_id,
            canonical_json(&e.tools),
            event.recorded_at
        )],
        DeviceEvent::DeviceDisconnected(e) => {
            vec![socket_ended(event, user, device, &e.connection_id, Some(e.code), &e.reason)]
        }
        DeviceEvent::DeviceReplaced(e) => {
            vec![socket_ended(event, user, device, &e.old_connection_id, None, "replaced")]
        }
    }
}

/// Only the socket that counts can end a device's being online.
fn socket_ended(
    event: &RecordedEvent,
    user: &UserId,
    device: &DeviceId,
    connection: &ConnectionId,
    code: Option<u16>,
    reason: &str,
) -> Change {
    change!(
        "UPDATE devices SET online = FALSE, connection_id = NULL, disconnected_at = $4, last_seen = $4, \
         close_code = $5, close_reason = $6 WHERE user_id = $1 AND device_id = $2 AND connection_id = $3",
        user,
        device,
        connection,
        event.recorded_at,
        code,
        reason
    )
}

/// With a server process its sockets end. A socket names its process, not the start of it: that is
/// looked up when it connects, so that the late report of an older start's end takes no newer socket.
fn node_changes(event: &RecordedEvent, decoded: &NodeEvent) -> Vec<Change> {
    let end = |node: &NodeId, last_epoch: u64, reason: ErrorCode| {
        change!(
            "UPDATE devices SET online = FALSE, connection_id = NULL, disconnected_at = $3, close_code = NULL, \
             close_reason = $4 WHERE node_id = $1 AND COALESCE(node_epoch, 0) <= $2 AND connection_id IS NOT NULL",
            node,
            last_epoch,
            event.recorded_at,
            reason.as_str()
        )
    };
    let status = |node: &NodeId, epoch: u64, status: &str| {
        change!(
            "UPDATE nodes SET status = $3, ended_at = $4 WHERE node_id = $1 AND epoch = $2",
            node,
            epoch,
            status,
            event.recorded_at
        )
    };
    match decoded {
        NodeEvent::NodeStarted(e) => vec![
            end(&e.node_id, e.epoch.saturating_sub(1), ErrorCode::ServerRestarted),
            change!(
                "INSERT INTO nodes (node_id, epoch, version, status, started_at) VALUES ($1, $2, $3, 'running', $4) \
                 ON CONFLICT (node_id) DO UPDATE SET epoch = excluded.epoch, version = excluded.version, \
                 status = excluded.status, started_at = excluded.started_at, ended_at = NULL",
                &e.node_id,
                e.epoch,
                &e.version,
                event.recorded_at
            ),
        ],
        NodeEvent::NodeStopped(e) => {
            vec![end(&e.node_id, e.epoch, ErrorCode::ShuttingDown), status(&e.node_id, e.epoch, "stopped")]
        }
        NodeEvent::NodeLost(e) => {
            vec![end(&e.node_id, e.epoch, ErrorCode::ServerRestarted), status(&e.node_id, e.epoch, "lost")]
        }
    }
}
