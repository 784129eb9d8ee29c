//! What other processes append: heard by notification, and looked for now and then, because a
//! notification can be lost with its connection.

use super::read::PgLog;
use crate::append::Head;
use crate::limits::{POLL_INTERVAL, RECONNECT_PAUSE};
use crate::reader::advance;
use crate::store::ReadLog;
use sqlx::postgres::PgListener;
use std::sync::{Arc, Weak};
use tokio::sync::watch;

/// The channel that every append notifies, with who appended.
pub(super) const CHANNEL: &str = "devmind_ledger";

/// Keeps `head` true until nobody holds it any more.
pub(crate) fn spawn_news(log: Arc<PgLog>, head: &Arc<watch::Sender<Head>>) {
    tokio::spawn(follow(log, Arc::downgrade(head)));
}

async fn follow(log: Arc<PgLog>, head: Weak<watch::Sender<Head>>) {
    let mut listener = None;
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
        // Whatever happens, the head is read next: an error here costs at most one pause.
        match &mut listener {
            Some(heard) => match tokio::time::timeout(POLL_INTERVAL, foreign(heard, &log.own)).await {
                Ok(true) | Err(_) => {}
                Ok(false) => listener = None,
            },
            None => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}

/// Waits for news of another process; `false` when the connection was lost. What this process appended, its writer
/// has told already.
async fn foreign(heard: &mut PgListener, own: &str) -> bool {
    loop {
        match heard.try_recv().await {
            Ok(Some(news)) if news.payload() == own => {}
            Ok(Some(_)) => return true,
            Ok(None) | Err(_) => return false,
        }
    }
}

async fn listen(log: &PgLog) -> Option<PgListener> {
    let listening = async {
        let mut listener = PgListener::connect_with(log.connections.pool()).await?;
        listener.listen(CHANNEL).await?;
        Ok::<_, sqlx::Error>(listener)
    };
    listening.await.inspect_err(|error| tracing::debug!(%error, "no notifications; polling instead")).ok()
}
