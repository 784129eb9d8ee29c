//! The handle to the writer of a log.

use crate::append::{Append, Appended, Head, Prepared};
use crate::error::{AppendError, LedgerError};
use crate::limits::{MAX_QUEUED_BYTES, MAX_QUEUED_COMMANDS};
use crate::place::Place;
use crate::reader::LedgerReader;
use crate::store::{Opened, postgres, sqlite};
use crate::tips::Tips;
use crate::writer::{Command, Writer};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Instant;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::{Mutex, MutexGuard, Semaphore, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// Executors that lost a race take turns, one lane a stream (streams share lanes by their hash).
const RETRY_LANES: usize = 64;

/// The unit of the byte budget of the queue.
const BUDGET_UNIT: usize = 1 << 10;

/// A log, open for appending; at most one in the world for a file, one a process for a database. Clones
/// share it.
#[derive(Clone, Debug)]
pub struct Ledger {
    commands: mpsc::Sender<Command>,
    budget: Arc<Semaphore>,
    stop: CancellationToken,
    retry_lanes: Arc<[Mutex<()>]>,
    reader: LedgerReader,
    /// When this process may append no more, where others share the log.
    until: Arc<std::sync::Mutex<Option<Instant>>>,
    tips: Arc<Tips>,
    #[cfg(test)]
    pub(crate) faults: crate::store::faults::Faults,
}

/// A command that the writer has, or will have.
pub(crate) struct Submitted(oneshot::Receiver<Result<Appended, AppendError>>);

impl Submitted {
    /// The answer: stored durably, or why not.
    pub async fn stored(self) -> Result<Appended, AppendError> {
        self.0.await.unwrap_or_else(|_| Err(AppendError::InDoubt("the writer gave no answer".to_owned())))
    }
}

impl Ledger {
    /// Opens the log (creating and migrating it where needed) and starts its writer task.
    ///
    /// A file's folder must exist; the lock file `ledger.lock` beside it keeps other writers out. A
    /// database must exist; other processes may write it at the same time.
    ///
    /// # Errors
    /// [`LedgerError`]; what is not understood is left exactly as it is.
    pub async fn open(place: impl Into<Place>) -> Result<Self, LedgerError> {
        match place.into() {
            Place::File(file) => Ok(Self::start(sqlite::open_writable(&file).await?).0),
            Place::Postgres(url) => {
                let (opened, log) = postgres::open_writable(&url).await?;
                let (ledger, head) = Self::start(opened);
                if let Some(head) = head.upgrade() {
                    postgres::spawn_news(log, &head);
                }
                Ok(ledger)
            }
        }
    }

    fn start(opened: Opened) -> (Self, Weak<watch::Sender<Head>>) {
        #[cfg(test)]
        let faults = opened.write.faults();
        let (commands, queue) = mpsc::channel(MAX_QUEUED_COMMANDS);
        let stop = CancellationToken::new();
        let Opened { write, read, head, ledger_id, last_recorded_at } = opened;
        let (writer, live) = Writer::new(write, Arc::clone(&read), head, last_recorded_at);
        let moving = Arc::downgrade(writer.head());
        let reader = LedgerReader::live(read, ledger_id, live);
        tokio::spawn(writer.run(queue, stop.clone()));
        let ledger = Self {
            commands,
            budget: Arc::new(Semaphore::new(MAX_QUEUED_BYTES / BUDGET_UNIT)),
            stop,
            retry_lanes: (0..RETRY_LANES).map(|_| Mutex::new(())).collect(),
            reader,
            until: Arc::default(),
            tips: Arc::default(),
            #[cfg(test)]
            faults,
        };
        (ledger, moving)
    }

    /// Stores one command's events, all or nothing, and answers when they are durable.
    ///
    /// # Errors
    /// [`AppendError`]; only [`AppendError::InDoubt`] leaves open whether something was stored.
    pub async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        self.submit(append)?.stored().await
    }

    /// Refuses appends from this moment on, until a later one is named: a process that was frozen past its lease
    /// must not go on before it has looked whether it still holds it.
    pub fn append_until(&self, until: Instant) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }

    /// Hands a command to the writer, behind all that were handed over before.
    pub(crate) fn submit(&self, append: Append) -> Result<Submitted, AppendError> {
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        if until.is_some_and(|until| Instant::now() >= until) {
            let place = self.reader.store().place().to_owned();
            let reason = "this process's lease was not renewed in time: others may count it as lost".to_owned();
            return Err(AppendError::Storage(LedgerError::Unavailable { place, reason }));
        }
        let prepared = Prepared::new(append)?;
        let units = prepared.bytes.div_ceil(BUDGET_UNIT).max(1);
        let units = u32::try_from(units).map_err(|_| AppendError::TooLarge { bytes: prepared.bytes })?;
        let permit = Arc::clone(&self.budget).try_acquire_many_owned(units).map_err(|_| AppendError::Overloaded)?;
        let (command, answer) = Command::new(prepared, permit);
        self.commands.try_send(command).map_err(|refused| match refused {
            TrySendError::Full(_) => AppendError::Overloaded,
            TrySendError::Closed(_) => AppendError::Closed,
        })?;
        Ok(Submitted(answer))
    }

    pub(crate) fn tips(&self) -> &Tips {
        &self.tips
    }

    /// Reads the same log.
    pub fn reader(&self) -> &LedgerReader {
        &self.reader
    }

    /// Whether the writer still takes commands; `false` after [`Ledger::close`] or when it failed.
    pub fn is_open(&self) -> bool {
        !self.commands.is_closed()
    }

    /// Answers what waits, then closes the file, its write-ahead log emptied. Later commands get
    /// [`AppendError::Closed`]. Closing twice is the same as once.
    pub async fn close(&self) {
        self.stop.cancel();
        self.reader.closed().await;
    }

    /// Waits for the turn to retry on a stream: without turns, many executors on one stream would
    /// make each other lose again and again.
    pub(crate) async fn retry_turn(&self, stream: &impl Hash) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        stream.hash(&mut hasher);
        let lane = usize::try_from(hasher.finish() % RETRY_LANES as u64).unwrap_or_default();
        self.retry_lanes[lane].lock().await
    }
}
