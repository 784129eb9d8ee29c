//! Connections to a database that are kept ready between two uses.
//!
//! A pool asks the server before and after each use whether a connection still stands: three round trips for one
//! statement. Here a connection that was of use a moment ago is used again at once, and one that has rested is asked
//! first. One whose use was broken off goes back to the pool, which sees to it.

use crate::limits::CONNECT_WAIT;
use crate::place::PostgresUrl;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use sqlx::{Connection as _, Postgres};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A connection that rested for longer is asked before it is used.
const TRUSTED_FOR: Duration = Duration::from_secs(1);
/// After this long a connection is replaced: what the server keeps for it grows.
const LIFETIME: Duration = Duration::from_secs(30 * 60);

/// Connections to one database; clones share them.
#[derive(Clone, Debug)]
pub struct PgConnections(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    pool: PgPool,
    /// How many are used at the same time, at most.
    places: Arc<Semaphore>,
    /// The one used last comes last.
    ready: Mutex<Vec<Ready>>,
}

#[derive(Debug)]
struct Ready {
    connection: PoolConnection<Postgres>,
    since: Instant,
    made: Instant,
}

impl PgConnections {
    /// At most so many, and one more for whoever listens ([`Self::pool`]); each with these settings of its session.
    pub fn new(most: u32, url: &PostgresUrl, settings: &[(&str, &str)]) -> Self {
        let options = PgPoolOptions::new().max_connections(most + 1).acquire_timeout(CONNECT_WAIT);
        let pool = options.connect_lazy_with(url.options().clone().options(settings.iter().copied()));
        let places = Arc::new(Semaphore::new(most as usize));
        Self(Arc::new(Inner { pool, places, ready: Mutex::default() }))
    }

    /// The pool below, for a connection that is kept for good.
    pub fn pool(&self) -> &PgPool {
        &self.0.pool
    }

    /// A connection, as soon as there is one.
    ///
    /// # Errors
    /// When none can be made, or none became free in time.
    pub async fn take(&self) -> Result<Taken, sqlx::Error> {
        let place = tokio::time::timeout(CONNECT_WAIT, Arc::clone(&self.0.places).acquire_owned()).await;
        let place = place.map_err(|_| sqlx::Error::PoolTimedOut)?.map_err(|_| sqlx::Error::PoolClosed)?;
        loop {
            let ready = self.0.ready().pop();
            let Some(Ready { mut connection, since, made }) = ready else { break };
            if made.elapsed() > LIFETIME {
                connection.close_on_drop();
            } else if since.elapsed() < TRUSTED_FOR || connection.ping().await.is_ok() {
                return Ok(self.taken(connection, made, place));
            } else {
                connection.close_on_drop();
            }
        }
        let connection = self.0.pool.acquire().await?;
        Ok(self.taken(connection, Instant::now(), place))
    }

    fn taken(&self, connection: PoolConnection<Postgres>, made: Instant, place: OwnedSemaphorePermit) -> Taken {
        Taken { connection, made, inner: Arc::clone(&self.0), _place: place }
    }

    /// Closes them all, when those in use have come back.
    pub async fn close(&self) {
        self.0.places.close();
        self.0.ready().clear();
        self.0.pool.close().await;
    }
}

impl Inner {
    fn ready(&self) -> MutexGuard<'_, Vec<Ready>> {
        // No code that can panic runs while the lock is held.
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection in use. Dropped, it goes back to the pool, which asks it first.
#[derive(Debug)]
pub struct Taken {
    connection: PoolConnection<Postgres>,
    made: Instant,
    inner: Arc<Inner>,
    _place: OwnedSemaphorePermit,
}

impl Taken {
    /// Everything that was asked on it was answered, and no transaction is open: the next one may use it.
    pub fn give_back(self) {
        let Self { connection, made, inner, _place } = self;
        let mut ready = inner.ready();
        // Looked at under the lock: who closes empties the list after closing the places.
        if !inner.places.is_closed() {
            ready.push(Ready { connection, since: Instant::now(), made });
        }
    }

    /// Nobody may use it again: a transaction may be open on it.
    pub fn close(mut self) {
        self.connection.close_on_drop();
    }
}

impl Deref for Taken {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for Taken {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use devmind_test_postgres::{Cluster, Database};
    use sqlx::Executor as _;

    fn connections(most: u32) -> (PgConnections, Database) {
        let database = Cluster::shared().database();
        let url: PostgresUrl = database.url().parse().expect("a URL");
        (PgConnections::new(most, &url, &[]), database)
    }

    async fn session(connection: &mut Taken) -> i32 {
        sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut **connection).await.expect("answered")
    }

    #[tokio::test]
    async fn one_that_was_given_back_is_used_again_and_one_that_was_closed_is_not() {
        let (connections, _database) = connections(1);
        let mut taken = connections.take().await.expect("made");
        let first = session(&mut taken).await;
        taken.give_back();
        let mut taken = connections.take().await.expect("there");
        assert_eq!(session(&mut taken).await, first);
        taken.execute("BEGIN").await.expect("begun");
        taken.close();
        let mut taken = connections.take().await.expect("made");
        assert_ne!(session(&mut taken).await, first, "a transaction was open on it");
        taken.give_back();
        connections.close().await;
        assert!(matches!(connections.take().await, Err(sqlx::Error::PoolClosed)));
    }

    #[tokio::test]
    async fn what_was_broken_off_is_not_heard_by_whoever_comes_next() {
        let (connections, _database) = connections(1);
        let mut taken = connections.take().await.expect("made");
        let slow = sqlx::query_scalar::<_, i32>("SELECT 1 FROM pg_sleep(0.1)");
        let asked = tokio::time::timeout(Duration::from_millis(5), slow.fetch_one(&mut *taken)).await;
        assert!(asked.is_err(), "broken off");
        drop(taken);
        let mut taken = connections.take().await.expect("there");
        let answer: i32 = sqlx::query_scalar("SELECT 2").fetch_one(&mut *taken).await.expect("answered");
        assert_eq!(answer, 2);
    }

    #[tokio::test]
    async fn one_that_died_while_it_rested_is_replaced() {
        let (connections, _database) = connections(2);
        let (mut taken, mut other) = (connections.take().await.expect("made"), connections.take().await.expect("made"));
        let dead = session(&mut taken).await;
        let ended = sqlx::query_scalar::<_, bool>("SELECT pg_terminate_backend($1, 5000)").bind(dead);
        assert!(ended.fetch_one(&mut *other).await.expect("ended"));
        taken.give_back();
        // As if it had rested for long.
        connections.0.ready().iter_mut().for_each(|ready| ready.since -= 2 * TRUSTED_FOR);
        let mut taken = connections.take().await.expect("made");
        assert_ne!(session(&mut taken).await, dead);
    }
}
