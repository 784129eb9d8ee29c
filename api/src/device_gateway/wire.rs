//! Messages of one socket: what may be read from it and how fast, how a frame leaves, how it is closed.
//! What a frame means is left to `socket`.

use super::connections::{Closing, Connection};
use crate::ids::{new_id, now};
use crate::limits::{Limits, a_second, millis};
use axum::body::Bytes;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket};
use devmind_domain::json::parse_strict;
use devmind_domain::limits::{MAX_CLIENT_ID_CHARS, MAX_RESULT_FRAME_BYTES};
use devmind_domain::protocol::*;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use governor::DefaultDirectRateLimiter;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_tungstenite::tungstenite::Error as WsError;

/// Bytes of a close reason, at most (RFC 6455 §5.5: 125 with the code).
const MAX_REASON_BYTES: usize = 123;
/// The code of a socket that ended without one (RFC 6455 §7.4.1).
pub(super) const ABNORMAL: u16 = 1006;
/// A peer that does not take or answer a close in this time is dropped.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// Bytes of a complaint about a message, at most: it may quote the message.
const MAX_COMPLAINT_BYTES: usize = 1 << 10;
/// Bytes of a message beyond which the connection is cut in the middle of it. What is too large and
/// smaller than this is read whole, so that the peer gets to see the close code.
pub(crate) const CUT_BYTES: usize = 2 * MAX_RESULT_FRAME_BYTES;

pub(super) type Writer = SplitSink<WebSocket, Message>;

/// Reads messages, and counts them.
pub(super) struct Reader {
    stream: SplitStream<WebSocket>,
    rate: DefaultDirectRateLimiter,
}

/// What a peer sent.
pub(super) enum Incoming {
    /// A frame of this protocol.
    Frame(DeviceFrame),
    /// Something that can never be understood, however often it comes.
    Unusable {
        /// Its id.
        event_id: String,
        /// The call, where it is the report of one.
        report_of: Option<String>,
        /// What is wrong with it.
        problem: String,
    },
}

impl Reader {
    pub(super) fn new(stream: SplitStream<WebSocket>, limits: &Limits) -> Self {
        let rate = a_second(limits.messages_per_second, limits.message_burst);
        Self { stream, rate: DefaultDirectRateLimiter::direct(rate) }
    }

    /// The next message of at most `max_bytes`, complete.
    pub(super) async fn next(&mut self, max_bytes: usize) -> Result<Utf8Bytes, Closing> {
        loop {
            let message = self.stream.next().await;
            // Pings count: each is answered.
            if matches!(message, Some(Ok(_))) && self.rate.check().is_err() {
                return Err(Closing::new(CloseCode::RateLimited, "too many messages"));
            }
            match message {
                Some(Ok(Message::Text(text))) if text.len() > max_bytes => return Err(too_big(max_bytes)),
                Some(Ok(Message::Text(text))) => return Ok(text),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Binary(_))) => return Err(Closing::new(CloseCode::NotText, "frames are text")),
                Some(Ok(Message::Close(frame))) => {
                    let (code, reason) =
                        frame.map_or((1005, String::new()), |frame| (frame.code, frame.reason.to_string()));
                    return Err(Closing { code, reason });
                }
                Some(Err(error)) => return Err(broken(error)),
                None => return Err(Closing { code: ABNORMAL, reason: "the connection was lost".to_owned() }),
            }
        }
    }

    /// After a close was sent: reads on, so that the close reaches the peer before the socket is dropped
    /// (bytes that nobody read would make TCP reset the connection). Nothing of it is looked at.
    pub(super) async fn until_end(&mut self) {
        drop(timeout(CLOSE_WITHIN, async { while let Some(Ok(_)) = self.stream.next().await {} }).await);
    }
}

fn too_big(max_bytes: usize) -> Closing {
    Closing::new(CloseCode::TooBig, format!("a message may have {max_bytes} bytes"))
}

/// Why a socket cannot be read any more.
fn broken(error: axum::Error) -> Closing {
    let reason = error.to_string();
    match error.into_inner().downcast_ref::<WsError>() {
        Some(WsError::Capacity(_)) => too_big(MAX_RESULT_FRAME_BYTES),
        Some(WsError::Utf8(_)) => Closing::new(CloseCode::Protocol, reason),
        _ => Closing { code: ABNORMAL, reason },
    }
}

