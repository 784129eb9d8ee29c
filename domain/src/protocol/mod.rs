//! The frames between server and device, version 1.
//!
//! JSON text objects with `type`, `event_id` (UUIDv7, for tracing only) and `sequence` (1, 2, 3 …
//! per direction and connection). Unknown fields are ignored. A frame is never an event; the two share
//! only the words of [`crate::tool_call`] (phases, statuses, dispositions) and [`RegisteredTool`],
//! so a change of those for the wire alone needs a type of its own here: the golden events refuse it.

mod close;
mod frame;

pub use close::CloseCode;
pub use frame::*;

/// The protocol's version, sent in `device.register`.
pub const PROTOCOL_VERSION: u32 = 1;
/// The path of the socket.
pub const WS_PATH: &str = "/api/desktop/ws";
/// The path where a ticket is had.
pub const TICKET_PATH: &str = "/api/desktop/connection-ticket";
/// The WebSocket subprotocol (RFC 6455 §1.9).
pub const SUBPROTOCOL: &str = "devmind.v1";
