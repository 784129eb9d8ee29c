//! What a search answers.

use devmind_domain::Timestamp;
use devmind_domain::ids::*;
use serde::Serialize;

/// One text that has all the words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SearchHit {
    /// Its conversation.
    pub conversation_id: ConversationId,
    /// The conversation's title now.
    pub title: String,
    /// What it is: `title`, `user` (a question) or `assistant` (an answer).
    pub role: String,
    /// The turn; absent for a title.
    pub turn_id: Option<TurnId>,
    /// The message; absent for a title.
    pub message_id: Option<MessageId>,
    /// The text around the first word found.
    pub snippet: String,
    /// When it was said.
    pub created_at: Timestamp,
}
