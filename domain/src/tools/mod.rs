//! Tools: what they are called, what they take, where they run, and the stages that every call of them passes.
//!
//! [`catalogue`] is the list of built-in tools, [`Registry`] a value that can hold more. What a tool does is left
//! to the server ([`server_tools`], pure; [`mcp`] servers) and to `devmind-device`.

mod admission;
mod catalogue;
mod definition;
mod guard;
pub mod mcp;
mod outcome;
mod policy;
mod post_execute;
mod presentation;
mod registry;
mod schema;
mod seen;
pub mod server_tools;
mod told;

pub use admission::*;
pub use catalogue::*;
pub use definition::*;
pub use guard::*;
pub use outcome::*;
pub(crate) use policy::is_within;
pub use policy::*;
pub use post_execute::*;
pub use registry::*;
pub use seen::*;
pub use told::*;
