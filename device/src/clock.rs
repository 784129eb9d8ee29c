//! Moments and deadlines of the device.
//!
//! A deadline is judged by two clocks: `Instant` does not count the time a laptop sleeps, and the
//! wall clock can be set back. Whichever says first that it is over is believed.

use devmind_domain::Timestamp;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often a waiting task looks at the wall clock: a sleep that outlasts a suspend is noticed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Now, in UTC; the epoch where the clock stands before it.
pub fn now() -> Timestamp {
    timestamp(SystemTime::now())
}

/// A moment of the file system or the clock.
pub fn timestamp(moment: SystemTime) -> Timestamp {
    let micros = moment.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
    Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
}

/// A moment after which something must not begin.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    steady: Instant,
    wall: SystemTime,
}

impl Deadline {
    /// So long from now.
    pub fn after(wait: Duration) -> Self {
        // A wait that no clock can hold is as good as a year.
        let wait = wait.min(Duration::from_secs(365 * 24 * 3_600));
        Self { steady: Instant::now() + wait, wall: SystemTime::now() + wait }
    }

    /// What is left by the clock that has less left.
    pub fn remaining(&self) -> Duration {
        let by_wall = self.wall.duration_since(SystemTime::now()).unwrap_or(Duration::ZERO);
        self.steady.saturating_duration_since(Instant::now()).min(by_wall)
    }

    /// Its moment by the steady clock: deadlines are put in order by it.
    pub fn ends_at(&self) -> Instant {
        self.steady
    }

    /// Whether it has passed.
    pub fn has_passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Waits until it has passed.
    pub async fn passed(&self) {
        loop {
            let left = self.remaining();
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(LOOK_AGAIN)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_has_passed_as_soon_as_either_clock_says_so() {
        let hour = Duration::from_secs(3_600);
        let (now, wall) = (Instant::now(), SystemTime::now());
        assert!(!Deadline { steady: now + hour, wall: wall + hour }.has_passed());
        assert!(Deadline { steady: now + hour, wall: wall - hour }.has_passed(), "slept through it");
        assert!(Deadline { steady: now, wall: wall + hour }.has_passed(), "the wall clock was set back");
    }
}
