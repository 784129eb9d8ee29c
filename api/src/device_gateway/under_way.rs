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
