//! What other processes recorded and this one's sockets and waiters must know: a call for a socket that is held
//! here, its end, a socket that took over, a result.
//!
//! The log is read in order and each event once, so a call is sent once. What cannot be read closes the socket
//! it was for: its end is a fact that whoever waits will see.

use super::connections::{Closing, Connection};
use super::request::{request_frame, requested_at};
use super::route::is_current;
use crate::state::App;
use devmind_domain::conversation::Conversation;
use devmind_domain::device::{DeviceEvent, parse_stream_key, stream_key};
use devmind_domain::device_channel::server_call::Refusal;
use devmind_domain::ids::{ConnectionId, ToolCallId};
use devmind_domain::protocol::{CloseCode, ServerFrame};
use devmind_domain::tool_call::{ToolCall, ToolCallEvent, ToolCancelRequested, ToolDispatched};
use devmind_ledger::{LedgerError, load};

/// Acts on another process's event about a call.
pub(crate) async fn call_changed(app: &App, id: &ToolCallId, event: &ToolCallEvent) {
    let waiters = &app.gateway.waiters;
    match event {
        ToolCallEvent::ToolDispatched(dispatched) => send(app, id, dispatched).await,
        ToolCallEvent::ToolCancelRequested(cancelled) => cancel(app, id, cancelled).await,
        ToolCallEvent::ToolAttemptRefused(e) => {
            waiters.wake_call(id, Some(Refusal { attempt_no: e.attempt_no, code: e.code.clone() }));
        }
        ToolCallEvent::ToolResultRecorded(_) => waiters.wake_call(id, None),
        ToolCallEvent::ToolCallRequested(_)
        | ToolCallEvent::ToolCallDecided(_)
        | ToolCallEvent::ToolReceived(_)
        | ToolCallEvent::ToolWaitTimedOut(_)
        | ToolCallEvent::ToolOutcomeRevised(_)
        | ToolCallEvent::ToolResultAcked(_) => {}
    }
}

/// Acts on any process's event about a device: a call that waits may be for a socket that has just ended.
pub(crate) fn device_changed(app: &App, stream_id: &str, event: &DeviceEvent) {
    match event {
        DeviceEvent::DeviceReplaced(e) => {
            if let Some(old) = app.gateway.connections.by_id(&e.old_connection_id) {
                old.close(Closing::new(CloseCode::Replaced, "another connection of this device took over"));
            }
        }
        DeviceEvent::DeviceDisconnected(_) => {}
        DeviceEvent::DeviceConnected(_)
        | DeviceEvent::DeviceTicketIssued(_)
        | DeviceEvent::DeviceTicketConsumed(_)
        | DeviceEvent::ToolRegistrySynced(_)
        | DeviceEvent::DeviceDescribed(_)
        | DeviceEvent::DeviceRead(_) => return,
    }
    if let Some((user_id, device_id)) = parse_stream_key(stream_id) {
        app.gateway.waiters.wake_device(&user_id, &device_id);
    }
}

async fn send(app: &App, id: &ToolCallId, dispatched: &ToolDispatched) {
    let Some(connection) = held(app, dispatched.connection_id.as_ref()) else { return };
    match frame(app, &connection, id, dispatched).await {
        // A full queue closes the socket, which ends the wait.
        Ok(Some(frame)) => drop(connection.send(frame)),
        Ok(None) => {}
        Err(error) => {
            tracing::error!(tool_call.id = %id, cause = %error, "a call of another process cannot be read");
            connection.close(Closing::new(CloseCode::Busy, "the server could not read a call; connect again"));
        }
    }
}

/// The request, unless something has ended the attempt since, or the socket no longer counts.
async fn frame(
    app: &App,
    connection: &Connection,
    id: &ToolCallId,
    dispatched: &ToolDispatched,
) -> Result<Option<ServerFrame>, LedgerError> {
    let reader = app.ledger.reader();
    if !is_current(reader, &stream_key(&connection.user_id, &connection.device_id), &connection.id).await? {
        return Ok(None);
    }
    let (call, _) = load::<ToolCall>(reader, id.as_str()).await?;
    let open = call.open_attempt().filter(|open| open.attempt_no == dispatched.attempt_no);
    let (Some(attempt), Some(request)) = (open, &call.request) else { return Ok(None) };
    let (conversation, _) = load::<Conversation>(reader, request.conversation_id.as_str()).await?;
    let requested_at = requested_at(reader, id).await?.unwrap_or_else(crate::ids::now);
    Ok(request_frame(id, &call, attempt, requested_at, conversation.title.clone()))
}

async fn cancel(app: &App, id: &ToolCallId, cancelled: &ToolCancelRequested) {
    let call = match load::<ToolCall>(app.ledger.reader(), id.as_str()).await {
        Ok((call, _)) => call,
        Err(error) => {
            // The device's own clock ends the call, and its report decides in any case.
            tracing::error!(tool_call.id = %id, cause = %error, "a call that was taken back cannot be read");
            return;
        }
    };
    let attempt = call.attempts.iter().find(|attempt| attempt.attempt_no == cancelled.attempt_no);
    if let Some(connection) = held(app, attempt.and_then(|attempt| attempt.connection_id.as_ref())) {
        let (attempt_no, reason) = (cancelled.attempt_no, cancelled.reason);
        connection.send(ServerFrame::Cancel { tool_call_id: id.clone(), attempt_no, reason });
    }
}

fn held(app: &App, id: Option<&ConnectionId>) -> Option<std::sync::Arc<Connection>> {
    app.gateway.connections.by_id(id?)
}
