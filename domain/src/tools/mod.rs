//! Tools: what they are called, what they take, where they run, and which calls are admitted.
//!
//! [`catalogue`] is the list of built-in tools, [`Registry`] a value that can hold more. What a tool does is left
//! to the server ([`server_tools`], pure) and to `devmind-device`.

mod admission;
mod catalogue;
mod definition;
mod outcome;
mod policy;
mod registry;
mod seen;
pub mod server_tools;

pub use admission::*;
pub use catalogue::*;
pub use definition::*;
pub use outcome::*;
pub(crate) use policy::is_within;
pub use policy::*;
pub use registry::*;
pub use seen::*;
