//! Runs: prepared, claimed, executed, ended — each step an append before anybody sees it.

mod active;
mod call;
mod changed;
mod claim;
pub mod dev_call;
mod execution;
pub mod expiry;
mod interrupt;
mod judge;
mod live;
mod model_round;
pub mod prepare;
pub mod recover;
pub mod replay;
mod settle;
mod sink;
pub mod stop;
mod tools;
mod unchanged;

pub use active::{ActiveRuns, StopReason, StopSignal};
pub use claim::{claim_and_start, start};
pub use live::{LiveExecutions, SubCalls};
pub(crate) use unchanged::Unchanged;
