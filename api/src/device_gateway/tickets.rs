//! Tickets: one-time passes to open the socket.
//!
//! A ticket is `<device stream key>.<256-bit secret>`, both base64url. Only its SHA-256 is stored,
//! and no log or error shows it. Presenting it burns it, whatever happens next.

use crate::error::{ApiError, ApiResult};
use crate::ids::{new_secret, now};
use crate::state::App;
use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use devmind_domain::canonical::sha256_hex;
use devmind_domain::device::{Device, DeviceCommand, DeviceError, parse_stream_key, stream_key};
use devmind_domain::event::Actor;
use devmind_domain::ids::{DeviceId, UserId};
use devmind_domain::limits::TICKET_TTL_MS;
use devmind_domain::protocol::WS_PATH;
use devmind_domain::{ErrorCode, Timestamp};
use devmind_ledger::{ExecuteError, execute, load};
use serde::Serialize;

/// A ticket, as its asker gets it.
#[derive(Clone, Serialize, utoipa::ToSchema)]
pub struct Ticket {
    /// To be presented once.
    ticket: String,
    /// When it ends.
    expires_at: Timestamp,
    /// Where to present it.
    ws_path: &'static str,
}

/// Gives out a ticket for a device of the user.
///
/// # Errors
/// `RATE_LIMITED`, and what the ledger fails with.
pub async fn issue(app: &App, user_id: &UserId, device_id: &DeviceId) -> ApiResult<Ticket> {
    let now = now();
    if !app.gateway.rates.tickets.allows(user_id) {
        let message = format!("at most {} tickets a minute", app.limits.tickets_per_minute);
        return Err(ApiError::new(ErrorCode::RateLimited, message));
    }
    let key = stream_key(user_id, device_id);
    let secret = new_secret().map_err(|error| ApiError::internal(ErrorCode::Internal, &error))?;
    let ticket = format!("{}.{secret}", URL_SAFE_NO_PAD.encode(&key));
    let command = DeviceCommand::IssueTicket { ticket_hash: sha256_hex(ticket.as_bytes()), now };
    execute::<Device>(&app.ledger, &key, &app.metadata(Actor::user(user_id)), command, None).await?;
    Ok(Ticket { ticket, expires_at: now.plus_millis(TICKET_TTL_MS), ws_path: WS_PATH })
}

impl From<DeviceError> for ApiError {
    fn from(error: DeviceError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// The ticket that an upgrade request presents: `Authorization: Bearer`, the subprotocol
/// `ticket.<…>`, or `?ticket=`, in this order.
pub fn presented(headers: &HeaderMap, query: Option<&str>) -> Option<String> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let subprotocol = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .find_map(|protocol| protocol.trim().strip_prefix("ticket."));
    // A ticket has no characters that a query would escape.
    let parameter = query.and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("ticket=")));
    bearer.or(subprotocol).or(parameter).map(|ticket| ticket.trim().to_owned())
}

/// Burns a presented ticket and says whose it was; `None` when it is unknown, used or expired, which
/// look the same.
///
/// # Errors
/// When the ledger fails.
pub async fn consume(app: &App, ticket: &str) -> ApiResult<Option<(UserId, DeviceId)>> {
    let Some((encoded, _)) = ticket.split_once('.') else { return Ok(None) };
    let key = URL_SAFE_NO_PAD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let Some((key, (user_id, device_id))) = key.and_then(|key| parse_stream_key(&key).map(|parsed| (key, parsed)))
    else {
        return Ok(None);
    };
    let ticket_hash = sha256_hex(ticket.as_bytes());
    let (device, _) = load::<Device>(app.ledger.reader(), &key).await?;
    let Some(expires_at) = device.ticket_expiry(&ticket_hash) else { return Ok(None) };
    let metadata = app.metadata(Actor::device(&device_id));
    let command = DeviceCommand::ConsumeTicket { ticket_hash };
    match execute::<Device>(&app.ledger, &key, &metadata, command, None).await {
        Ok(_) if now() < expires_at => Ok(Some((user_id, device_id))),
        Ok(_) | Err(ExecuteError::Refused(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_found_in_each_of_its_three_places() {
        let headers = |name: &'static str, value: &str| {
            HeaderMap::from_iter([(name.parse().expect("name"), value.parse().expect("value"))])
        };
        assert_eq!(presented(&headers("authorization", "Bearer a.b"), None).as_deref(), Some("a.b"));
        assert_eq!(
            presented(&headers("sec-websocket-protocol", "devmind.v1, ticket.a.b"), None).as_deref(),
            Some("a.b")
        );
        assert_eq!(presented(&HeaderMap::new(), Some("x=1&ticket=a.b")).as_deref(), Some("a.b"));
        assert_eq!(presented(&HeaderMap::new(), None), None);
    }
}
