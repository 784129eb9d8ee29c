//! One device socket, from its upgrade to the record of its end.
//!
//! Origin first (a hostile page must not burn a ticket), then the ticket, then `device.register`
//! within ten seconds. After that a reader and a writer run side by side: the writer alone owns the
//! sink and numbers the frames, so that a slow peer blocks nobody but itself.

use super::connections::{Closing, Connection};
use super::{results, tickets};
use crate::ids::{new_id, now};
use crate::state::App;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket};
use devmind_domain::ErrorCode;
use devmind_domain::canonical::sha256_hex;
use devmind_domain::device::{Device, DeviceCommand, DeviceEvent, stream_key};
use devmind_domain::event::{Actor, DomainEvent};
use devmind_domain::ids::{DeviceId, UserId};
use devmind_domain::limits::*;
use devmind_domain::protocol::*;
use devmind_domain::tools::catalogue;
use devmind_ledger::{ExecuteError, execute};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

/// Bytes of a close reason, at most (RFC 6455 §5.5: 125 with the code).
const MAX_REASON_BYTES: usize = 123;
/// The code of a socket that ended without one (RFC 6455 §7.4.1).
const ABNORMAL: u16 = 1006;

/// A socket that has just been upgraded.
pub struct Arrival {
    /// The ticket it presents.
    pub ticket: Option<String>,
    /// The browser origin it comes from; devices send none.
    pub origin: Option<String>,
    /// Where it comes from.
    pub remote: SocketAddr,
}

type Reader = SplitStream<WebSocket>;
type Writer = SplitSink<WebSocket, Message>;

/// Serves one socket to its end.
pub async fn serve(app: Arc<App>, socket: WebSocket, arrival: Arrival) {
    let (mut writer, mut reader) = socket.split();
    match welcome(&app, &mut reader, arrival).await {
        Ok(welcomed) => run(&app, welcomed, reader, writer).await,
        Err(closing) => close(&mut writer, &closing).await,
    }
}

struct Welcomed {
    connection: Arc<Connection>,
    outbox: mpsc::Receiver<ServerFrame>,
    registered: ServerFrame,
}

async fn welcome(app: &App, reader: &mut Reader, arrival: Arrival) -> Result<Welcomed, Closing> {
    if app.stopping.is_cancelled() {
        return Err(Closing::new(CloseCode::Restarting, "the server is stopping"));
    }
    if let Some(origin) = &arrival.origin
        && !app.allowed_origins.contains(origin)
    {
        return Err(Closing::new(CloseCode::Denied, ErrorCode::OriginDenied.as_str()));
    }
    let invalid = || Closing::new(CloseCode::Ticket, ErrorCode::TicketInvalid.as_str());
    let ticket = arrival.ticket.ok_or_else(invalid)?;
    let (user_id, device_id) = tickets::consume(app, &ticket).await.map_err(|_| busy())?.ok_or_else(invalid)?;
    let register = first_frame(app, reader).await?;
    if register.device_id != device_id {
        return Err(Closing::new(CloseCode::Denied, ErrorCode::DeviceMismatch.as_str()));
    }
    if register.protocol_version != PROTOCOL_VERSION {
        return Err(Closing::new(CloseCode::Protocol, format!("protocol_version must be {PROTOCOL_VERSION}")));
    }
    connect(app, user_id, device_id, register, arrival.remote).await
}

/// `device.register`, in its time and size.
async fn first_frame(app: &App, reader: &mut Reader) -> Result<Register, Closing> {
    let within = Duration::from_millis(REGISTER_WITHIN_MS);
    let late = || Closing::new(CloseCode::Protocol, "no device.register within 10 s");
    let text = tokio::select! {
        () = app.stopping.cancelled() => return Err(Closing::new(CloseCode::Restarting, "the server is stopping")),
        text = timeout(within, next_text(reader)) => text.map_err(|_| late())??,
    };
    if text.len() > MAX_UNREGISTERED_FRAME_BYTES {
        return Err(Closing::new(CloseCode::TooBig, "a frame before registration may have 4 KiB"));
    }
    match serde_json::from_str::<Envelope<DeviceFrame>>(&text) {
        Ok(Envelope { sequence: 1, frame: DeviceFrame::Register(register), .. }) => Ok(register),
        Ok(_) => Err(Closing::new(CloseCode::Protocol, "the first frame must be device.register with sequence 1")),
        Err(error) => Err(Closing::new(CloseCode::Protocol, format!("device.register: {error}"))),
    }
}

