//! A device tool call as two pure step machines: the device's side and the server's.
//!
//! Each machine is a state and a function `step`: an input (a frame, a row found, a person's answer,
//! a deadline that passed) gives the next state and the effects to be performed, as data. What comes
//! of an effect is the next input. The machines do no I/O and read no clock, so that the two
//! programs, the model checker and the property tests drive the very same functions; only the shells
//! around them differ. What is stored is decided by the aggregate [`crate::tool_call`]; how frames
//! look is in [`crate::protocol`].

pub mod device_call;
pub mod server_call;
mod settlement;

pub use settlement::Settlement;
