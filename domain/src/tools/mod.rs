//! Tools: what they are called, what they take, where they run, and which calls are admitted.
//!
//! [`catalogue`] is the one list of tools. What a tool does is left to the server
//! ([`server_tools`], pure) and to `devmind-device`.

mod admission;
mod catalogue;
mod definition;
mod outcome;
pub mod server_tools;

pub use admission::*;
pub use catalogue::*;
pub use definition::*;
pub use outcome::*;
