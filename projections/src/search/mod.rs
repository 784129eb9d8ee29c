//! The projection `search`: what a person's conversations say, word by word: titles, questions and answers.
//!
//! What the conversation view no longer shows (replaced messages, deleted conversations) is not found. Words
//! are made here ([`words`]) and only looked up by the store, so that SQLite (FTS5) and PostgreSQL (tsvector)
//! find the same, newest first: an order that no ranking formula changes.

mod read;
mod rows;
#[cfg(test)]
mod tests;
mod words;

pub use read::*;
pub use rows::*;

use crate::change::{Change, change};
use crate::projection::Projection;
use devmind_domain::conversation::*;
use devmind_domain::event::{AggregateType, DomainEvent, RecordedEvent};
use devmind_domain::ids::*;
use words::indexed;

/// The projection.
pub(crate) struct Search;

impl Projection for Search {
    fn name(&self) -> &'static str {
        "search"
    }
    fn version(&self) -> u32 {
        1
    }
    fn tables(&self) -> &'static [&'static str] {
        &["search_conversations", "search_runs", "search_texts"]
    }
    fn reads(&self) -> &'static [AggregateType] {
        &[AggregateType::Conversation]
    }
    fn changes(&self, event: &RecordedEvent, decoded: &DomainEvent) -> Vec<Change> {
        match decoded {
            DomainEvent::Conversation(decoded) => conversation_changes(event, decoded),
            DomainEvent::Thread(_)
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

fn conversation_changes(event: &RecordedEvent, decoded: &ConversationEvent) -> Vec<Change> {
    let id = event.stream.aggregate_id.as_str();
    match decoded {
        ConversationEvent::ConversationStarted(e) => vec![
            change!(
                "INSERT INTO search_conversations (conversation_id, user_id, title, deleted) VALUES ($1, $2, $3, FALSE) \
                 ON CONFLICT (conversation_id) DO NOTHING",
                id,
                &e.user_id,
                &e.title
            ),
            title(event, id, &e.title),
        ],
        ConversationEvent::ConversationRenamed(e) => vec![
            change!("UPDATE search_conversations SET title = $2 WHERE conversation_id = $1", id, &e.title),
            change!("DELETE FROM search_texts WHERE conversation_id = $1 AND role = 'title'", id),
            title(event, id, &e.title),
        ],
        ConversationEvent::ConversationDeleted(_) => vec![
            change!("UPDATE search_conversations SET deleted = TRUE WHERE conversation_id = $1", id),
            change!("DELETE FROM search_texts WHERE conversation_id = $1", id),
        ],
        ConversationEvent::TurnPrepared(e) => vec![question(event, id, &e.turn_id, &e.message_id, &e.content)],
        // The answer is gone in any case, the question when it was edited.
        ConversationEvent::TurnRerunPrepared(e) => vec![
            change!("DELETE FROM search_texts WHERE turn_id = $1 AND message_id <> $2", &e.turn_id, &e.message_id),
            question(event, id, &e.turn_id, &e.message_id, &e.content),
        ],
        ConversationEvent::RunPrepared(e) => vec![change!(
            "INSERT INTO search_runs (run_id, turn_id, is_open) VALUES ($1, $2, TRUE) ON CONFLICT (run_id) DO NOTHING",
            &e.run_id,
            &e.turn_id
        )],
        ConversationEvent::RunSucceeded(e) => ended(event, id, &e.run_id, Some(&e.message_id), &e.answer),
        ConversationEvent::RunFailed(e) => ended(event, id, &e.run_id, e.message_id.as_ref(), &e.partial_text),
        ConversationEvent::RunCancelled(e) => ended(event, id, &e.run_id, e.message_id.as_ref(), &e.partial_text),
        ConversationEvent::RunClaimed(_)
        | ConversationEvent::RunStopRequested(_)
        | ConversationEvent::RunInterrupted(_)
        | ConversationEvent::InterruptRaised(_)
        | ConversationEvent::InterruptResolved(_)
        | ConversationEvent::InterruptCancelled(_)
        | ConversationEvent::ToolGrantGiven(_)
        | ConversationEvent::ToolGrantRevoked(_)
        | ConversationEvent::InterruptExpired(_)
        | ConversationEvent::ConversationRead(_) => vec![],
    }
}

fn title(event: &RecordedEvent, conversation: &str, title: &str) -> Change {
    change!(
        "INSERT INTO search_texts (position, conversation_id, role, content, words, created_at) \
         SELECT $2, conversation_id, 'title', $3, $4, $5 FROM search_conversations c WHERE conversation_id = $1 \
         AND NOT deleted AND NOT EXISTS (SELECT 1 FROM search_texts t WHERE t.conversation_id = $1 AND t.role = 'title')",
        conversation,
        event.position,
        title,
        indexed(title),
        event.recorded_at
    )
}

fn question(event: &RecordedEvent, conversation: &str, turn: &TurnId, message: &MessageId, content: &str) -> Change {
    change!(
        "INSERT INTO search_texts (position, conversation_id, turn_id, message_id, role, content, words, created_at) \
         SELECT $2, conversation_id, $3, $4, 'user', $5, $6, $7 FROM search_conversations WHERE conversation_id = $1 \
         AND NOT deleted AND NOT EXISTS (SELECT 1 FROM search_texts WHERE message_id = $4)",
        conversation,
        event.position,
        turn,
        message,
        content,
        indexed(content),
        event.recorded_at
    )
}

/// Only a run that has not ended says something.
fn ended(
    event: &RecordedEvent,
    conversation: &str,
    run: &RunId,
    message: Option<&MessageId>,
    text: &str,
) -> Vec<Change> {
    let said = message.filter(|_| !text.is_empty()).map(|message| {
        change!(
            "INSERT INTO search_texts (position, conversation_id, turn_id, message_id, role, content, words, created_at) \
             SELECT $2, c.conversation_id, r.turn_id, $4, 'assistant', $5, $6, $7 FROM search_conversations c, search_runs r \
             WHERE c.conversation_id = $1 AND NOT c.deleted AND r.run_id = $3 AND r.is_open \
             AND NOT EXISTS (SELECT 1 FROM search_texts WHERE message_id = $4)",
            conversation,
            event.position,
            run,
            message,
            text,
            indexed(text),
            event.recorded_at
        )
    });
    said.into_iter().chain([change!("UPDATE search_runs SET is_open = FALSE WHERE run_id = $1", run)]).collect()
}
