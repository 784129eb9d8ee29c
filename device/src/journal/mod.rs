//! The device's durable record: what makes "at most once" true across crashes.
//!
//! One SQLite file (WAL), one connection, one row per call. A call is `reserved`
//! before anybody is asked, `executing` before anything is touched, `settled` before anything is
//! said; each step is one statement that only goes forward, and on the disk when it returns ([`flush`]). A row is also the outbox: it is
//! `pending` until the server has acknowledged it. When a statement fails, the journal is poisoned
//! and refuses everything until the program is started again: after a failed flush nobody knows
//! what the disk holds.
//!
//! What a call's steps mean is left to `call`, when to send to `connection`.

mod ballast;
mod flush;
mod heads;
pub mod history;
mod open;
mod retention;
mod row;
#[cfg(test)]
mod tests;

pub use devmind_domain::device_channel::Settlement;
pub use row::Row;

use crate::clock;
use crate::state_dir::StateDir;
use crate::text::whole_characters;
use ballast::Ballast;
use devmind_domain::ids::ToolCallId;
use devmind_domain::limits::{MAX_UNACKED_RESULTS, OUTPUT_QUOTA_BYTES};
use devmind_domain::protocol::CallRequest;
use devmind_domain::tool_call::{Disposition, Phase};
use devmind_domain::{ErrorCode, Timestamp};
use flush::Flush;
use sqlx::{Connection as _, SqliteConnection};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use tokio::sync::{Mutex, MutexGuard};

/// Below this many free bytes no call is taken: its result could not be stored.
const FREE_SPACE_FLOOR_BYTES: u64 = 32 << 20;
/// Bytes of a call's arguments and of its conversation's title that are kept for people, at most.
const MAX_KEPT_ARGUMENT_BYTES: usize = 8 << 10;
const MAX_KEPT_TITLE_BYTES: usize = 400;
/// SQLite's result code for a full disk.
const SQLITE_FULL: &str = "13";

/// The journal of one device.
#[derive(Debug)]
pub struct Journal {
    connection: Mutex<SqliteConnection>,
    flush: Flush,
    /// The newest settlement that is on the disk, and with it all before it: no later one may be told.
    told_up_to: AtomicI64,
    poisoned: AtomicBool,
    ballast: Ballast,
    state: StateDir,
    journal_id: String,
    epoch: u64,
    instance_id: String,
}

/// Whom a result belongs to. It is never sent to anybody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The ledger behind the server.
    pub server_id: String,
    /// A hash of the user.
    pub user_hash: String,
}

/// Why the journal does not take a call or a step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// No room, or too much that the server has not acknowledged.
    #[error("the journal is full")]
    Full,
    /// The call is older than the journal's memory.
    #[error("the journal no longer remembers calls of that age")]
    TooOld,
    /// A statement failed, now or before.
    #[error("the journal could not be written: {0}")]
    Failed(String),
}

impl JournalError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Full => ErrorCode::DeviceJournalFull,
            Self::TooOld => ErrorCode::CallTooOld,
            Self::Failed(_) => ErrorCode::DeviceJournalFailed,
        }
    }
}

impl Journal {
    /// The journal's random name, made with its file.
    pub fn journal_id(&self) -> &str {
        &self.journal_id
    }

    /// Which opening of the journal this is: 1, 2, 3 …
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What is known of a call.
    ///
    /// # Errors
    /// `Failed`.
    pub async fn find(&self, id: &ToolCallId) -> Result<Option<Row>, JournalError> {
        let mut connection = self.usable().await?;
        let found = sqlx::query_as::<_, Row>(&format!("{} WHERE tool_call_id = ?", row::SELECT))
            .bind(id.as_str())
            .fetch_optional(&mut *connection)
            .await;
        found.map_err(|error| self.poison(&error))
    }

