//! DevMind Ledger's desktop device.

pub mod clock;
mod error;
pub mod journal;
pub mod path_policy;
mod state_dir;
pub mod text;
pub mod tools;
pub mod workspace;

pub use error::DeviceError;
pub use state_dir::StateDir;
