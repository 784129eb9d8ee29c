//! One call as the journal knows it.

use super::Owner;
use devmind_domain::Timestamp;
use devmind_domain::ids::ToolCallId;
use devmind_domain::protocol::CallResult;
use devmind_domain::tool_call::{Phase, ToolError};
use serde_json::Value;
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

/// The columns that [`Row`] reads.
pub(super) const SELECT: &str = "SELECT tool_call_id, call_hash, phase, executed_attempt_no, started_at, finished_at,
    status, output, output_sha256, error_code, error_message, settled_no, server_id, user_hash FROM calls";

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

impl sqlx::FromRow<'_, SqliteRow> for Row {
    fn from_row(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        let phase: String = row.try_get("phase")?;
        let outcome = match phase.as_str() {
            "reserved" => Err(Phase::Reserved),
            "executing" => Err(Phase::Executing),
            _ => Ok(result(row)?),
        };
        Ok(Self {
            call_hash: row.try_get("call_hash")?,
            owner: Owner { server_id: row.try_get("server_id")?, user_hash: row.try_get("user_hash")? },
            outcome,
            settled_no: row.try_get::<Option<i64>, _>("settled_no")?.unwrap_or(0),
        })
    }
}

fn result(row: &SqliteRow) -> Result<CallResult, sqlx::Error> {
    let moment = |column: &str| -> Result<Option<Timestamp>, sqlx::Error> {
        Ok(row.try_get::<Option<i64>, _>(column)?.map(Timestamp::from_micros))
    };
    let text = |column: &str| row.try_get::<Option<String>, _>(column);
    let output = text("output")?.map(|output| serde_json::from_str::<Value>(&output));
    let output = output.transpose().map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
    let output_sha256 = text("output_sha256")?;
    let error = text("error_code")?.map(|code| -> Result<ToolError, sqlx::Error> {
        Ok(ToolError { code, message: text("error_message")?.unwrap_or_default() })
    });
    let status: String = row.try_get("status")?;
    let status = serde_json::from_value(Value::String(status)).map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
    Ok(CallResult {
        tool_call_id: ToolCallId(row.try_get("tool_call_id")?),
        executed_attempt_no: row.try_get("executed_attempt_no")?,
        status,
        output_discarded: output.is_none() && output_sha256.is_some(),
        output,
        output_sha256,
        error: error.transpose()?,
        started_at: moment("started_at")?,
        finished_at: moment("finished_at")?,
    })
}
