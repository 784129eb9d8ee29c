//! Writing, several calls' steps at a time: one transaction and one flush for all who wait.
//!
//! Whoever comes while a transaction is being made durable waits for the next one, with everybody else who does.
//! SQLite writes a commit to its write-ahead log and does not wait for the disk (`synchronous=NORMAL`, where it still
//! flushes around every fold of the log into the file, so that the file stays whole); the log is flushed here, before
//! anybody is answered. Until then nothing was promised to anybody.
//!
//! A statement that fails takes nobody along: the transaction is undone, and each step made in one of its own.
//! The log is folded into the file from here, too, beside the calls: SQLite would do it within somebody's commit.

use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};
use std::fmt;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::sync::{Mutex as Turns, OwnedMutexGuard};

/// What a step does, and says: the rows that it changed, or a number that it gave. Made again where it was undone.
pub(super) type Step = Box<dyn Fn(&Connection) -> Result<i64, rusqlite::Error> + Send>;
type Waiting = (Step, oneshot::Sender<Result<i64, Undone>>);

/// A step of one statement.
pub(super) fn statement(sql: &'static str, values: Vec<Value>) -> Step {
    Box::new(move |connection| {
        let changed = connection.prepare_cached(sql)?.execute(params_from_iter(&values))?;
        Ok(i64::try_from(changed).unwrap_or(i64::MAX))
    })
}

/// Why a step is not durable.
#[derive(Debug)]
pub(super) enum Undone {
    /// It was refused, and left no trace.
    Refused(rusqlite::Error),
    /// What the disk holds is not known.
    InDoubt(String),
}

pub(super) struct Commits {
    waiting: Mutex<Vec<Waiting>>,
    /// Held from taking who waits until they are answered.
    turn: Arc<Turns<()>>,
    /// The write-ahead log: the same file as long as the journal is open.
    wal: Arc<File>,
    on: Arc<On>,
}

/// What transactions are made on.
struct On {
    connection: Arc<Mutex<Connection>>,
    /// After a flush that failed nobody knows what the disk holds, and a second one may say nothing of it.
    failed: AtomicBool,
    /// A connection of its own, on which nothing else is done.
    folding: Mutex<Connection>,
    fold_every: u64,
    /// Steps since the log was folded.
    unfolded: AtomicU64,
    #[cfg(test)]
    watch: Watch,
}

/// What tests look at, and hold back.
#[cfg(test)]
#[derive(Default)]
pub(super) struct Watch {
    pub flushes: AtomicU64,
    /// Steps that were committed.
    pub committed: AtomicU64,
    /// Taken for each flush.
    pub disk: Mutex<()>,
}

impl Commits {
    pub(super) fn new(connection: Arc<Mutex<Connection>>, wal: File, folding: Connection, fold_every: u64) -> Self {
        let on = On {
            connection,
            failed: AtomicBool::default(),
            folding: Mutex::new(folding),
            fold_every,
            unfolded: AtomicU64::default(),
            #[cfg(test)]
            watch: Watch::default(),
        };
        Self { waiting: Mutex::default(), turn: Arc::default(), wal: Arc::new(wal), on: Arc::new(on) }
    }

    /// Makes a step. It is on the disk when this returns.
    pub(super) async fn make(&self, step: Step) -> Result<i64, Undone> {
        let gone = |_| Err(Undone::InDoubt("a step broke down".to_owned()));
        let (answer, mut answered) = oneshot::channel();
        lock(&self.waiting).push((step, answer));
        let turn = tokio::select! {
            biased;
            done = &mut answered => return done.unwrap_or_else(gone),
            turn = Arc::clone(&self.turn).lock_owned() => turn,
        };
        // The answer may have come with the turn.
        if let Ok(done) = answered.try_recv().or_else(|error| match error {
            TryRecvError::Empty => Err(()),
            TryRecvError::Closed => Ok(Err(Undone::InDoubt("a step broke down".to_owned()))),
        }) {
            return done;
        }
        // Its own step is among them; they are answered even if nobody waits here any more.
        let (waiting, wal, on) = (std::mem::take(&mut *lock(&self.waiting)), self.wal.clone(), self.on.clone());
        tokio::task::spawn_blocking(move || on.make_all(waiting, &wal, turn));
        answered.await.unwrap_or_else(gone)
    }

