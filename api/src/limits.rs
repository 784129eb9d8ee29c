//! How much one server process lets others have of it: settings, each with a default that the README's
//! readers can rely on. What a limit means is said where it is applied.

use devmind_domain::limits::{
    HEARTBEAT_INTERVAL_MS, REGISTER_WITHIN_MS, SEND_DEADLINE_MS, SILENCE_MS, TICKETS_PER_MINUTE,
};
use governor::Quota;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

/// The limits of a process. Every one is at least 1.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Connections that are open at a time.
    pub connections: u32,
    /// Of those, from one address.
    pub connections_per_address: u32,
    /// A request's head must be complete within this time (milliseconds).
    pub head_within_ms: u64,
    /// Device sockets that have not registered yet, at a time.
    pub pending_sockets: u32,
    /// Of those, from one address.
    pub pending_sockets_per_address: u32,
    /// Device sockets that one address may open in a minute.
    pub connects_per_minute: u32,
    /// Tickets that a user may ask for in a minute.
    pub tickets_per_minute: u32,
    /// Messages that a device may send in a second, lastingly.
    pub messages_per_second: u32,
    /// Messages that a device may send at once.
    pub message_burst: u32,
    /// Calls in a minute that a device's user is not asked about (listings).
    pub listings_per_minute: u32,
    /// A device must register within this time of the upgrade (milliseconds).
    pub register_within_ms: u64,
    /// A device socket gets a heartbeat and a ping this often (milliseconds).
    pub heartbeat_interval_ms: u64,
    /// A device that completes no message for this long is gone (milliseconds).
    pub silence_ms: u64,
    /// A frame must leave within this time (milliseconds).
    pub send_deadline_ms: u64,
    /// Reverse proxies: everybody behind one has its address, so the limits of an address are not theirs.
    pub proxies: Vec<IpAddr>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1_024,
            connections_per_address: 256,
            head_within_ms: 10_000,
            pending_sockets: 64,
            pending_sockets_per_address: 8,
            connects_per_minute: 20,
            tickets_per_minute: TICKETS_PER_MINUTE,
            messages_per_second: 50,
            message_burst: 100,
            listings_per_minute: 60,
            register_within_ms: REGISTER_WITHIN_MS,
            heartbeat_interval_ms: HEARTBEAT_INTERVAL_MS,
            silence_ms: SILENCE_MS,
            send_deadline_ms: SEND_DEADLINE_MS,
            proxies: Vec::new(),
        }
    }
}

impl Limits {
    /// What cannot be used, if something cannot.
    pub fn problem(&self) -> Option<String> {
        let numbers = [
            ("connections", u64::from(self.connections)),
            ("connections_per_address", self.connections_per_address.into()),
            ("head_within_ms", self.head_within_ms),
            ("pending_sockets", self.pending_sockets.into()),
            ("pending_sockets_per_address", self.pending_sockets_per_address.into()),
            ("connects_per_minute", self.connects_per_minute.into()),
            ("tickets_per_minute", self.tickets_per_minute.into()),
            ("messages_per_second", self.messages_per_second.into()),
            ("message_burst", self.message_burst.into()),
            ("listings_per_minute", self.listings_per_minute.into()),
            ("register_within_ms", self.register_within_ms),
            ("heartbeat_interval_ms", self.heartbeat_interval_ms),
            ("silence_ms", self.silence_ms),
            ("send_deadline_ms", self.send_deadline_ms),
        ];
        if let Some((name, _)) = numbers.iter().find(|(_, number)| *number == 0) {
            return Some(format!("limits.{name}: must not be 0"));
        }
        // A device that sends a heartbeat as often as it is told to must not look silent.
        (self.silence_ms <= self.heartbeat_interval_ms)
            .then(|| "limits.silence_ms: must be more than heartbeat_interval_ms".to_owned())
    }

    /// The address that the limits of an address count by; `None` for a proxy. An IPv6 host has a whole
    /// /64 to itself (RFC 6177), so that is what counts as one address.
    pub fn counted(&self, address: IpAddr) -> Option<IpAddr> {
        let address = address.to_canonical();
        if self.proxies.iter().any(|proxy| proxy.to_canonical() == address) {
            return None;
        }
        Some(match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(host) => IpAddr::V6((host.to_bits() & !u128::from(u64::MAX)).into()),
        })
    }
}

/// A number of milliseconds.
pub fn millis(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// So many a minute, and no more at once.
pub fn a_minute(number: u32) -> Quota {
    Quota::per_minute(at_least_one(number))
}

/// So many a second lastingly, and `burst` at once.
pub fn a_second(number: u32, burst: u32) -> Quota {
    Quota::per_second(at_least_one(number)).allow_burst(at_least_one(burst))
}

fn at_least_one(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_one_ipv6_network_count_as_one_address_and_a_proxy_as_none() {
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let limits = Limits { proxies: vec![address("10.0.0.1")], ..Limits::default() };
        assert_eq!(limits.counted(address("2001:db8::1")), limits.counted(address("2001:db8::ffff:2")));
        assert_ne!(limits.counted(address("2001:db8::1")), limits.counted(address("2001:db8:0:1::1")));
        assert_eq!(limits.counted(address("192.0.2.1")), Some(address("192.0.2.1")));
        assert_eq!(limits.counted(address("::ffff:192.0.2.1")), Some(address("192.0.2.1")));
        assert_eq!(limits.counted(address("::ffff:10.0.0.1")), None);
    }

    #[test]
    fn a_limit_of_nothing_and_a_silence_shorter_than_the_heartbeat_are_refused() {
        assert_eq!(Limits::default().problem(), None);
        let none = Limits { message_burst: 0, ..Limits::default() };
        assert!(none.problem().is_some_and(|problem| problem.contains("message_burst")));
        let short = Limits { silence_ms: 15_000, ..Limits::default() };
        assert!(short.problem().is_some_and(|problem| problem.contains("silence_ms")));
    }
}
