//! What server and program say to each other: one JSON text a line, the server first.

use crate::Limits;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The first line to the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// The body of an async function: it may `await`, and `return`s its result.
    pub source: String,
    /// What it may use.
    pub limits: Limits,
}

/// A call of a tool by the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubCall {
    /// The tool's name as the program wrote it. It is not checked here.
    pub tool: String,
    /// The arguments as JSON text. They are not checked here.
    pub arguments: String,
}

/// Why a sub-call gave no value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallError {
    /// The stable code, `error.code` in the program.
    pub code: String,
    /// Words for the model, `error.message` in the program.
    pub message: String,
}

/// The answer to a sub-call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToProgram {
    /// Its value.
    Value(Value),
    /// It was refused or failed: thrown in the program, which may catch it.
    Error(CallError),
}

/// What a program that ended well leaves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// What it returned.
    pub value: Value,
    /// What it printed with `console.log`, a line each.
    pub printed: String,
}

/// A line from the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToServer {
    /// It waits for the answer to this call.
    Call(SubCall),
    /// It ended: the last line.
    Finished(Finished),
    /// It ended badly: the last line.
    Failed(crate::interpreter::ProgramError),
}