    /// How many wait for a turn.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        lock(&self.waiting).len()
    }

    /// Waits for a fold that is under way.
    #[cfg(test)]
    pub(super) fn until_folded(&self) {
        drop(lock(&self.on.folding));
    }

    #[cfg(test)]
    pub(super) fn watch(&self) -> &Watch {
        &self.on.watch
    }

    /// Flushes this file instead.
    #[cfg(test)]
    pub(super) fn astray(&mut self, wal: File) {
        self.wal = Arc::new(wal);
    }
}

impl fmt::Debug for Commits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Commits").finish_non_exhaustive()
    }
}

impl On {
    fn make_all(&self, waiting: Vec<Waiting>, wal: &File, turn: OwnedMutexGuard<()>) {
        let (steps, answers): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
        let made = self.commit(&steps);
        let committed = made.iter().filter(|done| done.is_ok()).count() as u64;
        #[cfg(test)]
        self.watch.committed.fetch_add(committed, Ordering::AcqRel);
        let in_doubt = if committed > 0 { self.flush(wal).err() } else { None };
        for (done, answer) in made.into_iter().zip(answers) {
            let done = match (done, &in_doubt) {
                (Ok(_), Some(reason)) => Err(Undone::InDoubt(reason.clone())),
                (done, _) => done.map_err(Undone::Refused),
            };
            // Who asked may be gone.
            let _ = answer.send(done);
        }
        drop(turn);
        if self.unfolded.fetch_add(committed, Ordering::Relaxed) + committed >= self.fold_every {
            self.unfolded.store(0, Ordering::Relaxed);
            self.fold();
        }
    }

    /// All in one transaction; where that fails, each in one of its own.
    fn commit(&self, steps: &[Step]) -> Vec<Result<i64, rusqlite::Error>> {
        let connection = lock(&self.connection);
        match transaction(&connection, steps) {
            Ok(done) => done.into_iter().map(Ok).collect(),
            Err(error) if steps.len() == 1 => vec![Err(error)],
            Err(_) => {
                let alone = |step| transaction(&connection, std::slice::from_ref(step)).map(|done| done.iter().sum());
                steps.iter().map(alone).collect()
            }
        }
    }

    fn flush(&self, wal: &File) -> Result<(), String> {
        #[cfg(test)]
        let _held = lock(&self.watch.disk);
        #[cfg(test)]
        self.watch.flushes.fetch_add(1, Ordering::AcqRel);
        if self.failed.load(Ordering::Acquire) {
            return Err("an earlier flush failed".to_owned());
        }
        wal.sync_data().map_err(|error| {
            self.failed.store(true, Ordering::Release);
            error.to_string()
        })
    }

    /// Folds what there is, beside the calls; then, while nobody writes, the little that came meanwhile: only a log that
    /// was folded to its end begins anew. That this fails, as on a full disk, harms nothing: the log stays, and grows.
    fn fold(&self) {
        // The one before may be under way yet.
        let Ok(folding) = self.folding.try_lock() else { return };
        let fold = || folding.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        let folded = fold().and_then(|()| {
            let _nobody_writes = lock(&self.connection);
            fold()
        });
        if let Err(error) = folded {
            tracing::warn!(%error, "the journal's write-ahead log could not be folded into its file");
        }
    }
}

/// Makes steps together, or none of them.
fn transaction(connection: &Connection, steps: &[Step]) -> Result<Vec<i64>, rusqlite::Error> {
    let run = |sql| connection.prepare_cached(sql)?.execute([]).map(drop);
    run("BEGIN IMMEDIATE")?;
    let done = steps.iter().map(|step| step(connection)).collect::<Result<Vec<_>, _>>();
    let done = done.and_then(|done| run("COMMIT").map(|()| done));
    // Some errors end the transaction by themselves.
    if done.is_err() && !connection.is_autocommit() {
        run("ROLLBACK")?;
    }
    done
}

/// What these hold is whole after every statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