async fn connect(
    app: &App,
    user_id: UserId,
    device_id: DeviceId,
    register: Register,
    remote: SocketAddr,
) -> Result<Welcomed, Closing> {
    let id = devmind_domain::ids::ConnectionId::from(new_id());
    let command = DeviceCommand::Connect {
        connection_id: id.clone(),
        node_id: app.claim.node_id.clone(),
        instance_id: register.instance_id,
        journal_id: register.journal_id.clone(),
        journal_epoch: register.journal_epoch,
        version: register.version,
        remote: remote.to_string(),
    };
    let metadata = app.metadata(Actor::device(&device_id));
    let key = stream_key(&user_id, &device_id);
    let done = match execute::<Device>(&app.ledger, &key, &metadata, command, None).await {
        Ok(done) => done,
        Err(ExecuteError::Refused(error)) => return Err(Closing::new(CloseCode::Denied, error.code().as_str())),
        Err(_) => return Err(busy()),
    };
    // The epoch of this very registration; the state may already be a later one's.
    let epoch = done.events.iter().rev().find_map(|event| match event.decode() {
        Ok(DomainEvent::Device(DeviceEvent::DeviceConnected(connected))) => Some(connected.connection_epoch),
        _ => None,
    });
    let (outbox, frames) = mpsc::channel(SEND_QUEUE_FRAMES);
    let connection = Arc::new(Connection {
        id,
        epoch: epoch.unwrap_or(done.state.connection_epoch),
        user_id,
        device_id,
        journal_id: register.journal_id,
        outbox,
        closing: watch::channel(None).0,
        ended: CancellationToken::new(),
        tools: Mutex::new(None),
    });
    let registered = ServerFrame::Registered(Registered {
        connection_id: connection.id.clone(),
        connection_epoch: connection.epoch,
        server_id: app.ledger.reader().ledger_id().to_owned(),
        user_hash: sha256_hex(format!("{}/{}", app.ledger.reader().ledger_id(), connection.user_id).as_bytes()),
        heartbeat_interval_ms: HEARTBEAT_INTERVAL_MS,
        max_message_bytes: MAX_RESULT_FRAME_BYTES,
        server_time: now(),
        settled_position: done.position,
    });
    Ok(Welcomed { connection, outbox: frames, registered })
}

async fn run(app: &Arc<App>, welcomed: Welcomed, mut reader: Reader, writer: Writer) {
    let Welcomed { connection, outbox, registered } = welcomed;
    if app.gateway.connections.enter(&connection) {
        // Entered first, then looked: whoever closes every socket has set this before, or finds this one.
        if app.stopping.is_cancelled() {
            connection.close(Closing::new(CloseCode::Restarting, "the server is stopping"));
        }
        connection.send(registered);
        tracing::info!(device.id = %connection.device_id, connection.id = %connection.id, "device connected");
    } else {
        connection.close(Closing::new(CloseCode::Replaced, "another connection of this device took over"));
    }
    let writing = app.socket_tasks.spawn(write(connection.clone(), outbox, writer));
    let closing = read(app, &connection, &mut reader).await;
    connection.close(closing);
    app.gateway.connections.leave(&connection);
    let closing = connection.closing.borrow().clone();
    let Closing { code, reason } = closing.unwrap_or(Closing { code: ABNORMAL, reason: String::new() });
    let command = DeviceCommand::Disconnect { connection_id: connection.id.clone(), code, reason: reason.clone() };
    let metadata = app.metadata(Actor::server(&app.claim.node_id));
    let key = stream_key(&connection.user_id, &connection.device_id);
    if let Err(error) = execute::<Device>(&app.ledger, &key, &metadata, command, None).await {
        tracing::error!(connection.id = %connection.id, cause = %error, "the end of a connection was not recorded");
    }
    tracing::info!(device.id = %connection.device_id, close.code = code, close.reason = reason, "device disconnected");
    // The fact is recorded: whoever waits on this connection may act on it.
    connection.ended.cancel();
    if writing.await.is_err() {
        tracing::error!(connection.id = %connection.id, "the writer of a connection panicked");
    }
}

