//! The device's durable record: what makes "at most once" true across crashes.
//!
//! One SQLite file (WAL), one connection, one row per call. A call is `reserved`
//! before anybody is asked, `executing` before anything is touched, `settled` before anything is
//! said; each step is one statement that only goes forward, and on the disk when it returns ([`commit`]). A row is also the outbox: it is
//! `pending` until the server has acknowledged it. When a statement fails, the journal is poisoned
//! and refuses everything until the program is started again: after a failed flush nobody knows
//! what the disk holds.
//!
//! What is only looked up, and notes that may be lost, take some ten microseconds and do not wait for the disk: they are
//! run where they are needed, since to hand them to another thread would take longer. Everything else has a thread that
//! may block.
//!
//! What a call's steps mean is left to `call`, when to send to `connection`.

mod ballast;
mod commit;
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
use commit::{Commits, Step, Undone, statement};
use devmind_domain::ids::ToolCallId;
use devmind_domain::limits::{MAX_UNACKED_RESULTS, OUTPUT_QUOTA_BYTES};
use devmind_domain::protocol::CallRequest;
use devmind_domain::tool_call::{Disposition, Phase};
use devmind_domain::{ErrorCode, Timestamp};
use rusqlite::types::Value;
use rusqlite::{Connection, ErrorCode as SqliteCode, OptionalExtension as _, params, params_from_iter};
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Below this many free bytes no call is taken: its result could not be stored.
const FREE_SPACE_FLOOR_BYTES: u64 = 32 << 20;
/// Bytes of a call's arguments and of its conversation's title that are kept for people, at most.
const MAX_KEPT_ARGUMENT_BYTES: usize = 8 << 10;
const MAX_KEPT_TITLE_BYTES: usize = 400;
/// Why a poisoned journal refuses.
const POISONED: &str = "an earlier write failed";
/// Statements that are kept prepared: all there are.
const PREPARED: usize = 32;

/// The journal of one device.
#[derive(Debug)]
pub struct Journal {
    connection: Arc<Mutex<Connection>>,
    commits: Commits,
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
    pub fn find(&self, id: &ToolCallId) -> Result<Option<Row>, JournalError> {
        let connection = self.usable()?;
        let select = concat!(row::select!(), " WHERE tool_call_id = ?");
        let found = connection
            .prepare_cached(select)
            .and_then(|mut found| found.query_row([id.as_str()], Row::read).optional());
        found.map_err(|error| self.poison(&error))
    }

