//! The projection `usage`: what models used, for each person, day and model.
//!
//! A day is one of UTC; the model is the one that really answered. Tokens are the provider's counts: what it
//! did not count is not guessed, the answers it is missing from are counted instead. What tokens cost is left
//! to whoever knows the prices.

mod read;
mod rows;
#[cfg(test)]
mod tests;

pub use read::*;
pub use rows::*;

use crate::change::{Change, change};
use crate::projection::Projection;
use devmind_domain::event::{AggregateType, DomainEvent, RecordedEvent};
use devmind_domain::thread::*;

/// The projection.
pub(crate) struct Usage;

/// Two sums, which end at the largest number: no answer of a model can make the statement fail.
macro_rules! add {
    ($column:literal) => {
        concat!(
            $column,
            " = CASE WHEN usage.",
            $column,
            " > 9223372036854775807 - excluded.",
            $column,
            " THEN 9223372036854775807 ELSE usage.",
            $column,
            " + excluded.",
            $column,
            " END"
        )
    };
}

impl Projection for Usage {
    fn name(&self) -> &'static str {
        "usage"
    }
    fn version(&self) -> u32 {
        1
    }
    fn tables(&self) -> &'static [&'static str] {
        &["usage_threads", "usage"]
    }
    fn reads(&self) -> &'static [AggregateType] {
        &[AggregateType::Thread]
    }
    fn changes(&self, event: &RecordedEvent, decoded: &DomainEvent) -> Vec<Change> {
        match decoded {
            DomainEvent::Thread(decoded) => thread_changes(event, decoded),
            DomainEvent::Conversation(_)
            | DomainEvent::ToolCall(_)
            | DomainEvent::Device(_)
            | DomainEvent::Node(_)
            | DomainEvent::Redaction(_)
            | DomainEvent::Projection(_)
            | DomainEvent::History(_)
            | DomainEvent::ToolSet(_) => vec![],
        }
    }
}

fn thread_changes(event: &RecordedEvent, decoded: &ThreadEvent) -> Vec<Change> {
    let thread = event.stream.aggregate_id.as_str();
    match decoded {
        ThreadEvent::ThreadStarted(e) => vec![change!(
            "INSERT INTO usage_threads (thread_id, user_id) VALUES ($1, $2) ON CONFLICT (thread_id) DO NOTHING",
            thread,
            &e.user_id
        )],
        ThreadEvent::ModelResponded(e) => vec![responded(event, thread, e)],
        ThreadEvent::ModelRequested(_)
        | ThreadEvent::AnswerProgressed(_)
        | ThreadEvent::ModelFailed(_)
        | ThreadEvent::ToolResultObserved(_)
        | ThreadEvent::ContextDeferred(_)
        | ThreadEvent::TurnConcluded(_) => vec![],
    }
}

fn responded(event: &RecordedEvent, thread: &str, e: &ModelResponded) -> Change {
    let TokenUsage { input, output, cached, reasoning } = e.usage;
    let uncounted = input.is_none() || output.is_none();
    // RFC 3339 begins with the day.
    let day: String = event.recorded_at.to_string().chars().take(DAY_CHARS).collect();
    change!(
        concat!(
            "INSERT INTO usage (user_id, day, model, answers, uncounted, input_tokens, output_tokens, cached_tokens, \
             reasoning_tokens) SELECT user_id, $2, $3, 1, $4, $5, $6, $7, $8 FROM usage_threads WHERE thread_id = $1 \
             ON CONFLICT (user_id, day, model) DO UPDATE SET answers = usage.answers + 1, \
             uncounted = usage.uncounted + excluded.uncounted, ",
            add!("input_tokens"),
            ", ",
            add!("output_tokens"),
            ", ",
            add!("cached_tokens"),
            ", ",
            add!("reasoning_tokens"),
        ),
        thread,
        day,
        &e.served_model,
        u32::from(uncounted),
        input.unwrap_or(0),
        output.unwrap_or(0),
        cached.unwrap_or(0),
        reasoning.unwrap_or(0)
    )
}
