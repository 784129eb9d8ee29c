//! The journal of the agent loop: what the model was asked, what it said, what its tools answered.
//!
//! The loop is a fold of this stream: [`crate::agent::next_step`] looks at a [`Thread`] and nothing
//! else, so a replay takes the same decisions.

mod command;
mod event;
mod state;
#[cfg(test)]
mod tests;

pub use command::*;
pub use event::*;
pub use state::*;
