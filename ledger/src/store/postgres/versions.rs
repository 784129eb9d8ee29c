//! Versions of streams, asked for together: whoever asks while a question is under way shares the next one, as
//! appends share a flush. Most reads of a stream find nothing new, and this is all that they need to know.

use super::connections::PgConnections;
use crate::place::PostgresUrl;
use devmind_domain::event::StreamId;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot::{self, error::TryRecvError};

/// Streams in one question, at most.
const MAX_ASKED: usize = 256;
/// Planned once: PostgreSQL would take a question about few streams for cheaper than the plan that suits all, and
/// plan each anew, which costs many times what answering does.
const SESSION: [(&str, &str); 3] =
    [("plan_cache_mode", "force_generic_plan"), ("enable_seqscan", "off"), ("jit", "off")];
/// One for the question under way; others only where one was lost.
const CONNECTIONS: u32 = 2;

type Asking = (StreamId, oneshot::Sender<u64>);

/// The questions of one process.
#[derive(Debug)]
pub(super) struct Versions {
    connections: PgConnections,
    waiting: Mutex<Vec<Asking>>,
    /// Held while a question is under way.
    turn: tokio::sync::Mutex<()>,
    #[cfg(test)]
    questions: std::sync::atomic::AtomicU64,
}

impl Versions {
    pub fn new(url: &PostgresUrl) -> Self {
        Self {
            connections: PgConnections::new(CONNECTIONS, url, &SESSION),
            waiting: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            #[cfg(test)]
            questions: std::sync::atomic::AtomicU64::default(),
        }
    }

    /// The number of the stream's newest event, 0 where there is none: of a moment after this was called.
    pub async fn of(&self, stream: &StreamId) -> Result<u64, sqlx::Error> {
        let (answer, mut answered) = oneshot::channel();
        self.waiting().push((stream.clone(), answer));
        loop {
            let turn = tokio::select! {
                biased;
                answer = &mut answered => match answer {
                    Ok(version) => return Ok(version),
                    Err(_) => break,
                },
                turn = self.turn.lock() => turn,
            };
            // The answer may have come with the turn.
            match answered.try_recv() {
                Ok(version) => return Ok(version),
                Err(TryRecvError::Closed) => break,
                Err(TryRecvError::Empty) => {}
            }
            // Whoever is about to ask, as a caller of two streams at once is, shares this question.
            tokio::task::yield_now().await;
            let asked = self.take();
            let versions = self.ask(&asked).await?;
            for ((_, answer), version) in asked.into_iter().zip(versions) {
                // Who asked may be gone.
                let _ = answer.send(version);
            }
            drop(turn);
        }
        // Whoever asked for all failed, or was given up: each for itself.
        let (answer, _) = oneshot::channel();
        let alone = self.ask(&[(stream.clone(), answer)]).await?;
        alone.first().copied().ok_or(sqlx::Error::RowNotFound)
    }

    fn take(&self) -> Vec<Asking> {
        let mut waiting = self.waiting();
        let most = waiting.len().min(MAX_ASKED);
        waiting.drain(..most).collect()
    }

    async fn ask(&self, asked: &[Asking]) -> Result<Vec<u64>, sqlx::Error> {
        #[cfg(test)]
        self.questions.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let kinds: Vec<&str> = asked.iter().map(|(stream, _)| stream.aggregate_type.as_str()).collect();
        let ids: Vec<&str> = asked.iter().map(|(stream, _)| stream.aggregate_id.as_str()).collect();
        let query = sqlx::query_scalar(
            "SELECT ARRAY(SELECT coalesce((SELECT max(e.sequence) FROM ledger.events e \
             WHERE e.aggregate_type = asked.kind AND e.aggregate_id = asked.id), 0) \
             FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS asked (kind, id, n) ORDER BY n)",
        )
        .bind(kinds)
        .bind(ids);
        let mut connection = self.connections.take().await?;
        let versions: Vec<i64> = query.fetch_one(&mut *connection).await?;
        connection.give_back();
        Ok(versions.into_iter().map(|version| u64::try_from(version).unwrap_or(0)).collect())
    }

    pub async fn close(&self) {
        self.connections.close().await;
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Asking>> {
        // No code that can panic runs while the lock is held.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::support::{Folder, append_events, events, stream};
    use futures::future::join_all;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    #[tokio::test]
    async fn those_who_ask_while_a_question_is_under_way_share_the_next_one_and_none_waits_for_one_that_is_lost() {
        let folder = Folder::postgres();
        let ledger = folder.open().await;
        for count in 1..=8 {
            ledger.append(append_events(&count.to_string(), 0, events(count))).await.expect("appended");
        }
        let url = folder.url().parse().expect("a URL");
        let versions = Arc::new(Versions::new(&url));
        let under_way = versions.turn.lock().await;
        let ask = |n: usize| {
            let versions = versions.clone();
            tokio::spawn(async move { versions.of(&stream(&n.to_string())).await.expect("answered") })
        };
        let asking: Vec<_> = (0..=8).map(ask).collect();
        while versions.waiting().len() < asking.len() {
            tokio::task::yield_now().await;
        }
        drop(under_way);
        let answers: Vec<u64> = join_all(asking).await.into_iter().map(|answer| answer.expect("no panic")).collect();
        assert_eq!(answers, (0..=8).collect::<Vec<_>>(), "each its own stream's");
        assert_eq!(versions.questions.load(Ordering::Relaxed), 1);

        // Who asks for all is given up: nobody waits for it for ever.
        let under_way = versions.turn.lock().await;
        let asking = ask(8);
        while versions.waiting().is_empty() {
            tokio::task::yield_now().await;
        }
        drop(versions.take());
        assert_eq!(asking.await.expect("no panic"), 8);
        drop(under_way);
        ledger.close().await;
    }
}
