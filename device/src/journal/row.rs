//! One call as the journal knows it.

use super::Owner;
use devmind_domain::Timestamp;
use devmind_domain::ids::ToolCallId;
use devmind_domain::protocol::CallResult;
use devmind_domain::tool_call::{Phase, ToolError};
use rusqlite::types::Type;
use serde_json::Value;

/// The beginning of a query for what [`Row::read`] reads.
macro_rules! select {
    () => {
        "SELECT tool_call_id, call_hash, phase, executed_attempt_no, started_at, finished_at, status, output, \
         output_sha256, error_code, error_message, settled_no, server_id, user_hash FROM calls"
    };
}
pub(super) use select;

/// A call in the journal.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it does: a repeated call must have the same.
    pub call_hash: String,
    /// Whom its result belongs to.
    pub owner: Owner,
    /// How it ended, or how far it has got.
    pub outcome: Result<CallResult, Phase>,
    /// Its place in the order of settling; 0 before.
    pub settled_no: i64,
}

impl Row {
    /// Reads a row of [`select!`].
    pub(super) fn read(row: &rusqlite::Row<'_>) -> Result<Self, rusqlite::Error> {
        let outcome = match row.get_ref("phase")?.as_str()? {
            "reserved" => Err(Phase::Reserved),
            "executing" => Err(Phase::Executing),
            _ => Ok(result(row)?),
        };
        Ok(Self {
            call_hash: row.get("call_hash")?,
            owner: Owner { server_id: row.get("server_id")?, user_hash: row.get("user_hash")? },
            outcome,
            settled_no: row.get::<_, Option<i64>>("settled_no")?.unwrap_or(0),
        })
    }
}

fn result(row: &rusqlite::Row<'_>) -> Result<CallResult, rusqlite::Error> {
    let moment = |column: &str| row.get::<_, Option<i64>>(column).map(|moment| moment.map(Timestamp::from_micros));
    let text = |column: &str| row.get::<_, Option<String>>(column);
    let unreadable = |error| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(error));
    let output = row.get_ref("output")?.as_str_or_null()?.map(serde_json::from_str::<Value>);
    let output = output.transpose().map_err(unreadable)?;
    let output_sha256 = text("output_sha256")?;
    let error = text("error_code")?.map(|code| -> Result<ToolError, rusqlite::Error> {
        Ok(ToolError { code, message: text("error_message")?.unwrap_or_default() })
    });
    let status = serde_json::from_value(Value::String(row.get("status")?)).map_err(unreadable)?;
    Ok(CallResult {
        tool_call_id: ToolCallId(row.get("tool_call_id")?),
        executed_attempt_no: row.get("executed_attempt_no")?,
        status,
        output_discarded: output.is_none() && output_sha256.is_some(),
        output,
        output_sha256,
        error: error.transpose()?,
        started_at: moment("started_at")?,
        finished_at: moment("finished_at")?,
    })
}
