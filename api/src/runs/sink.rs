//! The way of a run's events to its client: bounded, and never a reason to lose a fact.

use super::active::{StopReason, StopSignal};
use crate::agui::AgUiEvent;
use devmind_domain::conversation::RunCancelReason;
use std::time::Duration;
use tokio::sync::mpsc;

/// Events that wait for the client, at most.
const QUEUE: usize = 256;
/// A client that takes nothing for this long is gone.
const CLIENT_STALLED: Duration = Duration::from_secs(30);

/// The sending half.
#[derive(Clone, Debug)]
pub struct Sink {
    events: mpsc::Sender<AgUiEvent>,
    signal: StopSignal,
}

impl Sink {
    /// A sink and the stream that the client reads.
    pub fn new(signal: StopSignal) -> (Self, mpsc::Receiver<AgUiEvent>) {
        let (events, receiver) = mpsc::channel(QUEUE);
        (Self { events, signal }, receiver)
    }

    /// Sends an event. A client that is gone stops the run; the event is then of no use to anybody.
    pub async fn send(&self, event: AgUiEvent) {
        if self.events.send_timeout(event, CLIENT_STALLED).await.is_err() {
            self.signal.stop(StopReason::Cancelled(RunCancelReason::ClientDisconnected));
        }
    }

    /// Waits until the client is gone.
    pub async fn client_gone(&self) {
        self.events.closed().await;
    }
}
