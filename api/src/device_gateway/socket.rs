//! One device socket, from its upgrade to the record of its end.
//!
//! Origin first (a hostile page must not burn a ticket, or use up what others may open), then how many
//! sockets there may be, then the ticket, then `device.register` in its time. After that a reader and a
//! writer run side by side.

use super::connections::{Closing, Connection};
use super::under_way::UnderWay;
use super::wire::{self, Incoming, Reader, Writer};
use super::{results, tickets};
use crate::error::ApiResult;
use crate::ids::{new_id, now};
use crate::lifecycle::Peer;
use crate::limits::millis;
use crate::places::Place;
use crate::state::App;
use axum::extract::ws::WebSocket;
use devmind_domain::ErrorCode;
use devmind_domain::canonical::sha256_hex;
use devmind_domain::device::{Device, DeviceCommand, DeviceEvent, stream_key};
use devmind_domain::event::{Actor, DomainEvent};
use devmind_domain::ids::{DeviceId, UserId};
use devmind_domain::limits::*;
use devmind_domain::protocol::*;
use devmind_domain::tools::catalogue;
use devmind_ledger::{ExecuteError, execute};
use futures::StreamExt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

/// A socket that has just been upgraded.
pub struct Arrival {
    /// The ticket it presents.
    pub ticket: Option<String>,
    /// The browser origin it comes from; devices send none.
    pub origin: Option<String>,
    /// Where it comes from.
    pub peer: Peer,
}

/// Serves one socket to its end.
pub async fn serve(app: Arc<App>, socket: WebSocket, arrival: Arrival) {
    let (mut writer, stream) = socket.split();
    let mut reader = Reader::new(stream, &app.limits);
    // Both places are taken until the socket is gone: that among the connections to its very end, that
    // among the sockets that have not registered until it has.
    let _connection = arrival.peer.place.clone();
    let (pending, welcomed) = match admit(&app, &arrival) {
        Ok(place) => (Some(place), welcome(&app, &mut reader, arrival).await),
        Err(closing) => (None, Err(closing)),
    };
    match welcomed {
        Ok(welcomed) => {
            drop(pending);
            run(&app, welcomed, reader, writer).await;
        }
        Err(closing) => {
            wire::close(&mut writer, &closing).await;
            reader.until_end().await;
        }
    }
}

struct Welcomed {
    connection: Arc<Connection>,
    outbox: mpsc::Receiver<ServerFrame>,
    registered: ServerFrame,
}

/// Burns the ticket of a request that is no upgrade, unless a foreign page sends it.
///
/// # Errors
/// When the ledger fails.
pub async fn burn(app: &App, arrival: &Arrival) -> ApiResult<()> {
    if let (Ok(_place), Some(ticket)) = (admit(app, arrival), &arrival.ticket) {
        tickets::consume(app, ticket).await?;
    }
    Ok(())
}

/// Whether there is room for a socket from there.
fn admit(app: &App, arrival: &Arrival) -> Result<Place<IpAddr>, Closing> {
    if app.stopping.is_cancelled() {
        return Err(Closing::new(CloseCode::Restarting, "the server is stopping"));
    }
    if let Some(origin) = &arrival.origin
        && !app.allowed_origins.contains(origin)
    {
        return Err(Closing::new(CloseCode::Denied, ErrorCode::OriginDenied.as_str()));
    }
    let address = app.limits.counted(arrival.peer.remote.ip());
    if address.is_some_and(|address| !app.gateway.rates.connects.allows(&address)) {
        return Err(Closing::new(CloseCode::RateLimited, "too many connections from this address in a minute"));
    }
    let place = app.gateway.pending.take(address);
    place.ok_or_else(|| Closing::new(CloseCode::Busy, "too many sockets that have not registered"))
}

async fn welcome(app: &App, reader: &mut Reader, arrival: Arrival) -> Result<Welcomed, Closing> {
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
    connect(app, user_id, device_id, register, arrival.peer.remote).await
}

/// `device.register`, in its time and size.
async fn first_frame(app: &App, reader: &mut Reader) -> Result<Register, Closing> {
    let within = app.limits.register_within_ms;
    let late = || Closing::new(CloseCode::Protocol, format!("no device.register within {within} ms"));
    let text = tokio::select! {
        () = app.stopping.cancelled() => return Err(Closing::new(CloseCode::Restarting, "the server is stopping")),
        text = timeout(millis(within), reader.next(MAX_UNREGISTERED_FRAME_BYTES)) => text.map_err(|_| late())??,
    };
    match wire::parse(&text, 1)? {
        Incoming::Frame(DeviceFrame::Register(register)) => {
            kill_point::at(|| "receive device.register before".to_owned());
            Ok(register)
        }
        Incoming::Frame(_) => Err(Closing::new(CloseCode::Protocol, "the first frame must be device.register")),
        Incoming::Unusable { problem, .. } => Err(Closing::new(CloseCode::Protocol, problem)),
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
        holder: app.claim.clone(),
        instance_id: register.instance_id,
        journal_id: register.journal_id.clone(),
        journal_epoch: register.journal_epoch,
        version: register.version,
        remote: remote.to_string(),
        names: Names::new(register.names.computer, register.names.workspace),
    };
    let metadata = app.metadata(Actor::device(&device_id));
    let key = stream_key(&user_id, &device_id);
    let done = match execute::<Device>(&app.ledger, &key, &metadata, command, None).await {
        Ok(done) => done,
        Err(ExecuteError::Refused(error)) => return Err(Closing::new(CloseCode::Denied, error.code().as_str())),
        Err(_) => return Err(busy()),
    };
    // The epoch of this very registration; the state may already be a later one's.
    let facts = done.events.iter().rev().flat_map(|event| event.decode().unwrap_or_default());
    let epoch = facts.into_iter().find_map(|fact| match fact {
        DomainEvent::Device(DeviceEvent::DeviceConnected(connected)) => Some(connected.connection_epoch),
        _ => None,
    });
    kill_point::at(|| "receive device.register after".to_owned());
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
        heartbeat_interval_ms: app.limits.heartbeat_interval_ms,
        max_message_bytes: MAX_RESULT_FRAME_BYTES,
        server_time: now(),
        settled_position: done.position,
        head: shown_head(app).await,
    });
    Ok(Welcomed { connection, outbox: frames, registered })
}

