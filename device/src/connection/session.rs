//! One connection, from the first frame to its end.

use super::Link;
use super::head;
use super::lost::Lost;
use super::outbox::{Delivery, Outbox};
use super::server_clock::ServerClock;
use super::socket::{Incoming, Outgoing, Reader, Socket, write};
use crate::call::Peer;
use crate::journal::Owner;
use async_trait::async_trait;
use devmind_domain::ErrorCode;
use devmind_domain::limits::{
    HEARTBEAT_INTERVAL_MS, MAX_RESULT_FRAME_BYTES, REGISTER_WITHIN_MS, SEND_DEADLINE_MS, SEND_QUEUE_FRAMES,
};
use devmind_domain::protocol::{
    CloseCode, DeviceFrame, PROTOCOL_VERSION, ProtocolError, Register, Registered, ServerFrame,
};
use futures::StreamExt as _;
use reqwest::Client;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// A heartbeat more often than this serves nobody.
const MIN_HEARTBEAT_MS: u64 = 1_000;
/// Acknowledgements that wait to be recorded, at most.
const DELIVERIES: usize = 64;

/// A registered connection, as calls and results see it.
pub(super) struct Session {
    owner: Owner,
    max_message_bytes: usize,
    queue: mpsc::Sender<Outgoing>,
    clock: Mutex<ServerClock>,
}

