//! The connection to the server: made, kept, lost, and made again.
//!
//! Each time a fresh ticket over HTTP, then the socket, then `device.register`. What is said on it is
//! left to `call` (requests) and the journal (results); no call depends on the connection it came
//! on.

mod backoff;
mod head;
mod lost;
mod outbox;
mod server;
mod server_clock;
mod session;
mod socket;
mod ticket;

pub use backoff::Backoff;
pub use server::Identity;
pub(crate) use server::Server;

use crate::call::Calls;
use crate::device::Health;
use crate::error::DeviceError;
use crate::journal::Journal;
use devmind_domain::ErrorCode;
use devmind_domain::ids::{ConnectionId, DeviceId};
use devmind_domain::protocol::Names;
use lost::Lost;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A connection that lasted so long was a good one: the next failure counts as the first.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);
/// After so many broken protocols in a row the device stops.
const MAX_PROTOCOL_FAILURES: u32 = 3;

/// How the device stands with its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionStatus {
    /// On the way.
    Connecting,
    /// Registered, its tools announced.
    Online {
        /// The server's name for the socket.
        connection_id: ConnectionId,
    },
    /// Not connected, trying again.
    Offline {
        /// Why, for people.
        reason: String,
        /// After how long.
        retry_in: Duration,
    },
    /// Not connected, and not trying again.
    Stopped {
        /// A stable code; `None` when the device was asked to stop.
        code: Option<ErrorCode>,
        /// Why, for people.
        reason: String,
    },
}

/// What every connection of the device needs.
pub(crate) struct Link {
    pub(crate) server: Server,
    pub(crate) identity: Identity,
    pub(crate) backoff: Backoff,
    pub(crate) device_id: DeviceId,
    pub(crate) instance_id: String,
    pub(crate) names: Names,
    pub(crate) journal: Arc<Journal>,
    pub(crate) calls: Arc<Calls>,
    pub(crate) health: watch::Sender<Health>,
}

/// Keeps connected until asked to hang up, or until connecting again cannot help.
pub(crate) async fn run(
    link: Arc<Link>,
    hang_up: CancellationToken,
    status: &watch::Sender<ConnectionStatus>,
) -> Result<(), DeviceError> {
    let client = ticket::client(&link.server).map_err(|error| {
        DeviceError::new(ErrorCode::ConfigInvalid, "this computer cannot speak https")
            .with_hint("install the system's CA certificates")
            .caused_by(error)
    })?;
    let mut failures = Failures::default();
    loop {
        status.send_replace(ConnectionStatus::Connecting);
        let began = Instant::now();
        let open = async {
            let fetching = ticket::fetch(&client, &link.server, &link.identity, &link.device_id);
            let ticket = kill_point::around(|| "fetch ticket".to_owned(), fetching).await?;
            kill_point::around(|| "open socket".to_owned(), socket::open(&link.server, &ticket)).await
        };
        let opened = tokio::select! {
            () = hang_up.cancelled() => Err(Lost::HungUp),
            opened = open => opened,
        };
        let lost = match opened {
            Ok(socket) => {
                let online = |registered: &devmind_domain::protocol::Registered| {
                    let connection_id = registered.connection_id.clone();
                    status.send_replace(ConnectionStatus::Online { connection_id });
                };
                session::serve(&link, &client, socket, &hang_up, online).await
            }
            Err(lost) => lost,
        };
        if began.elapsed() >= HEALTHY_AFTER {
            failures = Failures::default();
        }
        let (reason, wait) = match failures.next(lost, &link.backoff) {
            Next::Wait { reason, wait } => (reason, wait),
            Next::Stop(None) => return Ok(()),
            Next::Stop(Some((code @ ErrorCode::LedgerForked, reason))) => {
                return Err(DeviceError::new(code, reason).with_hint(
                    "ask who runs the server: its log was restored from a copy, rewritten or replaced. Both signed heads \
                     are in the journal; to go on with that log as a new device, name a new folder with --state",
                ));
            }
            Next::Stop(Some((code, reason))) => return Err(DeviceError::new(code, reason)),
        };
        tracing::info!(reason, wait_ms = wait.as_millis(), "not connected");
        status.send_replace(ConnectionStatus::Offline { reason, retry_in: wait });
        tokio::select! {
            () = hang_up.cancelled() => return Ok(()),
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Failures in a row.
#[derive(Default)]
struct Failures {
    all: u32,
    protocol: u32,
    ticket: u32,
}

enum Next {
    Wait { reason: String, wait: Duration },
    Stop(Option<(ErrorCode, String)>),
}

impl Failures {
    fn next(&mut self, lost: Lost, backoff: &Backoff) -> Next {
        self.all += 1;
        self.ticket = if matches!(lost, Lost::Ticket { .. }) { self.ticket + 1 } else { 0 };
        self.protocol = if matches!(lost, Lost::Protocol { .. }) { self.protocol + 1 } else { 0 };
        match lost {
            Lost::HungUp => Next::Stop(None),
            Lost::Final { code, reason } => Next::Stop(Some((code, reason))),
            Lost::Protocol { reason } if self.protocol >= MAX_PROTOCOL_FAILURES => {
                Next::Stop(Some((ErrorCode::Protocol, reason)))
            }
            // A ticket may have expired on the way: a fresh one is tried at once, but only once.
            Lost::Ticket { reason } if self.ticket == 1 => Next::Wait { reason, wait: Duration::ZERO },
            Lost::Ticket { reason } | Lost::Protocol { reason } => Next::Wait { reason, wait: backoff.draw(self.all) },
            Lost::Retry { reason, after } => {
                Next::Wait { reason, wait: backoff.draw(self.all).max(after.unwrap_or_default()) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(next: Next) -> Option<Duration> {
        match next {
            Next::Wait { wait, .. } => Some(wait),
            Next::Stop(_) => None,
        }
    }

    #[test]
    fn a_refused_ticket_is_replaced_at_once_but_only_once_in_a_row() {
        // A base that makes "at once" and "after a while" impossible to confuse.
        let backoff = Backoff { base: Duration::from_secs(1_000_000), cap: Duration::from_secs(1_000_000) };
        let mut failures = Failures::default();
        let ticket = || Lost::Ticket { reason: String::new() };
        assert_eq!(wait(failures.next(ticket(), &backoff)), Some(Duration::ZERO));
        assert!(wait(failures.next(ticket(), &backoff)).is_some_and(|wait| wait > Duration::ZERO));
        assert!(wait(failures.next(Lost::retry("gone"), &backoff)).is_some());
        assert_eq!(wait(failures.next(ticket(), &backoff)), Some(Duration::ZERO));
    }

    #[test]
    fn a_server_that_asks_to_wait_is_waited_for_and_a_broken_protocol_stops_after_three() {
        let mut failures = Failures::default();
        let backoff = Backoff::default();
        let later = Lost::Retry { reason: String::new(), after: Some(Duration::from_secs(120)) };
        assert_eq!(wait(failures.next(later, &backoff)), Some(Duration::from_secs(120)));
        let broken = || Lost::Protocol { reason: String::new() };
        assert!(wait(failures.next(broken(), &backoff)).is_some());
        assert!(wait(failures.next(broken(), &backoff)).is_some());
        assert!(wait(failures.next(broken(), &backoff)).is_none());
    }
}