/// Reads until the socket ends; says why it did.
async fn read(app: &Arc<App>, connection: &Connection, reader: &mut Reader) -> Closing {
    let mut closing = connection.closing.subscribe();
    let mut expected = 2;
    loop {
        let silence = Duration::from_millis(SILENCE_MS);
        let text = tokio::select! {
            closing = closed(&mut closing) => return closing,
            text = timeout(silence, next_text(reader)) => match text {
                Ok(Ok(text)) => text,
                Ok(Err(closing)) => return closing,
                Err(_) => return Closing::new(CloseCode::Silent, "no message for 45 s"),
            },
        };
        let envelope = match serde_json::from_str::<Envelope<serde_json::Value>>(&text) {
            Ok(envelope) => envelope,
            Err(error) => return Closing::new(CloseCode::Protocol, format!("not a frame: {error}")),
        };
        if envelope.sequence != expected {
            let reason = format!("SEQUENCE: expected {expected}, got {}", envelope.sequence);
            return Closing::new(CloseCode::Protocol, reason);
        }
        expected += 1;
        let event_id = envelope.event_id;
        let answers = match serde_json::from_value::<DeviceFrame>(envelope.frame) {
            Ok(frame) => match handle(app, connection, frame).await {
                Ok(answers) => answers,
                // Whether it was recorded is not known: nothing is acknowledged, and the device
                // brings it again on its next connection.
                Err(()) => return busy(),
            },
            Err(error) => vec![ServerFrame::ProtocolError(ProtocolError {
                code: ErrorCode::Protocol.as_str().to_owned(),
                message: error.to_string(),
                about_event_id: Some(event_id),
            })],
        };
        for answer in answers {
            connection.send(answer);
        }
    }
}

async fn handle(app: &Arc<App>, connection: &Connection, frame: DeviceFrame) -> Result<Vec<ServerFrame>, ()> {
    let failed = |error: &dyn std::fmt::Display| {
        tracing::error!(connection.id = %connection.id, cause = %error, "a frame could not be recorded");
    };
    match frame {
        DeviceFrame::Register(_) => Ok(vec![protocol_error("the device is registered already")]),
        DeviceFrame::RegistrySync { tools } => {
            sync_registry(app, connection, tools).await.map_err(|error| failed(&error))
        }
        DeviceFrame::Received { tool_call_id, attempt_no, phase } => {
            let noted = results::note_phase(app, connection, &tool_call_id, attempt_no, phase).await;
            noted.map_err(|error| failed(&error))
        }
        DeviceFrame::Result(report) => results::take(app, connection, *report).await.map_err(|error| failed(&error)),
        DeviceFrame::Refused { tool_call_id, code, .. } => {
            results::note_refusal(app, connection, &tool_call_id, code);
            Ok(Vec::new())
        }
        DeviceFrame::Heartbeat { time, .. } => Ok(vec![ServerFrame::Heartbeat { time: now(), answers: Some(time) }]),
        DeviceFrame::ProtocolError(error) => {
            tracing::warn!(connection.id = %connection.id, error.code = error.code, "the device complains: {}", error.message);
            Ok(Vec::new())
        }
    }
}

