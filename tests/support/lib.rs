//! The harness of the integration tests: servers, clients, devices and models over real sockets and
//! real files, and the checks that every test ends with.
//!
//! The tests themselves, and what they expect of one another's crates, are left to `it/`. Nothing
//! here sleeps to let time pass: whoever waits, waits for a fact, and fails with what was seen when
//! it does not come within [`DEADLINE`].

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a harness fails by panicking")]

pub mod agui;
pub mod client;
pub mod contract;
pub mod data;
pub mod device;
pub mod dialect;
pub mod log;
pub mod model;
pub mod pair;
pub mod peers;
pub mod port;
pub mod process;
pub mod raw_device;
pub mod scripted;
pub mod server;
pub mod sse;
pub mod stalled;
pub mod tap;
pub mod wait;
pub mod workspace;

pub use client::{Answer, Asked, Client, Question, RunStream};
pub use data::Data;
pub use device::{ScriptedConfirm, TestDevice, Turnstile};
pub use log::{Fact, Log};
pub use model::{ModelEndpoint, Reply};
pub use port::own_address;
pub use process::{DeviceProcess, Finished, KilledServer, Process, ServerProcess, Traces, program};
pub use raw_device::{RawDevice, RawSocket, SocketEnd};
pub use scripted::{Script, ScriptedModel};
pub use server::{Stopped, TestServer};
pub use sse::{Frame, SseStream};
pub use stalled::StalledReader;
pub use tap::{Cut, Tap};
pub use wait::{DEADLINE, eventually};
pub use workspace::workspace;

/// A new UUIDv7.
pub fn new_id() -> String {
    uuid::Uuid::now_v7().to_string()
}
