//! What other processes append: heard by notification, and looked for now and then, because a
//! notification can be lost with its connection.
//!
//! Whoever listens holds a lock that says so. A writer that nobody else listens to sends nothing: a notification
//! costs a tenth of a small append, and wakes the process's own listener for nothing. Who has just begun to listen
//! is heeded from the writer's next look on, and looks for itself until then.

use super::read::PgLog;
use crate::append::Head;
use crate::limits::{POLL_INTERVAL, RECONNECT_PAUSE};
use crate::reader::advance;
use crate::store::ReadLog;
use sqlx::postgres::PgListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;
use tokio::sync::watch;

/// The channel that appends are told on, with who appended.
pub(super) const CHANNEL: &str = "devmind_ledger";

/// Key of the advisory lock that listeners share: "DMLN".
const LISTENERS: i64 = 0x444d_4c4e;

/// A writer, as the listener of its process knows it.
#[derive(Debug)]
pub(super) struct Announcer {
    /// What its notifications are signed with.
    pub own: String,
    /// Whether somebody else may listen: so it is taken to be until it is known.
    heard: AtomicBool,
}

impl Announcer {
    pub fn new(own: String) -> Self {
        Self { own, heard: AtomicBool::new(true) }
    }

    pub fn is_heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }

    /// Looks who listens besides the session of this process; every doubt counts as somebody.
    async fn look(&self, log: &PgLog, listener: Option<&Listener>) {
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = 0 AND objid = {LISTENERS} \
             AND objsubid = 1 AND pid <> $1 \
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
        );
        let looked = async {
            let mut connection = log.connections.take().await?;
            let own = listener.map_or(0, |listener| listener.session);
            let heard = sqlx::query_scalar(&sql).bind(own).fetch_one(&mut *connection).await?;
            connection.give_back();
            Ok::<bool, sqlx::Error>(heard)
        };
        self.heard.store(looked.await.unwrap_or(true), Ordering::Relaxed);
    }
}

/// A session that hears notifications, and the lock that says so.
struct Listener {
    news: PgListener,
    session: i32,
}

/// Keeps `head` true until nobody holds it any more.
pub(crate) fn spawn_news(log: Arc<PgLog>, head: &Arc<watch::Sender<Head>>) {
    tokio::spawn(follow(log, Arc::downgrade(head)));
}

async fn follow(log: Arc<PgLog>, head: Weak<watch::Sender<Head>>) {
    let (mut listener, mut looked) = (None, None::<Instant>);
    while head.strong_count() > 0 && !log.connections.pool().is_closed() {
        match log.head().await {
            Ok(now) => match head.upgrade() {
                Some(head) => advance(&head, now),
                None => return,
            },
            Err(sqlx::Error::PoolClosed) => return,
            Err(error) => {
                tracing::warn!(%error, database = log.place(), "the head cannot be read; trying again");
                tokio::time::sleep(RECONNECT_PAUSE).await;
                continue;
            }
        }
        if listener.is_none() {
            listener = listen(&log).await;
        }
        if let Some(announcer) = &log.announcer
            && looked.is_none_or(|at| at.elapsed() >= POLL_INTERVAL)
        {
            announcer.look(&log, listener.as_ref()).await;
            looked = Some(Instant::now());
        }
        let own = log.announcer.as_ref().map(|announcer| announcer.own.as_str());
        // Whatever happens, the head is read next: an error here costs at most one pause.
        match &mut listener {
            Some(heard) => match tokio::time::timeout(POLL_INTERVAL, foreign(&mut heard.news, own)).await {
                Ok(true) | Err(_) => {}
                Ok(false) => listener = None,
            },
            None => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}

/// Waits for news of another process; `false` when the connection was lost. What this process appended, its writer
/// has told already.
async fn foreign(news: &mut PgListener, own: Option<&str>) -> bool {
    loop {
        match news.try_recv().await {
            Ok(Some(told)) if Some(told.payload()) == own => {}
            Ok(Some(_)) => return true,
            Ok(None) | Err(_) => return false,
        }
    }
}

async fn listen(log: &PgLog) -> Option<Listener> {
    let listening = async {
        let mut news = PgListener::connect_with(log.connections.pool()).await?;
        news.listen(CHANNEL).await?;
        // After LISTEN: whoever is seen here hears.
        let sql = format!("SELECT pg_backend_pid() FROM pg_advisory_lock_shared({LISTENERS})");
        let session = sqlx::query_scalar(&sql).fetch_one(&mut news).await?;
        Ok::<_, sqlx::Error>(Listener { news, session })
    };
    listening.await.inspect_err(|error| tracing::debug!(%error, "no notifications; polling instead")).ok()
}
