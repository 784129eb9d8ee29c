//! What the device view answers; a field that may be absent is always there, as `null`.

use devmind_domain::Timestamp;
use devmind_domain::ids::*;
use devmind_domain::protocol::RegisteredTool;
use serde::Serialize;

/// One device of `GET /api/devices`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeviceRow {
    /// The device.
    pub device_id: DeviceId,
    /// Its owner.
    pub user_id: UserId,
    /// Whether a socket counts for it and its tools are known.
    pub online: bool,
    /// The socket that counts.
    pub connection_id: Option<ConnectionId>,
    /// 1, 2, 3 … with every socket of the device.
    pub connection_epoch: u64,
    /// The server process that holds, or held, the socket.
    pub node_id: Option<NodeId>,
    /// The device program's version.
    pub version: String,
    /// Where it connected from.
    pub remote: String,
    /// The computer's name, where its program says it.
    pub computer: Option<String>,
    /// The name of its workspace's folder, where its program says it.
    pub workspace: Option<String>,
    /// The tools it last offered.
    pub tools: Vec<RegisteredTool>,
    /// When the log last heard of it; while it is online, it is there now.
    pub last_seen: Timestamp,
    /// When its last socket began.
    pub connected_at: Timestamp,
    /// When its last socket ended; absent while one counts.
    pub disconnected_at: Option<Timestamp>,
    /// The close code of its last socket.
    pub close_code: Option<u32>,
    /// Why its last socket ended.
    pub close_reason: Option<String>,
}
