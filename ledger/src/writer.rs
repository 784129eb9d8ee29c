//! The one task that appends: it takes the commands that wait, commits them in one transaction,
//! and then answers.
//!
//! Versions and keys are checked inside the transaction, with what earlier commands of the same
//! batch do; losers are refused one by one. Where SQLite refuses the batch because of what one
//! command holds, the commands are committed one at a time, so that only that one fails. An error
//! at COMMIT is settled by looking whether the batch's events are there.

mod plan;
mod reply;

use crate::append::{Appended, Head};
use crate::error::{AppendError, LedgerError, SQLITE_IOERR, primary_result_code};
use crate::limits::{CLOSE_WAIT, MAX_BATCH_BYTES, MAX_BATCH_COMMANDS};
use crate::reader::Live;
use crate::ring::Ring;
use crate::store::{HeadRow, WriteStore};
use devmind_domain::Timestamp;
use devmind_domain::event::RecordedEvent;
use plan::{Outcome, Plan};
pub(crate) use reply::Command;
use sqlx::SqlitePool;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// SQLite's result codes that speak of what a statement was given, not of the file or the disk:
/// ERROR, TOOBIG, CONSTRAINT, MISMATCH, RANGE.
const DATA_ERRORS: [u32; 5] = [1, 18, 19, 20, 25];

#[derive(Debug)]
pub(crate) struct Writer {
    store: WriteStore,
    pool: SqlitePool,
    ring: Arc<Ring>,
    head: watch::Sender<Head>,
    /// The newest moment given out: time never goes back in the log, even when a clock does.
    last_recorded_at: Timestamp,
}

/// Why a batch was not committed.
enum Failure {
    /// Certainly not: nothing of it is stored.
    Before(sqlx::Error),
    /// The file is not sound.
    Unsound(String),
    /// The COMMIT itself failed, with what it would have stored.
    AtCommit(sqlx::Error, Plan, HeadRow),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Before(error)
    }
}

impl Writer {
    /// The writer, and what readers in the same process share with it.
    pub fn new(store: WriteStore, pool: SqlitePool, head: Head, last_recorded_at: Timestamp) -> (Self, Live) {
        let ring = Arc::new(Ring::default());
        let (sender, receiver) = watch::channel(head);
        let live = Live { ring: Arc::clone(&ring), head: receiver };
        (Self { store, pool, ring, head: sender, last_recorded_at }, live)
    }

    /// Runs until `stop`, or until nobody is left to send commands; then closes the file.
    pub async fn run(mut self, mut queue: mpsc::Receiver<Command>, stop: CancellationToken) {
        let mut waiting = Vec::with_capacity(MAX_BATCH_COMMANDS);
        loop {
            tokio::select! {
                received = queue.recv_many(&mut waiting, MAX_BATCH_COMMANDS) => if received == 0 { break },
                () = stop.cancelled(), if !queue.is_closed() => queue.close(),
            }
            let mut commands = waiting.drain(..).peekable();
            while let Some(first) = commands.next() {
                let mut bytes = first.bytes();
                let mut batch = vec![first];
                while let Some(next) = commands.next_if(|next| bytes + next.bytes() <= MAX_BATCH_BYTES) {
                    bytes += next.bytes();
                    batch.push(next);
                }
                self.commit(batch).await;
            }
        }
        self.close().await;
    }

    async fn close(self) {
        let Self { store, pool, head, .. } = self;
        if tokio::time::timeout(CLOSE_WAIT, pool.close()).await.is_err() {
            tracing::warn!("reads of the ledger were still under way when it was closed");
        }
        if let Err(error) = store.close().await {
            tracing::error!(%error, "the ledger was not closed in order; its write-ahead log will be read at the next start");
        }
        // Followers and `close` wait for this: it comes last.
        drop(head);
    }

    async fn commit(&mut self, mut batch: Vec<Command>) {
        for command in &mut batch {
            command.reply.begin();
        }
        match self.attempt(&batch).await {
            Ok((plan, head)) => self.answer(batch, plan, head),
            Err(Failure::Before(error)) if batch.len() > 1 && speaks_of_data(&error) => {
                for command in batch {
                    Box::pin(self.commit(vec![command])).await;
                }
            }
            Err(Failure::Before(error)) => {
                let reason = match speaks_of_data(&error) {
                    true => AppendError::Invalid { reason: error.to_string() },
                    false => AppendError::Storage(LedgerError::from_sqlx(self.store.file(), "append", &error)),
                };
                refuse(batch, &reason);
            }
            Err(Failure::Unsound(reason)) => {
                let error = LedgerError::Corrupt { file: self.store.file().to_owned(), reason };
                refuse(batch, &AppendError::Storage(error));
            }
            Err(Failure::AtCommit(error, plan, head)) => self.settle(batch, error, plan, head).await,
        }
    }

