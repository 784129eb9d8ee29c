//! Which server processes are alive, where several share a database: each start of one holds a lease.
//!
//! A lease is a row that its holder renews; the database's clock alone says when it has expired. That a
//! process was lost is an event: whoever appends it has seen the lease expire, and an expired lease that was
//! taken away can never be renewed. What is done about a lost process is left to the server.

use crate::error::LedgerError;
use crate::limits::CONNECT_WAIT;
use crate::place::PostgresUrl;
use crate::store::as_i64;
use devmind_domain::ids::NodeId;
use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};
use std::collections::BTreeMap;
use std::time::Duration;

/// The lease of one start of a server process.
#[derive(Debug)]
pub struct NodeLease {
    url: PostgresUrl,
    node_id: NodeId,
    epoch: u64,
    term: Duration,
    connection: Option<PgConnection>,
}

impl NodeLease {
    /// Takes the lease of a process's next start. `None` while another process of that name holds it.
    ///
    /// A holder that has ended, in whatever way, is known by the session it had: then its lease need not run
    /// out before a process of the same name begins.
    ///
    /// # Errors
    /// When the database cannot be used.
    pub async fn take(
        url: &PostgresUrl,
        node_id: &NodeId,
        epoch: u64,
        term: Duration,
    ) -> Result<Option<Self>, LedgerError> {
        let mut lease = Self { url: url.clone(), node_id: node_id.clone(), epoch, term, connection: None };
        let sql = "INSERT INTO ledger.node_leases AS own (node_id, epoch, expires_at) \
                   VALUES ($1, $2, clock_timestamp() + $3 * interval '1 millisecond') \
                   ON CONFLICT (node_id) DO UPDATE SET epoch = excluded.epoch, expires_at = excluded.expires_at \
                   WHERE own.expires_at < clock_timestamp() OR $4";
        let name = node_id.as_str().to_owned();
        let taken = lease
            .with("take the lease", async |connection, held, term| {
                let query = sqlx::query(sql).bind(&name).bind(as_i64(epoch)).bind(term).bind(held);
                query.execute(connection).await.map(|done| done.rows_affected() == 1)
            })
            .await?;
        Ok(taken.then_some(lease))
    }

    /// Renews it. `false`: it was taken away, and the process must end.
    ///
    /// # Errors
    /// When the database cannot be used; then nothing is known.
    pub async fn renew(&mut self) -> Result<bool, LedgerError> {
        let (name, epoch) = (self.node_id.as_str().to_owned(), self.epoch);
        let sql = "UPDATE ledger.node_leases SET expires_at = clock_timestamp() + $3 * interval '1 millisecond' \
                   WHERE node_id = $1 AND epoch = $2";
        self.with("renew the lease", async |connection, _, term| {
            let query = sqlx::query(sql).bind(&name).bind(as_i64(epoch)).bind(term);
            query.execute(connection).await.map(|done| done.rows_affected() == 1)
        })
        .await
    }

    /// Takes away the leases that have expired, and answers those that have not. What the log says to be under
    /// way, as it was read before this, and has no lease here is gone.
    ///
    /// # Errors
    /// When the database cannot be used.
    pub async fn living(&mut self) -> Result<BTreeMap<NodeId, u64>, LedgerError> {
        self.with("look for expired leases", async |connection, _, _| {
            sqlx::query("DELETE FROM ledger.node_leases WHERE expires_at < clock_timestamp()")
                .execute(&mut *connection)
                .await?;
            let rows = sqlx::query("SELECT node_id, epoch FROM ledger.node_leases").fetch_all(connection).await?;
            rows.iter()
                .map(|row| {
                    let (name, epoch): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
                    Ok((NodeId::from(name.as_str()), u64::try_from(epoch).unwrap_or_default()))
                })
                .collect()
        })
        .await
    }

    /// Gives it back: the process has ended in order.
    ///
    /// # Errors
    /// When the database cannot be used; then it expires.
    pub async fn release(&mut self) -> Result<(), LedgerError> {
        let (name, epoch) = (self.node_id.as_str().to_owned(), self.epoch);
        self.with("release the lease", async |connection, _, _| {
            let sql = "DELETE FROM ledger.node_leases WHERE node_id = $1 AND epoch = $2";
            sqlx::query(sql).bind(&name).bind(as_i64(epoch)).execute(connection).await.map(drop)
        })
        .await
    }

    /// Asks on the lease's own connection, which is made anew where it was lost; `held` is whether that session
    /// has the lock of the process's name, `term` the lease's in milliseconds.
    async fn with<T>(
        &mut self,
        doing: &str,
        ask: impl AsyncFnOnce(&mut PgConnection, bool, i64) -> Result<T, sqlx::Error>,
    ) -> Result<T, LedgerError> {
        let asked = async {
            let mut connection = match self.connection.take() {
                Some(connection) => connection,
                None => PgConnection::connect_with(self.url.options()).await?,
            };
            // Taken again and again by the same session: only that it is held matters.
            let held = sqlx::query_scalar("SELECT pg_try_advisory_lock(hashtextextended('devmind node ' || $1, 0))")
                .bind(self.node_id.as_str())
                .fetch_one(&mut connection)
                .await?;
            let term = i64::try_from(self.term.as_millis()).unwrap_or(i64::MAX);
            let answer = ask(&mut connection, held, term).await?;
            // Not reached on an error: a new connection is made next time.
            self.connection = Some(connection);
            Ok(answer)
        };
        let late = || sqlx::Error::Io(std::io::ErrorKind::TimedOut.into());
        let answer = tokio::time::timeout(CONNECT_WAIT, asked).await.unwrap_or_else(|_| Err(late()));
        answer.map_err(|error| LedgerError::from_sqlx(&self.url.to_string(), doing, &error))
    }
}
