//! A wire tap between device and server: every frame is seen, and the connection can be cut before or after
//! a frame of a type. It knows WebSocket frames (RFC 6455 §5.2) and nothing of this product but their `type`.

use serde_json::Value;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

/// Where a connection is cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The frame of this type does not arrive.
    Before(&'static str),
    /// The frame of this type is the last that arrives.
    After(&'static str),
}

#[derive(Default)]
struct Shared {
    cut: Option<Cut>,
    cuts: usize,
    seen: Vec<Value>,
}

/// The tap.
#[derive(Clone)]
pub struct Tap {
    /// Where the device connects to.
    pub address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

impl Tap {
    /// In front of a server.
    pub async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let tap = Self { address: listener.local_addr().expect("an address"), shared: Arc::default() };
        let own = tap.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let tap = own.clone();
                tokio::spawn(async move {
                    let server = TcpStream::connect(server).await?;
                    tap.serve(client, server).await
                });
            }
        });
        tap
    }

    /// Its address as a URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Cuts the connection once, where the first frame of the type comes by.
    pub fn cut(&self, at: Cut) {
        self.lock().cut = Some(at);
    }

    /// How often a connection was cut.
    pub fn cuts(&self) -> usize {
        self.lock().cuts
    }

    /// The frames of this type that arrived, in either direction, oldest first.
    pub fn arrived(&self, kind: &str) -> Vec<Value> {
        self.lock().seen.iter().filter(|frame| frame["type"] == kind).cloned().collect()
    }

    async fn serve(&self, mut client: TcpStream, mut server: TcpStream) -> std::io::Result<()> {
        let head = read_head(&mut client).await?;
        server.write_all(&head).await?;
        if !String::from_utf8_lossy(&head).to_ascii_lowercase().contains("upgrade: websocket") {
            return copy_bidirectional(&mut client, &mut server).await.map(drop);
        }
        client.write_all(&read_head(&mut server).await?).await?;
        let (mut from_client, mut to_client) = client.split();
        let (mut from_server, mut to_server) = server.split();
        // The first direction to end, or to be cut, ends both: the sockets are dropped.
        tokio::select! {
            ended = self.frames(&mut from_client, &mut to_server) => ended,
            ended = self.frames(&mut from_server, &mut to_client) => ended,
        }
    }

    async fn frames(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> std::io::Result<()> {
        loop {
            let (bytes, frame) = read_frame(from).await?;
            let kind = frame.as_ref().and_then(|frame| frame["type"].as_str()).unwrap_or_default().to_owned();
            let cut = {
                let mut shared = self.lock();
                let is_there = |cut: &mut Cut| matches!(cut, Cut::Before(at) | Cut::After(at) if *at == kind);
                let cut = shared.cut.take_if(is_there);
                shared.cuts += usize::from(cut.is_some());
                if !matches!(cut, Some(Cut::Before(_))) {
                    shared.seen.extend(frame);
                }
                cut
            };
            if matches!(cut, Some(Cut::Before(_))) {
                return Ok(());
            }
            to.write_all(&bytes).await?;
            if cut.is_some() {
                return to.flush().await;
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.shared.lock().expect("no holder panicked")
    }
}

/// Up to the empty line after the headers.
async fn read_head(from: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(from.read_u8().await?);
    }
    Ok(head)
}

/// One frame as it is on the wire, and what it says where it is a whole text message.
async fn read_frame(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<(Vec<u8>, Option<Value>)> {
    let mut bytes = vec![0; 2];
    from.read_exact(&mut bytes).await?;
    let (is_text, is_masked) = (bytes[0] == 0x81, bytes[1] & 0x80 != 0);
    let more = match bytes[1] & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    let mut length = u64::from(bytes[1] & 0x7f);
    if more > 0 {
        let mut long = [0; 8];
        from.read_exact(&mut long[8 - more..]).await?;
        bytes.extend(&long[8 - more..]);
        length = u64::from_be_bytes(long);
    }
    let mut mask = [0; 4];
    if is_masked {
        from.read_exact(&mut mask).await?;
        bytes.extend(mask);
    }
    let mut payload = vec![0; usize::try_from(length).expect("a length")];
    from.read_exact(&mut payload).await?;
    bytes.extend(&payload);
    payload.iter_mut().enumerate().for_each(|(index, byte)| *byte ^= mask[index % 4]);
    Ok((bytes, is_text.then(|| serde_json::from_slice(&payload).ok()).flatten()))
}
