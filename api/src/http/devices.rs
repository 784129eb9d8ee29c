//! Devices: the list, tickets, and the socket's upgrade.

use super::access::{Subject, record};
use super::conversations::Whose;
use super::extract::{Body, Query};
use super::fields::ClientId;
use super::openapi::refusals;
use crate::device_gateway::CUT_BYTES;
use crate::device_gateway::socket::{self, Arrival};
use crate::device_gateway::tickets::{self, Ticket};
use crate::error::{ApiError, ApiResult};
use crate::identity::{Author, Caller};
use crate::lifecycle::Peer;
use crate::state::App;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
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
use utoipa::ToSchema;

refusals!(ListRefusals: PERSONAL, QUERY; Forbidden);

/// The devices, those seen last first, at most 100.
#[utoipa::path(get, path = "/api/devices", tag = "devices", operation_id = "list_devices",
    params(Whose), responses((status = 200, body = Vec<DeviceRow>), ListRefusals))]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(query): Query<Whose>,
) -> ApiResult<Json<Vec<DeviceRow>>> {
    let owner = query.of(&caller)?;
    app.caught_up(&["device"]).await?;
    let rows = app.views.devices(&owner).await?;
    let subjects = rows.iter().map(|row| Subject::Device(row.user_id.clone(), row.device_id.clone()));
    record(&app, &caller, subjects, "devices").await?;
    Ok(Json(rows))
}

/// Who wants a ticket. The user is the authenticated one, never one named in a body.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TicketBody {
    device_id: ClientId,
}

refusals!(TicketRefusals: PERSONAL, CHANGE; RateLimited);

/// Gives out a one-time pass to open the device socket.
#[utoipa::path(post, path = "/api/desktop/connection-ticket", tag = "devices", operation_id = "issue_ticket",
    request_body = TicketBody, responses((status = 200, body = Ticket), TicketRefusals))]
pub async fn ticket(
    State(app): State<Arc<App>>,
    Author(user): Author,
    Body(body): Body<TicketBody>,
) -> ApiResult<Json<Ticket>> {
    tickets::issue(&app, &user, &body.device_id.id()).await.map(Json)
}

refusals!(SocketRefusals: ;
    Protocol, Internal, LedgerUnavailable, LedgerOverloaded, LedgerInDoubt, LedgerCorrupt, LedgerSchemaNewer,
    VersionConflict);

/// Upgrades to the device socket (subprotocol `devmind.v1`).
///
/// The ticket comes as `Authorization: Bearer`, as subprotocol `ticket.…` or as parameter. What is
/// wrong with it is told by a close code after the upgrade, so that the device learns why.
#[utoipa::path(get, path = "/api/desktop/ws", tag = "devices", operation_id = "open_device_socket", security(()),
    params(("ticket" = Option<String>, Query, description = "The ticket, where it comes in no header.")),
    responses((status = 101, description = "The socket is open."), SocketRefusals))]
pub async fn socket(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> ApiResult<Response> {
    let origin = headers.get(header::ORIGIN).map(|value| value.to_str().unwrap_or("null").to_owned());
    let mut arrival = Arrival { ticket: tickets::presented(&headers, query.as_deref()), origin, peer };
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => {
            // Presenting a ticket burns it, also where no socket can come of it.
            socket::burn(&app, &arrival).await?;
            return Err(ApiError::new(ErrorCode::Protocol, rejection.body_text()));
        }
    };
    let upgraded = upgrade
        .protocols([SUBPROTOCOL])
        .max_message_size(CUT_BYTES)
        .max_frame_size(CUT_BYTES)
        .max_write_buffer_size(2 * MAX_RESULT_FRAME_BYTES)
        .on_upgrade(move |socket| async move {
            arrival.peer.give_up_on_a_dead_network();
            // The socket lives in a task that the process owns and waits for when it stops.
            let tasks = app.socket_tasks.clone();
            drop(tasks.spawn(socket::serve(app, socket, arrival)));
        });
    Ok(upgraded)
}
