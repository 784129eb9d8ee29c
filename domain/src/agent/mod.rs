//! The agent: what to do next, as a pure function of the thread; the prompt, as a pure function of
//! context and thread; and the loop that carries steps out through ports.
//!
//! Calling models and tools is left to the implementor of [`AgentPorts`].

mod approvals;
mod conclusion;
mod context;
mod next_step;
mod prompt;
mod run_loop;
mod schedule;
mod stand_in;
#[cfg(test)]
mod tests;

pub use approvals::*;
pub use conclusion::*;
pub use context::*;
pub use next_step::*;
pub use prompt::*;
pub use run_loop::*;
pub use schedule::*;
pub use stand_in::*;
