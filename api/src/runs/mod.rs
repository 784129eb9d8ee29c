//! Runs: prepared, claimed, executed, ended — each step an append before anybody sees it.

mod active;
mod claim;
mod execution;
mod interrupt;
mod model_round;
pub mod prepare;
pub mod recover;
mod settle;
mod sink;
mod tools;

pub use active::{ActiveRuns, StopReason, StopSignal};
pub use claim::claim_and_start;
