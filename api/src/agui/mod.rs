//! AG-UI 1.0: the events this server emits and the input it reads.
//!
//! Source: the AG-UI protocol specification (docs.ag-ui.com). Only what is emitted is here; a field
//! without a value is left out, because `null` is not absence in this protocol.

mod event;
mod input;
mod stream;

pub use event::*;
pub use input::*;
pub use stream::*;
