//! Runs a program that a model wrote: JavaScript whose only way out is the tools it is given.
//!
//! The interpreter is QuickJS (`rquickjs`): models write JavaScript well, the engine is small, has no files and
//! no network unless somebody adds them, and limits its own memory and stack, which Boa and Starlark do not. It
//! runs in a process of its own ([`serve`]): no interpreter stops inside one built-in operation (a search
//! of a text of megabytes in another), and a process can be killed. So [`run`] keeps its word on time whatever
//! the program does, and a fault of the engine ends one program and not the server.
//!
//! What a tool is, who may call it and what is recorded of a call is the caller's: a sub-call is handed to the
//! closure given to [`run`], one at a time, and the program gets exactly what the closure answers.

mod inside;
pub mod interpreter;
mod limits;
mod process;
mod protocol;

pub use inside::serve;
pub use limits::Limits;
pub use process::{Failure, Program, run};
pub use protocol::{CallError, Finished, Start, SubCall, ToProgram, ToServer};