/// The sync enables entries of the server's own catalogue; it adds none and lowers no risk.
async fn sync_registry(
    app: &App,
    connection: &Connection,
    tools: Vec<RegisteredTool>,
) -> Result<Vec<ServerFrame>, ExecuteError<devmind_domain::device::DeviceError>> {
    if tools.len() > MAX_DEVICE_TOOLS {
        return Ok(vec![protocol_error("a device may register 64 tools")]);
    }
    let known = |tool: &RegisteredTool| {
        let own = catalogue().get(&tool.name).filter(|own| own.version == tool.version && own.risk <= tool.risk);
        own.is_some_and(|own| own.target == devmind_domain::tool_call::Target::Device)
    };
    let enabled: Vec<_> = tools.into_iter().filter(known).collect();
    let command = DeviceCommand::SyncRegistry { connection_id: connection.id.clone(), tools: enabled.clone() };
    let key = stream_key(&connection.user_id, &connection.device_id);
    let metadata = app.metadata(Actor::device(&connection.device_id));
    match execute::<Device>(&app.ledger, &key, &metadata, command, None).await {
        Ok(_) => {
            *connection.tools.lock().unwrap_or_else(PoisonError::into_inner) = Some(enabled);
            Ok(Vec::new())
        }
        // Replaced meanwhile: this socket is about to be closed.
        Err(ExecuteError::Refused(_)) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Sends what is queued and heartbeats, each within its time, until the socket is closed.
async fn write(connection: Arc<Connection>, mut outbox: mpsc::Receiver<ServerFrame>, mut writer: Writer) {
    let mut closing = connection.closing.subscribe();
    let mut heartbeat = interval(Duration::from_millis(HEARTBEAT_INTERVAL_MS));
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    heartbeat.reset();
    let mut sequence = 0;
    loop {
        let frame = tokio::select! {
            // Frames first: an acknowledgement that is queued leaves before the close does.
            biased;
            Some(frame) = outbox.recv() => frame,
            closing = closed(&mut closing) => return close(&mut writer, &closing).await,
            _ = heartbeat.tick() => ServerFrame::Heartbeat { time: now(), answers: None },
        };
        sequence += 1;
        let Ok(text) = serde_json::to_string(&Envelope { event_id: new_id(), sequence, frame }) else {
            connection.close(Closing::new(CloseCode::Protocol, "a frame could not be written"));
            continue;
        };
        let sent = timeout(Duration::from_millis(SEND_DEADLINE_MS), writer.send(Message::Text(text.into()))).await;
        if !matches!(sent, Ok(Ok(()))) {
            connection.close(Closing::new(CloseCode::Silent, "a frame did not leave in time"));
            return close(&mut writer, &Closing::new(CloseCode::Silent, "a frame did not leave in time")).await;
        }
    }
}

/// Waits until the socket is to be closed, and says why.
async fn closed(closing: &mut watch::Receiver<Option<Closing>>) -> Closing {
    let slot = closing.wait_for(Option::is_some).await.ok().and_then(|slot| slot.clone());
    slot.unwrap_or(Closing { code: ABNORMAL, reason: String::new() })
}

async fn next_text(reader: &mut Reader) -> Result<Utf8Bytes, Closing> {
    loop {
        match reader.next().await {
            Some(Ok(Message::Text(text))) => return Ok(text),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            Some(Ok(Message::Binary(_))) => return Err(Closing::new(CloseCode::Protocol, "frames are text")),
            Some(Ok(Message::Close(frame))) => {
                let (code, reason) =
                    frame.map_or((1005, String::new()), |frame| (frame.code, frame.reason.to_string()));
                return Err(Closing { code, reason });
            }
            Some(Err(error)) => return Err(Closing { code: ABNORMAL, reason: error.to_string() }),
            None => return Err(Closing { code: ABNORMAL, reason: "the connection was lost".to_owned() }),
        }
    }
}

async fn close(writer: &mut Writer, closing: &Closing) {
    /// A peer that does not take the close frame in this time is dropped.
    const WITHIN: Duration = Duration::from_secs(2);
    let mut end = closing.reason.len().min(MAX_REASON_BYTES);
    while !closing.reason.is_char_boundary(end) {
        end -= 1;
    }
    // Codes such as 1006 say how a socket ended and must not be sent (RFC 6455 §7.4.1).
    let code = if matches!(closing.code, 1004..=1006 | 1015) { 1000 } else { closing.code };
    let frame = CloseFrame { code, reason: closing.reason[..end].into() };
    let sent = timeout(WITHIN, async {
        writer.send(Message::Close(Some(frame))).await?;
        writer.close().await
    });
    drop(sent.await);
}

fn busy() -> Closing {
    Closing::new(CloseCode::Busy, "the server could not record; connect again")
}

fn protocol_error(message: &str) -> ServerFrame {
    ServerFrame::ProtocolError(ProtocolError {
        code: ErrorCode::Protocol.as_str().to_owned(),
        message: message.to_owned(),
        about_event_id: None,
    })
}
