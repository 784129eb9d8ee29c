//! The heads of servers' logs that the device was shown, one a log, each as it was signed.

use super::{Journal, JournalError};
use crate::clock;
use devmind_domain::proof::{Checkpoint, Note};

/// Logs whose head is kept, at most; the one seen longest ago makes room.
const MAX_KEPT_HEADS: i64 = 100;

impl Journal {
    /// The newest head of a log that was kept.
    ///
    /// # Errors
    /// `Failed`, also when what was kept is no head any more.
    pub async fn seen_head(&self, origin: &str) -> Result<Option<Checkpoint>, JournalError> {
        let mut connection = self.usable().await?;
        let found: Result<Option<String>, _> = sqlx::query_scalar("SELECT note FROM heads WHERE origin = ?")
            .bind(origin)
            .fetch_optional(&mut *connection)
            .await;
        let Some(note) = found.map_err(|error| self.poison(&error))? else { return Ok(None) };
        let head = Note::parse(&note).ok().and_then(|note| Checkpoint::from_text(&note.text).ok());
        head.map(Some).ok_or_else(|| JournalError::Failed(format!("the head kept of {origin} is damaged")))
    }

    /// Keeps a head in the place of the one before. Durable when it returns.
    ///
    /// # Errors
    /// `Full` (the one before stays), `Failed`.
    pub async fn keep_head(&self, origin: &str, note: &str, key: &str) -> Result<(), JournalError> {
        let mut connection = self.usable().await?;
        let keep = "INSERT INTO heads (origin, note, key, seen_at) VALUES (?, ?, ?, ?)
                    ON CONFLICT (origin) DO UPDATE SET note = excluded.note, key = excluded.key, seen_at = excluded.seen_at";
        let kept = sqlx::query(keep)
            .bind(origin)
            .bind(note)
            .bind(key)
            .bind(clock::now().as_micros())
            .execute(&mut *connection)
            .await;
        kept.map_err(|error| self.full_or_poison(&error))?;
        let forget = "DELETE FROM heads WHERE origin NOT IN (SELECT origin FROM heads ORDER BY seen_at DESC LIMIT ?)";
        let forgotten = sqlx::query(forget).bind(MAX_KEPT_HEADS).execute(&mut *connection).await;
        forgotten.map(drop).map_err(|error| self.full_or_poison(&error))
    }

    /// Keeps a head that does not continue the one seen before, beside that.
    ///
    /// # Errors
    /// `Full` (nothing was written), `Failed`.
    pub async fn keep_refused_head(&self, origin: &str, note: &str) -> Result<(), JournalError> {
        let mut connection = self.usable().await?;
        let update = "UPDATE heads SET refused = ? WHERE origin = ?";
        let done = sqlx::query(update).bind(note).bind(origin).execute(&mut *connection).await;
        done.map(drop).map_err(|error| self.full_or_poison(&error))
    }
}
