//! The way of a run's events to its client: bounded, and never a reason to lose a fact or to go on
//! after a stop.

use super::active::{StopReason, StopSignal};
use crate::agui::AgUiEvent;
use devmind_domain::conversation::RunCancelReason;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::sleep;

/// Events that wait for the client, at most.
const QUEUE: usize = 256;
/// A client that takes nothing for this long is gone.
const CLIENT_STALLED: Duration = Duration::from_secs(30);
/// A client that takes nothing for this long after the run was told to stop is gone: whoever stopped
/// it waits for its end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The sending half.
#[derive(Clone, Debug)]
pub struct Sink {
    events: mpsc::Sender<AgUiEvent>,
    signal: StopSignal,
    /// Once the client is gone nothing waits for it any more.
    gone: Arc<AtomicBool>,
    patience: Patience,
}

/// How long a client may take nothing.
#[derive(Clone, Copy, Debug)]
struct Patience {
    running: Duration,
    stopped: Duration,
}

impl Sink {
    /// A sink and the stream that the client reads.
    pub fn new(signal: StopSignal) -> (Self, mpsc::Receiver<AgUiEvent>) {
        Self::with(signal, Patience { running: CLIENT_STALLED, stopped: LAST_WORDS })
    }

    fn with(signal: StopSignal, patience: Patience) -> (Self, mpsc::Receiver<AgUiEvent>) {
        let (events, receiver) = mpsc::channel(QUEUE);
        (Self { events, signal, gone: Arc::default(), patience }, receiver)
    }

    /// Sends an event. A client that is gone stops the run; the event is then of no use to anybody.
    pub async fn send(&self, event: AgUiEvent) {
        if self.gone.load(Ordering::Relaxed) {
            return;
        }
        let stopped = async {
            self.signal.stopped().await;
            sleep(self.patience.stopped).await;
        };
        let place = tokio::select! {
            biased;
            place = self.events.reserve() => place.ok(),
            () = sleep(self.patience.running) => None,
            () = stopped => None,
        };
        match place {
            Some(place) => place.send(event),
            None => {
                self.gone.store(true, Ordering::Relaxed);
                self.signal.stop(StopReason::Cancelled(RunCancelReason::ClientDisconnected));
            }
        }
    }

    /// Waits until the client is gone.
    pub async fn client_gone(&self) {
        self.events.closed().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(100);
    const LONG: Duration = Duration::from_secs(600);

    /// A sink whose queue is full.
    async fn full(signal: &StopSignal, patience: Patience) -> (Sink, mpsc::Receiver<AgUiEvent>) {
        let (sink, receiver) = Sink::with(signal.clone(), patience);
        for _ in 0..QUEUE {
            sink.send(event()).await;
        }
        assert_eq!(signal.reason(), None);
        (sink, receiver)
    }

    fn event() -> AgUiEvent {
        AgUiEvent::TextMessageEnd { message_id: "m".to_owned() }
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_waited_for_once_and_then_the_run_is_told_to_stop() {
        let signal = StopSignal::default();
        let (sink, _receiver) = full(&signal, Patience { running: SHORT, stopped: LONG }).await;
        // Were each one waited for, this would take hours.
        for _ in 0..100_000 {
            sink.send(event()).await;
        }
        assert_eq!(signal.reason(), Some(StopReason::Cancelled(RunCancelReason::ClientDisconnected)));
    }

    #[tokio::test]
    async fn a_run_that_was_told_to_stop_gives_a_client_that_reads_on_its_end_and_waits_for_no_other() {
        let signal = StopSignal::default();
        let (sink, mut receiver) = full(&signal, Patience { running: LONG, stopped: SHORT }).await;
        signal.stop(StopReason::ShuttingDown);
        let reads_on = async {
            tokio::task::yield_now().await;
            receiver.recv().await
        };
        let ((), taken) = tokio::join!(sink.send(event()), reads_on);
        assert!(taken.is_some() && !sink.gone.load(Ordering::Relaxed));
        for _ in 0..100_000 {
            sink.send(event()).await;
        }
        assert!(sink.gone.load(Ordering::Relaxed));
        assert_eq!(signal.reason(), Some(StopReason::ShuttingDown), "the first reason counts");
    }
}
