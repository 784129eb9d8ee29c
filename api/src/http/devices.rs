//! Devices: the list, tickets, and the socket's upgrade.

use super::extract::{Body, checked_id};
use crate::device_gateway::socket::{self, Arrival};
use crate::device_gateway::tickets::{self, Ticket};
use crate::error::{ApiError, ApiResult};
use crate::identity::User;
use crate::lifecycle::Peer;
use crate::state::App;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{Extension, RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::{Json, http::header};
use devmind_domain::ErrorCode;
use devmind_domain::limits::MAX_RESULT_FRAME_BYTES;
use devmind_domain::protocol::SUBPROTOCOL;
use devmind_projections::DeviceRow;
use serde::Deserialize;
use std::sync::Arc;

/// The user's devices.
pub async fn list(State(app): State<Arc<App>>, User(user): User) -> ApiResult<Json<Vec<DeviceRow>>> {
    app.caught_up(&["device"]).await?;
    Ok(Json(app.views.devices(&user).await?))
}

/// Who wants a ticket. The user is the authenticated one, never one named in a body.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TicketBody {
    device_id: String,
}

/// Gives out a one-time pass to open the socket.
pub async fn ticket(
    State(app): State<Arc<App>>,
    User(user): User,
    Body(body): Body<TicketBody>,
) -> ApiResult<Json<Ticket>> {
    checked_id("device_id", &body.device_id)?;
    if app.stopping.is_cancelled() {
        return Err(ApiError::of(ErrorCode::ShuttingDown));
    }
    tickets::issue(&app, &user, &body.device_id.into()).await.map(Json)
}

/// Upgrades to the device socket. Refusals come as close codes after the upgrade, so that the
/// device learns why.
pub async fn socket(
    State(app): State<Arc<App>>,
    Extension(Peer(remote)): Extension<Peer>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Response {
    let origin = headers.get(header::ORIGIN).map(|value| value.to_str().unwrap_or("null").to_owned());
    let arrival = Arrival { ticket: tickets::presented(&headers, query.as_deref()), origin, remote };
    upgrade
        .protocols([SUBPROTOCOL])
        .max_message_size(MAX_RESULT_FRAME_BYTES)
        .max_frame_size(MAX_RESULT_FRAME_BYTES)
        .max_write_buffer_size(2 * MAX_RESULT_FRAME_BYTES)
        .on_upgrade(move |socket| async move {
            // The socket lives in a task that the process owns and waits for when it stops.
            let tasks = app.socket_tasks.clone();
            drop(tasks.spawn(socket::serve(app, socket, arrival)));
        })
}
