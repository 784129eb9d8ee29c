//! Where a call goes: to a socket of this process, or to one that another process holds.
//!
//! Which socket of a device counts, and which start of which process holds it, the device's stream says; whether
//! that start is under way, the process's stream does. A call for a socket elsewhere is sent by its holder, as
//! soon as it reads the dispatch in the log.

use super::Gateway;
use super::connections::Connection;
use crate::nodes::is_running;
use devmind_domain::ErrorCode;
use devmind_domain::conversation::Claim;
use devmind_domain::device::{Device, stream_key};
use devmind_domain::ids::{ConnectionId, DeviceId};
use devmind_domain::tool_call::{ToolCall, ToolCallRequested};
use devmind_ledger::{LedgerError, LedgerReader, load, load_since};
use std::sync::Arc;
use std::time::Instant;

/// Where a call goes.
pub(super) enum Route {
    /// A socket of this process.
    Here(Arc<Connection>),
    /// A socket of another process.
    Elsewhere(Elsewhere),
}

/// A socket that another process holds.
pub(super) struct Elsewhere {
    connection_id: ConnectionId,
    journal_id: String,
    holder: Claim,
    device_key: String,
}

impl Route {
    /// The socket.
    pub fn connection_id(&self) -> &ConnectionId {
        match self {
            Self::Here(connection) => &connection.id,
            Self::Elsewhere(elsewhere) => &elsewhere.connection_id,
        }
    }

    /// The device's journal.
    pub fn journal_id(&self) -> &str {
        match self {
            Self::Here(connection) => &connection.journal_id,
            Self::Elsewhere(elsewhere) => &elsewhere.journal_id,
        }
    }

    /// The socket, where this process holds it.
    pub fn here(&self) -> Option<&Arc<Connection>> {
        match self {
            Self::Here(connection) => Some(connection),
            Self::Elsewhere(_) => None,
        }
    }
}

impl Elsewhere {
    /// Whether the socket still counts and its holder is still there.
    pub async fn counts(&self, reader: &LedgerReader) -> Result<bool, LedgerError> {
        Ok(is_current(reader, &self.device_key, &self.connection_id).await? && is_running(reader, &self.holder).await?)
    }
}

impl Gateway {
    /// The socket that a call can go to, or why there is none.
    pub(super) async fn route(
        &self,
        reader: &LedgerReader,
        own: &Claim,
        looked_at: Instant,
        device_id: &DeviceId,
        request: &ToolCallRequested,
    ) -> Result<Result<Route, ErrorCode>, LedgerError> {
        let user_id = &request.user_id;
        let device_key = stream_key(user_id, device_id);
        let (device, _) = load_since::<Device>(reader, &device_key, looked_at).await?;
        let Some(current) = &device.connection else { return Ok(Err(ErrorCode::DeviceOffline)) };
        let (tool, version) = (&request.tool, &request.tool_version);
        let (route, offers) = match &current.holder {
            Some(holder) if holder == own => {
                let connection = self.connections.online(user_id, device_id);
                let connection = connection.filter(|connection| connection.id == current.connection_id);
                let Some(connection) = connection else { return Ok(Err(ErrorCode::DeviceOffline)) };
                let offers = connection.offers(tool, version);
                (Route::Here(connection), offers)
            }
            Some(holder) if device.synced && is_running(reader, holder).await? => {
                let elsewhere = Elsewhere {
                    connection_id: current.connection_id.clone(),
                    journal_id: current.journal_id.clone(),
                    holder: holder.clone(),
                    device_key,
                };
                (Route::Elsewhere(elsewhere), device.offers(tool, version))
            }
            Some(_) | None => return Ok(Err(ErrorCode::DeviceOffline)),
        };
        Ok(if offers { Ok(route) } else { Err(ErrorCode::ToolNotAvailable) })
    }
}

/// Whether another process waits for the newest attempt of this call: then it is joined. For the attempts of this
/// process its own waiters know.
pub(super) async fn is_waited_for_elsewhere(
    reader: &LedgerReader,
    own: &Claim,
    call: &ToolCall,
) -> Result<bool, LedgerError> {
    let Some((attempt, request)) = call.open_attempt().zip(call.request.as_ref()) else { return Ok(false) };
    let sender = Claim { node_id: attempt.node_id.clone(), epoch: attempt.epoch };
    let (Some(connection_id), Some(device_id)) = (&attempt.connection_id, &request.device_id) else {
        return Ok(false);
    };
    Ok(sender != *own
        && is_running(reader, &sender).await?
        && is_current(reader, &stream_key(&request.user_id, device_id), connection_id).await?)
}

pub(super) async fn is_current(
    reader: &LedgerReader,
    device_key: &str,
    connection_id: &ConnectionId,
) -> Result<bool, LedgerError> {
    let (device, _) = load::<Device>(reader, device_key).await?;
    Ok(device.connection.as_ref().is_some_and(|current| current.connection_id == *connection_id))
}
