//! Frames of one socket that are being recorded: several calls at the same time, one call in order.

use super::connections::Connection;
use devmind_domain::ids::ToolCallId;
use devmind_domain::protocol::ServerFrame;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use std::collections::HashSet;

/// Frames of one socket that are recorded at the same time, at most; more wait in the socket.
const MAX_UNDER_WAY: usize = 32;

/// What becomes of a frame: the answers, or that it could not be recorded.
type Handled = Result<Vec<ServerFrame>, ()>;

/// The frames under way.
#[derive(Default)]
pub(super) struct UnderWay<'a> {
    handling: FuturesUnordered<BoxFuture<'a, (Option<ToolCallId>, Handled)>>,
    calls: HashSet<ToolCallId>,
}

impl<'a> UnderWay<'a> {
    /// Whether another frame may be taken.
    pub fn has_room(&self) -> bool {
        self.handling.len() < MAX_UNDER_WAY
    }

    /// Begins to handle a frame that is about this call, or about none.
    pub fn add(&mut self, about: Option<ToolCallId>, handling: impl Future<Output = Handled> + Send + 'a) {
        self.calls.extend(about.clone());
        self.handling.push(async move { (about, handling.await) }.boxed());
    }

    /// Sends the answers of the next frame that is done; `None` when there is none under way.
    pub async fn next(&mut self, connection: &Connection) -> Option<Result<(), ()>> {
        let (about, handled) = self.handling.next().await?;
        if let Some(call) = &about {
            self.calls.remove(call);
        }
        Some(handled.map(|answers| {
            for answer in answers {
                connection.send(answer);
            }
        }))
    }

    /// Waits until nothing about the call is under way; for a frame about no call, until nothing is.
    pub async fn until_free(&mut self, about: Option<&ToolCallId>, connection: &Connection) -> Result<(), ()> {
        while about.map_or(!self.handling.is_empty(), |call| self.calls.contains(call)) {
            if let Some(done) = self.next(connection).await {
                done?;
            }
        }
        Ok(())
    }
}