    /// Whether a call that is not known yet may be taken: young enough, and room for its result.
    ///
    /// # Errors
    /// `TooOld`, `Full`, `Failed`.
    pub async fn admit(&self, call_created_at: Timestamp) -> Result<(), JournalError> {
        let mut connection = self.usable().await?;
        let asked = sqlx::query_as::<_, (i64, i64, i64)>(
            "SELECT purged_through,
                    (SELECT count(*) FROM calls WHERE delivery = 'pending'),
                    (SELECT coalesce(sum(output_bytes), 0) FROM calls WHERE delivery = 'pending')
             FROM journal",
        );
        let (purged_through, unacked, unacked_bytes) =
            asked.fetch_one(&mut *connection).await.map_err(|error| self.poison(&error))?;
        if call_created_at.as_micros() <= purged_through {
            return Err(JournalError::TooOld);
        }
        let is_full = unacked >= i64::from(MAX_UNACKED_RESULTS) || unacked_bytes.cast_unsigned() >= OUTPUT_QUOTA_BYTES;
        if is_full || self.state.free_bytes().is_ok_and(|free| free < FREE_SPACE_FLOOR_BYTES) {
            return Err(JournalError::Full);
        }
        Ok(())
    }

    /// Check 6: the call is known from here on, whatever happens. Durable when it returns.
    ///
    /// # Errors
    /// `Full` (nothing was written), `Failed`.
    pub async fn reserve(&self, request: &CallRequest, owner: &Owner) -> Result<(), JournalError> {
        let mut connection = self.usable().await?;
        self.insert(&mut connection, request, owner, Phase::Reserved).await?;
        self.make_durable(connection).await
    }

    /// Reserves and begins in one durable step, where nobody is asked in between: from here on a crash means that
    /// nobody knows.
    ///
    /// # Errors
    /// `Full` (nothing was written), `Failed`.
    pub async fn begin_at_once(&self, request: &CallRequest, owner: &Owner) -> Result<(), JournalError> {
        let mut connection = self.usable().await?;
        self.insert(&mut connection, request, owner, Phase::Executing).await?;
        self.make_durable(connection).await
    }

    /// Reserves and settles in one durable step: a verdict before the reservation.
    ///
    /// # Errors
    /// `Full` (nothing was written), `Failed`.
    pub async fn record_verdict(
        &self,
        request: &CallRequest,
        owner: &Owner,
        settlement: &Settlement,
    ) -> Result<(), JournalError> {
        let mut connection = self.usable().await?;
        let mut transaction = connection.begin().await.map_err(|error| self.poison(&error))?;
        self.insert(&mut transaction, request, owner, Phase::Reserved).await?;
        let settled = settle(&mut transaction, &request.tool_call_id, settlement).await;
        let settled = settled.map_err(|error| self.full_or_poison(&error))?;
        transaction.commit().await.map_err(|error| self.full_or_poison(&error))?;
        self.make_durable(connection).await?;
        self.may_be_told(settled);
        Ok(())
    }

    /// Who allowed or denied a reserved call, for [`history`]. Durable when it returns.
    ///
    /// # Errors
    /// `Full` (nothing was written), `Failed`.
    pub async fn note_decision(&self, id: &ToolCallId, by: &str) -> Result<(), JournalError> {
        let mut connection = self.usable().await?;
        let update = "UPDATE calls SET decided_by = ? WHERE tool_call_id = ? AND phase = 'reserved'";
        let done = sqlx::query(update).bind(by).bind(id.as_str()).execute(&mut *connection).await;
        done.map_err(|error| self.full_or_poison(&error))?;
        self.make_durable(connection).await
    }

    /// Check 9 begins: from here on a crash means that nobody knows. `false` when the call is not
    /// `reserved`: then it must not run.
    ///
    /// # Errors
    /// `Failed`.
    pub async fn begin(&self, id: &ToolCallId) -> Result<bool, JournalError> {
        let mut connection = self.usable().await?;
        let update =
            "UPDATE calls SET phase = 'executing', started_at = ? WHERE tool_call_id = ? AND phase = 'reserved'";
        let done = sqlx::query(update)
            .bind(clock::now().as_micros())
            .bind(id.as_str())
            .execute(&mut *connection)
            .await
            .map_err(|error| self.poison(&error))?;
        self.make_durable(connection).await?;
        Ok(done.rows_affected() == 1)
    }

