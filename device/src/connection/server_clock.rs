//! The server's clock, as far as a connection can tell.
//!
//! Each answered heartbeat (and the registration) shows the server's time somewhere within a round trip;
//! of the last 16 the shortest round trip says it best (the clock filter of NTP, RFC 5905 §10). It is
//! kept against this computer's steady clock: a wall clock that is set while connected changes nothing.

use crate::clock;
use devmind_domain::Timestamp;
use devmind_domain::protocol::CallRequest;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Round trips that are remembered, and heartbeats whose answers are waited for.
const REMEMBERED: usize = 16;

/// One round trip.
#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    took: Duration,
    /// When half of it was over.
    middle: Instant,
    /// What the server's clock showed then.
    server: Timestamp,
}

/// What is known of the server's clock.
#[derive(Debug, Default)]
pub(super) struct ServerClock {
    sent: VecDeque<(Timestamp, Instant)>,
    trips: VecDeque<RoundTrip>,
}

impl ServerClock {
    /// A heartbeat leaves with this time in it, and is remembered.
    pub(super) fn leaves(&mut self) -> Timestamp {
        let time = clock::now();
        if self.sent.len() == REMEMBERED {
            self.sent.pop_front();
        }
        self.sent.push_back((time, Instant::now()));
        time
    }

    /// The answer to the heartbeat that left with `own`. One that never left says nothing.
    pub(super) fn answered(&mut self, own: Timestamp, server: Timestamp) {
        if let Some(at) = self.sent.iter().position(|(time, _)| *time == own)
            && let Some((_, sent)) = self.sent.remove(at)
        {
            self.round_trip(sent, Instant::now(), server);
        }
    }

    /// Something was sent and answered with the server's time.
    pub(super) fn round_trip(&mut self, sent: Instant, answered: Instant, server: Timestamp) {
        let took = answered.saturating_duration_since(sent);
        if self.trips.len() == REMEMBERED {
            self.trips.pop_front();
        }
        self.trips.push_back(RoundTrip { took, middle: sent + took / 2, server });
    }

    /// How far the server's clock is ahead of this computer's (milliseconds).
    pub(super) fn offset_ms(&self) -> Option<i64> {
        self.now().map(|(server, _)| server.millis_since(clock::now()))
    }

    /// How long the request may still wait (milliseconds): its time to live from now, and no longer than
    /// to its expiry by the server's clock, which may be nearer when it was long on its way.
    pub(super) fn ttl_ms(&self, request: &CallRequest) -> u64 {
        let until_expiry = request.expires_at.zip(self.now()).map(|(expires_at, (server, in_doubt))| {
            let in_doubt = i64::try_from(in_doubt.as_millis()).unwrap_or(i64::MAX);
            u64::try_from(expires_at.millis_since(server).saturating_sub(in_doubt)).unwrap_or(0)
        });
        until_expiry.map_or(request.ttl_ms, |until| until.min(request.ttl_ms))
    }

    /// The server's time, and how far it may be wrong.
    fn now(&self) -> Option<(Timestamp, Duration)> {
        let best = self.trips.iter().min_by_key(|trip| trip.took)?;
        let since = i64::try_from(best.middle.elapsed().as_millis()).unwrap_or(i64::MAX);
        Some((best.server.plus_millis(since), best.took / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    /// A clock that saw one round trip, in whose middle the server was this far ahead.
    fn clock(trips: &[(Duration, i64)]) -> ServerClock {
        let mut clock = ServerClock::default();
        for (took, ahead_ms) in trips {
            let answered = Instant::now();
            let server = clock::now().plus_millis(*ahead_ms).plus_millis(-(took.as_millis() as i64) / 2);
            clock.round_trip(answered - *took, answered, server);
        }
        clock
    }

    fn request(expires_in_ms: Option<i64>) -> CallRequest {
        CallRequest {
            tool_call_id: "call".into(),
            run_id: "run".into(),
            attempt_no: 1,
            tool_name: String::new(),
            tool_version: String::new(),
            arguments_json: String::new(),
            call_hash: String::new(),
            requires_confirmation: false,
            execution_timeout_ms: 0,
            ttl_ms: 100_000,
            expires_at: expires_in_ms.map(|ms| clock::now().plus_millis(ms)),
            call_created_at: clock::now(),
            device_id: "device".into(),
            conversation_title: String::new(),
        }
    }

    fn is_near(value: i64, expected: i64) -> bool {
        // What the test itself takes.
        (value - expected).abs() < 5_000
    }

    #[test]
    fn of_several_round_trips_the_shortest_is_believed_and_only_the_last_sixteen_count() {
        let slow = (Duration::from_secs(40), 900_000);
        let clock_of = |trips: &[(Duration, i64)]| clock(trips).offset_ms().expect("known");
        assert!(is_near(clock_of(&[slow, (Duration::ZERO, 60_000), slow]), 60_000));
        let mut forgotten = vec![(Duration::ZERO, 60_000)];
        forgotten.extend([slow; REMEMBERED]);
        assert!(is_near(clock_of(&forgotten), 900_000));
        assert_eq!(ServerClock::default().offset_ms(), None);
    }

    #[test]
    fn a_request_lives_no_longer_than_to_its_expiry_by_the_servers_clock() {
        let minutes_ahead = clock(&[(Duration::ZERO, 120_000)]);
        // By this computer's clock it would have three minutes, by the server's one.
        let left = minutes_ahead.ttl_ms(&request(Some(180_000)));
        assert!(is_near(left as i64, 60_000), "{left}");
        assert_eq!(minutes_ahead.ttl_ms(&request(Some(100_000))), 0, "expired on its way");
        assert_eq!(minutes_ahead.ttl_ms(&request(Some(3_600_000))), 100_000, "never longer than its time to live");
        assert_eq!(minutes_ahead.ttl_ms(&request(None)), 100_000);
        assert_eq!(ServerClock::default().ttl_ms(&request(Some(1))), 100_000, "a clock not known says nothing");
        let doubtful = clock(&[(HOUR, 0)]);
        assert_eq!(doubtful.ttl_ms(&request(Some(60_000))), 0, "in doubt it is over");
    }

    #[test]
    fn only_a_heartbeat_that_left_is_answered() {
        let mut clock = ServerClock::default();
        let time = clock.leaves();
        clock.answered(time.plus_millis(1), clock::now());
        assert_eq!(clock.offset_ms(), None);
        clock.answered(time, clock::now().plus_millis(-40_000));
        assert!(is_near(clock.offset_ms().expect("known"), -40_000));
        clock.answered(time, clock::now().plus_millis(900_000));
        assert_eq!(clock.trips.len(), 1, "one answer each");
    }
}