impl Session {
    /// What is known of the server's clock.
    pub(super) fn clock(&self) -> MutexGuard<'_, ServerClock> {
        // Every change under the lock is one step: the data stays whole.
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Peer for Session {
    fn owner(&self) -> &Owner {
        &self.owner
    }

    fn max_message_bytes(&self) -> usize {
        self.max_message_bytes
    }

    /// What cannot be sent is dropped: results wait in the journal, everything else is progress.
    async fn send(&self, frame: DeviceFrame) {
        let within = Duration::from_millis(SEND_DEADLINE_MS);
        if self.queue.send_timeout(Outgoing::Frame(frame), within).await.is_err() {
            tracing::debug!("a frame was dropped: the connection has ended");
        }
    }
}

/// Serves a socket until it ends. `online` is called once the device is registered.
pub(super) async fn serve(
    link: &Arc<Link>,
    client: &Client,
    socket: Socket,
    hang_up: &CancellationToken,
    online: impl FnOnce(&Registered),
) -> Lost {
    let (sink, stream) = socket.split();
    let (queue, queued) = mpsc::channel(SEND_QUEUE_FRAMES);
    let writer = tokio::spawn(write(sink, queued));
    let mut reader = Reader::new(stream);
    let sent = Instant::now();
    let registered = tokio::select! {
        () = hang_up.cancelled() => Err(Lost::HungUp),
        registered = register(link, client, &mut reader, &queue) => registered,
    };
    let lost = match registered {
        Ok(registered) => {
            online(&registered);
            let mut clock = ServerClock::default();
            clock.round_trip(sent, Instant::now(), registered.server_time);
            note_offset(link, &clock);
            let session = Arc::new(Session {
                owner: Owner { server_id: registered.server_id, user_hash: registered.user_hash },
                max_message_bytes: registered.max_message_bytes.min(MAX_RESULT_FRAME_BYTES),
                queue: queue.clone(),
                clock: Mutex::new(clock),
            });
            let every = registered.heartbeat_interval_ms.clamp(MIN_HEARTBEAT_MS, HEARTBEAT_INTERVAL_MS);
            converse(link, &mut reader, session, Duration::from_millis(every), hang_up).await
        }
        Err(lost) => lost,
    };
    let closing = match &lost {
        Lost::HungUp => Some((CloseCode::GoingAway, "the device is stopping".to_owned())),
        Lost::Protocol { reason } => Some((CloseCode::Protocol, reason.clone())),
        Lost::Final { code, .. } => Some((CloseCode::GoingAway, code.as_str().to_owned())),
        _ => None,
    };
    if let Some((code, reason)) = closing {
        // A full queue means that the socket does not move; it is dropped below.
        if queue.try_send(Outgoing::Close(code, reason)).is_ok() {
            reader.until_end().await;
        }
    }
    finish(writer, lost).await
}

/// Ends the writer, which calls under way may still hold a queue to. It may know better why the
/// connection ended.
async fn finish(writer: JoinHandle<Lost>, lost: Lost) -> Lost {
    if !writer.is_finished() {
        writer.abort();
    }
    match (lost, writer.await) {
        (Lost::Retry { after: None, .. }, Ok(wrote @ Lost::Retry { .. })) => wrote,
        (lost, _) => lost,
    }
}

async fn register(
    link: &Link,
    client: &Client,
    reader: &mut Reader,
    queue: &mpsc::Sender<Outgoing>,
) -> Result<Registered, Lost> {
    let register = DeviceFrame::Register(Register {
        device_id: link.device_id.clone(),
        instance_id: link.instance_id.clone(),
        journal_id: link.journal.journal_id().to_owned(),
        journal_epoch: link.journal.epoch(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol_version: PROTOCOL_VERSION,
        names: link.names.clone(),
    });
    let ended = |_| Lost::retry("the connection ended");
    queue.send(Outgoing::Frame(register)).await.map_err(ended)?;
    let registered = async {
        loop {
            match reader.next().await? {
                Incoming::Frame(ServerFrame::Registered(registered)) => return Ok(registered),
                Incoming::Frame(ServerFrame::ProtocolError(error)) => complain(&error),
                Incoming::Frame(_) | Incoming::Unknown { .. } => {
                    return Err(Lost::Protocol { reason: "the first frame must be device.registered".to_owned() });
                }
            }
        }
    };
    let registered = timeout(Duration::from_millis(REGISTER_WITHIN_MS), registered).await;
    let registered = registered.map_err(|_| Lost::retry("the server did not register the device in time"))??;
    kill_point::at(|| "receive device.registered before".to_owned());
    head::check(link, client, &registered).await?;
    let tools = link.calls.tools.iter().filter_map(|tool| tool.definition()).map(|tool| tool.registered()).collect();
    queue.send(Outgoing::Frame(DeviceFrame::RegistrySync { tools })).await.map_err(ended)?;
    kill_point::at(|| "receive device.registered after".to_owned());
    Ok(registered)
}

async fn converse(
    link: &Arc<Link>,
    reader: &mut Reader,
    session: Arc<Session>,
    heartbeat: Duration,
    hang_up: &CancellationToken,
) -> Lost {
    let (deliveries, delivered) = mpsc::channel(DELIVERIES);
    let outbox = Outbox {
        journal: link.journal.clone(),
        session: session.clone(),
        settled: link.calls.settled(),
        deliveries: delivered,
        heartbeat,
        drain: hang_up.clone(),
    };
    let mut outbox = tokio::spawn(outbox.run());
    let lost = loop {
        tokio::select! {
            incoming = reader.next() => match incoming {
                Ok(incoming) => {
                    let kind = incoming.kind();
                    let handling = handle(link, &session, &deliveries, incoming);
                    kill_point::around(|| format!("receive {kind}"), handling).await;
                }
                Err(lost) => break lost,
            },
            // It ends by itself only when there is nothing left to send.
            ended = &mut outbox => {
                return if ended.is_ok() && hang_up.is_cancelled() { Lost::HungUp } else { Lost::retry("sending failed") };
            }
            () = session.queue.closed() => break Lost::retry("the connection broke"),
        }
    };
    drop(deliveries);
    // What it is recording is recorded before the next connection reads the journal.
    if outbox.await.is_err() {
        tracing::error!("the task that sends results failed");
    }
    lost
}

async fn handle(link: &Arc<Link>, session: &Arc<Session>, deliveries: &mpsc::Sender<Delivery>, incoming: Incoming) {
    let delivery = match incoming {
        Incoming::Frame(ServerFrame::Request(mut request)) => {
            request.ttl_ms = session.clock().ttl_ms(&request);
            return link.calls.request(session.clone(), *request);
        }
        Incoming::Frame(ServerFrame::Cancel { tool_call_id, attempt_no, reason }) => {
            tracing::info!(tool_call.id = %tool_call_id, attempt_no, ?reason, "call taken back");
            return link.calls.cancel(&tool_call_id, attempt_no);
        }
        Incoming::Frame(ServerFrame::Heartbeat { answers: None, .. }) => return,
        Incoming::Frame(ServerFrame::Heartbeat { time, answers: Some(own) }) => {
            let mut clock = session.clock();
            clock.answered(own, time);
            return note_offset(link, &clock);
        }
        Incoming::Frame(ServerFrame::ProtocolError(error)) => return complain(&error),
        Incoming::Frame(ServerFrame::Registered(_)) => {
            return protest(session, None, "the device is registered already".to_owned()).await;
        }
        Incoming::Unknown { event_id, message } => return protest(session, event_id, message).await,
        Incoming::Frame(ServerFrame::Ack { tool_call_id: id, disposition }) => Delivery::Ack { id, disposition },
        Incoming::Frame(ServerFrame::Nack { tool_call_id: id, code, permanent }) => {
            Delivery::Nack { id, code, permanent }
        }
    };
    // Fails only when the outbox has ended; then the result is sent again on the next connection.
    let _ = deliveries.send(delivery).await;
}

/// Lets the user know how far the clocks are apart.
fn note_offset(link: &Link, clock: &ServerClock) {
    link.health.send_if_modified(|health| {
        let offset_ms = clock.offset_ms();
        std::mem::replace(&mut health.clock_offset_ms, offset_ms) != offset_ms
    });
}

fn complain(error: &ProtocolError) {
    tracing::warn!(code = error.code, message = error.message, about = ?error.about_event_id, "the server complains");
}

async fn protest(session: &Session, about_event_id: Option<String>, message: String) {
    tracing::warn!(message, "the server sent a frame that makes no sense");
    let code = ErrorCode::Protocol.as_str().to_owned();
    session.send(DeviceFrame::ProtocolError(ProtocolError { code, message, about_event_id })).await;
}
