//! Reading the log: in order, by stream, by filter, by idempotency key.

use crate::append::Head;
use crate::cache::AggregateCache;
use crate::damage::{Damage, DamagedRow};
use crate::error::LedgerError;
use crate::follow::Follower;
use crate::limits::MAX_PAGE_EVENTS;
use crate::place::Place;
use crate::ring::Ring;
use crate::store::{KeyRow, ReadLog, Snapshot, StoredEvent, postgres, sqlite};
use devmind_domain::Timestamp;
use devmind_domain::canonical::Hash;
use devmind_domain::event::{RecordedEvent, StreamId};
use devmind_domain::ids::{ConversationId, RunId, ToolCallId};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// Reads a log; clones share its connections.
#[derive(Clone, Debug)]
pub struct LedgerReader(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Arc<dyn ReadLog>,
    ledger_id: String,
    live: Option<Live>,
    cache: AggregateCache,
    /// Where rows are told that are passed over; nowhere where one is an error.
    passed: Option<Passed>,
}

#[derive(Clone, Debug)]
struct Passed {
    damage: Damage,
    /// Whether the log has every position up to its head, and every stream every number.
    whole: bool,
}

/// What a page is of.
#[derive(Clone, Copy)]
enum Pages<'a> {
    All,
    Stream(&'a StreamId),
    Filter(&'a EventFilter),
}

impl Pages<'_> {
    /// What the next page comes after.
    fn place(self, stored: &StoredEvent) -> u64 {
        match self {
            Self::All | Self::Filter(_) => stored.position,
            Self::Stream(_) => stored.sequence,
        }
    }

    /// Whether nothing is left out between two rows.
    fn is_gapless(self) -> bool {
        match self {
            Self::All | Self::Stream(_) => true,
            Self::Filter(filter) => *filter == EventFilter::default(),
        }
    }
}

/// What readers share that follow the log without asking for it again and again.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub ring: Arc<Ring>,
    pub head: watch::Receiver<Head>,
    /// Where states go that are worth keeping with the next batch.
    pub keep: Option<mpsc::Sender<Snapshot>>,
    /// Held where nobody in this process writes: the head moves as long as somebody reads.
    pub sender: Option<Arc<watch::Sender<Head>>>,
}

/// Moves a head on, never back: two tasks may tell of the same log.
pub(crate) fn advance(head: &watch::Sender<Head>, now: Head) {
    head.send_if_modified(|known| {
        let newer = now.position > known.position;
        if newer {
            *known = now;
        }
        newer
    });
}

/// Which events are wanted: those that meet every condition that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Of this conversation, by their metadata.
    pub conversation_id: Option<ConversationId>,
    /// Of this run, by their metadata (`correlation_id`).
    pub run_id: Option<RunId>,
    /// About this tool call: its own stream, the model's answer that wanted it, and the result that
    /// the model was told.
    pub tool_call_id: Option<ToolCallId>,
    /// Of this stream.
    pub stream: Option<StreamId>,
    /// Of this type, for example `TurnPrepared`.
    pub event_type: Option<String>,
    /// By this actor, as `kind:id`, for example `user:ann`.
    pub actor: Option<String>,
}

impl Passed {
    /// Tells the places between rows of which none is there.
    fn tell_gaps(&self, of: Pages<'_>, mut before: u64, page: &[StoredEvent]) {
        for stored in page {
            let place = of.place(stored);
            if place > before + 1 {
                match of {
                    Pages::Stream(stream) => {
                        let reason = format!("number {} of {stream}, which comes before it, is not there", before + 1);
                        self.damage.add(stored.position, reason);
                    }
                    Pages::All | Pages::Filter(_) if place == before + 2 => {
                        self.damage.add(before + 1, "it is not there");
                    }
                    Pages::All | Pages::Filter(_) => {
                        self.damage.add(before + 1, format!("the events up to {} are not there", place - 1));
                    }
                }
            }
            before = place;
        }
    }
}

