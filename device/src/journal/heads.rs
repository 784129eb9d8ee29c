//! The heads of servers' logs that the device was shown, one a log, each as it was signed.

use super::commit::statement;
use super::{Journal, JournalError};
use crate::clock;
use devmind_domain::proof::{Checkpoint, Note};
use rusqlite::OptionalExtension as _;
use rusqlite::types::Value;

/// Logs whose head is kept, at most; the one seen longest ago makes room.
const MAX_KEPT_HEADS: i64 = 100;

impl Journal {
    /// The newest head of a log that was kept.
    ///
    /// # Errors
    /// `Failed`, also when what was kept is no head any more.
    pub fn seen_head(&self, origin: &str) -> Result<Option<Checkpoint>, JournalError> {
        let connection = self.usable()?;
        let select = "SELECT note FROM heads WHERE origin = ?";
        let found = connection.query_row(select, [origin], |row| row.get::<_, String>(0)).optional();
        let Some(note) = found.map_err(|error| self.poison(&error))? else { return Ok(None) };
        let head = Note::parse(&note).ok().and_then(|note| Checkpoint::from_text(&note.text).ok());
        head.map(Some).ok_or_else(|| JournalError::Failed(format!("the head kept of {origin} is damaged")))
    }

    /// Keeps a head in the place of the one before. Durable when it returns.
    ///
    /// # Errors
    /// `Full` (the one before stays), `Failed`.
    pub async fn keep_head(&self, origin: &str, note: &str, key: &str) -> Result<(), JournalError> {
        let keep = "INSERT INTO heads (origin, note, key, seen_at) VALUES (?, ?, ?, ?)
                    ON CONFLICT (origin) DO UPDATE SET note = excluded.note, key = excluded.key, seen_at = excluded.seen_at";
        let text = |text: &str| Value::from(text.to_owned());
        let keep = statement(keep, vec![text(origin), text(note), text(key), clock::now().as_micros().into()]);
        let forget = "DELETE FROM heads WHERE origin NOT IN (SELECT origin FROM heads ORDER BY seen_at DESC LIMIT ?)";
        let forget = statement(forget, vec![MAX_KEPT_HEADS.into()]);
        self.make(Box::new(move |connection| keep(connection).and_then(|_| forget(connection)))).await.map(drop)
    }

    /// Keeps a head that does not continue the one seen before, beside that. Durable when it returns.
    ///
    /// # Errors
    /// `Full` (nothing was written), `Failed`.
    pub async fn keep_refused_head(&self, origin: &str, note: &str) -> Result<(), JournalError> {
        let update = "UPDATE heads SET refused = ? WHERE origin = ?";
        self.make(statement(update, vec![note.to_owned().into(), origin.to_owned().into()])).await.map(drop)
    }
}
