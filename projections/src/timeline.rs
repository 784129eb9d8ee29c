//! What happened in one run, one line a fact: who asked, what the model said, what was dispatched
//! where, what came back, and how long each took.
//!
//! A pure function of events, and the reading of the events that concern a run. It keeps no rows:
//! the log answers it directly. Printing and colours are left to the programs.

mod conversation;
mod others;
mod read;
mod tool_call;

pub use read::{events_of_run, timeline_of_run, timeline_of_run_at, timeline_of_run_in};

use devmind_domain::Timestamp;
use devmind_domain::event::{DomainEvent, RecordedEvent};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Characters of a quoted text, at most.
const MAX_QUOTED_CHARS: usize = 100;
/// Characters of an actor's id in a printed line, at most.
const MAX_ACTOR_ID_CHARS: usize = 10;

/// One fact of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TimelineLine {
    /// Its position in the log.
    pub position: u64,
    /// When it was recorded.
    pub recorded_at: Timestamp,
    /// From the run's first fact (milliseconds).
    pub offset_ms: i64,
    /// How long that took which it ends (milliseconds); absent where it ends nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<i64>,
    /// What ended with it: `wait`, `run`, `round`, `interrupt`, `call`, `sent`, `asked`, `result` or `connection`, and
    /// of what, for example `call THREAD:CALL`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// Who caused it, as `kind:id`.
    pub actor: String,
    /// The event's type.
    pub event_type: String,
    /// The event's stream, as `kind/id`.
    pub stream: String,
    /// What happened, in words.
    pub text: String,
    /// Whether this program could not read the event; `text` says why.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub undecodable: bool,
}

impl fmt::Display for TimelineLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let position = format!("#{}", self.position);
        let took = self.duration_ms.map(seconds).unwrap_or_default();
        let actor = short(&self.actor);
        write!(f, "{position:<7} {:>9} {took:>9}  {actor:<17} {}", seconds(self.offset_ms), self.text)
    }
}

/// The lines of a run whose events these are, in the order of the log.
pub fn timeline(events: &[Arc<RecordedEvent>]) -> Vec<TimelineLine> {
    let mut story = Story::default();
    events.iter().flat_map(|event| story.tell(event)).collect()
}

/// When things began, to say how long they took.
#[derive(Default)]
struct Story {
    first: Option<Timestamp>,
    begun: HashMap<String, Timestamp>,
}

/// What an event says: words, and which spans begin and end with it.
#[derive(Default)]
struct Told {
    text: String,
    begins: Vec<String>,
    ends: Option<String>,
    undecodable: bool,
    /// The words where the span that ends had really begun.
    text_if_it_ends: Option<String>,
}

impl Told {
    fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
    fn begins(mut self, span: impl Into<String>) -> Self {
        self.begins.push(span.into());
        self
    }
    fn ends(mut self, span: impl Into<String>) -> Self {
        self.ends = Some(span.into());
        self
    }
    fn if_it_ends(mut self, text: impl Into<String>) -> Self {
        self.text_if_it_ends = Some(text.into());
        self
    }
}

impl Story {
    /// A line for each fact that the event tells.
    fn tell(&mut self, event: &RecordedEvent) -> Vec<TimelineLine> {
        let stream = event.stream.aggregate_id.as_str();
        let facts = match event.decode() {
            Ok(facts) => facts,
            Err(error) => {
                let told = Told::new(format!("{} cannot be told: {error}", event.event_type));
                return vec![self.line(event, &event.event_type, Told { undecodable: true, ..told })];
            }
        };
        let line = |fact: DomainEvent| {
            let told = match &fact {
                DomainEvent::Conversation(inner) => conversation::tell(inner),
                DomainEvent::Thread(inner) => others::thread(inner),
                DomainEvent::ToolCall(inner) => tool_call::tell(stream, inner),
                DomainEvent::Device(inner) => others::device(inner),
                DomainEvent::Node(inner) => others::node(inner),
                DomainEvent::Redaction(inner) => others::redaction(inner),
                DomainEvent::Projection(inner) => others::projection(stream, inner),
                DomainEvent::History(inner) => others::history(inner),
                DomainEvent::ToolSet(inner) => others::tool_set(inner),
            };
            self.line(event, fact.type_name(), told)
        };
        facts.into_iter().map(line).collect()
    }

    fn line(&mut self, event: &RecordedEvent, event_type: &str, told: Told) -> TimelineLine {
        let happened_at = event.happened_at();
        let first = *self.first.get_or_insert(happened_at);
        let ended = told.ends.filter(|span| self.begun.contains_key(span));
        let begun = ended.as_ref().and_then(|span| self.begun.get(span).copied());
        for span in told.begins {
            self.begun.insert(span, happened_at);
        }
        TimelineLine {
            position: event.position,
            recorded_at: event.recorded_at,
            offset_ms: happened_at.millis_since(first),
            duration_ms: begun.map(|begun| happened_at.millis_since(begun)),
            ended,
            actor: event.metadata().map_or_else(|_| "?".to_owned(), |metadata| metadata.actor.to_string()),
            event_type: event_type.to_owned(),
            stream: event.stream.to_string(),
            text: told.text_if_it_ends.filter(|_| begun.is_some()).unwrap_or(told.text),
            undecodable: told.undecodable,
        }
    }
}

/// An actor for a narrow column: of a long id its end, which is what tells random ids apart.
fn short(actor: &str) -> String {
    let Some((kind, id)) = actor.split_once(':') else { return actor.to_owned() };
    let surplus = id.chars().count().saturating_sub(MAX_ACTOR_ID_CHARS);
    if surplus == 0 {
        return quoted(actor).trim_matches('"').to_owned();
    }
    let end: String = id.chars().skip(surplus + 1).flat_map(char::escape_debug).collect();
    format!("{kind}:…{end}")
}

fn seconds(millis: i64) -> String {
    format!("{}.{:03}s", millis / 1_000, millis % 1_000)
}

/// A text as one short line: what could move a terminal's cursor or turn its direction is escaped.
fn quoted(text: &str) -> String {
    let mut short: String = text.chars().take(MAX_QUOTED_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_QUOTED_CHARS).is_some() {
        short.push('…');
    }
    format!("\"{short}\"")
}

#[cfg(test)]
mod tests;
