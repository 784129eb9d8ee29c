//! The runs under way in this process, and how they are told to stop.

use devmind_domain::conversation::RunCancelReason;
use devmind_domain::ids::RunId;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio_util::sync::CancellationToken;

/// Why a run must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The run is cancelled for this reason.
    Cancelled(RunCancelReason),
    /// The server ends.
    ShuttingDown,
}

/// Tells one run, or a part of it, to stop; the first reason counts.
#[derive(Clone, Debug, Default)]
pub struct StopSignal {
    token: CancellationToken,
    reason: Arc<OnceLock<StopReason>>,
    /// The run that this is a part of.
    whole: Option<Arc<OnceLock<StopReason>>>,
}

impl StopSignal {
    /// Stops the run.
    pub fn stop(&self, reason: StopReason) {
        // Set before the token is cancelled: whoever wakes up finds the reason.
        let _ = self.reason.set(reason);
        self.token.cancel();
    }

    /// Waits until the run must stop.
    pub async fn stopped(&self) -> StopReason {
        self.token.cancelled().await;
        self.reason().unwrap_or(StopReason::ShuttingDown)
    }

    /// A signal for a part of the run: stopped with the run, and can be stopped for itself.
    pub fn of_a_part(&self) -> Self {
        Self { token: self.token.child_token(), reason: Arc::default(), whole: Some(self.reason.clone()) }
    }

    /// A token that is cancelled with the run, and can be cancelled for itself.
    pub fn narrowed(&self) -> CancellationToken {
        self.token.child_token()
    }

    /// Why the run must stop, if it must.
    pub fn reason(&self) -> Option<StopReason> {
        let whole = self.whole.as_ref().and_then(|whole| whole.get());
        whole.or_else(|| self.reason.get()).copied()
    }
}

/// The runs under way in this process. A run can be entered more than once: a second claim of it is
/// under way until it is refused.
#[derive(Clone, Debug, Default)]
pub struct ActiveRuns {
    entries: Arc<Mutex<Vec<Entry>>>,
}

#[derive(Clone, Debug)]
struct Entry {
    run_id: RunId,
    signal: StopSignal,
    ended: CancellationToken,
}

impl ActiveRuns {
    /// Enters a run; it leaves when the guard is dropped.
    pub fn enter(&self, run_id: &RunId) -> ActiveRun {
        let (signal, ended) = (StopSignal::default(), CancellationToken::new());
        self.lock().push(Entry { run_id: run_id.clone(), signal: signal.clone(), ended: ended.clone() });
        ActiveRun { runs: self.clone(), signal, ended }
    }

    /// Stops a run that is under way in this process, and waits until it has left.
    pub async fn stop(&self, run_id: &RunId, reason: StopReason) {
        let own: Vec<Entry> = self.lock().iter().filter(|entry| entry.run_id == *run_id).cloned().collect();
        for entry in &own {
            entry.signal.stop(reason);
        }
        for entry in own {
            entry.ended.cancelled().await;
        }
    }

    /// Stops a run that is under way in this process.
    pub fn tell(&self, run_id: &RunId, reason: StopReason) {
        for entry in self.lock().iter().filter(|entry| entry.run_id == *run_id) {
            entry.signal.stop(reason);
        }
    }

    /// How many runs are under way in this process.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether no run is under way in this process.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the run is under way in this process.
    pub fn contains(&self, run_id: &RunId) -> bool {
        self.lock().iter().any(|entry| entry.run_id == *run_id)
    }

    /// Stops every run.
    pub fn stop_all(&self, reason: StopReason) {
        for entry in self.lock().iter() {
            entry.signal.stop(reason);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A run under way.
#[derive(Debug)]
pub struct ActiveRun {
    runs: ActiveRuns,
    /// How it is told to stop.
    pub signal: StopSignal,
    ended: CancellationToken,
}

impl Drop for ActiveRun {
    fn drop(&mut self) {
        self.runs.lock().retain(|entry| !Arc::ptr_eq(&entry.signal.reason, &self.signal.reason));
        self.ended.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stopping_a_run_reaches_it_also_while_a_second_claim_of_it_comes_and_goes() {
        let runs = ActiveRuns::default();
        let first = runs.enter(&"r".into());
        drop(runs.enter(&"r".into()));
        let signal = first.signal.clone();
        let task = tokio::spawn(async move {
            let reason = first.signal.stopped().await;
            drop(first);
            reason
        });
        let reason = StopReason::Cancelled(RunCancelReason::Stopped);
        runs.stop(&"r".into(), reason).await;
        assert_eq!(task.await.expect("ended"), reason);
        signal.stop(StopReason::ShuttingDown);
        assert_eq!(signal.reason(), Some(reason), "the first reason counts");
        assert!(runs.lock().is_empty());
    }

    #[tokio::test]
    async fn a_part_stops_with_its_run_and_a_run_does_not_stop_with_its_part() {
        let run = StopSignal::default();
        let (part, other) = (run.of_a_part(), run.of_a_part());
        part.stop(StopReason::ShuttingDown);
        assert_eq!(part.stopped().await, StopReason::ShuttingDown);
        assert_eq!((run.reason(), other.reason()), (None, None));
        let reason = StopReason::Cancelled(RunCancelReason::Stopped);
        run.stop(reason);
        assert_eq!((other.stopped().await, run.reason()), (reason, Some(reason)));
    }
}
