//! Reading the conversation view.

use super::rows::*;
use crate::db::{Row, values};
use crate::error::ViewError;
use crate::row::Columns;
use crate::views::Views;
use devmind_domain::Timestamp;
use devmind_domain::agent::{HistoryTurn, TurnEnd};
use devmind_domain::ids::*;
use devmind_domain::limits::MAX_LISTED_CONVERSATIONS;
use std::collections::HashMap;

/// Turns in one answer, at most: the newest.
pub const MAX_LISTED_TURNS: u32 = 500;
/// Runs of one server process in one answer, at most: the oldest.
pub const MAX_LISTED_RUNS: u32 = 1_000;

/// Open approvals in one answer, at most: those that were asked first.
pub const MAX_LISTED_APPROVALS: u32 = 200;

/// The columns of a [`RunRow`].
const RUN: &str = "SELECT r.run_id, r.conversation_id, r.turn_id, t.sequence_no, c.user_id, r.graph_thread_id, r.kind, \
     r.status, r.parent_run_id, r.device_id, r.user_message_id, m.content, c.title, r.node_id, r.epoch FROM runs r \
     JOIN turns t ON t.turn_id = r.turn_id JOIN conversations c ON c.conversation_id = r.conversation_id \
     JOIN messages m ON m.message_id = r.user_message_id";

impl Views {
    /// A user's conversations that are not deleted, newest by last turn, at most [`MAX_LISTED_CONVERSATIONS`].
    ///
    /// # Errors
    /// [`ViewError::Storage`].
    pub async fn conversations(&self, user: &UserId) -> Result<Vec<ConversationRow>, ViewError> {
        let rows = self
            .read_pool()
            .rows(
                "SELECT c.conversation_id, c.title, c.created_at, c.updated_at, t.status FROM conversations c \
             LEFT JOIN turns t ON t.turn_id = c.latest_turn_id WHERE c.user_id = $1 AND c.deleted = FALSE \
             ORDER BY c.updated_at DESC, c.conversation_id DESC LIMIT $2",
                &values![user.as_str(), MAX_LISTED_CONVERSATIONS],
            )
            .await?;
        rows.iter()
            .map(|row| {
                let row = Columns(row);
                Ok(ConversationRow {
                    id: row.text("conversation_id")?,
                    title: row.text("title")?,
                    created_at: row.moment("created_at")?,
                    updated_at: row.moment("updated_at")?,
                    latest_turn_status: row.maybe_text("status")?,
                })
            })
            .collect()
    }

    /// Who owns a conversation; nothing for one that does not exist or was deleted.
    ///
    /// # Errors
    /// [`ViewError::Storage`].
    pub async fn conversation_owner(&self, id: &ConversationId) -> Result<Option<UserId>, ViewError> {
        let sql = "SELECT user_id FROM conversations WHERE conversation_id = $1 AND deleted = FALSE";
        let owner = self.read_pool().row(sql, &values![id.as_str()]).await?;
        Ok(owner.map(|row| Columns(&row).text("user_id")).transpose()?)
    }

    /// A conversation's owner, title, and whether it was deleted; nothing for one that does not exist.
    ///
    /// # Errors
    /// [`ViewError::Storage`].
    pub async fn conversation_row(&self, id: &ConversationId) -> Result<Option<(UserId, String, bool)>, ViewError> {
        let sql = "SELECT user_id, title, deleted FROM conversations WHERE conversation_id = $1";
        let found = self.read_pool().row(sql, &values![id.as_str()]).await?;
        let read = |row: Row| {
            let row = Columns(&row);
            Ok((row.text("user_id")?, row.text("title")?, row.truth("deleted")?))
        };
        found.map(read).transpose()
    }

    /// A conversation's turns in order, at most the newest [`MAX_LISTED_TURNS`]. Ownership is the caller's to check.
    ///
    /// # Errors
    /// [`ViewError::Storage`].
    pub async fn turns(&self, conversation: &ConversationId) -> Result<Vec<TurnRow>, ViewError> {
        self.turns_before(conversation, None, MAX_LISTED_TURNS).await
    }

