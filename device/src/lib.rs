//! DevMind Ledger's desktop device.

pub mod clock;
mod error;
pub mod path_policy;
pub mod text;
pub mod tools;
pub mod workspace;

pub use error::DeviceError;
