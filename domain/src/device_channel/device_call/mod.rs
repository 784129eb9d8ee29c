//! The device's side of a call: the fixed order of checks, from the request to the settled row.
//!
//! [`DeviceCall`] is one call under way, [`DeviceCalls`] all of them, with the cancels that came before
//! their requests ([`EarlyCancels`]). The order: look up in the journal → may it be taken → examine
//! (tool, arguments, paths, age) → reserve → ask the person → look again → begin → execute → settle. Where
//! nobody is asked, reserve and begin are one durable step.
//! Whatever the server may treat as final is an effect on the journal before it is said, and nothing is
//! begun that the journal does not know. A repeated request joins what is under way, or gets what the
//! journal has; a cancel means its attempt and earlier ones, never a later one.

mod calls;
mod early_cancels;
mod step;
#[cfg(test)]
mod tests;

pub use calls::{Asked, DeviceCalls, Door, MAX_OPEN_CALLS};
pub use early_cancels::{EarlyCancels, MAX_EARLY_CANCELS};
pub use step::{Answer, DeviceCall, Effect, Failure, Input, Known, NeedsPerson, Said, Unchanged};
