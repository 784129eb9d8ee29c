//! How often devices and their users may ask for something. Counted in memory: a restart forgets it.

use crate::limits::{Limits, a_minute};
use devmind_domain::ids::{DeviceId, UserId};
use governor::DefaultKeyedRateLimiter;
use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;

/// One rate for each key.
pub struct Rate<K: Clone + Eq + Hash>(DefaultKeyedRateLimiter<K>);

impl<K: Clone + Eq + Hash> Rate<K> {
    /// So many a minute.
    pub fn a_minute(number: u32) -> Self {
        Self(DefaultKeyedRateLimiter::keyed(a_minute(number)))
    }

    /// Counts one more; false when that is too many.
    pub fn allows(&self, key: &K) -> bool {
        // Who asked for nothing lately is forgotten.
        self.0.retain_recent();
        self.0.check_key(key).is_ok()
    }
}

impl<K: Clone + Eq + Hash> fmt::Debug for Rate<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rate")
    }
}

/// The rates of the gateway.
#[derive(Debug)]
pub struct Rates {
    /// Tickets, by user.
    pub tickets: Rate<UserId>,
    /// Sockets opened, by address.
    pub connects: Rate<IpAddr>,
    /// Calls that a device's user is not asked about (listings), by device.
    pub listings: Rate<(UserId, DeviceId)>,
}

impl Rates {
    /// The rates that are configured.
    pub fn new(limits: &Limits) -> Self {
        Self {
            tickets: Rate::a_minute(limits.tickets_per_minute),
            connects: Rate::a_minute(limits.connects_per_minute),
            listings: Rate::a_minute(limits.listings_per_minute),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use governor::clock::FakeRelativeClock;
    use governor::{Quota, RateLimiter};
    use std::time::Duration;

    #[test]
    fn the_eleventh_of_a_minute_is_refused_and_others_are_not_touched() {
        let rate = Rate::a_minute(10);
        assert!((0..10).all(|_| rate.allows(&"ann")));
        assert!(!rate.allows(&"ann"));
        assert!(rate.allows(&"bob"));
    }

    #[test]
    fn what_was_used_comes_back_with_time() {
        let clock = FakeRelativeClock::default();
        let quota: Quota = a_minute(10);
        let rate = RateLimiter::hashmap_with_clock(quota, clock.clone());
        assert!((0..10).all(|_| rate.check_key(&"ann").is_ok()));
        assert!(rate.check_key(&"ann").is_err());
        clock.advance(Duration::from_secs(6));
        assert!(rate.check_key(&"ann").is_ok() && rate.check_key(&"ann").is_err(), "one in six seconds");
        clock.advance(Duration::from_secs(120));
        rate.retain_recent();
        assert!(rate.is_empty(), "nobody is remembered for ever");
    }
}
