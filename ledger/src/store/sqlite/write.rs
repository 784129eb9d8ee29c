//! Writing the file: one transaction for each batch, on the one connection that may write.
//!
//! That connection ([`Writable`]) blocks, so each call is one trip to a thread that may, there and back.

use super::file::{OwnBatch, SeenAt, Stored, Writable};
use super::read::SqliteLog;
use crate::append::Idempotency;
use crate::error::{LedgerError, SQLITE_IOERR, result_code};
use crate::store::{Batch, CommitError, Failure, Look, ReadLog, Seen, StoredEvent, WriteLog};
use devmind_domain::event::StreamId;
use std::path::Path;
use std::sync::Arc;

/// SQLite's result codes that speak of what a statement was given, not of the file or the disk:
/// ERROR, TOOBIG, CONSTRAINT, MISMATCH, RANGE.
const DATA_ERRORS: [u32; 5] = [1, 18, 19, 20, 25];

/// The writer's side of the file.
#[derive(Debug)]
pub(crate) struct SqliteWriter {
    place: String,
    /// Away while a call is under way.
    file: Option<Writable>,
    /// Reads what was stored under a key that comes again.
    read: Arc<SqliteLog>,
    #[cfg(test)]
    faults: crate::store::faults::Faults,
}

impl SqliteWriter {
    pub fn new(path: &Path, file: Writable, read: Arc<SqliteLog>) -> Self {
        Self {
            place: path.display().to_string(),
            #[cfg(test)]
            faults: file.faults.clone(),
            file: Some(file),
            read,
        }
    }

    /// Does something with the file on a thread that may block.
    async fn with<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Writable) -> T + Send + 'static,
    ) -> Result<T, LedgerError> {
        // It does not come back from a call that panicked, or whose answer nobody waited for.
        let mut file = self.file.take().ok_or(LedgerError::Closed)?;
        let done = tokio::task::spawn_blocking(move || {
            let done = work(&mut file);
            (file, done)
        });
        match done.await {
            Ok((file, done)) => {
                self.file = Some(file);
                Ok(done)
            }
            Err(failed) => match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(LedgerError::Closed),
            },
        }
    }

    fn before(&self, error: &rusqlite::Error) -> Failure {
        match speaks_of_data(error) {
            true => Failure::Data(error.to_string()),
            false => Failure::Before(LedgerError::from_sqlite(&self.place, "append", error)),
        }
    }
}

#[async_trait::async_trait]
impl WriteLog for SqliteWriter {
    fn place(&self) -> &str {
        &self.place
    }

    #[cfg(test)]
    fn faults(&self) -> crate::store::faults::Faults {
        self.faults.clone()
    }

    async fn look(&mut self, streams: &[&StreamId], keys: &[&Idempotency]) -> Result<Look, Failure> {
        #[cfg(test)]
        self.faults.note_look();
        let streams: Vec<_> = streams.iter().map(|&stream| stream.clone()).collect();
        let keys: Vec<_> = keys.iter().map(|&key| key.clone()).collect();
        let found = match self.with(move |file| file.look(&streams, &keys)).await.map_err(Failure::Before)? {
            Ok(Ok(found)) => found,
            Ok(Err(reason)) => {
                return Err(Failure::Before(LedgerError::Corrupt { place: self.place.clone(), reason }));
            }
            Err(error) => return Err(self.before(&error)),
        };
        let (read, mut known) = (Arc::clone(&self.read), Vec::with_capacity(found.seen.len()));
        for key in found.seen {
            match seen(&read, key).await {
                Ok(seen) => known.push(seen),
                Err(error) => {
                    self.leave().await;
                    return Err(Failure::Before(LedgerError::from_sqlx(&self.place, "append", &error)));
                }
            }
        }
        // Nobody else writes: the writer knows the newest moment itself.
        Ok(Look { head: found.head, recorded_at: None, versions: found.versions, seen: known })
    }

    async fn store(&mut self, batch: &Batch<'_>) -> Result<(), Failure> {
        let batch = OwnBatch {
            events: batch.events.to_vec(),
            keys: batch.keys.iter().map(|key| (key.idempotency.clone(), key.first, key.last)).collect(),
            snapshots: batch.snapshots.to_vec(),
            from: batch.from,
            head: batch.head.clone(),
        };
        match self.with(move |file| file.store(&batch)).await.map_err(Failure::Before)? {
            Stored::Yes => Ok(()),
            Stored::Moved => Err(Failure::Moved),
            Stored::Refused(error) => Err(self.before(&error)),
            Stored::InDoubt(error) => Err(Failure::AtCommit(error.into())),
        }
    }

    async fn leave(&mut self) {
        // A file that is gone has no transaction any more.
        let _ = self.with(Writable::rollback).await;
    }

    async fn settle(&mut self, event_id: Option<&str>, error: &CommitError) -> Result<bool, String> {
        let event_id = event_id.map(str::to_owned);
        let asked = self.with(move |file| {
            file.rollback();
            event_id.map_or(Ok(false), |event_id| file.contains(&event_id))
        });
        match asked.await.map_err(|gone| gone.to_string())? {
            Ok(true) => Ok(true),
            // The frames of a commit whose flush failed may lie in the write-ahead log all the same,
            // and be found there after a crash.
            Ok(false) if speaks_of_the_disk(error) => Err("it may come back after a crash".to_owned()),
            Ok(false) => Ok(false),
            Err(unreadable) => Err(format!("then {unreadable}")),
        }
    }

    async fn erase(&mut self, position: u64, marker: &str) -> Result<(), Failure> {
        let marker = marker.to_owned();
        match self.with(move |file| file.erase(position, &marker)).await.map_err(Failure::Before)? {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::Data(format!("there is no event {position}"))),
            Err(error) => Err(self.before(&error)),
        }
    }

    /// Empties the write-ahead log, closes the file and gives up the lock.
    async fn close(mut self: Box<Self>) -> Result<(), LedgerError> {
        let Some(file) = self.file.take() else { return Ok(()) };
        match tokio::task::spawn_blocking(move || file.close()).await {
            Ok(closed) => closed.map_err(|error| LedgerError::from_sqlite(&self.place, "close", &error)),
            Err(_) => Err(LedgerError::Closed),
        }
    }
}

async fn seen(read: &SqliteLog, found: SeenAt) -> Result<Seen, sqlx::Error> {
    let position = |stored: i64| u64::try_from(stored).unwrap_or(0);
    let events = read.range(position(found.first), position(found.last)).await?;
    let events = events.into_iter().map(StoredEvent::sound).collect::<Result<_, _>>()?;
    Ok(Seen { index: found.index, request_hash: found.request_hash, events })
}

fn speaks_of_data(error: &rusqlite::Error) -> bool {
    match result_code(error) {
        Some(code) => DATA_ERRORS.contains(&code),
        // What rusqlite itself refuses to hand over.
        None => matches!(error, rusqlite::Error::ToSqlConversionFailure(_) | rusqlite::Error::NulError(_)),
    }
}

fn speaks_of_the_disk(error: &CommitError) -> bool {
    matches!(error, CommitError::Sqlite(error) if result_code(error) == Some(SQLITE_IOERR))
}
