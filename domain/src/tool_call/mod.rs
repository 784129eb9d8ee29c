//! One intent of the model to use a tool: requested, decided, dispatched, settled, acknowledged.
//!
//! The promise: executed at most once, settled exactly once. A settled status is never overwritten;
//! `created`, `dispatched`, `timed_out` and `unknown` are provisional and give way to any later
//! report. What other streams say about a call (its socket closed, its server process ended, its
//! run was cancelled) is folded in by the tool_call view.

mod command;
mod error;
mod event;
mod state;
#[cfg(test)]
mod tests;

pub use command::*;
pub use error::ToolCallError;
pub use event::*;
pub use state::*;