    /// The last turns before one, by its number (absent: the newest), in order, at most `limit` and at most
    /// [`MAX_LISTED_TURNS`]. Ownership is the caller's to check.
    ///
    /// # Errors
    /// [`ViewError::Storage`].
    pub async fn turns_before(
        &self,
        conversation: &ConversationId,
        before: Option<u32>,
        limit: u32,
    ) -> Result<Vec<TurnRow>, ViewError> {
        // One transaction: turns, approvals and calls as they stood at one moment.
        let mut at_once = self.read_pool().at_once().await?;
        let turns = at_once.rows("SELECT t.turn_id, t.sequence_no, t.status, t.question, t.answer, t.partial, t.error_code, t.error_message, \
             t.active_run_id, r.kind AS run_kind, r.status AS run_status, t.turn_id = c.latest_turn_id AS is_latest \
             FROM turns t JOIN conversations c ON c.conversation_id = t.conversation_id \
             LEFT JOIN runs r ON r.run_id = t.active_run_id \
             WHERE t.conversation_id = $1 AND c.deleted = FALSE AND t.sequence_no < $3 \
             ORDER BY t.sequence_no DESC LIMIT $2", &values![conversation.as_str(), limit.min(MAX_LISTED_TURNS), before.map_or(i64::MAX, i64::from)]).await?;
        let number = |row: Option<&Row>| row.map_or(Ok(0), |row| Columns(row).small("sequence_no"));
        let (first, last) = (number(turns.last())?, number(turns.first())?);
        let approvals = at_once
            .rows(
                "SELECT turn_id, interrupt_id, tool_call_id, tool, arguments, message, expires_at FROM interrupts \
             WHERE conversation_id = $1 AND status = 'open' ORDER BY raised_position, interrupt_id",
                &values![conversation.as_str()],
            )
            .await?;
        let calls = at_once
            .rows(
                "SELECT c.turn_id, c.tool_call_id, c.tool, c.target, c.status, a.phase, c.origin, c.error_code, c.summary \
             FROM tool_calls c JOIN turns t ON t.turn_id = c.turn_id LEFT JOIN tool_attempts a \
             ON a.tool_call_id = c.tool_call_id AND a.attempt_no = c.attempt_no \
             WHERE c.conversation_id = $1 AND t.sequence_no BETWEEN $2 AND $3 \
             ORDER BY c.requested_position, c.tool_call_id",
                &values![conversation.as_str(), first, last],
            )
            .await?;
        at_once.commit().await?;

        let mut approvals = by_turn(&approvals, approval)?;
        let mut calls = by_turn(&calls, turn_tool_call)?;
        turns
            .iter()
            .rev()
            .map(|row| {
                let row = Columns(row);
                let id: TurnId = row.text("turn_id")?;
                let status: String = row.text("status")?;
                let is_latest = row.truth("is_latest")?;
                let run: Option<RunId> = row.maybe_text("active_run_id")?;
                Ok(TurnRow {
                    sequence_no: row.small("sequence_no")?,
                    question: row.text("question")?,
                    answer: row.maybe_text("answer")?,
                    partial: row.truth("partial")?,
                    error_code: row.maybe_text("error_code")?,
                    error_message: row.maybe_text("error_message")?,
                    pending_approvals: approvals.remove(&id).unwrap_or_default(),
                    tool_calls: calls.remove(&id).unwrap_or_default(),
                    is_latest,
                    can_rerun: is_latest && status != "running",
                    active_run: match run {
                        Some(run_id) => {
                            Some(ActiveRunRow { run_id, kind: row.text("run_kind")?, status: row.text("run_status")? })
                        }
                        None => None,
                    },
                    id,
                    status,
                })
            })
            .collect()
    }

    /// The conversation of a turn; nothing for one that does not exist.
    ///
    /// # Errors
    /// [`ViewError::Storage`].
    pub async fn conversation_of_turn(&self, turn: &TurnId) -> Result<Option<ConversationId>, ViewError> {
        self.conversation_id("SELECT conversation_id FROM turns WHERE turn_id = $1", turn.as_str()).await
    }

