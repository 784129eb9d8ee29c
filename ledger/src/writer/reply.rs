//! A command on its way to the writer, and the answer its caller waits for.

use crate::append::{Appended, Idempotency, Prepared, PreparedStream};
use crate::error::AppendError;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

type Answer = Result<Appended, AppendError>;

/// A prepared append with its share of the queue's budget and the way back to its caller.
#[derive(Debug)]
pub(crate) struct Command {
    append: Prepared,
    pub(super) reply: Reply,
    _budget: OwnedSemaphorePermit,
}

impl Command {
    pub fn new(append: Prepared, budget: OwnedSemaphorePermit) -> (Self, oneshot::Receiver<Answer>) {
        let (sender, receiver) = oneshot::channel();
        (Self { append, reply: Reply { sender: Some(sender), begun: false }, _budget: budget }, receiver)
    }

    pub fn streams(&self) -> &[PreparedStream] {
        &self.append.streams
    }

    pub fn idempotency(&self) -> Option<&Idempotency> {
        self.append.idempotency.as_ref()
    }

    pub fn bytes(&self) -> usize {
        self.append.bytes
    }
}

/// Answers once, in any case: a writer that ends without a word still tells its callers.
#[derive(Debug)]
pub(super) struct Reply {
    sender: Option<oneshot::Sender<Answer>>,
    begun: bool,
}

impl Reply {
    /// From here on the command may be stored.
    pub fn begin(&mut self) {
        self.begun = true;
    }

    pub fn send(mut self, answer: Answer) {
        self.give(answer);
    }

    fn give(&mut self, answer: Answer) {
        if let Some(sender) = self.sender.take() {
            // The caller may have gone; what was stored stays stored.
            let _ = sender.send(answer);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let answer = match self.begun {
            true => AppendError::InDoubt("the writer ended while it stored the command".to_owned()),
            false => AppendError::Closed,
        };
        self.give(Err(answer));
    }
}
