//! What a disk can do to a commit, on demand, for the tests.

use std::sync::{Arc, Mutex};

/// What happens at the next commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It fails, and nothing is stored.
    CommitLost,
    /// It fails, and everything is stored.
    CommitStored,
    /// It fails, and the file cannot be asked afterwards.
    CommitInDoubt,
    /// The writer panics.
    Panic,
}

/// The fault that is set; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults(Arc<Mutex<Option<Fault>>>);

impl Faults {
    pub fn set(&self, fault: Fault) {
        *self.0.lock().expect("not poisoned") = Some(fault);
    }

    pub(super) fn instead_of_commit(&self) -> Option<&'static str> {
        let mut fault = self.0.lock().expect("not poisoned");
        match *fault {
            None => None,
            Some(Fault::CommitLost) => {
                *fault = None;
                Some("ROLLBACK")
            }
            Some(Fault::CommitStored) => {
                *fault = None;
                Some("COMMIT")
            }
            Some(Fault::CommitInDoubt) => Some("COMMIT"),
            Some(Fault::Panic) => {
                drop(fault);
                panic!("the fault that the test asked for")
            }
        }
    }

    pub(super) fn unreadable(&self) -> bool {
        *self.0.lock().expect("not poisoned") == Some(Fault::CommitInDoubt)
    }
}

pub(super) fn disk_error() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::other("the disk said no"))
}
