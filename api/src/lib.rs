//! The server: HTTP and AG-UI streams for clients, the gateway for devices, models, and the
//! composition of it all.
//!
//! Handlers decide nothing: they validate, hand a command to an aggregate through the ledger, and
//! answer from the views. Rules live in `devmind-domain`.

pub mod agui;
mod checkpoints;
pub mod cli;
mod code_mode;
pub mod config;
pub mod demo;
pub mod device_gateway;
pub mod error;
pub mod http;
pub mod identity;
pub mod ids;
pub mod lifecycle;
pub mod limits;
pub mod mcp;
pub mod model;
pub mod nodes;
pub mod places;
pub mod policies;
pub mod runs;
mod runtime;
mod say;
pub mod state;
pub mod tls;
pub mod tools;
pub mod ui;

pub use lifecycle::{Server, ServerHandle};
pub use runtime::runtime;
