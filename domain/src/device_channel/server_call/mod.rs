//! The server's side of a call: one who calls and waits ([`ServerCall`]), and a device's report that
//! arrives ([`Report`]).
//!
//! The two meet in the ledger alone. A caller enters as a waiter, records the dispatch, reads the call
//! again and only then sends; a report is recorded, with the fact that it is acknowledged, then wakes the waiters,
//! and only then is acknowledged. A wake-up carries no result: the caller reads the call again. What may be recorded is
//! decided by [`crate::tool_call::ToolCall`]; these machines say in which order it is asked, and what
//! follows when the ledger fails in between.

mod caller;
mod report;
#[cfg(test)]
mod tests;

pub use caller::{Effect, End, Input, Refusal, ServerCall, Stands};
pub use report::{Report, ReportEffect, ReportInput};
