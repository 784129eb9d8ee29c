//! What the journal forgets: outputs after 7 days (or earlier when they fill the quota), calls after
//! 400 days. What the server has not acknowledged is not forgotten.

use super::{Journal, JournalError};
use devmind_domain::Timestamp;
use devmind_domain::limits::{OUTPUT_DAYS, OUTPUT_QUOTA_BYTES, TOMBSTONE_DAYS};
use sqlx::Connection as _;

const DAY_MS: i64 = 24 * 3_600 * 1_000;

impl Journal {
    /// Forgets what has had its time, and keeps room for the end of calls. A forgotten call raises the mark below which calls are
    /// refused (`CALL_TOO_OLD`), so that forgetting never makes a call run again.
    ///
    /// # Errors
    /// `Failed`.
    pub async fn clean(&self, now: Timestamp) -> Result<(), JournalError> {
        let mut connection = self.usable().await?;
        self.ballast.fill(self.state.free_bytes().unwrap_or(0));
        let outputs_until = now.plus_millis(-OUTPUT_DAYS * DAY_MS).as_micros();
        let calls_until = now.plus_millis(-TOMBSTONE_DAYS * DAY_MS).as_micros();
        let cleaned = async {
            let mut transaction = connection.begin().await?;
            sqlx::query(
                "UPDATE calls SET output = NULL, output_bytes = 0
                 WHERE output IS NOT NULL AND delivery <> 'pending' AND finished_at < ?",
            )
            .bind(outputs_until)
            .execute(&mut *transaction)
            .await?;
            // The newest outputs within the quota stay.
            sqlx::query(
                "UPDATE calls SET output = NULL, output_bytes = 0
                 WHERE output IS NOT NULL AND delivery <> 'pending' AND settled_no IN (
                     SELECT settled_no FROM (
                         SELECT settled_no, sum(output_bytes) OVER (ORDER BY settled_no DESC) AS so_far
                         FROM calls WHERE output IS NOT NULL)
                     WHERE so_far > ?)",
            )
            .bind(OUTPUT_QUOTA_BYTES.cast_signed())
            .execute(&mut *transaction)
            .await?;
            sqlx::query(
                "UPDATE journal SET purged_through = max(purged_through, coalesce(
                     (SELECT max(call_created_at) FROM calls
                      WHERE phase = 'settled' AND delivery <> 'pending' AND call_created_at < ?1 AND finished_at < ?1), -1))",
            )
            .bind(calls_until)
            .execute(&mut *transaction)
            .await?;
            sqlx::query(
                "DELETE FROM calls
                 WHERE phase = 'settled' AND delivery <> 'pending' AND call_created_at < ?1 AND finished_at < ?1",
            )
            .bind(calls_until)
            .execute(&mut *transaction)
            .await?;
            transaction.commit().await
        };
        cleaned.await.map_err(|error: sqlx::Error| self.poison(&error))?;
        self.make_durable(connection).await
    }
}
