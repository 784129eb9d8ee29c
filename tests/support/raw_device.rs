//! A device written by hand: frames over a real WebSocket, right or wrong, for tests of the protocol.

use crate::client::Client;
use crate::new_id;
use crate::wait::within_deadline;
use devmind_domain::canonical::hash_json;
use devmind_domain::protocol::{TICKET_PATH, WS_PATH};
use devmind_domain::tool_call::Target;
use devmind_domain::tools::catalogue;
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, client_async, connect_async};

/// Who a hand-written device says it is.
#[derive(Clone, Debug)]
pub struct RawDevice {
    /// The server.
    pub address: SocketAddr,
    /// The device.
    pub device_id: String,
    /// Its journal.
    pub journal_id: String,
    /// Which opening of the journal.
    pub journal_epoch: u64,
}

/// How a socket ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketEnd {
    /// The close code; 1006 where none came.
    pub code: u16,
    /// The reason.
    pub reason: String,
}

impl RawDevice {
    /// A device of its own.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, device_id: new_id(), journal_id: new_id(), journal_epoch: 1 }
    }

    /// A ticket for it.
    pub async fn ticket(&self, client: &Client) -> String {
        ticket_for(client, &self.device_id).await
    }

    /// The upgrade request, with the ticket as this product's device presents it.
    pub fn request(&self, ticket: &str) -> Request {
        let mut request = self.bare_request();
        let bearer = format!("Bearer {ticket}").parse().expect("a header");
        request.headers_mut().insert("authorization", bearer);
        request
    }

    /// The upgrade request without a ticket.
    pub fn bare_request(&self) -> Request {
        format!("ws://{}{WS_PATH}", self.address).into_client_request().expect("a request")
    }

    /// `device.register`.
    pub fn register(&self) -> Value {
        json!({
            "type": "device.register", "device_id": self.device_id, "instance_id": "raw-instance",
            "journal_id": self.journal_id, "journal_epoch": self.journal_epoch,
            "version": "0.0.0-raw", "protocol_version": 1,
        })
    }

    /// A socket that has presented a ticket and nothing else.
    pub async fn open(&self, client: &Client) -> RawSocket {
        let ticket = self.ticket(client).await;
        RawSocket::open(self.request(&ticket)).await
    }

    /// A registered socket.
    pub async fn registered(&self, client: &Client) -> RawSocket {
        let mut socket = self.open(client).await;
        socket.send(self.register()).await;
        let registered = socket.expect("device.registered").await;
        socket.connection_id = registered["connection_id"].as_str().expect("a connection id").to_owned();
        socket
    }

    /// A socket that is online: registered, with its tools synced and shown by the view.
    pub async fn online(&self, client: &Client) -> RawSocket {
        let mut socket = self.registered(client).await;
        socket.sync(&tools()).await;
        self.wait_online(client, &socket.connection_id).await;
        socket
    }

    /// Waits until the view shows the device online on this connection.
    pub async fn wait_online(&self, client: &Client, connection_id: &str) {
        crate::eventually("the device is online", || async {
            let devices = client.devices().await;
            let own = devices.iter().find(|device| device["device_id"] == *self.device_id);
            match own {
                Some(own) if own["online"] == true && own["connection_id"] == *connection_id => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }
}

/// A connection from another address of this machine.
pub async fn connect_from(local: IpAddr, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((local, 0).into()).expect("a local address");
    within_deadline("a connection", socket.connect(address)).await.expect("a connection")
}

/// A ticket for a device of the client's user.
pub async fn ticket_for(client: &Client, device_id: &str) -> String {
    let body = client.post(TICKET_PATH, &json!({ "device_id": device_id })).await.ok();
    assert_eq!(body["ws_path"], WS_PATH);
    body["ticket"].as_str().expect("a ticket").to_owned()
}

/// The device tools of the catalogue, as a device offers them.
pub fn tools() -> Value {
    let own = catalogue().definitions().filter(|definition| definition.target == Target::Device);
    serde_json::to_value(own.map(|definition| definition.registered()).collect::<Vec<_>>()).expect("tools are JSON")
}

/// A success report for a request frame.
pub fn success(request: &Value, output: &Value) -> Value {
    json!({
        "type": "tool.call.result", "tool_call_id": request["tool_call_id"],
        "executed_attempt_no": request["attempt_no"], "status": "succeeded",
        "output": output, "output_sha256": hash_json(output),
        "started_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T00:00:01Z",
    })
}

/// A report that is no success.
pub fn failure(request: &Value, status: &str, code: &str) -> Value {
    json!({
        "type": "tool.call.result", "tool_call_id": request["tool_call_id"],
        "executed_attempt_no": request["attempt_no"], "status": status,
        "error": { "code": code, "message": "said by a hand-written device" },
    })
}

/// What `workspace.read_file` gives, small.
pub fn file_output(content: &str) -> Value {
    json!({ "path": "README.md", "content": content, "size": content.len(), "truncated": false })
}

/// One socket of a hand-written device.
pub struct RawSocket {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    /// The number of the next frame.
    pub sequence: u64,
    /// The server's name for the socket, once registered.
    pub connection_id: String,
}

impl RawSocket {
    /// Upgrades; the server accepts every upgrade, so that its refusal arrives as a close code.
    pub async fn open(request: Request) -> Self {
        let connected = within_deadline("the upgrade", connect_async(request)).await;
        let (socket, _) = connected.expect("the upgrade is accepted");
        Self { socket, sequence: 1, connection_id: String::new() }
    }

    /// The same from another local address.
    pub async fn open_from(local: IpAddr, request: Request) -> Self {
        let address = request.uri().authority().expect("an address").as_str().parse().expect("an address");
        let stream = connect_from(local, address).await;
        let connected = within_deadline("the upgrade", client_async(request, MaybeTlsStream::Plain(stream))).await;
        let (socket, _) = connected.expect("the upgrade is accepted");
        Self { socket, sequence: 1, connection_id: String::new() }
    }

    /// Sends any message, as long as the server takes it.
    pub async fn send_message(&mut self, message: Message) -> bool {
        within_deadline("a message leaves", self.socket.send(message)).await.is_ok()
    }

    /// The next message, whatever it is.
    pub async fn next_message(&mut self) -> Option<Message> {
        within_deadline("a message", self.socket.next()).await?.ok()
    }

    /// Sends a frame with its number and an id.
    pub async fn send(&mut self, mut frame: Value) {
        frame["event_id"] = new_id().into();
        frame["sequence"] = self.sequence.into();
        self.sequence += 1;
        self.send_text(frame.to_string()).await;
    }

    /// Sends any text.
    pub async fn send_text(&mut self, text: String) {
        self.socket.send(Message::text(text)).await.expect("the frame leaves");
    }

    /// Syncs these tools.
    pub async fn sync(&mut self, tools: &Value) {
        self.send(json!({ "type": "tool.registry.sync", "tools": tools })).await;
    }

    /// The next frame but heartbeats, or how the socket ended.
    pub async fn next(&mut self) -> Result<Value, SocketEnd> {
        loop {
            match within_deadline("a frame", self.socket.next()).await {
                Some(Ok(Message::Text(text))) => {
                    let frame: Value = serde_json::from_str(&text).expect("a frame is JSON");
                    if frame["type"] != "heartbeat" {
                        return Ok(frame);
                    }
                }
                Some(Ok(Message::Close(frame))) => {
                    let (code, reason) =
                        frame.map_or((1005, String::new()), |frame| (frame.code.into(), frame.reason.to_string()));
                    return Err(SocketEnd { code, reason });
                }
                Some(Ok(_)) => {}
                Some(Err(Error::ConnectionClosed)) | None => {
                    return Err(SocketEnd { code: 1006, reason: "nothing came".to_owned() });
                }
                Some(Err(error)) => return Err(SocketEnd { code: 1006, reason: error.to_string() }),
            }
        }
    }

    /// The next frame, which must be of this type.
    pub async fn expect(&mut self, kind: &str) -> Value {
        match self.next().await {
            Ok(frame) if frame["type"] == kind => frame,
            other => panic!("expected {kind}, got {other:?}"),
        }
    }

    /// The disposition of the next frame, which must be the acknowledgement of this call.
    pub async fn acked(&mut self, tool_call_id: &Value) -> String {
        let ack = self.expect("tool.call.ack").await;
        assert_eq!(&ack["tool_call_id"], tool_call_id);
        ack["disposition"].as_str().expect("a disposition").to_owned()
    }

    /// How the socket ends; frames before that are skipped.
    pub async fn end(&mut self) -> SocketEnd {
        loop {
            if let Err(end) = self.next().await {
                return end;
            }
        }
    }

    /// The close code it ends with.
    pub async fn close_code(&mut self) -> u16 {
        self.end().await.code
    }

    /// Closes in order and waits for the server's answer.
    pub async fn close(mut self) {
        self.socket.close(None).await.expect("the close leaves");
        self.end().await;
    }
}
