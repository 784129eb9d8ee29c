//! The WebSocket itself: opening it, and frames as text with their sequence numbers.

use super::lost::Lost;
use super::server::Server;
use super::ticket::Ticket;
use crate::text::whole_characters;
use devmind_domain::limits::{MAX_REQUEST_FRAME_BYTES, MAX_RESULT_FRAME_BYTES, SEND_DEADLINE_MS, SILENCE_MS};
use devmind_domain::protocol::{CloseCode, DeviceFrame, Envelope, SUBPROTOCOL, ServerFrame};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::error::Error as WsError;
use tokio_tungstenite::tungstenite::http::header::{AUTHORIZATION, HeaderValue, SEC_WEBSOCKET_PROTOCOL};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message, WebSocketConfig};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

/// The socket opens within this time.
const OPEN_WITHIN: Duration = Duration::from_secs(10);
/// A close is waited for no longer.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// Bytes of a close reason, at most (RFC 6455 §5.5: 125 with the code).
const MAX_CLOSE_REASON_BYTES: usize = 123;

pub(super) type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Opens the socket with a ticket. The ticket travels in a header that no log prints.
pub(super) async fn open(server: &Server, ticket: &Ticket) -> Result<Socket, Lost> {
    let url = server.websocket(&ticket.ws_path);
    let mut request = url.into_client_request().map_err(|error| Lost::retry(error.to_string()))?;
    let bearer = HeaderValue::from_str(&format!("Bearer {}", ticket.ticket));
    let mut bearer = bearer.map_err(|_| Lost::retry("the server gave a ticket that is no header text"))?;
    bearer.set_sensitive(true);
    request.headers_mut().insert(AUTHORIZATION, bearer);
    request.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
    let config = WebSocketConfig::default()
        .max_message_size(Some(MAX_REQUEST_FRAME_BYTES))
        .max_frame_size(Some(MAX_REQUEST_FRAME_BYTES))
        .max_write_buffer_size(2 * MAX_RESULT_FRAME_BYTES);
    // `true`: TCP_NODELAY.
    match timeout(OPEN_WITHIN, connect_async_with_config(request, Some(config), true)).await {
        Err(_) => Err(Lost::retry("the socket did not open in time")),
        Ok(Ok((socket, _))) => Ok(socket),
        Ok(Err(WsError::Http(response))) => Err(match response.status().as_u16() {
            401 => Lost::Ticket { reason: "the ticket was not taken".to_owned() },
            403 => Lost::by_close(CloseCode::Denied.as_u16(), ""),
            status => Lost::retry(format!("the server did not open the socket ({status})")),
        }),
        Ok(Err(error)) => Err(Lost::retry(format!("the socket did not open: {error}"))),
    }
}

/// What the writer sends.
pub(super) enum Outgoing {
    Frame(DeviceFrame),
    /// The last thing it sends.
    Close(CloseCode, String),
}

/// Sends what is queued, in order, each frame within its time. It alone numbers frames, so numbers
/// have no gaps.
pub(super) async fn write(mut sink: SplitSink<Socket, Message>, mut queue: mpsc::Receiver<Outgoing>) -> Lost {
    let mut sequence = 0;
    while let Some(next) = queue.recv().await {
        let frame = match next {
            Outgoing::Frame(frame) => frame,
            Outgoing::Close(code, reason) => {
                let reason = whole_characters(&reason, MAX_CLOSE_REASON_BYTES).to_owned();
                let frame = CloseFrame { code: code.as_u16().into(), reason: reason.into() };
                // The socket is given up either way.
                let _ = timeout(CLOSE_WITHIN, sink.send(Message::Close(Some(frame)))).await;
                return Lost::HungUp;
            }
        };
        sequence += 1;
        let kind = frame.kind();
        let envelope = Envelope { event_id: uuid::Uuid::now_v7().to_string(), sequence, frame };
        let text = match serde_json::to_string(&envelope) {
            Ok(text) => text,
            Err(error) => return Lost::retry(format!("a frame could not be written: {error}")),
        };
        let sending = kill_point::around(|| format!("send {kind}"), sink.send(Message::text(text)));
        match timeout(Duration::from_millis(SEND_DEADLINE_MS), sending).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Lost::retry(format!("the connection broke: {error}")),
            Err(_) => return Lost::retry("a frame did not leave in time"),
        }
    }
    Lost::HungUp
}

/// Reads frames, counting them and the silence between them.
pub(super) struct Reader {
    stream: SplitStream<Socket>,
    sequence: u64,
    heard_at: Instant,
}

/// What came.
pub(super) enum Incoming {
    Frame(ServerFrame),
    /// A frame of a kind or a form that this version does not know.
    Unknown {
        event_id: Option<String>,
        message: String,
    },
}

impl Incoming {
    /// The frame's type.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Frame(frame) => frame.kind(),
            Self::Unknown { .. } => "something unknown",
        }
    }
}

impl Reader {
    pub(super) fn new(stream: SplitStream<Socket>) -> Self {
        Self { stream, sequence: 0, heard_at: Instant::now() }
    }

    /// The next frame. May be dropped and called again.
    pub(super) async fn next(&mut self) -> Result<Incoming, Lost> {
        loop {
            let silent_at = self.heard_at + Duration::from_millis(SILENCE_MS);
            let message = timeout_at(silent_at, self.stream.next()).await;
            let message = message.map_err(|_| Lost::retry("the server was silent for 45 s"))?;
            match message {
                None => return Err(Lost::retry("the connection ended")),
                Some(Err(error)) => return Err(Lost::retry(format!("the connection broke: {error}"))),
                Some(Ok(Message::Text(text))) => {
                    self.heard_at = Instant::now();
                    return self.frame(text.as_str());
                }
                Some(Ok(Message::Close(frame))) => {
                    let lost = frame.map_or_else(
                        || Lost::retry("the server closed the connection"),
                        |frame| Lost::by_close(frame.code.into(), frame.reason.as_str()),
                    );
                    // Reading on answers the close.
                    let _ = timeout(CLOSE_WITHIN, self.stream.next()).await;
                    return Err(lost);
                }
                Some(Ok(Message::Binary(_))) => {
                    return Err(Lost::Protocol { reason: "the server sent a binary message".to_owned() });
                }
                // Answered by the library; they are no messages of this protocol.
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
            }
        }
    }

    /// After a close was queued: reads on, so that the close reaches the server before the socket is
    /// dropped. What still comes is not looked at.
    pub(super) async fn until_end(&mut self) {
        let ended = async { while let Some(Ok(_)) = self.stream.next().await {} };
        // A server that does not answer the close is left alone.
        let _ = timeout(CLOSE_WITHIN, ended).await;
    }

    fn frame(&mut self, text: &str) -> Result<Incoming, Lost> {
        let broken = |reason: String| Lost::Protocol { reason };
        let value: Value = serde_json::from_str(text).map_err(|error| broken(format!("not a frame: {error}")))?;
        let sequence = value["sequence"].as_u64();
        if sequence != Some(self.sequence + 1) {
            return Err(broken(format!("SEQUENCE: expected {}, got {}", self.sequence + 1, value["sequence"])));
        }
        self.sequence += 1;
        let event_id = value["event_id"].as_str().map(str::to_owned);
        Ok(match serde_json::from_value(value) {
            Ok(frame) => Incoming::Frame(frame),
            Err(error) => Incoming::Unknown { event_id, message: error.to_string() },
        })
    }
}
