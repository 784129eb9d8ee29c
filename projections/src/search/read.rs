//! Searching.

use super::rows::SearchHit;
use super::words::{searched, snippet};
use crate::db::{Pool, values};
use crate::error::ViewError;
use crate::row::Columns;
use crate::views::Views;
use devmind_domain::ids::UserId;

/// Hits in one answer, at most: the newest.
pub const MAX_SEARCH_HITS: u32 = 50;

impl Views {
    /// The texts of a person's conversations that have every word of `query`, or one that begins like it: the
    /// newest first, at most [`MAX_SEARCH_HITS`]. `None` where the query has no word.
    ///
    /// # Errors
    /// [`ViewError::Storage`].
    pub async fn search(&self, user: &UserId, query: &str) -> Result<Option<Vec<SearchHit>>, ViewError> {
        let words = searched(query);
        if words.is_empty() {
            return Ok(None);
        }
        // Words are letters and digits: nothing in them can be taken for syntax.
        let (sql, terms) = match self.read_pool() {
            Pool::Sqlite(_) => (
                "SELECT t.*, c.title FROM search_index i JOIN search_texts t ON t.position = i.rowid \
                 JOIN search_conversations c ON c.conversation_id = t.conversation_id \
                 WHERE search_index MATCH $1 AND c.user_id = $2 ORDER BY t.position DESC LIMIT $3",
                words.iter().map(|word| format!("\"{word}\"*")).collect::<Vec<_>>().join(" "),
            ),
            Pool::Postgres(_) => (
                // The words come first, by their index: a plan that does not know them might read all texts instead,
                // from the newest on.
                "WITH found AS MATERIALIZED (SELECT * FROM search_texts \
                 WHERE array_to_tsvector(string_to_array(words, ' ')) @@ $1::text::tsquery) \
                 SELECT t.*, c.title FROM found t \
                 JOIN search_conversations c ON c.conversation_id = t.conversation_id \
                 WHERE c.user_id = $2 ORDER BY t.position DESC LIMIT $3",
                words.iter().map(|word| format!("'{word}':*")).collect::<Vec<_>>().join(" & "),
            ),
        };
        let rows = self.read_pool().rows(sql, &values![terms, user, MAX_SEARCH_HITS]).await?;
        let hit = |row| {
            let row = Columns(row);
            Ok(SearchHit {
                conversation_id: row.text("conversation_id")?,
                title: row.text("title")?,
                role: row.text("role")?,
                turn_id: row.maybe_text("turn_id")?,
                message_id: row.maybe_text("message_id")?,
                snippet: snippet(&row.text::<String>("content")?, &words),
                created_at: row.moment("created_at")?,
            })
        };
        rows.iter().map(hit).collect::<Result<_, ViewError>>().map(Some)
    }
}
