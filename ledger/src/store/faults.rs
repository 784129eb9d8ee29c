//! What a disk can do to a commit, on demand, for the tests.

use rusqlite::ffi;
use std::sync::{Arc, Mutex};

/// What happens at the next commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It fails, and nothing is stored.
    CommitLost,
    /// Its flush fails; nothing can be seen of it.
    FlushFailed,
    /// It fails, and everything is stored.
    CommitStored,
    /// It fails, and the file cannot be asked afterwards.
    CommitInDoubt,
    /// The writer panics.
    Panic,
}

/// The fault that is set; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults(Arc<Mutex<Option<Fault>>>, Arc<Mutex<Counts>>);

/// What the writer did so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Commits in doubt that turned out to be stored.
    pub stored: u32,
    /// Those that were not.
    pub not_stored: u32,
    /// Looks at the log before a batch.
    pub looks: u32,
}

impl Faults {
    pub fn set(&self, fault: Fault) {
        *self.0.lock().expect("not poisoned") = Some(fault);
    }

    pub(crate) fn note_settled(&self, stored: bool) {
        let mut counts = self.1.lock().expect("not poisoned");
        match stored {
            true => counts.stored += 1,
            false => counts.not_stored += 1,
        }
    }

    pub(crate) fn note_look(&self) {
        self.1.lock().expect("not poisoned").looks += 1;
    }

    pub fn counts(&self) -> Counts {
        *self.1.lock().expect("not poisoned")
    }

    /// What is done instead of the commit, and the error it ends with.
    pub(crate) fn instead_of_commit(&self) -> Option<(&'static str, rusqlite::Error)> {
        let mut fault = self.0.lock().expect("not poisoned");
        match *fault {
            None => None,
            Some(Fault::CommitLost) => {
                *fault = None;
                Some(("ROLLBACK", sqlite_error(ffi::SQLITE_BUSY, "the file is busy")))
            }
            Some(Fault::FlushFailed) => {
                *fault = None;
                Some(("ROLLBACK", bad_disk()))
            }
            Some(Fault::CommitStored) => {
                *fault = None;
                Some(("COMMIT", bad_disk()))
            }
            Some(Fault::CommitInDoubt) => Some(("COMMIT", bad_disk())),
            Some(Fault::Panic) => {
                drop(fault);
                panic!("the fault that the test asked for")
            }
        }
    }

    /// For a store whose one statement commits: the error instead of it.
    pub(crate) fn before_store(&self) -> Option<sqlx::Error> {
        let mut fault = self.0.lock().expect("not poisoned");
        match *fault {
            Some(Fault::CommitLost) => {
                *fault = None;
                Some(disk_error())
            }
            Some(Fault::Panic) => {
                drop(fault);
                panic!("the fault that the test asked for")
            }
            Some(Fault::CommitStored | Fault::CommitInDoubt | Fault::FlushFailed) | None => None,
        }
    }

    /// The error after it.
    pub(crate) fn after_store(&self, stored: Result<bool, sqlx::Error>) -> Result<bool, sqlx::Error> {
        let mut fault = self.0.lock().expect("not poisoned");
        match *fault {
            Some(Fault::CommitStored) => {
                *fault = None;
                Err(disk_error())
            }
            Some(Fault::CommitInDoubt) => Err(disk_error()),
            Some(Fault::CommitLost | Fault::FlushFailed | Fault::Panic) | None => stored,
        }
    }

    pub(crate) fn unreadable(&self) -> bool {
        *self.0.lock().expect("not poisoned") == Some(Fault::CommitInDoubt)
    }
}

/// What SQLite says then.
pub(crate) fn bad_disk() -> rusqlite::Error {
    sqlite_error(ffi::SQLITE_IOERR, "the disk said no")
}

fn sqlite_error(code: i32, says: &str) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(code), Some(says.to_owned()))
}

pub(crate) fn disk_error() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::other("the disk said no"))
}
