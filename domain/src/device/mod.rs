//! One device of one user: its tickets, its sockets and the tools it offers.
//!
//! The stream's id is `user_id + "/" + device_id`. A ticket is single-use because consuming it is
//! an append at an expected version: two sockets cannot both win, on any server process, across
//! restarts.

mod event;
mod state;
#[cfg(test)]
mod tests;

pub use event::*;
pub use state::*;

use crate::ids::{DeviceId, UserId};

/// The id of a device's stream.
pub fn stream_key(user_id: &UserId, device_id: &DeviceId) -> String {
    format!("{user_id}/{device_id}")
}

/// The user and device that a stream's id names; user ids have no slash.
pub fn parse_stream_key(key: &str) -> Option<(UserId, DeviceId)> {
    key.split_once('/').map(|(user, device)| (user.into(), device.into()))
}