    /// Whether a call that is not known yet may be taken: young enough, and room for its result.
    ///
    /// # Errors
    /// `TooOld`, `Full`, `Failed`.
    pub fn admit(&self, call_created_at: Timestamp) -> Result<(), JournalError> {
        let select = "SELECT purged_through,
                             (SELECT count(*) FROM calls WHERE delivery = 'pending'),
                             (SELECT coalesce(sum(output_bytes), 0) FROM calls WHERE delivery = 'pending')
                      FROM journal";
        let connection = self.usable()?;
        let asked = connection.prepare_cached(select).and_then(|mut asked| {
            asked.query_row([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?)))
        });
        let (purged_through, unacked, unacked_bytes) = asked.map_err(|error| self.poison(&error))?;
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
        self.make(self.entering(request, owner, Phase::Reserved)).await.map(drop)
    }

    /// Reserves and begins in one durable step, where nobody is asked in between: from here on a crash means that
    /// nobody knows.
    ///
    /// # Errors
    /// `Full` (nothing was written), `Failed`.
    pub async fn begin_at_once(&self, request: &CallRequest, owner: &Owner) -> Result<(), JournalError> {
        self.make(self.entering(request, owner, Phase::Executing)).await.map(drop)
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
        let entering = self.entering(request, owner, Phase::Reserved);
        let settling = settling(&request.tool_call_id, settlement);
        let both: Step = Box::new(move |connection| entering(connection).and_then(|_| settling(connection)));
        self.may_be_told(self.make(both).await?);
        Ok(())
    }

    /// Who allowed or denied a reserved call, for [`history`]. Durable when it returns.
    ///
    /// # Errors
    /// `Full` (nothing was written), `Failed`.
    pub async fn note_decision(&self, id: &ToolCallId, by: &str) -> Result<(), JournalError> {
        let update = "UPDATE calls SET decided_by = ? WHERE tool_call_id = ? AND phase = 'reserved'";
        self.make(statement(update, vec![by.to_owned().into(), id.0.clone().into()])).await.map(drop)
    }

    /// Check 9 begins: from here on a crash means that nobody knows. `false` when the call is not
    /// `reserved`: then it must not run.
    ///
    /// # Errors
    /// `Failed`.
    pub async fn begin(&self, id: &ToolCallId) -> Result<bool, JournalError> {
        let update =
            "UPDATE calls SET phase = 'executing', started_at = ? WHERE tool_call_id = ? AND phase = 'reserved'";
        let begin = statement(update, vec![clock::now().as_micros().into(), id.0.clone().into()]);
        Ok(self.commit(begin).await.map_err(|error| self.failed(error))? == 1)
    }

    /// Ends a call. The first settlement stays: `false` when there was one. When the disk is full, the
    /// ballast makes room; when that is not enough, the settlement is stored without its output.
    ///
    /// # Errors
    /// `Failed`.
    pub async fn settle(&self, id: &ToolCallId, settlement: &Settlement) -> Result<bool, JournalError> {
        let settle = async |settlement: &Settlement| self.commit(settling(id, settlement)).await;
        let mut settled = settle(settlement).await;
        if is_out_of_room(&settled) && self.ballast.give_half() {
            settled = settle(settlement).await;
        }
        if is_out_of_room(&settled) && settlement.output.is_some() {
            tracing::error!(tool_call.id = %id, "the disk is full: the call's output is lost");
            let without = settlement.without_output();
            settled = settle(&without).await;
            if is_out_of_room(&settled) && self.ballast.give_rest() {
                settled = settle(&without).await;
            }
        } else if is_out_of_room(&settled) && self.ballast.give_rest() {
            settled = settle(settlement).await;
        }
        let settled = settled.map_err(|error| self.failed(error))?;
        self.may_be_told(settled);
        Ok(settled > 0)
    }

    /// Settled calls of this owner that the server has not acknowledged, in the order of settling,
    /// after the `after`-th settlement; those alone that are on the disk.
    ///
    /// # Errors
    /// `Failed`.
    pub fn pending(&self, owner: &Owner, after: i64, limit: usize) -> Result<Vec<Row>, JournalError> {
        let select = concat!(
            row::select!(),
            " WHERE delivery = 'pending' AND server_id = ? AND user_hash = ? AND settled_no > ? \
             AND settled_no <= ? ORDER BY settled_no LIMIT ?"
        );
        let (told, limit) = (self.told_up_to.load(Ordering::Acquire), i64::try_from(limit).unwrap_or(i64::MAX));
        let connection = self.usable()?;
        if after >= told {
            return Ok(Vec::new());
        }
        let rows = connection.prepare_cached(select).and_then(|mut pending| {
            pending.query_map(params![owner.server_id, owner.user_hash, after, told, limit], Row::read)?.collect()
        });
        rows.map_err(|error| self.poison(&error))
    }

    /// The server has the result (or knows nothing of the call): it is not sent again by itself.
    /// The output stays. Does not wait for the disk: without this note the result would be sent and acknowledged
    /// once more.
    ///
    /// # Errors
    /// `Failed`.
    pub fn acknowledge(&self, id: &ToolCallId, disposition: Disposition) -> Result<(), JournalError> {
        let (delivery, note) = match disposition {
            Disposition::Stored => ("acked", "stored"),
            Disposition::Duplicate => ("acked", "duplicate"),
            Disposition::Superseded => ("acked", "superseded"),
            Disposition::UnknownCall => ("parked", "unknown_call"),
        };
        self.deliver(id, delivery, note)
    }

    /// The server will never take the result: it is kept, and not sent again by itself. Does not wait for the disk.
    ///
    /// # Errors
    /// `Failed`.
    pub fn park(&self, id: &ToolCallId, code: &str) -> Result<(), JournalError> {
        self.deliver(id, "parked", code)
    }

    /// Writes what is left to the main file and closes it.
    pub async fn close(self) {
        let Self { connection, commits, .. } = self;
        let closed = tokio::task::spawn_blocking(move || {
            drop(commits);
            // Nobody has it but who closes: whoever wrote has been answered.
            let connection = Arc::into_inner(connection).and_then(|connection| connection.into_inner().ok());
            connection.map_or(Ok(()), |connection| connection.close().map_err(|(_, error)| error))
        });
        if let Ok(Err(error)) = closed.await {
            tracing::warn!(%error, "the journal could not be closed; it will be recovered at the next start");
        }
    }

    fn deliver(&self, id: &ToolCallId, delivery: &str, note: &str) -> Result<(), JournalError> {
        let update = "UPDATE calls SET delivery = ?, delivery_note = ? WHERE tool_call_id = ? AND delivery IN ('pending', 'parked')";
        let connection = self.usable()?;
        let done =
            connection.prepare_cached(update).and_then(|mut update| update.execute([delivery, note, id.as_str()]));
        done.map(drop).map_err(|error| self.poison(&error))
    }

    fn entering(&self, request: &CallRequest, owner: &Owner, phase: Phase) -> Step {
        let insert = "INSERT INTO calls (tool_call_id, call_hash, tool, phase, instance_id, executed_attempt_no,
                                         server_id, user_hash, call_created_at, reserved_at, started_at, arguments,
                                         conversation_title)
                      VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
        let now = clock::now().as_micros();
        let text = |text: &str| Value::from(text.to_owned());
        let values = vec![
            text(request.tool_call_id.as_str()),
            text(&request.call_hash),
            text(&request.tool_name),
            text(phase.as_str()),
            text(&self.instance_id),
            request.attempt_no.into(),
            text(&owner.server_id),
            text(&owner.user_hash),
            request.call_created_at.as_micros().into(),
            now.into(),
            (phase == Phase::Executing).then_some(now).into(),
            text(whole_characters(&request.arguments_json, MAX_KEPT_ARGUMENT_BYTES)),
            text(whole_characters(&request.conversation_title, MAX_KEPT_TITLE_BYTES)),
        ];
        statement(insert, values)
    }

    /// Makes a durable step that a full disk refuses cleanly.
    async fn make(&self, step: Step) -> Result<i64, JournalError> {
        self.commit(step).await.map_err(|error| match error {
            Undone::Refused(error) if is_full(&error) => JournalError::Full,
            error => self.failed(error),
        })
    }

    /// Makes a durable step, unless the journal is poisoned.
    async fn commit(&self, step: Step) -> Result<i64, Undone> {
        match self.poisoned.load(Ordering::Acquire) {
            true => Err(Undone::InDoubt(POISONED.to_owned())),
            false => self.commits.make(step).await,
        }
    }

    /// A settlement is on the disk. Those before it were committed before it or with it, so its flush served them, too.
    fn may_be_told(&self, settled_no: i64) {
        self.told_up_to.fetch_max(settled_no, Ordering::AcqRel);
    }

    /// The connection, unless the journal is poisoned.
    fn usable(&self) -> Result<MutexGuard<'_, Connection>, JournalError> {
        if self.poisoned.load(Ordering::Acquire) {
            return Err(JournalError::Failed(POISONED.to_owned()));
        }
        self.connection.lock().map_err(|_| self.poison(&"a statement broke down"))
    }

    fn poison(&self, error: &dyn Display) -> JournalError {
        self.poisoned.store(true, Ordering::Release);
        tracing::error!(%error, "the journal could not be written; no call is taken until the program is started again");
        JournalError::Failed(error.to_string())
    }

    /// What is in doubt, or refused for another reason than a full disk, leaves the file in doubt.
    fn failed(&self, error: Undone) -> JournalError {
        match error {
            Undone::Refused(error) => self.poison(&error),
            Undone::InDoubt(reason) => self.poison(&reason),
        }
    }
}

