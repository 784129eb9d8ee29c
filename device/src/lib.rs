//! DevMind Ledger's desktop device: it runs a model's tool calls on a person's own computer, in one
//! folder, each at most once, and asks the person first.
//!
//! A request comes in on the [`connection`], passes the fixed order of checks in [`call`], is known
//! to the [`journal`] before it runs, may be put before a person ([`confirm`]), works on files that
//! the [`path_policy`] has opened ([`tools`]), and its result waits in the journal until the server
//! has acknowledged it. Rules that need no I/O — frames, tool definitions, limits, codes — are
//! left to `devmind-domain`.

pub mod call;
pub mod cli;
pub mod clock;
pub mod config;
pub mod confirm;
pub mod connection;
mod device;
mod error;
pub mod journal;
mod loopback;
mod pages;
pub mod path_policy;
pub mod policy;
pub mod sandbox;
mod state_dir;
mod status_file;
pub mod text;
pub mod tools;
pub mod workspace;

pub use confirm::{Answer, Confirm, ConfirmationRequest, Fixed, Terminal};
pub use connection::{Backoff, ConnectionStatus, Identity};
pub use device::{Device, DeviceOptions, Health, checked_workspace};
pub use error::DeviceError;
pub use state_dir::StateDir;