    /// One transaction over the whole batch.
    async fn attempt(&mut self, batch: &[Command]) -> Result<(Plan, HeadRow), Failure> {
        self.store.begin().await?;
        let planned = self.write(batch).await;
        let (plan, head) = match planned {
            Ok(planned) => planned,
            Err(failure) => {
                self.store.rollback().await;
                return Err(failure);
            }
        };
        if !plan.writes(batch) {
            self.store.rollback().await;
            return Ok((plan, head));
        }
        match self.store.commit().await {
            Ok(()) => Ok((plan, head)),
            Err(error) => Err(Failure::AtCommit(error, plan, head)),
        }
    }

    async fn write(&mut self, batch: &[Command]) -> Result<(Plan, HeadRow), Failure> {
        let before = self.store.head().await?.map_err(Failure::Unsound)?;
        self.last_recorded_at = self.last_recorded_at.max(now());
        let plan = Plan::make(&mut self.store, batch, before.frontier.size(), self.last_recorded_at).await?;
        if !plan.writes(batch) {
            return Ok((plan, before));
        }
        let from = before.frontier.size();
        let mut frontier = before.frontier;
        for event in &plan.events {
            frontier.push(event.leaf_hash);
        }
        let after = HeadRow { root: frontier.root(), frontier };
        if !plan.events.is_empty() {
            self.store.insert(&plan.events).await?;
            if !self.store.advance(from, &after).await? {
                return Err(Failure::Unsound(format!("the head is no longer at position {from}")));
            }
        }
        let keys = plan.new_keys(batch);
        if !keys.is_empty() {
            self.store.insert_keys(&keys).await?;
        }
        Ok((plan, after))
    }

    /// After the commit: followers first, then the callers.
    fn answer(&mut self, batch: Vec<Command>, plan: Plan, head: HeadRow) {
        let head = Head { position: head.frontier.size(), root: head.root };
        if !plan.events.is_empty() {
            self.ring.push(&plan.events);
            self.head.send_replace(head);
        }
        let Plan { events, outcomes, .. } = plan;
        for (command, outcome) in batch.into_iter().zip(outcomes) {
            command.reply.send(match outcome {
                Outcome::Stored(range) => Ok(Appended { events: slice(&events, range), head: head.position }),
                Outcome::Refused(error) => Err(error),
                Outcome::SeenInBatch { same_request, range } => {
                    Err(AppendError::KeySeen { same_request, events: slice(&events, range) })
                }
            });
        }
    }

    /// An error at COMMIT does not mean "not stored": the file is asked.
    async fn settle(&mut self, batch: Vec<Command>, error: sqlx::Error, plan: Plan, head: HeadRow) {
        self.store.rollback().await;
        let stored = match plan.events.first() {
            Some(event) => self.store.contains(&event.event_id).await,
            // Keys alone: storing them again does no harm, so they count as not stored.
            None => Ok(false),
        };
        match stored {
            Ok(true) => self.answer(batch, plan, head),
            // The frames of a commit whose flush failed may lie in the write-ahead log all the same,
            // and be found there after a crash.
            Ok(false) if speaks_of_the_disk(&error) => {
                refuse(batch, &AppendError::InDoubt(format!("{error}; it may come back after a crash")));
            }
            Ok(false) => {
                let error = LedgerError::from_sqlx(self.store.file(), "commit", &error);
                refuse(batch, &AppendError::Storage(error));
            }
            Err(unreadable) => {
                tracing::error!(%error, %unreadable, "a commit is in doubt and the ledger cannot be asked");
                refuse(batch, &AppendError::InDoubt(format!("{error}; then {unreadable}")));
            }
        }
    }
}

fn refuse(batch: Vec<Command>, error: &AppendError) {
    for command in batch {
        command.reply.send(Err(error.clone()));
    }
}

fn slice(events: &[Arc<RecordedEvent>], range: std::ops::Range<usize>) -> Vec<Arc<RecordedEvent>> {
    events.get(range).map(<[_]>::to_vec).unwrap_or_default()
}

fn speaks_of_data(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Encode(_))
        || primary_result_code(error).is_some_and(|code| DATA_ERRORS.contains(&code))
}

fn speaks_of_the_disk(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Io(_)) || primary_result_code(error) == Some(SQLITE_IOERR)
}

fn now() -> Timestamp {
    // A clock before 1970 counts as 1970: the log's own order is what matters.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}
