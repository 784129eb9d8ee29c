//! The log as tests look at it: facts in order, and waiting for one.

use crate::wait::DEADLINE;
use devmind_domain::event::RecordedEvent;
use devmind_ledger::LedgerReader;
use serde_json::Value;
use std::fmt;
use tokio::time::{Instant, timeout_at};

/// One recorded event with its texts parsed.
#[derive(Clone, Debug)]
pub struct Fact {
    /// Its place in the log.
    pub position: u64,
    /// For example `tool_call`.
    pub stream_type: String,
    /// The stream's id.
    pub stream_id: String,
    /// For example `ToolDispatched`.
    pub kind: String,
    /// The payload.
    pub payload: Value,
    /// The metadata.
    pub metadata: Value,
    /// Payload and metadata as they are stored.
    pub text: String,
}

impl Fact {
    fn of(event: &RecordedEvent) -> Self {
        Self {
            position: event.position,
            stream_type: event.stream.aggregate_type.clone(),
            stream_id: event.stream.aggregate_id.clone(),
            kind: event.event_type.clone(),
            payload: serde_json::from_str(&event.payload).expect("a payload is JSON"),
            metadata: serde_json::from_str(&event.metadata).expect("metadata is JSON"),
            text: format!("{} {}", event.payload, event.metadata),
        }
    }

    /// Whether it is of this kind.
    pub fn is(&self, kind: &str) -> bool {
        self.kind == kind
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>4} {} {} {}", self.position, self.stream_type, self.kind, self.payload)
    }
}

/// A log, of a server in this process or of another process.
#[derive(Clone, Debug)]
pub struct Log(pub LedgerReader);

impl Log {
    /// Everything, in order.
    pub async fn all(&self) -> Vec<Fact> {
        let mut facts: Vec<Fact> = Vec::new();
        loop {
            let after = facts.last().map_or(0, |fact| fact.position);
            let page = self.0.read(after, 1_000).await.expect("the log can be read");
            if page.is_empty() {
                return facts;
            }
            facts.extend(page.iter().map(|event| Fact::of(event)));
        }
    }

    /// Everything of one kind.
    pub async fn of(&self, kind: &str) -> Vec<Fact> {
        self.all().await.into_iter().filter(|fact| fact.is(kind)).collect()
    }

    /// The one fact of a kind.
    pub async fn one(&self, kind: &str) -> Fact {
        let mut facts = self.of(kind).await;
        assert_eq!(facts.len(), 1, "{kind} must be in the log once:\n{}", list(&self.all().await));
        facts.remove(0)
    }

    /// The kinds of a stream's events, in order.
    pub async fn kinds_of_stream(&self, stream_id: &str) -> Vec<String> {
        self.all().await.into_iter().filter(|fact| fact.stream_id == stream_id).map(|fact| fact.kind).collect()
    }

    /// Waits for the first fact that is wanted, past ones included.
    pub async fn wait(&self, what: &str, wanted: impl Fn(&Fact) -> bool) -> Fact {
        let (deadline, mut seen) = (Instant::now() + DEADLINE, Vec::new());
        let mut follower = self.0.follow(0);
        loop {
            match timeout_at(deadline, follower.next()).await {
                Ok(Ok(events)) => {
                    for fact in events.iter().map(|event| Fact::of(event)) {
                        if wanted(&fact) {
                            return fact;
                        }
                        seen.push(fact);
                    }
                }
                Ok(Err(error)) => panic!("{what}: the log ended ({error}); seen:\n{}", list(&seen)),
                Err(_) => panic!("{what}: not within {DEADLINE:?}; seen:\n{}", list(&seen)),
            }
        }
    }

    /// Waits for the first fact of a kind.
    pub async fn wait_kind(&self, kind: &str) -> Fact {
        self.wait(kind, |fact| fact.is(kind)).await
    }

    /// The position of the newest event.
    pub async fn head(&self) -> u64 {
        self.0.head().await.expect("the log can be read").position
    }
}

/// Facts as lines, for messages of failed tests.
pub fn list(facts: &[Fact]) -> String {
    facts.iter().map(|fact| fact.to_string() + "\n").collect()
}