    /// The conversation of an interrupt; nothing for one that does not exist.
    ///
    /// # Errors
    /// [`ViewError::Storage`].
    pub async fn conversation_of_interrupt(&self, id: &InterruptId) -> Result<Option<ConversationId>, ViewError> {
        self.conversation_id("SELECT conversation_id FROM interrupts WHERE interrupt_id = $1", id.as_str()).await
    }

    /// The run that an interrupt paused; nothing for one that does not exist.
    ///
    /// # Errors
    /// [`ViewError::Storage`].
    pub async fn run_of_interrupt(&self, id: &InterruptId) -> Result<Option<RunRow>, ViewError> {
        let sql = format!("{RUN} JOIN interrupts i ON i.run_id = r.run_id WHERE i.interrupt_id = $1");
        let row = self.read_pool().row(&sql, &values![id.as_str()]).await?;
        row.as_ref().map(run_row).transpose()
    }

    async fn conversation_id(&self, sql: &'static str, id: &str) -> Result<Option<ConversationId>, ViewError> {
        let found = self.read_pool().row(sql, &values![id]).await?;
        Ok(found.map(|row| Columns(&row).text("conversation_id")).transpose()?)
    }

    /// Conversations with open interrupts whose time is over, longest first, at most
    /// [`MAX_LISTED_CONVERSATIONS`].
    ///
    /// # Errors
    /// [`ViewError::Storage`].
    pub async fn conversations_with_overdue_interrupts(
        &self,
        now: Timestamp,
    ) -> Result<Vec<ConversationId>, ViewError> {
        let sql = "SELECT conversation_id FROM interrupts WHERE status = 'open' AND expires_at <= $1 \
             GROUP BY conversation_id ORDER BY MIN(expires_at) LIMIT $2";
        let found = self.read_pool().rows(sql, &values![now, MAX_LISTED_CONVERSATIONS]).await?;
        Ok(found.iter().map(|row| Columns(row).text("conversation_id")).collect::<Result<_, _>>()?)
    }

    /// The open approvals of a person, or of everybody, those that were asked first, at most
    /// [`MAX_LISTED_APPROVALS`].
    ///
    /// # Errors
    /// [`ViewError::Storage`].
    pub async fn open_approvals(&self, of: Option<&UserId>) -> Result<Vec<InboxRow>, ViewError> {
        let sql = "SELECT i.*, c.title, c.user_id FROM interrupts i \
             JOIN conversations c ON c.conversation_id = i.conversation_id \
             WHERE i.status = 'open' AND c.deleted = FALSE AND c.user_id = COALESCE($1, c.user_id) \
             ORDER BY i.raised_position, i.interrupt_id LIMIT $2";
        let rows = self.read_pool().rows(sql, &values![of.map(UserId::as_str), MAX_LISTED_APPROVALS]).await?;
        Ok(rows.iter().map(|row| inbox_row(&Columns(row))).collect::<Result<_, _>>()?)
    }

    /// A run with what is needed to execute it.
    ///
    /// # Errors
    /// [`ViewError::Storage`].
    pub async fn find_run(&self, run: &RunId) -> Result<Option<RunRow>, ViewError> {
        let sql = format!("{RUN} WHERE r.run_id = $1");
        let row = self.read_pool().row(&sql, &values![run.as_str()]).await?;
        row.as_ref().map(run_row).transpose()
    }

    /// The runs that a server process has claimed and not ended, oldest first, at most [`MAX_LISTED_RUNS`].
    ///
    /// # Errors
    /// [`ViewError::Storage`].
    pub async fn runs_running_on(&self, node: &NodeId) -> Result<Vec<RunRow>, ViewError> {
        let sql =
            format!("{RUN} WHERE r.node_id = $1 AND r.status = 'running' ORDER BY r.claimed_at, r.run_id LIMIT $2");
        let rows = self.read_pool().rows(&sql, &values![node.as_str(), MAX_LISTED_RUNS]).await?;
        rows.iter().map(run_row).collect()
    }

