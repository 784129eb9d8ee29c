//! Reading the tool_call view.

use super::rows::*;
use crate::db::{Row, values};
use crate::error::ViewError;
use crate::row::Columns;
use crate::views::Views;
use devmind_domain::ids::ToolCallId;
use std::collections::HashMap;

/// Tool calls in one answer, at most: the newest.
pub const MAX_LISTED_TOOL_CALLS: u32 = 500;

impl Views {
    /// The tool calls asked for, oldest first, at most the newest [`MAX_LISTED_TOOL_CALLS`]. Ownership is the caller's
    /// to check.
    ///
    /// # Errors
    /// [`ViewError::Storage`].
    pub async fn tool_calls(&self, by: ToolCallQuery) -> Result<Vec<ToolCallRow>, ViewError> {
        let (column, value) = match &by {
            ToolCallQuery::Conversation(id) => ("conversation_id", id.as_str()),
            ToolCallQuery::Run(id) => ("run_id", id.as_str()),
            ToolCallQuery::Call(id) => ("tool_call_id", id.as_str()),
        };
        // The column is one of the three words above; the value is bound.
        let chosen =
            format!("FROM tool_calls WHERE {column} = $1 ORDER BY requested_position DESC, tool_call_id LIMIT $2");
        let calls = format!("SELECT * {chosen}");
        let attempts = format!(
            "SELECT * FROM tool_attempts WHERE tool_call_id IN (SELECT tool_call_id {chosen}) \
             ORDER BY tool_call_id, attempt_no"
        );
        // One transaction: calls and attempts as they stood at one moment.
        let mut at_once = self.read_pool().at_once().await?;
        let calls = at_once.rows(&calls, &values![value, MAX_LISTED_TOOL_CALLS]).await?;
        let attempts = at_once.rows(&attempts, &values![value, MAX_LISTED_TOOL_CALLS]).await?;
        at_once.commit().await?;

        let mut of_call: HashMap<ToolCallId, Vec<ToolAttemptRow>> = HashMap::new();
        for row in &attempts {
            of_call.entry(Columns(row).text("tool_call_id")?).or_default().push(attempt(&Columns(row))?);
        }
        calls.iter().rev().map(|row| call(row, &mut of_call)).collect()
    }

    /// The calls whose outcome can still change, oldest first.
    ///
    /// # Errors
    /// [`ViewError::Storage`].
    pub async fn unsettled_tool_calls(&self) -> Result<Vec<ToolCallRow>, ViewError> {
        let (mut calls, mut after) = (Vec::new(), 0);
        loop {
            let page = self.unsettled_page(after).await?;
            let Some(last) = page.last() else { return Ok(calls) };
            after = last.requested_position;
            calls.extend(page.into_iter().map(|unsettled| unsettled.call));
        }
    }

    /// Those of them that were asked for after a position, at most [`MAX_LISTED_TOOL_CALLS`], each with the open
    /// approval that it waits for.
    ///
    /// # Errors
    /// [`ViewError::Storage`].
    pub async fn unsettled_page(&self, after: u64) -> Result<Vec<UnsettledCall>, ViewError> {
        // An event asks for one call at most: its position is enough to go on from.
        let chosen =
            "FROM tool_calls WHERE settled_at IS NULL AND requested_position > $1 ORDER BY requested_position LIMIT $2";
        let calls = format!(
            "SELECT c.*, i.interrupt_id AS open_interrupt_id, i.expires_at AS open_expires_at FROM (SELECT * {chosen}) c \
             LEFT JOIN interrupts i ON i.tool_call_id = c.tool_call_id AND i.status = 'open' ORDER BY c.requested_position"
        );
        let attempts = format!(
            "SELECT * FROM tool_attempts WHERE tool_call_id IN (SELECT tool_call_id {chosen}) \
             ORDER BY tool_call_id, attempt_no"
        );
        let mut at_once = self.read_pool().at_once().await?;
        let calls = at_once.rows(&calls, &values![after, MAX_LISTED_TOOL_CALLS]).await?;
        let attempts = at_once.rows(&attempts, &values![after, MAX_LISTED_TOOL_CALLS]).await?;
        at_once.commit().await?;
        let mut of_call: HashMap<ToolCallId, Vec<ToolAttemptRow>> = HashMap::new();
        for row in &attempts {
            of_call.entry(Columns(row).text("tool_call_id")?).or_default().push(attempt(&Columns(row))?);
        }
        let read = |row: &Row| {
            let columns = Columns(row);
            let approval = match columns.maybe_text("open_interrupt_id")? {
                Some(interrupt_id) => {
                    Some(OpenApproval { interrupt_id, expires_at: columns.maybe_moment("open_expires_at")? })
                }
                None => None,
            };
            let requested_position = columns.count("requested_position")?;
            Ok(UnsettledCall { requested_position, call: call(row, &mut of_call)?, approval })
        };
        calls.iter().map(read).collect()
    }
}

