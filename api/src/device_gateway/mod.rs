//! The gateway for devices: tickets, sockets, and calls of their tools.
//!
//! Which device is connected and who waits for which call is known in memory alone: a restart ends
//! all of it, and what is left is the log and the device's own journal. The rules are in
//! `devmind_domain::{device, tool_call}`.

pub mod calls;
mod connections;
mod results;
pub mod socket;
pub mod tickets;
mod waiters;

pub use connections::{Closing, Connection, Connections};
pub use waiters::Waiters;

/// Devices and their calls, as one server process knows them.
#[derive(Default)]
pub struct Gateway {
    /// The sockets that count.
    pub connections: Connections,
    /// Who waits for which call.
    pub waiters: Waiters,
    /// How many tickets each user asked for lately.
    pub ticket_rate: tickets::TicketRate,
}
