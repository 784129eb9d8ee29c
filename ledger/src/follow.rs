//! Following the log: every event once, in order, waiting at the head.

use crate::append::Head;
use crate::error::LedgerError;
use crate::limits::{MAX_PAGE_EVENTS, POLL_INTERVAL};
use crate::reader::LedgerReader;
use devmind_domain::event::RecordedEvent;
use std::sync::Arc;
use tokio::sync::watch;

/// A place in the log that moves on. A batch that was not returned (a dropped `next`) comes again.
#[derive(Debug)]
pub struct Follower {
    reader: LedgerReader,
    position: u64,
    /// Absent where another process writes the file; then it is asked now and then.
    head: Option<watch::Receiver<Head>>,
}

impl Follower {
    pub(crate) fn new(reader: LedgerReader, position: u64) -> Self {
        let head = reader.live_head();
        Self { reader, position, head }
    }

    /// The position of the last event that was returned.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Whether it is known that there is more: [`Self::next`] need not wait then.
    pub fn is_behind(&self) -> bool {
        self.head.as_ref().is_some_and(|head| head.borrow().position > self.position)
    }

    /// The next events, never none: waits for them at the head of the log.
    ///
    /// # Errors
    /// [`LedgerError::Closed`] when the ledger was closed and everything was returned;
    /// [`LedgerError::Corrupt`] when the log has a hole, unless its reader passes over such; else why the file cannot be read.
    pub async fn next(&mut self) -> Result<Vec<Arc<RecordedEvent>>, LedgerError> {
        loop {
            if let Some(head) = &mut self.head {
                let position = self.position;
                head.wait_for(|head| head.position > position).await.map_err(|_| LedgerError::Closed)?;
            }
            let events = self.reader.read(self.position, MAX_PAGE_EVENTS).await?;
            let Some(last) = events.last().map(|event| event.position) else {
                tokio::time::sleep(POLL_INTERVAL).await;
                continue;
            };
            let mut expected = (self.position + 1..).zip(&events);
            if !self.reader.passes_over()
                && let Some((expected, event)) = expected.find(|(expected, event)| event.position != *expected)
            {
                let reason = format!("after event {} comes event {}", expected - 1, event.position);
                return Err(self.reader.corrupt(reason));
            }
            self.position = last;
            return Ok(events);
        }
    }
}
