//! What the journal forgets: outputs after 7 days (or earlier when they fill the quota), calls after
//! 400 days. What the server has not acknowledged is not forgotten.

use super::commit::Step;
use super::{Journal, JournalError};
use devmind_domain::Timestamp;
use devmind_domain::limits::{OUTPUT_DAYS, OUTPUT_QUOTA_BYTES, TOMBSTONE_DAYS};
use rusqlite::Connection;

const DAY_MS: i64 = 24 * 3_600 * 1_000;

impl Journal {
    /// Forgets what has had its time, and keeps room for the end of calls. A forgotten call raises the mark below which calls are
    /// refused (`CALL_TOO_OLD`), so that forgetting never makes a call run again.
    ///
    /// # Errors
    /// `Failed`.
    pub async fn clean(&self, now: Timestamp) -> Result<(), JournalError> {
        self.ballast.fill(self.state.free_bytes().unwrap_or(0));
        let forget: Step = Box::new(move |connection| forget(connection, now).map(|()| 0));
        self.commit(forget).await.map(drop).map_err(|error| self.failed(error))
    }
}

fn forget(connection: &Connection, now: Timestamp) -> Result<(), rusqlite::Error> {
    let outputs_until = now.plus_millis(-OUTPUT_DAYS * DAY_MS).as_micros();
    let calls_until = now.plus_millis(-TOMBSTONE_DAYS * DAY_MS).as_micros();
    connection.execute(
        "UPDATE calls SET output = NULL, output_bytes = 0
         WHERE output IS NOT NULL AND delivery <> 'pending' AND finished_at < ?",
        [outputs_until],
    )?;
    // The newest outputs within the quota stay.
    connection.execute(
        "UPDATE calls SET output = NULL, output_bytes = 0
         WHERE output IS NOT NULL AND delivery <> 'pending' AND settled_no IN (
             SELECT settled_no FROM (
                 SELECT settled_no, sum(output_bytes) OVER (ORDER BY settled_no DESC) AS so_far
                 FROM calls WHERE output IS NOT NULL)
             WHERE so_far > ?)",
        [OUTPUT_QUOTA_BYTES.cast_signed()],
    )?;
    connection.execute(
        "UPDATE journal SET purged_through = max(purged_through, coalesce(
             (SELECT max(call_created_at) FROM calls
              WHERE phase = 'settled' AND delivery <> 'pending' AND call_created_at < ?1 AND finished_at < ?1), -1))",
        [calls_until],
    )?;
    connection.execute(
        "DELETE FROM calls
         WHERE phase = 'settled' AND delivery <> 'pending' AND call_created_at < ?1 AND finished_at < ?1",
        [calls_until],
    )?;
    Ok(())
}
