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
