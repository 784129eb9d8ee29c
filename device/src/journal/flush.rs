//! Making commits durable, several with one flush.
//!
//! SQLite writes a commit to its write-ahead log and does not wait for the disk (`synchronous=NORMAL`, where it still
//! flushes around every fold of the log into the file, so that the file stays whole). Whoever must not go on before
//! the commit is on the disk waits here: one flush serves all whose commits were written before it began, and commits
//! go on being written meanwhile. Until then nothing was promised to anybody.
//!
//! The log is folded into the file from here, too, beside the calls: SQLite would do it within somebody's commit.

use rusqlite::Connection;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as BlockingMutex};
use tokio::sync::Mutex;

#[derive(Debug)]
pub(super) struct Flush {
    /// The write-ahead log: the same file as long as the journal is open.
    wal: Arc<File>,
    /// Commits that were written.
    written: AtomicU64,
    /// How many of them are on the disk. Held during a flush.
    durable: Mutex<u64>,
    /// After a flush that failed nobody knows what the disk holds, and a second one may say nothing of it.
    failed: Arc<AtomicBool>,
    /// A connection of its own, on which nothing else is done.
    folding: Arc<BlockingMutex<Connection>>,
    fold_every: u64,
    /// The commit after which the log is folded next.
    fold_at: AtomicU64,
    #[cfg(test)]
    pub(super) flushes: AtomicU64,
}

impl Flush {
    pub(super) fn of(wal: File, folding: Connection, fold_every: u64) -> Self {
        Self {
            folding: Arc::new(BlockingMutex::new(folding)),
            fold_every,
            fold_at: AtomicU64::new(fold_every),
            wal: Arc::new(wal),
            written: AtomicU64::new(0),
            durable: Mutex::new(0),
            failed: Arc::default(),
            #[cfg(test)]
            flushes: AtomicU64::new(0),
        }
    }

    /// Returns when what was committed before is on the disk.
    pub(super) async fn flush(&self) -> io::Result<()> {
        let own = self.written.fetch_add(1, Ordering::AcqRel) + 1;
        let mut durable = self.durable.lock().await;
        if *durable < own {
            let serves = self.written.load(Ordering::Acquire);
            let (wal, failed) = (Arc::clone(&self.wal), Arc::clone(&self.failed));
            #[cfg(test)]
            self.flushes.fetch_add(1, Ordering::Relaxed);
            // The caller may be gone by the time it fails: it is noted here.
            let flushing = move || wal.sync_data().inspect_err(|_| failed.store(true, Ordering::Release));
            let flushed = tokio::task::spawn_blocking(flushing).await;
            flushed.unwrap_or_else(|error| Err(io::Error::other(error)))?;
            *durable = serves;
            if serves >= self.fold_at.load(Ordering::Relaxed) {
                self.fold_at.store(serves + self.fold_every, Ordering::Relaxed);
                self.fold();
            }
        }
        match self.failed.load(Ordering::Acquire) {
            true => Err(io::Error::other("an earlier flush failed")),
            false => Ok(()),
        }
    }

    /// Begins to fold what there is. That this fails, as on a full disk, harms nothing: the log stays, and grows.
    fn fold(&self) {
        let folding = Arc::clone(&self.folding);
        tokio::task::spawn_blocking(move || {
            // The one before is still under way.
            let Ok(connection) = folding.try_lock() else { return };
            let folded = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
            if let Err(error) = folded {
                tracing::warn!(%error, "the journal's write-ahead log could not be folded into its file");
            }
        });
    }

    /// Flushes to this file instead.
    #[cfg(test)]
    pub(super) fn astray(&mut self, wal: File) {
        self.wal = Arc::new(wal);
    }

    /// How many commits were written, and wait or have waited.
    #[cfg(test)]
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Keeps flushes back.
    #[cfg(test)]
    pub(super) async fn hold(&self) -> tokio::sync::MutexGuard<'_, u64> {
        self.durable.lock().await
    }
}