impl LedgerReader {
    /// Opens an existing log for reading alone, also while another process writes it. The log is
    /// neither created, migrated, locked nor written; beside a file at rest SQLite leaves its empty
    /// companions (`-wal`, `-shm`), which the next writer takes over.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub async fn open(place: impl Into<Place>) -> Result<Self, LedgerError> {
        match place.into() {
            Place::File(file) => {
                let (store, ledger_id) = sqlite::open_reader(&file).await?;
                Ok(Self::of(Arc::new(store), ledger_id, None))
            }
            Place::Postgres(url) => {
                let (store, ledger_id) = postgres::open_reader(&url).await?;
                let store = Arc::new(store);
                let head = store.head().await;
                let head = head.map_err(|error| LedgerError::from_sqlx(store.place(), "read the head", &error))?;
                let (sender, receiver) = watch::channel(head);
                let sender = Arc::new(sender);
                postgres::spawn_news(Arc::clone(&store), &sender);
                let live = Live { ring: Arc::default(), head: receiver, keep: None, sender: Some(sender) };
                Ok(Self::of(store, ledger_id, Some(live)))
            }
        }
    }

    fn of(store: Arc<dyn ReadLog>, ledger_id: String, live: Option<Live>) -> Self {
        Self(Arc::new(Inner { store, ledger_id, live, cache: AggregateCache::default(), passed: None }))
    }

    /// The same log for whoever looks at one that may be damaged: what it answers is without the rows that hold no
    /// event, and these are told. Of a `whole` log a place without a row is told, too, where it is noticed; what no
    /// reader comes to is looked for at once.
    ///
    /// # Errors
    /// [`LedgerError`] when the file cannot be read.
    pub async fn passing_over(self, damage: &Damage, whole: bool) -> Result<Self, LedgerError> {
        let failed = |error| self.error("look for rows out of reach", &error);
        let mut misplaced = false;
        for (position, reason) in self.0.store.out_of_reach().await.map_err(failed)? {
            misplaced |= !reason.starts_with("metadata");
            damage.add(u64::try_from(position).unwrap_or(0), reason);
        }
        if misplaced && whole {
            for position in self.0.store.holes().await.map_err(failed)? {
                damage
                    .add(u64::try_from(position).unwrap_or(0), "partition or position: it does not stand in its place");
            }
        }
        Ok(self.told(Passed { damage: damage.clone(), whole }))
    }

    fn told(&self, passed: Passed) -> Self {
        let Inner { store, ledger_id, live, .. } = &*self.0;
        let (store, ledger_id, live) = (Arc::clone(store), ledger_id.clone(), live.clone());
        Self(Arc::new(Inner { store, ledger_id, live, cache: AggregateCache::default(), passed: Some(passed) }))
    }

    /// The damaged rows among those that pass a filter, which are told; none where this reader passes over nothing.
    ///
    /// # Errors
    /// [`LedgerError`] when the file cannot be read.
    pub async fn damaged_of(&self, filter: &EventFilter) -> Result<Vec<DamagedRow>, LedgerError> {
        let Some(passed) = &self.0.passed else { return Ok(Vec::new()) };
        let own = self.told(Passed { damage: Damage::default(), whole: passed.whole });
        let mut after = 0;
        while let Some(last) = own.query(filter, after, MAX_PAGE_EVENTS).await?.last() {
            after = last.position;
        }
        let rows = own.0.passed.as_ref().map(|own| own.damage.rows()).unwrap_or_default();
        rows.iter().for_each(|row| passed.damage.add(row.position, row.reason.as_str()));
        Ok(rows)
    }

    /// The same for a file that holds events of another ledger, under whose id it is read.
    pub(crate) async fn open_as(file: &Path, ledger_id: &str) -> Result<Self, LedgerError> {
        let (store, _) = sqlite::open_reader(file).await?;
        Ok(Self::of(Arc::new(store), ledger_id.to_owned(), None))
    }

    pub(crate) fn live(store: Arc<dyn ReadLog>, ledger_id: String, live: Live) -> Self {
        Self::of(store, ledger_id, Some(live))
    }

    /// The log's identity: random, made with the file.
    pub fn ledger_id(&self) -> &str {
        &self.0.ledger_id
    }

    /// How far the log goes.
    ///
    /// # Errors
    /// [`LedgerError`] when the file cannot be read.
    pub async fn head(&self) -> Result<Head, LedgerError> {
        self.0.store.head().await.map_err(|error| self.error("read the head", &error))
    }

    /// Events after a position, in order: at most `limit` and at most one page
    /// ([`MAX_PAGE_EVENTS`], [`crate::MAX_PAGE_BYTES`]). Only an empty answer means the end.
    ///
    /// # Errors
    /// [`LedgerError`] when the file cannot be read, or a row of it is damaged.
    pub async fn read(&self, after: u64, limit: u32) -> Result<Vec<Arc<RecordedEvent>>, LedgerError> {
        let limit = limit.min(MAX_PAGE_EVENTS);
        if let Some(events) = self.0.live.as_ref().and_then(|live| live.ring.after(after, limit as usize)) {
            return Ok(events);
        }
        self.events(Pages::All, after, limit).await
    }

    /// The same for who must not lack an event: a place without one is an error of its position, too.
    ///
    /// # Errors
    /// As [`LedgerReader::read`]; [`LedgerError::Damaged`] where the next event is not there.
    pub async fn read_gapless(&self, after: u64, limit: u32) -> Result<Vec<Arc<RecordedEvent>>, LedgerError> {
        let mut events = self.read(after, limit).await?;
        let follow = (after + 1..).zip(&events).take_while(|(place, event)| event.position == *place).count();
        events.truncate(follow);
        if events.is_empty() && self.head().await?.position > after {
            let (place, reason) = (self.0.store.place().to_owned(), "it is not there".to_owned());
            return Err(LedgerError::Damaged { place, position: after + 1, reason });
        }
        Ok(events)
    }

    /// The position of the last event that was recorded at a moment or before it; 0 where there is none.
    /// Time never goes back in a log, so this looks at a few events only.
    ///
    /// # Errors
    /// [`LedgerError`] when the file cannot be read, or a row of it is damaged.
    pub async fn position_at(&self, moment: Timestamp) -> Result<u64, LedgerError> {
        let (mut before, mut after) = (0, self.head().await?.position + 1);
        while after - before > 1 {
            let middle = before + (after - before) / 2;
            let page = self.read(middle - 1, 1).await?;
            if page.first().is_some_and(|event| event.recorded_at <= moment) {
                before = middle;
            } else {
                after = middle;
            }
        }
        Ok(before)
    }

    /// All events of a stream after a sequence number, in order.
    ///
    /// # Errors
    /// [`LedgerError`] when the file cannot be read, or a row of it is damaged.
    pub async fn read_stream(
        &self,
        stream: &StreamId,
        after_sequence: u64,
    ) -> Result<Vec<Arc<RecordedEvent>>, LedgerError> {
        let mut events: Vec<Arc<RecordedEvent>> = Vec::new();
        loop {
            let after = events.last().map_or(after_sequence, |event| event.sequence);
            let page = self.stream_page(stream, after, MAX_PAGE_EVENTS).await?;
            if page.is_empty() {
                return Ok(events);
            }
            events.extend(page);
        }
    }

    /// Events that pass a filter after a position, in order: at most `limit` and at most one page.
    /// Only an empty answer means the end.
    ///
    /// # Errors
    /// [`LedgerError`] when the file cannot be read, or a row of it is damaged.
    pub async fn query(
        &self,
        filter: &EventFilter,
        after: u64,
        limit: u32,
    ) -> Result<Vec<Arc<RecordedEvent>>, LedgerError> {
        self.events(Pages::Filter(filter), after, limit.min(MAX_PAGE_EVENTS)).await
    }

    /// The position of the last event before one that passes a filter; nothing where there is none.
    ///
    /// # Errors
    /// [`LedgerError`] when the file cannot be read.
    pub async fn last_before(&self, filter: &EventFilter, before: u64) -> Result<Option<u64>, LedgerError> {
        let found = self.0.store.last_before(filter, before).await.map_err(|error| self.error("query", &error))?;
        Ok(found.first().map(|stored| stored.position))
    }

    /// What a request under a key caused, with the request's hash; `None` when the key is new.
    ///
    /// # Errors
    /// [`LedgerError`] when the file cannot be read, or a row of it is damaged.
    pub async fn idempotent(
        &self,
        scope: &str,
        key: &str,
    ) -> Result<Option<(String, Vec<Arc<RecordedEvent>>)>, LedgerError> {
        let failed = |error| self.error("look up an idempotency key", &error);
        let Some(row) = self.0.store.idempotent(scope, key).await.map_err(failed)? else { return Ok(None) };
        let (first, last) = row.range();
        let mut events: Vec<Arc<RecordedEvent>> = Vec::new();
        let mut next = first;
        while next <= last {
            let page = self.0.store.range(next, last).await.map_err(failed)?;
            let Some(end) = page.last().map(|stored| stored.position) else { break };
            next = end + 1;
            events.extend(self.sound(page)?);
        }
        Ok(Some((row.request_hash, events)))
    }

    /// The recorded leaf hashes after a position, in order: at most `limit`, fewer at the end of the log
    /// or before a hole in it.
    pub(crate) async fn leaf_hashes(&self, after: u64, limit: u64) -> Result<Vec<Hash>, LedgerError> {
        let mut leaves: Vec<Hash> = Vec::new();
        loop {
            let (at, left) = (after + leaves.len() as u64, limit - leaves.len() as u64);
            let rows = match left {
                0 => Vec::new(),
                _ => {
                    self.0.store.leaf_hashes(at, left).await.map_err(|error| self.error("read leaf hashes", &error))?
                }
            };
            let before = leaves.len();
            leaves.extend((at + 1..).zip(rows).map_while(|(expected, (at, leaf))| (at == expected).then_some(leaf)));
            if leaves.len() == before {
                return Ok(leaves);
            }
        }
    }

    /// Idempotency keys whose positions touch those from `first` to `last`.
    pub(crate) async fn keys_of(&self, first: u64, last: u64) -> Result<Vec<KeyRow>, LedgerError> {
        self.0.store.keys_of(first, last).await.map_err(|error| self.error("read idempotency keys", &error))
    }

    /// Batches in order from `after`, waiting at the head for more.
    pub fn follow(&self, after: u64) -> Follower {
        Follower::new(self.clone(), after)
    }

    /// Pages for `verify`, which reports damaged rows instead of stopping at the first.
    pub(crate) async fn read_stored(&self, after: u64, limit: u32) -> Result<Vec<StoredEvent>, LedgerError> {
        self.0.store.page(after, limit).await.map_err(|error| self.error("read events", &error))
    }

    pub(crate) fn cache(&self) -> &AggregateCache {
        &self.0.cache
    }

    /// Has a state stored with the next batch. Nothing depends on it: when there is no room, or no
    /// writer in this process, it is not.
    pub(crate) fn keep(&self, snapshot: Snapshot) {
        if let Some(keep) = self.0.live.as_ref().and_then(|live| live.keep.as_ref()) {
            drop(keep.try_send(snapshot));
        }
    }

    /// Events of a stream after a sequence number: one page.
    ///
    /// # Errors
    /// [`LedgerError`] when the file cannot be read, or a row of it is damaged.
    pub async fn stream_page(
        &self,
        stream: &StreamId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<Arc<RecordedEvent>>, LedgerError> {
        self.events(Pages::Stream(stream), after, limit).await
    }

    pub(crate) fn store(&self) -> &dyn ReadLog {
        &*self.0.store
    }

    pub(crate) fn live_head(&self) -> Option<watch::Receiver<Head>> {
        self.0.live.as_ref().map(|live| live.head.clone())
    }

    /// Waits until the writer in this process has closed the file.
    pub(crate) async fn closed(&self) {
        if let Some(mut head) = self.live_head() {
            // A reader alone has nothing that could close.
            if self.0.live.as_ref().is_some_and(|live| live.sender.is_some()) {
                return;
            }
            while head.changed().await.is_ok() {}
        }
    }

    /// A page of events, empty only where there are no more rows.
    async fn events(&self, of: Pages<'_>, mut after: u64, limit: u32) -> Result<Vec<Arc<RecordedEvent>>, LedgerError> {
        loop {
            let page = match of {
                Pages::All => self.read_stored(after, limit).await?,
                Pages::Stream(stream) => {
                    let page = self.0.store.stream_page(stream, after, limit).await;
                    page.map_err(|error| self.error("read a stream", &error))?
                }
                Pages::Filter(filter) => {
                    let page = self.0.store.filtered(filter, after, limit).await;
                    page.map_err(|error| self.error("query", &error))?
                }
            };
            let Some(last) = page.last().map(|stored| of.place(stored)) else { return Ok(Vec::new()) };
            if let Some(passed) = self.0.passed.as_ref().filter(|passed| passed.whole && of.is_gapless()) {
                passed.tell_gaps(of, after, &page);
            }
            let events = self.sound(page)?;
            if !events.is_empty() {
                return Ok(events);
            }
            // All of them were passed over.
            after = last.max(after + 1);
        }
    }

    /// The events of rows: up to the first that holds none, which alone is an error; or without those.
    fn sound(&self, rows: Vec<StoredEvent>) -> Result<Vec<Arc<RecordedEvent>>, LedgerError> {
        let mut events = Vec::with_capacity(rows.len());
        for StoredEvent { position, event, .. } in rows {
            match (event, &self.0.passed) {
                (Ok(event), passed) => {
                    if let Some(passed) = passed
                        && let Err(error) = event.metadata()
                    {
                        passed.damage.add(position, format!("metadata: {error}"));
                    }
                    events.push(Arc::new(event));
                }
                (Err(reason), Some(passed)) => passed.damage.add(position, reason),
                (Err(_), None) if !events.is_empty() => break,
                (Err(reason), None) => {
                    let place = self.0.store.place().to_owned();
                    return Err(LedgerError::Damaged { place, position, reason });
                }
            }
        }
        Ok(events)
    }

    /// Whether rows without an event are passed over.
    pub(crate) fn passes_over(&self) -> bool {
        self.0.passed.is_some()
    }

    pub(crate) fn corrupt(&self, reason: String) -> LedgerError {
        LedgerError::Corrupt { place: self.0.store.place().to_owned(), reason }
    }

    pub(crate) fn error(&self, doing: &str, error: &sqlx::Error) -> LedgerError {
        LedgerError::from_sqlx(self.0.store.place(), doing, error)
    }
}
