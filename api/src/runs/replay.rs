//! A run's stream read from the log: from any place, any number of times, live or finished.
//!
//! The same fold as the live stream makes the same events. Each one's id is the position of the log's
//! event it comes from; where one event of the log makes several of the stream, all but the last carry
//! their number too, so that a reader that was cut off between them goes on exactly there.

use crate::agui::{AgUiEvent, Audience, RunStream};
use crate::state::App;
use devmind_domain::event::{AggregateType, RecordedEvent, StreamId};
use devmind_ledger::{EventFilter, Follower, LedgerError};
use devmind_projections::RunRow;
use futures::stream::{self, Stream};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// Events of the log in one page.
const PAGE: u32 = 500;

/// A place in a run's stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The log's event.
    pub position: u64,
    /// How many of its events were seen; absent: all.
    part: Option<usize>,
}

impl Cursor {
    /// Reads `Last-Event-ID`.
    ///
    /// # Errors
    /// Words, when it is none of this stream's ids.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (position, part) = match text.split_once('-') {
            Some((position, part)) => (position, Some(part)),
            None => (text, None),
        };
        let number = |_| "must be the id of an event of this stream".to_owned();
        let position = position.parse().map_err(number)?;
        let part = part.map(str::parse).transpose().map_err(number)?;
        Ok(Self { position, part })
    }

    /// Whether the reader has seen event `index` (from 0) of the log's event at `position`.
    fn has_seen(&self, position: u64, index: usize) -> bool {
        position < self.position || position == self.position && self.part.is_none_or(|part| index < part)
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            None => write!(f, "{}", self.position),
            Some(part) => write!(f, "{}-{part}", self.position),
        }
    }
}

/// The run's stream after a place in it; ends after the terminal event.
pub fn replay(app: Arc<App>, run: RunRow, after: Cursor) -> impl Stream<Item = (Cursor, AgUiEvent)> + Send {
    let audience =
        Audience { thread_id: run.conversation_id.to_string(), run_id: run.run_id.to_string(), declared: true };
    let reader = Reader {
        stream: RunStream::new(run.run_id.clone(), audience),
        source: Source::Stored { position: 0 },
        waiting: VecDeque::new(),
        app,
        run,
        after,
    };
    stream::unfold(reader, |mut reader| async move { reader.next().await.map(|next| (next, reader)) })
}

struct Reader {
    app: Arc<App>,
    run: RunRow,
    after: Cursor,
    stream: RunStream,
    source: Source,
    waiting: VecDeque<(Cursor, AgUiEvent)>,
}

/// Where the next events come from, in this order.
enum Source {
    /// The run's events that are in the log, after a position.
    Stored { position: u64 },
    /// What ended the conversation's runs, up to the log's head: a run that was replaced before it
    /// began was ended by another run's request.
    Ends { position: u64, head: u64 },
    /// Everything that is appended.
    Live(Follower),
    /// The run's events that came before this process's end.
    Last { position: u64 },
}

impl Reader {
    async fn next(&mut self) -> Option<(Cursor, AgUiEvent)> {
        loop {
            if let Some(next) = self.waiting.pop_front() {
                return Some(next);
            }
            if self.stream.is_finished() {
                return None;
            }
            match self.more().await {
                Ok(Some(events)) => events.iter().for_each(|event| self.see(event)),
                Ok(None) => return None,
                Err(error) => {
                    tracing::warn!(run.id = %self.run.run_id, cause = %error, "a replay ended early");
                    return None;
                }
            }
        }
    }

    /// The next events of the log, of which some may belong to the run; nothing at the end.
    async fn more(&mut self) -> Result<Option<Vec<Arc<RecordedEvent>>>, LedgerError> {
        let reader = self.app.ledger.reader();
        let run_id = Some(self.run.run_id.clone());
        let events = match &mut self.source {
            Source::Stored { position } => {
                // Where the stored events end the live ones begin: the head is taken before the page,
                // so that what is appended between the two is read twice rather than never.
                let head = reader.head().await?.position;
                let events = reader.query(&EventFilter { run_id, ..EventFilter::default() }, *position, PAGE).await?;
                match events.last() {
                    Some(last) => *position = last.position,
                    None => self.source = Source::Ends { position: *position, head },
                }
                events
            }
            Source::Ends { position, head } => {
                let stream = StreamId::new(AggregateType::Conversation, self.run.conversation_id.as_str());
                let event_type = Some("RunCancelled".to_owned());
                let filter = EventFilter { stream: Some(stream), event_type, ..EventFilter::default() };
                let events = reader.query(&filter, *position, PAGE).await?;
                match events.last() {
                    Some(last) => *position = last.position,
                    None => self.source = Source::Live(reader.follow(*head)),
                }
                events
            }
            Source::Live(follower) => tokio::select! {
                biased;
                events = follower.next() => events?,
                // A server that stops ends its runs first: how, belongs to their streams.
                () = runs_ended(&self.app) => {
                    self.source = Source::Last { position: follower.position() };
                    Vec::new()
                }
            },
            Source::Last { position } => {
                let events = reader.query(&EventFilter { run_id, ..EventFilter::default() }, *position, PAGE).await?;
                let Some(last) = events.last() else { return Ok(None) };
                *position = last.position;
                events
            }
        };
        Ok(Some(events))
    }

    fn see(&mut self, event: &RecordedEvent) {
        // The conversation's events name their run; the thread's are those of the run that caused them.
        let own = event.stream.aggregate_id == self.run.conversation_id.as_str()
            // Most events of a busy server are somebody else's: the text tells without being parsed.
            || event.metadata.contains(self.run.run_id.as_str())
                && event.metadata().is_ok_and(|metadata| metadata.correlation_id.as_ref() == Some(&self.run.run_id));
        let Some(facts) = event.decode().ok().filter(|_| own) else { return };
        // Parts of one position are counted over all facts of the stored event.
        let shown: Vec<_> = facts.iter().flat_map(|fact| self.stream.see(&event.stream, fact)).collect();
        let last = shown.len().saturating_sub(1);
        for (index, shown) in shown.into_iter().enumerate() {
            if !self.after.has_seen(event.position, index) {
                let part = (index < last).then_some(index + 1);
                self.waiting.push_back((Cursor { position: event.position, part }, shown));
            }
        }
    }
}

/// Waits until this process stops and every run of it has ended.
async fn runs_ended(app: &App) {
    app.stopping.cancelled().await;
    app.run_tasks.wait().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_what_it_prints_and_nothing_else() {
        for cursor in [Cursor { position: 7, part: None }, Cursor { position: 7, part: Some(2) }] {
            assert_eq!(Cursor::parse(&cursor.to_string()), Ok(cursor));
        }
        for text in ["", "x", "-1", "7-", "7-x", "1.5"] {
            assert!(Cursor::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_reader_cut_off_between_two_events_of_one_position_goes_on_with_the_second() {
        let cursor = Cursor { position: 7, part: Some(1) };
        assert!(cursor.has_seen(6, 5) && cursor.has_seen(7, 0));
        assert!(!cursor.has_seen(7, 1) && !cursor.has_seen(8, 0));
        let whole = Cursor { position: 7, part: None };
        assert!(whole.has_seen(7, 3) && !whole.has_seen(8, 0));
    }
}
