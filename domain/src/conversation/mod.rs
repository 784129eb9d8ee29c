//! One chat window: its turns, the runs that answer them, and pauses for a person's decision.
//!
//! The state is O(1) whatever the history: what is needed to decide about the *latest* turn. What
//! was said lives in the conversation view (`devmind-projections`), what the agent did in
//! [`crate::thread`].

mod command;
mod decide;
mod error;
mod event;
mod grant;
mod state;
#[cfg(test)]
mod tests;

pub use command::*;
pub use decide::title_of;
pub use error::ConversationError;
pub use event::*;
pub use grant::*;
pub use state::*;
