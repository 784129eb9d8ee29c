//! Tools: what they are called, what they take, where they run, and which calls are admitted.
//!
//! [`catalogue`] is the list of built-in tools, [`Registry`] a value that can hold more. What a tool does is left
//! to the server ([`server_tools`], pure; [`mcp`] servers) and to `devmind-device`.

mod admission;
mod catalogue;
mod definition;
pub mod mcp;
mod outcome;
mod registry;
mod schema;
mod seen;
pub mod server_tools;

pub use admission::*;
pub use catalogue::*;
pub use definition::*;
pub use outcome::*;
pub use registry::*;
pub use seen::*;
