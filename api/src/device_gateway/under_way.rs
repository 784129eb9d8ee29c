//! Frames of one socket that are being recorded: several calls at the same time, one call in order.

use super::connections::Connection;
use devmind_domain::ids::ToolCallId;
use devmind_domain::protocol::ServerFrame;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use std::collections::{HashMap, VecDeque};

/// Frames of one socket that are recorded at the same time or wait for it, at most; more wait in the socket.
const MAX_UNDER_WAY: usize = 32;

/// What becomes of a frame: the answers, or that it could not be recorded.
type Handled = Result<Vec<ServerFrame>, ()>;

/// The frames under way.
#[derive(Default)]
pub(super) struct UnderWay<'a> {
    handling: FuturesUnordered<BoxFuture<'a, (Option<ToolCallId>, Handled)>>,
    /// Of each call that a frame is under way about, the frames that come after it.
    calls: HashMap<ToolCallId, VecDeque<BoxFuture<'a, Handled>>>,
    waiting: usize,
}

impl<'a> UnderWay<'a> {
    /// Whether another frame may be taken.
    pub fn has_room(&self) -> bool {
        self.handling.len() + self.waiting < MAX_UNDER_WAY
    }

    /// Handles a frame that is about this call, or about none: at once, or after those about the same call.
    pub fn add(&mut self, about: Option<ToolCallId>, handling: impl Future<Output = Handled> + Send + 'a) {
        if let Some(before) = about.as_ref().and_then(|call| self.calls.get_mut(call)) {
            before.push_back(handling.boxed());
            self.waiting += 1;
            return;
        }
        self.calls.extend(about.clone().map(|call| (call, VecDeque::new())));
        self.begin(about, handling.boxed());
    }

    fn begin(&mut self, about: Option<ToolCallId>, handling: BoxFuture<'a, Handled>) {
        self.handling.push(async move { (about, handling.await) }.boxed());
    }

    /// Sends the answers of the next frame that is done; `None` when there is none under way.
    pub async fn next(&mut self, connection: &Connection) -> Option<Result<(), ()>> {
        let (about, handled) = self.handling.next().await?;
        if let Some(call) = about {
            match self.calls.get_mut(&call).and_then(VecDeque::pop_front) {
                Some(after) => {
                    self.waiting -= 1;
                    self.begin(Some(call), after);
                }
                None => drop(self.calls.remove(&call)),
            }
        }
        Some(handled.map(|answers| {
            for answer in answers {
                connection.send(answer);
            }
        }))
    }

    /// Waits until nothing is under way.
    pub async fn until_free(&mut self, connection: &Connection) -> Result<(), ()> {
        while let Some(done) = self.next(connection).await {
            done?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_gateway::connections::tests::connection;
    use std::sync::Mutex;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn frames_about_one_call_are_handled_in_order_and_hold_up_those_of_no_other_call() {
        let connection = connection("c1", 1);
        let done = Mutex::new(Vec::new());
        let frame = async |name: &'static str| {
            done.lock().expect("whole").push(name);
            Ok(Vec::new())
        };
        let mut under_way = UnderWay::default();
        let (open, opened) = oneshot::channel::<()>();
        under_way.add(Some("a".into()), async {
            opened.await.expect("opened");
            frame("a1").await
        });
        under_way.add(Some("a".into()), frame("a2"));
        under_way.add(Some("b".into()), frame("b1"));
        assert_eq!(under_way.next(&connection).await, Some(Ok(())));
        assert_eq!(*done.lock().expect("whole"), ["b1"], "the other call is not held up");
        open.send(()).expect("waited for");
        assert_eq!(under_way.until_free(&connection).await, Ok(()));
        assert_eq!(*done.lock().expect("whole"), ["b1", "a1", "a2"]);
        assert!(under_way.calls.is_empty() && under_way.waiting == 0);
    }

    #[tokio::test]
    async fn frames_that_wait_for_one_of_their_call_take_up_room() {
        let mut under_way = UnderWay::default();
        for n in 0..MAX_UNDER_WAY {
            assert!(under_way.has_room(), "{n}");
            under_way.add(Some("a".into()), async { Ok(Vec::new()) });
        }
        assert!(!under_way.has_room());
        under_way.next(&connection("c1", 1)).await;
        assert!(under_way.has_room());
    }
}
