//! Sending results until they are acknowledged, and heartbeats.
//!
//! The journal is the queue: whatever is settled and not acknowledged is sent, in the order of
//! settling, a few at a time, once per connection. A result of a moment ago and one of last week
//! take the same way.

use super::session::Session;
use crate::call::{Peer as _, fitting};
use crate::journal::{Journal, JournalError, Row};
use devmind_domain::ids::ToolCallId;
use devmind_domain::limits::RESULTS_IN_FLIGHT;
use devmind_domain::protocol::DeviceFrame;
use devmind_domain::tool_call::Disposition;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;

/// A result that is not acknowledged for so long no longer holds up the others.
const ACK_WITHIN: Duration = Duration::from_secs(30);
/// A stopping device waits so long for the last acknowledgements.
const DRAIN_WITHIN: Duration = Duration::from_secs(2);

/// What the server said about a result.
pub(super) enum Delivery {
    Ack { id: ToolCallId, disposition: Disposition },
    Nack { id: ToolCallId, code: String, permanent: bool },
}

pub(super) struct Outbox {
    pub(super) journal: Arc<Journal>,
    pub(super) session: Arc<Session>,
    pub(super) settled: watch::Receiver<u64>,
    pub(super) deliveries: mpsc::Receiver<Delivery>,
    pub(super) heartbeat: Duration,
    /// The device stops: send what there is, then end.
    pub(super) drain: CancellationToken,
}

impl Outbox {
    /// Runs until the connection ends or, when draining, until nothing is left.
    pub(super) async fn run(mut self) {
        let mut in_flight: HashMap<ToolCallId, Instant> = HashMap::new();
        let mut sent_up_to = 0;
        let mut heartbeats = interval(self.heartbeat);
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        heartbeats.reset();
        let mut give_up_at = None;
        loop {
            let now = Instant::now();
            let waiting = in_flight.values().filter(|sent_at| now - **sent_at < ACK_WITHIN).count();
            let sent =
                self.send_pending(&mut in_flight, &mut sent_up_to, RESULTS_IN_FLIGHT.saturating_sub(waiting)).await;
            if let Err(error) = sent {
                tracing::error!(%error, "results cannot be read from the journal");
            }
            if give_up_at.is_some() && in_flight.is_empty() {
                return;
            }
            tokio::select! {
                delivery = self.deliveries.recv() => match delivery {
                    None => return,
                    Some(delivery) => self.delivered(delivery, &mut in_flight).await,
                },
                // The calls live as long as the device; their end is the end of sending, too.
                changed = self.settled.changed() => if changed.is_err() { return },
                _ = heartbeats.tick() => {
                    let time = self.session.clock().leaves();
                    self.session.send(DeviceFrame::Heartbeat { time, answers: None }).await;
                }
                () = self.drain.cancelled(), if give_up_at.is_none() => give_up_at = Some(Instant::now() + DRAIN_WITHIN),
                () = sleep_until(give_up_at.unwrap_or(now)), if give_up_at.is_some() => return,
            }
        }
    }

    async fn send_pending(
        &self,
        in_flight: &mut HashMap<ToolCallId, Instant>,
        sent_up_to: &mut i64,
        room: usize,
    ) -> Result<(), JournalError> {
        if room == 0 {
            return Ok(());
        }
        for Row { outcome, settled_no, .. } in self.journal.pending(self.session.owner(), *sent_up_to, room)? {
            *sent_up_to = settled_no;
            let Ok(result) = outcome else { continue };
            in_flight.insert(result.tool_call_id.clone(), Instant::now());
            self.session.send(fitting(result, self.session.max_message_bytes())).await;
        }
        Ok(())
    }

    async fn delivered(&self, delivery: Delivery, in_flight: &mut HashMap<ToolCallId, Instant>) {
        let recorded = match delivery {
            Delivery::Ack { id, disposition } => {
                in_flight.remove(&id);
                let acknowledging = async { self.journal.acknowledge(&id, disposition) };
                kill_point::around(|| "note acknowledgement".to_owned(), acknowledging).await
            }
            Delivery::Nack { id, code, permanent } => {
                in_flight.remove(&id);
                tracing::warn!(tool_call.id = %id, code, permanent, "the server does not take a result");
                if permanent { self.journal.park(&id, &code) } else { Ok(()) }
            }
        };
        if let Err(error) = recorded {
            tracing::error!(%error, "an acknowledgement could not be recorded; the result will be sent again");
        }
    }
}