/// The newest signed head. Who saw one before and is shown none now will not go on, and tries again.
async fn shown_head(app: &App) -> Option<ShownHead> {
    match app.checkpoints.newest(now()).await {
        Ok(newest) => Some(ShownHead { checkpoint: newest.note, key: app.checkpoints.key().to_string() }),
        Err(error) => {
            tracing::error!(error.code = error.code().as_str(), cause = %error, "a device is shown no head of the log");
            None
        }
    }
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
    let writing = app.socket_tasks.spawn(wire::write(connection.clone(), outbox, writer, app.limits.clone()));
    let closing = read(app, &connection, &mut reader).await;
    connection.close(closing);
    app.gateway.connections.leave(&connection);
    let closing = connection.closing.borrow().clone();
    let Closing { code, reason } = closing.unwrap_or(Closing { code: wire::ABNORMAL, reason: String::new() });
    let command = DeviceCommand::Disconnect { connection_id: connection.id.clone(), code, reason: reason.clone() };
    let metadata = app.metadata(Actor::server(&app.claim.node_id));
    let key = stream_key(&connection.user_id, &connection.device_id);
    if let Err(error) = execute::<Device>(&app.ledger, &key, &metadata, command, None).await {
        tracing::error!(connection.id = %connection.id, cause = %error, "the end of a connection was not recorded");
    }
    tracing::info!(device.id = %connection.device_id, close.code = code, close.reason = reason, "device disconnected");
    // The fact is recorded: whoever waits on this connection may act on it.
    connection.ended.cancel();
    let (written, ()) = tokio::join!(writing, reader.until_end());
    if written.is_err() {
        tracing::error!(connection.id = %connection.id, "the writer of a connection panicked");
    }
}

/// Reads until the socket ends; says why it did. Frames about different calls are recorded at the same
/// time and share their flushes; those about one call, and all others, in their order.
async fn read(app: &Arc<App>, connection: &Connection, reader: &mut Reader) -> Closing {
    let mut under_way = UnderWay::default();
    let closing = read_frames(app, connection, reader, &mut under_way).await;
    // What has come is recorded, however the socket ended.
    while under_way.next(connection).await.is_some() {}
    closing
}

async fn read_frames<'a>(
    app: &'a Arc<App>,
    connection: &'a Connection,
    reader: &mut Reader,
    under_way: &mut UnderWay<'a>,
) -> Closing {
    let mut closing = connection.closing.subscribe();
    let silence = app.limits.silence_ms;
    let (mut expected, mut heard) = (2, Instant::now());
    loop {
        let text = tokio::select! {
            closing = wire::closed(&mut closing) => return closing,
            Some(done) = under_way.next(connection) => match done {
                Ok(()) => continue,
                Err(()) => return busy(),
            },
            text = timeout_at(heard + millis(silence), reader.next(MAX_RESULT_FRAME_BYTES)), if under_way.has_room() => {
                match text {
                    Ok(Ok(text)) => text,
                    Ok(Err(closing)) => return closing,
                    Err(_) => return Closing::new(CloseCode::Silent, format!("no message for {silence} ms")),
                }
            }
        };
        heard = Instant::now();
        match wire::parse(&text, expected) {
            // Whether it was recorded is not known on an error: nothing is acknowledged, and the device
            // brings it again on its next connection.
            Ok(Incoming::Frame(frame)) => {
                let about = frame.tool_call_id().cloned();
                if about.is_none() && under_way.until_free(connection).await.is_err() {
                    return busy();
                }
                let kind = frame.kind();
                let handling = handle(app, connection, frame);
                under_way.add(about, async move { kill_point::around(|| format!("receive {kind}"), handling).await });
            }
            Ok(Incoming::Unusable { event_id, report_of, problem }) => {
                if under_way.until_free(connection).await.is_err() {
                    return busy();
                }
                for answer in unusable(event_id, report_of, problem) {
                    connection.send(answer);
                }
            }
            Err(closing) => return closing,
        }
        expected += 1;
    }
}

/// The device is told what is wrong, and not to bring a report again that will never be understood.
fn unusable(event_id: String, report_of: Option<String>, problem: String) -> Vec<ServerFrame> {
    let code = || ErrorCode::Protocol.as_str().to_owned();
    let complaint = ProtocolError { code: code(), message: problem, about_event_id: Some(event_id) };
    let nack = |id: String| ServerFrame::Nack { tool_call_id: id.into(), code: code(), permanent: true };
    [ServerFrame::ProtocolError(complaint)].into_iter().chain(report_of.map(nack)).collect()
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
        DeviceFrame::Refused { tool_call_id, attempt_no, code } => {
            let noted = results::note_refusal(app, connection, &tool_call_id, attempt_no, code).await;
            noted.map_err(|error| failed(&error))
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
