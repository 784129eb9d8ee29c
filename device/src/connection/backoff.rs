//! How long to wait before connecting again.

use std::time::Duration;

/// Full jitter: anything between nothing and a bound that doubles with each failure. Many devices
/// that lost the same server do not come back at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The bound after the first failure.
    pub base: Duration,
    /// The bound after many.
    pub cap: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_secs(1), cap: Duration::from_secs(60) }
    }
}

impl Backoff {
    /// The longest wait after the `failures`-th failure in a row (1, 2, 3 …).
    pub fn bound(&self, failures: u32) -> Duration {
        let doubled = 1u32.checked_shl(failures.saturating_sub(1)).and_then(|times| self.base.checked_mul(times));
        doubled.map_or(self.cap, |bound| bound.min(self.cap))
    }

    /// The wait for a random number.
    pub fn delay(&self, failures: u32, random: u64) -> Duration {
        let share = random as f64 / u64::MAX as f64;
        self.bound(failures).mul_f64(share)
    }

    /// The wait, drawn at random.
    pub(super) fn draw(&self, failures: u32) -> Duration {
        // Without randomness the longest wait is the polite one.
        self.delay(failures, getrandom::u64().unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_doubles_from_one_second_to_sixty_and_stays() {
        let bounds: Vec<u64> = (1..=9).map(|failures| Backoff::default().bound(failures).as_secs()).collect();
        assert_eq!(bounds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(Backoff::default().bound(u32::MAX).as_secs(), 60);
    }

    #[test]
    fn a_wait_lies_anywhere_between_nothing_and_the_bound() {
        let backoff = Backoff::default();
        assert_eq!(backoff.delay(4, 0), Duration::ZERO);
        assert_eq!(backoff.delay(4, u64::MAX), Duration::from_secs(8));
        let draws: Vec<Duration> = (0..200).map(|_| backoff.draw(7)).collect();
        assert!(draws.iter().all(|wait| *wait <= Duration::from_secs(60)));
        let early = draws.iter().filter(|wait| **wait < Duration::from_secs(30)).count();
        assert!((40..160).contains(&early), "{early} of 200 in the first half");
    }
}
