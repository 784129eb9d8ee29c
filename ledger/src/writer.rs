//! The one task that appends: it takes the commands that wait, commits them in one transaction,
//! and then answers.
//!
//! Versions and keys are checked on a look at the log that the batch is then stored against, with what
//! earlier commands of the same batch do; losers are refused one by one. Right after a batch the look is
//! left out where the next one can be judged without ([`known`]). Where the database refuses the batch because of what one
//! command holds, the commands are committed one at a time, so that only that one fails. An error
//! at COMMIT is settled by looking whether the batch's events are there.

mod known;
mod plan;
mod reply;

use crate::append::{Appended, Head};
use crate::error::AppendError;
use crate::limits::{CLOSE_WAIT, GATHER_PERCENT, MAX_BATCH_BYTES, MAX_BATCH_COMMANDS, MAX_QUEUED_SNAPSHOTS};
use crate::reader::{Live, advance};
use crate::ring::Ring;
use crate::store::{Batch, CommitError, Failure, HeadRow, Look, ReadLog, Snapshot, WriteLog};
use devmind_domain::Timestamp;
use devmind_domain::event::RecordedEvent;
use known::Known;
use plan::{Asked, Outcome, Plan};
pub(crate) use reply::Command;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// Looks at the log for one batch, at most: each lost to another process that appended meanwhile.
const MAX_LOOKS: u32 = 64;

#[derive(Debug)]
pub(crate) struct Writer {
    store: Box<dyn WriteLog>,
    read: Arc<dyn ReadLog>,
    ring: Arc<Ring>,
    head: Arc<watch::Sender<Head>>,
    /// The newest moment given out: time never goes back in the log, even when a clock does.
    last_recorded_at: Timestamp,
    /// States that ride along with the next batch.
    snapshots: mpsc::Receiver<Snapshot>,
    /// What the next batch need not look for.
    known: Known,
    /// How long the last batch took, and how many commands it answered.
    last_batch: (Duration, usize),
}

/// What became of a batch.
enum Attempt {
    /// Answered from the log as it was looked at, and stored where there was something to store.
    Done(Plan, HeadRow),
    Failed(Failure),
    /// The commit itself failed, with what it would have stored.
    InDoubt(CommitError, Plan, HeadRow),
}

impl Writer {
    /// The writer, and what readers in the same process share with it.
    pub fn new(
        store: Box<dyn WriteLog>,
        read: Arc<dyn ReadLog>,
        head: Head,
        last_recorded_at: Timestamp,
    ) -> (Self, Live) {
        let ring = Arc::new(Ring::default());
        let (sender, receiver) = watch::channel(head);
        let (keep, snapshots) = mpsc::channel(MAX_QUEUED_SNAPSHOTS);
        let live = Live { ring: Arc::clone(&ring), head: receiver, keep: Some(keep), sender: None };
        let (head, last_batch) = (Arc::new(sender), (Duration::ZERO, 0));
        let known = Known::default();
        (Self { store, read, ring, head, last_recorded_at, snapshots, known, last_batch }, live)
    }

    /// The head that followers wait for, for whoever else can tell that it moved.
    pub fn head(&self) -> &Arc<watch::Sender<Head>> {
        &self.head
    }

    /// Runs until `stop`, or until nobody is left to send commands; then closes the file.
    pub async fn run(mut self, mut queue: mpsc::Receiver<Command>, stop: CancellationToken) {
        let mut waiting = Vec::with_capacity(MAX_BATCH_COMMANDS);
        loop {
            tokio::select! {
                received = queue.recv_many(&mut waiting, MAX_BATCH_COMMANDS) => if received == 0 { break },
                () = stop.cancelled(), if !queue.is_closed() => queue.close(),
            }
            Self::gather(self.last_batch, &mut queue, &mut waiting).await;
            let (begun, count) = (Instant::now(), waiting.len());
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
            drop(commands);
            self.last_batch = (begun.elapsed(), count);
        }
        self.close().await;
    }

    /// Callers that were answered together come back one after the other: waiting a moment for the rest of
    /// them makes one large batch of two small ones. A caller alone is not kept waiting.
    async fn gather(
        (took, callers): (Duration, usize),
        queue: &mut mpsc::Receiver<Command>,
        waiting: &mut Vec<Command>,
    ) {
        let until = Instant::now() + took * GATHER_PERCENT / 100;
        while waiting.len() < callers.min(MAX_BATCH_COMMANDS) && Instant::now() < until {
            match queue.try_recv() {
                Ok(command) => waiting.push(command),
                // A timer would sleep for a millisecond, often longer than the batch took.
                Err(mpsc::error::TryRecvError::Empty) => tokio::task::yield_now().await,
                Err(mpsc::error::TryRecvError::Disconnected) => return,
            }
        }
    }

    async fn close(self) {
        let Self { store, read, head, .. } = self;
        if tokio::time::timeout(CLOSE_WAIT, read.close()).await.is_err() {
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
            Attempt::Done(plan, head) => self.answer(batch, plan, head),
            Attempt::Failed(Failure::Data(_)) if batch.len() > 1 => {
                for command in batch {
                    Box::pin(self.commit(vec![command])).await;
                }
            }
            Attempt::Failed(Failure::Data(reason)) => refuse(batch, &AppendError::Invalid { reason }),
            Attempt::Failed(Failure::Before(error)) => refuse(batch, &AppendError::Storage(error)),
            // Nothing is stored: the callers may come again.
            Attempt::Failed(Failure::Moved) => refuse(batch, &AppendError::Overloaded),
            Attempt::Failed(Failure::AtCommit(error)) => refuse(batch, &AppendError::InDoubt(error.to_string())),
            Attempt::InDoubt(error, plan, head) => self.settle(batch, error, plan, head).await,
        }
    }