    /// The last `turns` ended turns before one, oldest first: what the model is told of the conversation.
    ///
    /// # Errors
    /// [`ViewError::Storage`].
    pub async fn history(
        &self,
        conversation: &ConversationId,
        before_sequence_no: u32,
        turns: u32,
    ) -> Result<Vec<HistoryTurn>, ViewError> {
        let rows = self
            .read_pool()
            .rows(
                "SELECT question, answer, status FROM turns WHERE conversation_id = $1 AND sequence_no < $2 \
             AND status IN ('completed', 'cancelled', 'failed') ORDER BY sequence_no DESC LIMIT $3",
                &values![conversation.as_str(), before_sequence_no, turns.min(MAX_LISTED_TURNS)],
            )
            .await?;
        rows.iter()
            .rev()
            .map(|row| {
                let row = Columns(row);
                let end = match row.text::<String>("status")?.as_str() {
                    "completed" => TurnEnd::Completed,
                    "cancelled" => TurnEnd::Cancelled,
                    _ => TurnEnd::Failed,
                };
                Ok(HistoryTurn { question: row.text("question")?, answer: row.maybe_text("answer")?, end })
            })
            .collect()
    }
}

fn by_turn<T>(
    rows: &[Row],
    read: fn(&Columns<'_>) -> Result<T, sqlx::Error>,
) -> Result<HashMap<TurnId, Vec<T>>, sqlx::Error> {
    let mut turns: HashMap<TurnId, Vec<T>> = HashMap::new();
    for row in rows {
        let row = Columns(row);
        turns.entry(row.text("turn_id")?).or_default().push(read(&row)?);
    }
    Ok(turns)
}

fn approval(row: &Columns<'_>) -> Result<PendingApproval, sqlx::Error> {
    Ok(PendingApproval {
        interrupt_id: row.text("interrupt_id")?,
        tool_call_id: row.text("tool_call_id")?,
        tool: row.text("tool")?,
        arguments: row.json("arguments")?,
        message: row.text("message")?,
        expires_at: row.maybe_moment("expires_at")?,
    })
}

fn inbox_row(row: &Columns<'_>) -> Result<InboxRow, sqlx::Error> {
    Ok(InboxRow {
        approval: approval(row)?,
        arguments_hash: row.text("arguments_hash")?,
        raised_at: row.moment("raised_at")?,
        raised_position: row.count("raised_position")?,
        tool_call_id: row.text("tool_call_id")?,
        run_id: row.text("run_id")?,
        conversation_id: row.text("conversation_id")?,
        title: row.text("title")?,
        user_id: row.text("user_id")?,
    })
}

fn turn_tool_call(row: &Columns<'_>) -> Result<TurnToolCall, sqlx::Error> {
    Ok(TurnToolCall {
        tool_call_id: row.text("tool_call_id")?,
        tool: row.text("tool")?,
        target: row.text("target")?,
        status: row.text("status")?,
        phase: row.maybe_text("phase")?,
        origin: row.maybe_text("origin")?,
        error_code: row.maybe_text("error_code")?,
        summary: row.text("summary")?,
    })
}

fn run_row(row: &Row) -> Result<RunRow, ViewError> {
    let row = Columns(row);
    Ok(RunRow {
        run_id: row.text("run_id")?,
        conversation_id: row.text("conversation_id")?,
        turn_id: row.text("turn_id")?,
        sequence_no: row.small("sequence_no")?,
        user_id: row.text("user_id")?,
        graph_thread_id: row.text("graph_thread_id")?,
        kind: row.text("kind")?,
        parent_run_id: row.maybe_text("parent_run_id")?,
        status: row.text("status")?,
        device_id: row.maybe_text("device_id")?,
        user_message_id: row.text("user_message_id")?,
        content: row.text("content")?,
        title: row.text("title")?,
        node_id: row.maybe_text("node_id")?,
        epoch: row.maybe_count("epoch")?,
    })
}