/// What every frame has, whatever else is in it.
#[derive(Deserialize)]
struct Head {
    #[serde(default, rename = "type")]
    kind: String,
    event_id: String,
    sequence: u64,
    tool_call_id: Option<serde_json::Value>,
}

/// Reads a message as the frame with the number `expected`.
///
/// # Errors
/// Closes the socket where it is no frame, or out of order.
pub(super) fn parse(text: &str, expected: u64) -> Result<Incoming, Closing> {
    let head: Head = serde_json::from_str(text)
        .map_err(|error| Closing::new(CloseCode::Protocol, format!("not a frame: {error}")))?;
    if head.sequence != expected {
        let reason = format!("SEQUENCE: expected {expected}, got {}", head.sequence);
        return Err(Closing::new(CloseCode::Protocol, reason));
    }
    // Strictly: what is hashed and recorded must mean one thing to every reader.
    let frame = parse_strict(text).and_then(|value| serde_json::from_value(value).map_err(|error| error.to_string()));
    Ok(frame.map_or_else(
        |problem| {
            let problem = at_most(&problem, MAX_COMPLAINT_BYTES).to_owned();
            let id = head.tool_call_id.as_ref().and_then(serde_json::Value::as_str);
            let id = id.filter(|id| head.kind == "tool.call.result" && id.chars().count() <= MAX_CLIENT_ID_CHARS);
            Incoming::Unusable { event_id: head.event_id, report_of: id.map(str::to_owned), problem }
        },
        Incoming::Frame,
    ))
}

/// The text's first bytes, cut between characters.
fn at_most(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Sends what is queued, heartbeats and pings, each within its time, until the socket is closed. It alone
/// owns the sink and numbers the frames, so that a slow peer blocks nobody but itself.
pub(super) async fn write(
    connection: Arc<Connection>,
    mut outbox: mpsc::Receiver<ServerFrame>,
    mut writer: Writer,
    limits: Limits,
) {
    let mut closing = connection.closing.subscribe();
    let mut heartbeat = interval(millis(limits.heartbeat_interval_ms));
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    heartbeat.reset();
    let mut sequence = 0;
    loop {
        let (frame, ping) = tokio::select! {
            // Frames first: an acknowledgement that is queued leaves before the close does.
            biased;
            Some(frame) = outbox.recv() => (frame, false),
            closing = closed(&mut closing) => return close(&mut writer, &closing).await,
            _ = heartbeat.tick() => (ServerFrame::Heartbeat { time: now(), answers: None }, true),
        };
        sequence += 1;
        let kind = frame.kind();
        let Ok(text) = serde_json::to_string(&Envelope { event_id: new_id(), sequence, frame }) else {
            connection.close(Closing::new(CloseCode::Protocol, "a frame could not be written"));
            continue;
        };
        let sending = async {
            if ping {
                writer.feed(Message::Ping(Bytes::new())).await?;
            }
            writer.send(Message::Text(text.into())).await
        };
        let sending = kill_point::around(|| format!("send {kind}"), sending);
        if !matches!(timeout(millis(limits.send_deadline_ms), sending).await, Ok(Ok(()))) {
            let late = Closing::new(CloseCode::Silent, "a frame did not leave in time");
            connection.close(late.clone());
            return close(&mut writer, &late).await;
        }
    }
}

/// Waits until the socket is to be closed, and says why.
pub(super) async fn closed(closing: &mut watch::Receiver<Option<Closing>>) -> Closing {
    let slot = closing.wait_for(Option::is_some).await.ok().and_then(|slot| slot.clone());
    slot.unwrap_or(Closing { code: ABNORMAL, reason: String::new() })
}

/// Sends the close, as long as the peer takes it.
pub(super) async fn close(writer: &mut Writer, closing: &Closing) {
    // Codes such as 1006 say how a socket ended and must not be sent (RFC 6455 §7.4.1).
    let code = if matches!(closing.code, 1004..=1006 | 1015) { 1000 } else { closing.code };
    let frame = CloseFrame { code, reason: at_most(&closing.reason, MAX_REASON_BYTES).into() };
    let sent = timeout(CLOSE_WITHIN, async {
        writer.send(Message::Close(Some(frame))).await?;
        writer.close().await
    });
    drop(sent.await);
}