    /// One transaction over the whole batch; once more when another process was faster.
    async fn attempt(&mut self, batch: &[Command]) -> Attempt {
        if let Some(done) = self.attempt_unseen(batch).await {
            return done;
        }
        self.known.forget();
        for _ in 0..MAX_LOOKS {
            let asked = Asked::of(batch);
            let look = match self.store.look(&asked.streams, &asked.keys).await {
                Ok(look) => look,
                Err(failure) => return Attempt::Failed(failure),
            };
            let before = look.head.clone();
            let plan = self.plan(batch, asked, look);
            if plan.events.is_empty() && plan.new_keys(batch).is_empty() {
                self.store.leave().await;
                return Attempt::Done(plan, before);
            }
            match self.store(batch, plan, before).await {
                Ok((plan, head)) => {
                    self.known.stored(&plan, &head);
                    return Attempt::Done(plan, head);
                }
                Err(Attempt::Failed(Failure::Moved)) => self.known.overtaken(),
                Err(attempt) => return attempt,
            }
        }
        Attempt::Failed(Failure::Moved)
    }

    /// The batch on what is known since the last one; `None` when it must be looked, and certainly nothing is stored.
    async fn attempt_unseen(&mut self, batch: &[Command]) -> Option<Attempt> {
        let asked = Asked::of(batch);
        let look = self.known.look(&asked)?;
        let before = look.head.clone();
        let plan = self.plan(batch, asked, look);
        if !Known::bears(&plan) {
            return None;
        }
        match self.store(batch, plan, before).await {
            Ok((plan, head)) => {
                self.known.stored(&plan, &head);
                Some(Attempt::Done(plan, head))
            }
            Err(Attempt::Failed(failure)) => {
                if matches!(failure, Failure::Moved) {
                    self.known.overtaken();
                }
                None
            }
            Err(attempt) => {
                self.known.forget();
                Some(attempt)
            }
        }
    }

    fn plan(&mut self, batch: &[Command], asked: Asked<'_>, look: Look) -> Plan {
        self.last_recorded_at = self.last_recorded_at.max(now()).max(look.recorded_at.unwrap_or_default());
        Plan::make(batch, asked, look, self.last_recorded_at)
    }

    /// Stores what was planned, and says where the head is then.
    async fn store(&mut self, batch: &[Command], plan: Plan, before: HeadRow) -> Result<(Plan, HeadRow), Attempt> {
        let keys = plan.new_keys(batch);
        let mut frontier = before.frontier;
        for event in &plan.events {
            frontier.push(event.leaf_hash);
        }
        let head = HeadRow { root: frontier.root(), frontier };
        // One a stream, the newest that came.
        let waiting = std::iter::from_fn(|| self.snapshots.try_recv().ok());
        let snapshots: HashMap<_, _> = waiting.map(|snapshot| (snapshot.stream.clone(), snapshot)).collect();
        let snapshots: Vec<_> = snapshots.into_values().collect();
        let planned = Batch { events: &plan.events, keys: &keys, snapshots: &snapshots, from: plan.head, head: &head };
        pass(&plan.events, "before");
        match self.store.store(&planned).await {
            Ok(()) => {
                pass(&plan.events, "after");
                Ok((plan, head))
            }
            Err(Failure::AtCommit(error)) => Err(Attempt::InDoubt(error, plan, head)),
            Err(failure @ (Failure::Moved | Failure::Data(_) | Failure::Before(_))) => Err(Attempt::Failed(failure)),
        }
    }

    /// After the commit: followers first, then the callers. These are woken by a task of their own, so that the next
    /// batch, which waits already where there are many, is stored meanwhile.
    fn answer(&self, batch: Vec<Command>, plan: Plan, head: HeadRow) {
        let head = Head { position: head.frontier.size(), root: head.root };
        if !plan.events.is_empty() {
            self.ring.push(&plan.events);
            advance(&self.head, head);
        }
        tokio::spawn(async move { reply(batch, plan, head.position) });
    }

    /// An error at COMMIT does not mean "not stored": the log is asked.
    async fn settle(&mut self, batch: Vec<Command>, error: CommitError, plan: Plan, head: HeadRow) {
        let event = plan.events.first().map(|event| event.event_id.as_str());
        match self.store.settle(event, &error).await {
            Ok(true) => self.answer(batch, plan, head),
            Ok(false) => {
                refuse(batch, &AppendError::Storage(error.not_stored(self.store.place())));
            }
            Err(reason) => {
                tracing::error!(%error, reason, "a commit is in doubt");
                refuse(batch, &AppendError::InDoubt(format!("{error}; {reason}")));
            }
        }
    }
}

fn pass(events: &[Arc<RecordedEvent>], when: &str) {
    for event in events {
        kill_point::at(|| format!("append {} {when}", event.event_type));
    }
}

/// Tells each caller what was stored of its command.
fn reply(batch: Vec<Command>, plan: Plan, head: u64) {
    let Plan { events, outcomes, .. } = plan;
    for (command, outcome) in batch.into_iter().zip(outcomes) {
        command.reply.send(match outcome {
            Outcome::Stored(range) => Ok(Appended { events: slice(&events, range), head }),
            Outcome::Refused(error) => Err(error),
            Outcome::SeenInBatch { same_request, range } => {
                Err(AppendError::KeySeen { same_request, events: slice(&events, range) })
            }
        });
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

pub(crate) fn now() -> Timestamp {
    // A clock before 1970 counts as 1970: the log's own order is what matters.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}
