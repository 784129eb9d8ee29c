//! How much one program may use.

use serde::{Deserialize, Serialize};

/// The engine asks whether to go on about once in this many operations.
pub(crate) const OPERATIONS_A_CHECK: u64 = 10_000;

/// The longest line between server and program, in bytes: a result of a sub-call, or a call's arguments.
pub(crate) const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;

/// The longest message of an error that is passed on, in characters.
pub(crate) const MAX_MESSAGE_CHARS: usize = 2_000;

/// What one program may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// The engine's heap, in bytes.
    pub memory_bytes: usize,
    /// The program's call stack, in bytes.
    pub stack_bytes: usize,
    /// Operations of the program, counted in steps of 10,000.
    pub operations: u64,
    /// Time in which the program itself runs, in milliseconds; waiting for a sub-call does not count.
    pub run_ms: u64,
    /// What it returns and what it printed, each, in bytes of UTF-8.
    pub output_bytes: usize,
    /// Sub-calls.
    pub calls: u32,
    /// What its sub-calls put into the server's log, arguments and results of all together, in bytes of JSON. Those under
    /// way when it is reached come to their end; every later one is refused. The server sees to it.
    pub recorded_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: 32 * 1024 * 1024,
            stack_bytes: 256 * 1024,
            operations: 500_000_000,
            run_ms: 10_000,
            output_bytes: 256 * 1024,
            calls: 100,
            recorded_bytes: 16 * 1024 * 1024,
        }
    }
}
