//! DevMind Ledger's read models: pure projections, one runner, rebuild.
//!
//! A [`Projection`] is one pure function from event to row changes. [`ProjectionRunner`] follows
//! the log and keeps every projection's rows and position in one transaction; [`Views`] reads them
//! and waits until an append has become visible. Everything here can be deleted and comes back from
//! the log: [`rebuild`] makes the rows anew beside the live ones, [`check`] proves both equal,
//! [`Views::at`] shows them as they stood at an earlier position. No decision is taken from a view
//! that a stream can give; deciding is left to `devmind-domain`, storing events to `devmind-ledger`.

mod apply;
mod attest;
mod beside;
mod build;
mod change;
mod check;
mod compare;
mod conversation;
mod db;
mod device;
mod difference;
mod draft;
mod draft_folder;
mod error;
mod operate;
mod past;
mod projection;
mod rebuild;
mod registry;
mod row;
mod runner;
mod search;
mod skips;
mod store;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod timeline;
mod together;
mod tool_call;
mod unread;
mod usage;
mod views;

pub use apply::Failure;
pub use attest::{Attestation, attest, attest_at};
pub use beside::forget_unfinished;
pub use change::{Change, Value};
pub use check::{CheckReport, ProjectionCheck, check, check_one};
pub use compare::{Difference, TableCheck};
pub use conversation::{
    ActiveRunRow, ConversationRow, InboxRow, MAX_LISTED_APPROVALS, MAX_LISTED_RUNS, MAX_LISTED_TURNS, PendingApproval,
    RunRow, TurnRow, TurnToolCall,
};
pub use device::{DeviceRow, MAX_LISTED_DEVICES};
pub use difference::{FieldChange, field_changes};
pub use error::ViewError;
pub use operate::{HeldView, held, resume, status, stopped};
pub use past::{ConversationState, conversation_at, what_can_be_read_at};
pub use projection::Projection;
pub use rebuild::{RebuildReport, Unbuilt, rebuild, rebuild_one};
pub use registry::PROJECTIONS;
pub use runner::ProjectionRunner;
pub use search::{MAX_SEARCH_HITS, SearchHit};
pub use timeline::{TimelineLine, events_of_run, timeline, timeline_of_run, timeline_of_run_at, timeline_of_run_in};
pub use tool_call::{MAX_LISTED_TOOL_CALLS, OpenApproval, ToolAttemptRow, ToolCallQuery, ToolCallRow, UnsettledCall};
pub use unread::{MAX_TOLD_UNREAD, Unread, UnreadEvent};
pub use usage::{DAY_CHARS, MAX_LISTED_USAGE, UsageRow};
pub use views::{ProjectionStatus, Views};
