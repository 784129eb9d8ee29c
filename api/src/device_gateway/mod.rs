//! The gateway for devices: tickets, sockets, and calls of their tools.
//!
//! The sockets themselves and who waits for which call are known in memory alone: a restart ends all of it, and
//! what is left is the log and the device's own journal. Other processes know from the log which of them holds
//! whose socket, and reach it through the log. The rules are in
//! `devmind_domain::{device, tool_call}`.

pub mod calls;
mod connections;
pub(crate) mod elsewhere;
mod rates;
mod request;
mod results;
mod route;
pub mod socket;
pub mod tickets;
mod under_way;
mod waiters;
mod wire;

pub use connections::{Closing, Connection, Connections};
pub use rates::Rates;
pub use waiters::Waiters;
pub(crate) use wire::CUT_BYTES;

use crate::limits::Limits;
use crate::places::Places;
use std::net::IpAddr;

/// Devices and their calls, as one server process knows them.
pub struct Gateway {
    /// The sockets that count.
    pub connections: Connections,
    /// Who waits for which call.
    pub waiters: Waiters,
    /// Sockets that have not registered yet.
    pub pending: Places<IpAddr>,
    /// Who asked for how much lately.
    pub rates: Rates,
}

impl Gateway {
    /// Nobody is connected.
    pub fn new(limits: &Limits) -> Self {
        Self {
            connections: Connections::default(),
            waiters: Waiters::default(),
            pending: Places::new(limits.pending_sockets, limits.pending_sockets_per_address),
            rates: Rates::new(limits),
        }
    }
}
