//! The sockets that count: at most one for each device of each user, the newest wins.

use devmind_domain::ids::{ConnectionId, DeviceId, UserId};
use devmind_domain::protocol::{CloseCode, RegisteredTool, ServerFrame};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// Why a socket is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closing {
    /// The close code.
    pub code: u16,
    /// Words; at most 123 bytes on the wire (RFC 6455 §5.5).
    pub reason: String,
}

impl Closing {
    /// A closing.
    pub fn new(code: CloseCode, reason: impl Into<String>) -> Self {
        Self { code: code.as_u16(), reason: reason.into() }
    }
}

/// One registered socket.
#[derive(Debug)]
pub struct Connection {
    /// The socket.
    pub id: ConnectionId,
    /// 1, 2, 3 … with every socket of the device.
    pub epoch: u64,
    /// Whose.
    pub user_id: UserId,
    /// Which device.
    pub device_id: DeviceId,
    /// The device's journal.
    pub journal_id: String,
    /// Frames to send; bounded.
    pub outbox: mpsc::Sender<ServerFrame>,
    /// Set once to close the socket.
    pub closing: watch::Sender<Option<Closing>>,
    /// Cancelled when the end of the socket is recorded: whoever waits on it may go on.
    pub ended: CancellationToken,
    /// The tools the device offers; absent until its first sync, and offline until then.
    pub tools: Mutex<Option<Vec<RegisteredTool>>>,
}

impl Connection {
    /// Closes the socket; the first reason counts.
    pub fn close(&self, closing: Closing) {
        self.closing.send_if_modified(|slot| {
            let first = slot.is_none();
            if first {
                *slot = Some(closing);
            }
            first
        });
    }

    /// Sends a frame. A queue that is full means that the peer takes nothing: the socket is closed.
    pub fn send(&self, frame: ServerFrame) -> bool {
        let sent = self.outbox.try_send(frame).is_ok();
        if !sent {
            self.close(Closing::new(CloseCode::Busy, "the device takes no frames"));
        }
        sent
    }

    /// Whether the device has synced its tools.
    pub fn is_synced(&self) -> bool {
        self.tools.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Whether the device offers this tool in this version.
    pub fn offers(&self, tool: &str, version: &str) -> bool {
        let tools = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        tools.iter().flatten().any(|own| own.name == tool && own.version == version)
    }
}

#[derive(Debug, Default)]
struct Current {
    /// The one socket of each device.
    by_device: HashMap<(UserId, DeviceId), Arc<Connection>>,
    by_id: HashMap<ConnectionId, Arc<Connection>>,
}

/// Every socket that counts.
#[derive(Clone, Debug, Default)]
pub struct Connections {
    current: Arc<Mutex<Current>>,
}

impl Connections {
    /// Enters a socket; an older one of the same device is closed as replaced. Returns false where a
    /// newer one is there already: then this one has lost.
    pub fn enter(&self, connection: &Arc<Connection>) -> bool {
        let key = (connection.user_id.clone(), connection.device_id.clone());
        let mut current = self.lock();
        if current.by_device.get(&key).is_some_and(|other| other.epoch > connection.epoch) {
            return false;
        }
        let old = current.by_device.insert(key, connection.clone());
        current.by_id.insert(connection.id.clone(), connection.clone());
        if let Some(old) = &old {
            current.by_id.remove(&old.id);
        }
        drop(current);
        if let Some(old) = old {
            old.close(Closing::new(CloseCode::Replaced, "another connection of this device took over"));
        }
        true
    }

    /// Removes a socket, only if it is still the one that counts.
    pub fn leave(&self, connection: &Connection) {
        let key = (connection.user_id.clone(), connection.device_id.clone());
        let mut current = self.lock();
        if current.by_device.get(&key).is_some_and(|own| own.id == connection.id) {
            current.by_device.remove(&key);
            current.by_id.remove(&connection.id);
        }
    }

    /// The device's socket, once its tools are synced.
    pub fn online(&self, user_id: &UserId, device_id: &DeviceId) -> Option<Arc<Connection>> {
        let key = (user_id.clone(), device_id.clone());
        self.lock().by_device.get(&key).filter(|connection| connection.is_synced()).cloned()
    }

    /// The socket of this id, while it counts at this process.
    pub fn by_id(&self, id: &ConnectionId) -> Option<Arc<Connection>> {
        self.lock().by_id.get(id).cloned()
    }

    /// How many devices have a socket at this process.
    pub fn len(&self) -> usize {
        self.lock().by_device.len()
    }

    /// Whether no device has a socket at this process.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Closes every socket.
    pub fn close_all(&self, closing: &Closing) {
        for connection in self.lock().by_device.values() {
            connection.close(closing.clone());
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn connection(id: &str, epoch: u64) -> Arc<Connection> {
        Arc::new(Connection {
            id: id.into(),
            epoch,
            user_id: "u".into(),
            device_id: "d".into(),
            journal_id: "j".into(),
            outbox: mpsc::channel(1).0,
            closing: watch::channel(None).0,
            ended: CancellationToken::new(),
            tools: Mutex::new(Some(Vec::new())),
        })
    }

    #[test]
    fn inv_a11_the_newest_socket_wins_in_whatever_order_they_arrive_and_a_late_close_removes_nobody_else() {
        let connections = Connections::default();
        let (first, second) = (connection("c1", 1), connection("c2", 2));
        assert!(connections.enter(&first) && connections.enter(&second));
        assert_eq!(first.closing.borrow().as_ref().map(|closing| closing.code), Some(4409));
        assert!(!connections.enter(&connection("c0", 1)), "an older socket took over");
        connections.leave(&first);
        let online = connections.online(&"u".into(), &"d".into()).expect("still online");
        assert_eq!(online.id, "c2".into());
        connections.leave(&second);
        assert!(connections.online(&"u".into(), &"d".into()).is_none());
    }
}