    /// Ends a call. The first settlement stays: `false` when there was one. When the disk is full, the
    /// ballast makes room; when that is not enough, the settlement is stored without its output.
    ///
    /// # Errors
    /// `Failed`.
    pub async fn settle(&self, id: &ToolCallId, settlement: &Settlement) -> Result<bool, JournalError> {
        let mut connection = self.usable().await?;
        let mut settled = settle(&mut connection, id, settlement).await;
        if is_out_of_room(&settled) && self.ballast.give_half() {
            settled = settle(&mut connection, id, settlement).await;
        }
        if is_out_of_room(&settled) && settlement.output.is_some() {
            tracing::error!(tool_call.id = %id, "the disk is full: the call's output is lost");
            let without = settlement.without_output();
            settled = settle(&mut connection, id, &without).await;
            if is_out_of_room(&settled) && self.ballast.give_rest() {
                settled = settle(&mut connection, id, &without).await;
            }
        } else if is_out_of_room(&settled) && self.ballast.give_rest() {
            settled = settle(&mut connection, id, settlement).await;
        }
        let settled = settled.map_err(|error| self.poison(&error))?;
        self.make_durable(connection).await?;
        self.may_be_told(settled);
        Ok(settled.is_some())
    }

    /// Settled calls of this owner that the server has not acknowledged, in the order of settling,
    /// after the `after`-th settlement; those alone that are on the disk.
    ///
    /// # Errors
    /// `Failed`.
    pub async fn pending(&self, owner: &Owner, after: i64, limit: usize) -> Result<Vec<Row>, JournalError> {
        let mut connection = self.usable().await?;
        let select = format!(
            "{} WHERE delivery = 'pending' AND server_id = ? AND user_hash = ? AND settled_no > ? \
             AND settled_no <= ? ORDER BY settled_no LIMIT ?",
            row::SELECT
        );
        let rows = sqlx::query_as::<_, Row>(&select)
            .bind(&owner.server_id)
            .bind(&owner.user_hash)
            .bind(after)
            .bind(self.told_up_to.load(Ordering::Acquire))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(&mut *connection)
            .await;
        rows.map_err(|error| self.poison(&error))
    }

    /// The server has the result (or knows nothing of the call): it is not sent again by itself.
    /// The output stays. Does not wait for the disk: without this note the result would be sent and acknowledged
    /// once more.
    ///
    /// # Errors
    /// `Failed`.
    pub async fn acknowledge(&self, id: &ToolCallId, disposition: Disposition) -> Result<(), JournalError> {
        let (delivery, note) = match disposition {
            Disposition::Stored => ("acked", "stored"),
            Disposition::Duplicate => ("acked", "duplicate"),
            Disposition::Superseded => ("acked", "superseded"),
            Disposition::UnknownCall => ("parked", "unknown_call"),
        };
        self.deliver(id, delivery, note).await
    }

    /// The server will never take the result: it is kept, and not sent again by itself. Does not wait for the disk.
    ///
    /// # Errors
    /// `Failed`.
    pub async fn park(&self, id: &ToolCallId, code: &str) -> Result<(), JournalError> {
        self.deliver(id, "parked", code).await
    }

    /// Writes what is left to the main file and closes it.
    pub async fn close(self) {
        if let Err(error) = self.connection.into_inner().close().await {
            tracing::warn!(%error, "the journal could not be closed; it will be recovered at the next start");
        }
    }

    async fn deliver(&self, id: &ToolCallId, delivery: &str, note: &str) -> Result<(), JournalError> {
        let mut connection = self.usable().await?;
        let update = "UPDATE calls SET delivery = ?, delivery_note = ? WHERE tool_call_id = ? AND delivery IN ('pending', 'parked')";
        let done = sqlx::query(update).bind(delivery).bind(note).bind(id.as_str()).execute(&mut *connection).await;
        done.map(drop).map_err(|error| self.poison(&error))
    }

