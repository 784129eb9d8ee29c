//! The rules of DevMind Ledger, with no I/O.
//!
//! Every state change is an event of one of seven aggregates ([`conversation`], [`thread`],
//! [`tool_call`], [`device`], [`node`], [`redaction`], [`projection`]). Each aggregate is a pair of pure functions: `decide`
//! says which events a command causes, or refuses it; `evolve` folds an event into the state and never
//! fails. This crate opens no file and no socket, reads no clock and draws no randomness: ids and
//! times arrive in commands. Storing events is left to `devmind-ledger`, showing them to
//! `devmind-projections`, causing effects to `devmind-api` and `devmind-device`.

pub mod agent;
pub mod aggregate;
pub mod canonical;
pub mod conversation;
pub mod device;
pub mod device_channel;
pub mod error_code;
pub mod event;
pub mod history;
pub mod ids;
pub mod json;
pub mod limits;
pub mod node;
pub mod nul;
pub mod projection;
pub mod proof;
pub mod protocol;
pub mod redaction;
pub mod thread;
pub mod time;
pub mod tool_call;
pub mod tool_set;
pub mod tools;
pub mod upcast;

pub use aggregate::Decider;
pub use error_code::ErrorCode;
pub use time::Timestamp;
