//! The runs under way in this process, and how they are told to stop.

use devmind_domain::conversation::RunCancelReason;
use devmind_domain::ids::RunId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio_util::sync::CancellationToken;

/// Why a run must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The run is cancelled for this reason.
    Cancelled(RunCancelReason),
    /// The server ends.
    ShuttingDown,
}

/// Tells one run to stop; the first reason counts.
#[derive(Clone, Debug, Default)]
pub struct StopSignal {
    token: CancellationToken,
    reason: Arc<OnceLock<StopReason>>,
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
        self.reason.get().copied().unwrap_or(StopReason::ShuttingDown)
    }

    /// Why the run must stop, if it must.
    pub fn reason(&self) -> Option<StopReason> {
        self.reason.get().copied()
    }
}

/// The runs under way in this process.
#[derive(Clone, Debug, Default)]
pub struct ActiveRuns {
    signals: Arc<Mutex<HashMap<RunId, StopSignal>>>,
}

impl ActiveRuns {
    /// Enters a run; it leaves when the guard is dropped.
    pub fn enter(&self, run_id: &RunId) -> ActiveRun {
        let signal = StopSignal::default();
        self.lock().insert(run_id.clone(), signal.clone());
        ActiveRun { runs: self.clone(), run_id: run_id.clone(), signal }
    }

    /// Stops every run.
    pub fn stop_all(&self, reason: StopReason) {
        for signal in self.lock().values() {
            signal.stop(reason);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<RunId, StopSignal>> {
        self.signals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A run under way.
#[derive(Debug)]
pub struct ActiveRun {
    runs: ActiveRuns,
    run_id: RunId,
    /// How it is told to stop.
    pub signal: StopSignal,
}

impl Drop for ActiveRun {
    fn drop(&mut self) {
        self.runs.lock().remove(&self.run_id);
    }
}