fn call(row: &Row, attempts: &mut HashMap<ToolCallId, Vec<ToolAttemptRow>>) -> Result<ToolCallRow, ViewError> {
    let row = Columns(row);
    let tool_call_id: ToolCallId = row.text("tool_call_id")?;
    let settled_at = row.maybe_moment("settled_at")?;
    Ok(ToolCallRow {
        conversation_id: row.text("conversation_id")?,
        turn_id: row.text("turn_id")?,
        run_id: row.text("run_id")?,
        user_id: row.text("user_id")?,
        graph_thread_id: row.text("graph_thread_id")?,
        model_call_id: row.text("model_call_id")?,
        parent_tool_call_id: row.maybe_text("parent_tool_call_id")?,
        tool: row.text("tool")?,
        tool_version: row.text("tool_version")?,
        target: row.text("target")?,
        device_id: row.maybe_text("device_id")?,
        arguments: row.json("arguments")?,
        call_hash: row.text("call_hash")?,
        risk: row.text("risk")?,
        summary: row.text("summary")?,
        status: row.text("status")?,
        settled: settled_at.is_some(),
        error_code: row.maybe_text("error_code")?,
        error_message: row.maybe_text("error_message")?,
        executed_attempt_no: row.maybe_small("executed_attempt_no")?,
        output: row.maybe_json("output")?,
        output_sha256: row.maybe_text("output_sha256")?,
        origin: row.maybe_text("origin")?,
        started_at: row.maybe_moment("started_at")?,
        finished_at: row.maybe_moment("finished_at")?,
        cancel_reason: row.maybe_text("cancel_reason")?,
        revised_by: row.maybe_text("revised_by")?,
        revised_reason: row.maybe_text("revised_reason")?,
        acks: row.small("acks")?,
        late_results: row.small("late_results")?,
        requested_at: row.moment("requested_at")?,
        dispatched_at: row.maybe_moment("dispatched_at")?,
        wait_ended_at: row.maybe_moment("wait_ended_at")?,
        settled_at,
        acked_at: row.maybe_moment("acked_at")?,
        attempts: attempts.remove(&tool_call_id).unwrap_or_default(),
        tool_call_id,
    })
}

fn attempt(row: &Columns<'_>) -> Result<ToolAttemptRow, sqlx::Error> {
    Ok(ToolAttemptRow {
        attempt_no: row.small("attempt_no")?,
        run_id: row.text("run_id")?,
        node_id: row.text("node_id")?,
        epoch: row.count("epoch")?,
        connection_id: row.maybe_text("connection_id")?,
        journal_id: row.maybe_text("journal_id")?,
        status: row.text("status")?,
        reason: row.maybe_text("reason")?,
        phase: row.maybe_text("phase")?,
        wait_ms: row.count("wait_ms")?,
        ttl_ms: row.count("ttl_ms")?,
        dispatched_at: row.moment("dispatched_at")?,
        ended_at: row.maybe_moment("ended_at")?,
    })
}