    async fn insert(
        &self,
        connection: &mut SqliteConnection,
        request: &CallRequest,
        owner: &Owner,
        phase: Phase,
    ) -> Result<(), JournalError> {
        let insert = "INSERT INTO calls (tool_call_id, call_hash, tool, phase, instance_id, executed_attempt_no,
                                         server_id, user_hash, call_created_at, reserved_at, started_at, arguments,
                                         conversation_title)
                      VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
        let now = clock::now().as_micros();
        let done = sqlx::query(insert)
            .bind(request.tool_call_id.as_str())
            .bind(&request.call_hash)
            .bind(&request.tool_name)
            .bind(phase.as_str())
            .bind(&self.instance_id)
            .bind(request.attempt_no)
            .bind(&owner.server_id)
            .bind(&owner.user_hash)
            .bind(request.call_created_at.as_micros())
            .bind(now)
            .bind((phase == Phase::Executing).then_some(now))
            .bind(whole_characters(&request.arguments_json, MAX_KEPT_ARGUMENT_BYTES))
            .bind(whole_characters(&request.conversation_title, MAX_KEPT_TITLE_BYTES))
            .execute(connection)
            .await;
        done.map(drop).map_err(|error| self.full_or_poison(&error))
    }

    /// Waits until what was committed is on the disk; others use the connection meanwhile.
    async fn make_durable(&self, connection: MutexGuard<'_, SqliteConnection>) -> Result<(), JournalError> {
        drop(connection);
        self.flush.flush().await.map_err(|error| self.poison(&sqlx::Error::Io(error)))
    }

    /// A settlement is on the disk. Those before it were committed before it, so its flush served them, too.
    fn may_be_told(&self, settled_no: Option<i64>) {
        self.told_up_to.fetch_max(settled_no.unwrap_or(0), Ordering::AcqRel);
    }

    /// The connection, unless the journal is poisoned.
    async fn usable(&self) -> Result<MutexGuard<'_, SqliteConnection>, JournalError> {
        let connection = self.connection.lock().await;
        if self.poisoned.load(Ordering::Acquire) {
            return Err(JournalError::Failed("an earlier write failed".to_owned()));
        }
        Ok(connection)
    }

    fn poison(&self, error: &sqlx::Error) -> JournalError {
        self.poisoned.store(true, Ordering::Release);
        tracing::error!(%error, "the journal could not be written; no call is taken until the program is started again");
        JournalError::Failed(error.to_string())
    }

    /// A full disk refuses cleanly; anything else leaves the file in doubt.
    fn full_or_poison(&self, error: &sqlx::Error) -> JournalError {
        if is_full(error) { JournalError::Full } else { self.poison(error) }
    }
}

fn is_out_of_room<T>(done: &Result<T, sqlx::Error>) -> bool {
    done.as_ref().is_err_and(is_full)
}

fn is_full(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|error| error.code()).is_some_and(|code| code == SQLITE_FULL)
}

/// Ends a call that has not ended, and says as the how-manieth; `None` when it has.
async fn settle(
    connection: &mut SqliteConnection,
    id: &ToolCallId,
    settlement: &Settlement,
) -> Result<Option<i64>, sqlx::Error> {
    let update = "UPDATE calls SET phase = 'settled', delivery = 'pending', status = ?, output = ?, output_bytes = ?,
                         output_sha256 = ?, error_code = ?, error_message = ?, finished_at = ?,
                         settled_no = (SELECT coalesce(max(settled_no), 0) + 1 FROM calls)
                  WHERE tool_call_id = ? AND phase <> 'settled' RETURNING settled_no";
    let bytes = settlement.output.as_ref().map_or(0, String::len);
    // All rows, which is one or none: the statement commits when it has been read to its end.
    let rows: Vec<i64> = sqlx::query_scalar(update)
        .bind(settlement.status.as_str())
        .bind(settlement.output.as_deref())
        .bind(i64::try_from(bytes).unwrap_or(i64::MAX))
        .bind(settlement.output_sha256.as_deref())
        .bind(settlement.error.as_ref().map(|error| error.code.as_str()))
        .bind(settlement.error.as_ref().map(|error| error.message.as_str()))
        .bind(clock::now().as_micros())
        .bind(id.as_str())
        .fetch_all(connection)
        .await?;
    Ok(rows.first().copied())
}
