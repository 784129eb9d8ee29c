//! Reading the usage view.

use super::rows::UsageRow;
use crate::db::values;
use crate::error::ViewError;
use crate::row::Columns;
use crate::views::Views;
use devmind_domain::ids::UserId;

/// Rows in one answer, at most: the newest days.
pub const MAX_LISTED_USAGE: u32 = 1_000;
/// Characters of a day: `2026-11-30`.
pub const DAY_CHARS: usize = 10;

impl Views {
    /// What models used for one person, or for everybody, on the days from `from` to `to`, both included: the
    /// newest first, at most [`MAX_LISTED_USAGE`].
    ///
    /// # Errors
    /// [`ViewError::Storage`].
    pub async fn usage(
        &self,
        user: Option<&UserId>,
        from: Option<&str>,
        to: Option<&str>,
    ) -> Result<Vec<UsageRow>, ViewError> {
        let sql = "SELECT * FROM usage WHERE ($1 IS NULL OR user_id = $1) AND ($2 IS NULL OR day >= $2) \
                   AND ($3 IS NULL OR day <= $3) ORDER BY day DESC, user_id, model LIMIT $4";
        let rows = self.read_pool().rows(sql, &values![user, from, to, MAX_LISTED_USAGE]).await?;
        rows.iter()
            .map(|row| {
                let row = Columns(row);
                Ok(UsageRow {
                    user_id: row.text("user_id")?,
                    day: row.text("day")?,
                    model: row.text("model")?,
                    answers: row.count("answers")?,
                    uncounted: row.count("uncounted")?,
                    input_tokens: row.count("input_tokens")?,
                    output_tokens: row.count("output_tokens")?,
                    cached_tokens: row.count("cached_tokens")?,
                    reasoning_tokens: row.count("reasoning_tokens")?,
                })
            })
            .collect()
    }
}
