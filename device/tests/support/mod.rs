//! A server for the device to talk to: real HTTP, a real WebSocket, and a test that says what comes
//! next.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, missing_docs)]

pub mod process;

use axum::Router;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Json, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use devmind_domain::Timestamp;
use devmind_domain::canonical::{call_hash, canonical_json};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;

#[derive(Clone)]
struct App {
    sockets: mpsc::UnboundedSender<Connection>,
    tickets: Arc<AtomicUsize>,
    refusal: Arc<Mutex<Option<(u16, Value)>>>,
    asked_by: Arc<Mutex<Vec<String>>>,
}

pub struct FakeServer {
    pub url: String,
    app: App,
    sockets: mpsc::UnboundedReceiver<Connection>,
}

/// One socket of the device, with what the test needs to know of how it was opened.
pub struct Connection {
    pub ticket: String,
    pub uri: String,
    socket: WebSocket,
    sent: u64,
    received: u64,
}

impl FakeServer {
    pub async fn start() -> Self {
        let (sender, sockets) = mpsc::unbounded_channel();
        let app = App { sockets: sender, tickets: Arc::default(), refusal: Arc::default(), asked_by: Arc::default() };
        let router = Router::new()
            .route("/api/desktop/connection-ticket", post(ticket))
            .route("/api/desktop/ws", get(upgrade))
            .with_state(app.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, app, sockets }
    }

    /// The next socket that the device opens.
    pub async fn connection(&mut self) -> Connection {
        self.sockets.recv().await.unwrap()
    }

    /// The next socket, registered and synced.
    pub async fn registered(&mut self) -> Connection {
        let mut connection = self.connection().await;
        connection.register("server-1", "user-1", 4 << 20).await;
        connection
    }

    pub fn tickets(&self) -> usize {
        self.app.tickets.load(Ordering::SeqCst)
    }

    pub fn asked_by(&self) -> Vec<String> {
        self.app.asked_by.lock().unwrap().clone()
    }

    /// What a request for a ticket gets from now on.
    pub fn refuse_tickets(&self, refusal: Option<(u16, Value)>) {
        *self.app.refusal.lock().unwrap() = refusal;
    }
}

async fn ticket(State(app): State<App>, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    let user = headers.get("X-Dev-User").and_then(|value| value.to_str().ok()).unwrap_or_default();
    app.asked_by.lock().unwrap().push(format!("{user} {}", body["device_id"].as_str().unwrap_or_default()));
    if let Some((status, body)) = app.refusal.lock().unwrap().clone() {
        return (StatusCode::from_u16(status).unwrap(), Json(body)).into_response();
    }
    let number = app.tickets.fetch_add(1, Ordering::SeqCst) + 1;
    Json(json!({ "ticket": format!("ticket-{number}"), "expires_at": Timestamp::from_micros(0), "ws_path": "/api/desktop/ws" }))
        .into_response()
}

async fn upgrade(State(app): State<App>, uri: Uri, headers: HeaderMap, upgrade: WebSocketUpgrade) -> Response {
    let bearer = headers.get("Authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let ticket = bearer.trim_start_matches("Bearer ").to_owned();
    upgrade.protocols(["devmind.v1"]).on_upgrade(move |socket| async move {
        let _ = app.sockets.send(Connection { ticket, uri: uri.to_string(), socket, sent: 0, received: 0 });
    })
}

impl Connection {
    /// The next frame, heartbeats left out. Panics when the socket has ended.
    pub async fn next(&mut self) -> Value {
        self.next_or_close().await.unwrap_or_else(|code| panic!("the device closed with {code}"))
    }

    /// The next frame, or the code of the close (0: none was given).
    pub async fn next_or_close(&mut self) -> Result<Value, u16> {
        loop {
            match self.socket.recv().await {
                Some(Ok(Message::Text(text))) => {
                    let frame: Value = serde_json::from_str(text.as_str()).unwrap();
                    self.received += 1;
                    assert_eq!(frame["sequence"], self.received, "sequences have no gaps");
                    if frame["type"] != "heartbeat" {
                        return Ok(frame);
                    }
                }
                Some(Ok(Message::Close(frame))) => return Err(frame.map_or(0, |frame| frame.code)),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(0),
            }
        }
    }

    /// The next frame of a type; others are passed over.
    pub async fn next_of(&mut self, kind: &str) -> Value {
        loop {
            let frame = self.next().await;
            if frame["type"] == kind {
                return frame;
            }
        }
    }

    pub async fn send(&mut self, mut frame: Value) {
        self.sent += 1;
        frame["sequence"] = json!(self.sent);
        frame["event_id"] = json!(format!("event-{}", self.sent));
        self.send_raw(&frame.to_string()).await;
    }

    pub async fn send_raw(&mut self, text: &str) {
        self.socket.send(Message::text(text)).await.unwrap();
    }

    pub async fn close(mut self, code: u16, reason: &str) {
        let frame = CloseFrame { code, reason: reason.into() };
        let _ = self.socket.send(Message::Close(Some(frame))).await;
        while let Some(Ok(_)) = self.socket.recv().await {}
    }

    pub async fn register(&mut self, server_id: &str, user_hash: &str, max_message_bytes: usize) -> Value {
        let register = self.next().await;
        assert_eq!(register["type"], "device.register");
        self.send(json!({
            "type": "device.registered", "connection_id": "connection", "connection_epoch": 1, "server_id": server_id,
            "user_hash": user_hash, "heartbeat_interval_ms": 15_000, "max_message_bytes": max_message_bytes,
            "server_time": Timestamp::from_micros(0), "settled_position": 0,
        }))
        .await;
        let sync = self.next().await;
        assert_eq!(sync["type"], "tool.registry.sync");
        register
    }

    pub async fn ack(&mut self, id: &str) {
        self.send(json!({ "type": "tool.call.ack", "tool_call_id": id, "disposition": "stored" })).await;
    }
}

/// A request to read a file.
pub fn read_request(device_id: &str, id: &str, attempt_no: u32, path: &str) -> Value {
    let arguments = json!({ "path": path });
    json!({
        "type": "tool.call.request", "tool_call_id": id, "run_id": "run", "attempt_no": attempt_no,
        "tool_name": "workspace.read_file", "tool_version": "1", "arguments_json": canonical_json(&arguments),
        "call_hash": call_hash("workspace.read_file", "1", &arguments), "requires_confirmation": true,
        "execution_timeout_ms": 10_000, "ttl_ms": 60_000, "call_created_at": devmind_device::clock::now(),
        "device_id": device_id, "conversation_title": "title",
    })
}
