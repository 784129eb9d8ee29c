//! Whether a model is asked again, and when. Deciding that nothing of an answer was passed on yet is
//! the caller's work.

use super::ModelFailure;
use devmind_device::Backoff;
use devmind_domain::limits::{MAX_MODEL_TRIES, MODEL_BACKOFF_CAP_MS, MODEL_BACKOFF_MS, MODEL_RETRY_AFTER_MS};
use std::time::Duration;

/// How long to wait before a model is asked again after the `tries`-th failure (1, 2 …); `None` when
/// it is not: the failure would come again, it was asked often enough, it wants to be left alone for
/// too long, or no time would be `left` for its first byte.
pub fn pause_before_retry(failure: &ModelFailure, tries: u32, left: Duration) -> Option<Duration> {
    if !failure.transient || tries >= MAX_MODEL_TRIES {
        return None;
    }
    let backoff =
        Backoff { base: Duration::from_millis(MODEL_BACKOFF_MS), cap: Duration::from_millis(MODEL_BACKOFF_CAP_MS) };
    // What the endpoint says counts; else full jitter. Without randomness the longest wait is the
    // polite one.
    let drawn = || backoff.delay(tries, getrandom::u64().unwrap_or(u64::MAX));
    let pause = failure.retry_after.unwrap_or_else(drawn);
    (pause <= Duration::from_millis(MODEL_RETRY_AFTER_MS) && pause < left).then_some(pause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use devmind_domain::ErrorCode;

    const LEFT: Duration = Duration::from_secs(60);

    fn busy(retry_after: Option<u64>) -> ModelFailure {
        ModelFailure::new(ErrorCode::ModelRateLimited, "busy").transient(retry_after.map(Duration::from_secs))
    }

    #[test]
    fn a_model_is_asked_three_times_at_most_and_only_when_it_may_help() {
        assert!(pause_before_retry(&busy(None), 1, LEFT).is_some());
        assert!(pause_before_retry(&busy(None), 2, LEFT).is_some());
        assert_eq!(pause_before_retry(&busy(None), 3, LEFT), None);
        assert_eq!(pause_before_retry(&ModelFailure::new(ErrorCode::ModelRefused, "no"), 1, LEFT), None);
    }

    #[test]
    fn the_wait_is_drawn_between_nothing_and_a_bound_that_doubles() {
        for (tries, bound) in [(1, MODEL_BACKOFF_MS), (2, 2 * MODEL_BACKOFF_MS)] {
            let draws: Vec<_> = (0..100).filter_map(|_| pause_before_retry(&busy(None), tries, LEFT)).collect();
            assert_eq!(draws.len(), 100);
            assert!(draws.iter().all(|wait| *wait <= Duration::from_millis(bound)), "{draws:?}");
            assert!(draws.iter().any(|wait| *wait < Duration::from_millis(bound / 2)), "{draws:?}");
            assert!(draws.iter().any(|wait| *wait > Duration::from_millis(bound / 2)), "{draws:?}");
        }
    }

    #[test]
    fn the_endpoints_own_word_is_kept_unless_it_is_too_long() {
        assert_eq!(pause_before_retry(&busy(Some(7)), 1, LEFT), Some(Duration::from_secs(7)));
        assert_eq!(pause_before_retry(&busy(Some(0)), 1, LEFT), Some(Duration::ZERO));
        assert_eq!(pause_before_retry(&busy(Some(31)), 1, LEFT), None, "longer than anybody waits");
        assert_eq!(pause_before_retry(&busy(Some(7)), 1, Duration::from_secs(7)), None, "no time left for a byte");
    }
}
