//! A reader that reads when the test says so and otherwise lets the bytes wait, down to the socket:
//! the way a slow client looks to a server.

use crate::wait::within_deadline;
use serde_json::Value;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Little: what waits must not fit.
const RECEIVE_BUFFER: u32 = 65_536;

/// A connection with one request on it.
pub struct StalledReader {
    socket: TcpStream,
    read: Vec<u8>,
}

impl StalledReader {
    /// Sends a request of the development user `user` and reads the head of a success, no more.
    pub async fn open(address: SocketAddr, user: &str, method: &str, path: &str, body: &str) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(RECEIVE_BUFFER).expect("a small buffer");
        let mut socket = socket.connect(address).await.expect("a connection");
        // HTTP/1.0: the body is all that comes up to the end.
        let head = format!(
            "{method} {path} HTTP/1.0\r\nhost: {address}\r\nx-dev-user: {user}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all(head.as_bytes()).await.expect("the head leaves");
        socket.write_all(body.as_bytes()).await.expect("the body leaves");
        let mut reader = Self { socket, read: Vec::new() };
        while !reader.read.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
            assert!(reader.more().await, "{}", String::from_utf8_lossy(&reader.read));
        }
        let text = String::from_utf8_lossy(&reader.read).into_owned();
        assert!(text.lines().next().is_some_and(|line| line.contains(" 200 ")), "{text}");
        reader
    }

    async fn more(&mut self) -> bool {
        let mut bytes = [0; 4_096];
        let read = within_deadline("bytes", self.socket.read(&mut bytes)).await.expect("a connection");
        self.read.extend(&bytes[..read]);
        read > 0
    }

    /// Reads to the end: id and event of everything.
    pub async fn rest(mut self) -> Vec<(String, Value)> {
        while self.more().await {}
        let text = String::from_utf8(self.read).expect("UTF-8");
        let (_, body) = text.split_once("\r\n\r\n").expect("a body");
        let frames = body.split("\n\n").filter(|frame| frame.contains("data:"));
        let field = |frame: &str, name: &str| {
            let line = frame.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        frames
            .map(|frame| (field(frame, "id:"), serde_json::from_str(&field(frame, "data:")).expect("an event")))
            .collect()
    }
}