fn is_out_of_room<T>(done: &Result<T, Undone>) -> bool {
    matches!(done, Err(Undone::Refused(error)) if is_full(error))
}

fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(SqliteCode::DiskFull)
}

/// Ends a call that has not ended, and says as the how-manieth; 0 when it has.
fn settling(id: &ToolCallId, settlement: &Settlement) -> Step {
    let update = "UPDATE calls SET phase = 'settled', delivery = 'pending', status = ?, output = ?, output_bytes = ?,
                         output_sha256 = ?, error_code = ?, error_message = ?, finished_at = ?,
                         settled_no = (SELECT coalesce(max(settled_no), 0) + 1 FROM calls)
                  WHERE tool_call_id = ? AND phase <> 'settled' RETURNING settled_no";
    let bytes = settlement.output.as_ref().map_or(0, String::len);
    let values: Vec<Value> = vec![
        settlement.status.as_str().to_owned().into(),
        settlement.output.clone().into(),
        i64::try_from(bytes).unwrap_or(i64::MAX).into(),
        settlement.output_sha256.clone().into(),
        settlement.error.as_ref().map(|error| error.code.clone()).into(),
        settlement.error.as_ref().map(|error| error.message.clone()).into(),
        clock::now().as_micros().into(),
        id.0.clone().into(),
    ];
    Box::new(move |connection| {
        let settled = connection.prepare_cached(update)?.query_row(params_from_iter(&values), |row| row.get(0));
        settled.optional().map(Option::unwrap_or_default)
    })
}
