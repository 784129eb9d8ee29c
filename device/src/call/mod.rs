//! A tool call on the device: the fixed order of checks, from the frame to the settled row.
//!
//! Every call is judged by one task of its own, which no lost connection ends. While it runs, a
//! repeated request joins it, and a cancel is a mark that only rises (`attempt` and earlier), so
//! neither needs a place in a queue. Everything the server may treat as final is a journal row
//! before it is said; results are not sent from here but wait in the journal, from where
//! `connection` sends them until they are acknowledged.

mod cancels;
mod checks;
mod frame_size;
mod open_call;
mod steps;
#[cfg(test)]
mod tests;

use crate::clock::Deadline;
use crate::confirm::Confirm;
use crate::journal::{Journal, JournalError, Owner, Settlement};
use crate::tools::LocalTool;
use crate::workspace::Workspace;
use async_trait::async_trait;
use cancels::Cancels;
use devmind_domain::ErrorCode;
use devmind_domain::ids::{DeviceId, ToolCallId};
use devmind_domain::protocol::{CallRequest, CallResult, DeviceFrame};
use devmind_domain::tool_call::Phase;
pub(crate) use frame_size::fitting;
use open_call::OpenCall;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Blocking steps (opening, executing) at the same time, at most.
const MAX_BLOCKING: usize = 4;
/// Calls being judged, asked about or executed at the same time, at most.
const MAX_OPEN_CALLS: usize = 32;
/// How long a stopping program waits for what executes.
const STOP_WITHIN: Duration = Duration::from_secs(15);

/// Where a request came from, and where what is said about it goes.
#[async_trait]
pub trait Peer: Send + Sync {
    /// Whom the result belongs to.
    fn owner(&self) -> &Owner;
    /// The largest frame it takes (bytes).
    fn max_message_bytes(&self) -> usize;
    /// Sends a frame, if the connection still stands.
    async fn send(&self, frame: DeviceFrame);
}

/// What the calls of a device work with.
pub struct Calls {
    pub(crate) device_id: DeviceId,
    pub(crate) tools: Vec<Arc<dyn LocalTool>>,
    pub(crate) workspace: Arc<Workspace>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) confirm: Arc<dyn Confirm>,
    open: Mutex<HashMap<ToolCallId, Arc<OpenCall>>>,
    cancels: Mutex<Cancels>,
    pub(crate) blocking: Arc<Semaphore>,
    tasks: TaskTracker,
    pub(crate) stopping: CancellationToken,
    settled: watch::Sender<u64>,
}

/// Why the checks ended before a settlement, or with one.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Refused without settling: the server's wait ends with this code.
    Refused(ErrorCode),
    /// Known from before: the stored result again.
    Repeat(Box<CallResult>),
    /// Refused before the reservation; to be recorded.
    Verdict(Settlement),
}

impl From<JournalError> for Stop {
    fn from(error: JournalError) -> Self {
        Self::Refused(error.code())
    }
}

impl Calls {
    /// The calls of one device.
    pub fn new(
        device_id: DeviceId,
        tools: Vec<Arc<dyn LocalTool>>,
        workspace: Arc<Workspace>,
        journal: Arc<Journal>,
        confirm: Arc<dyn Confirm>,
    ) -> Arc<Self> {
        Arc::new(Self {
            device_id,
            tools,
            workspace,
            journal,
            confirm,
            open: Mutex::default(),
            cancels: Mutex::default(),
            blocking: Arc::new(Semaphore::new(MAX_BLOCKING)),
            tasks: TaskTracker::new(),
            stopping: CancellationToken::new(),
            settled: watch::Sender::new(0),
        })
    }

    /// Changes whenever a call is settled and its result waits in the journal.
    pub fn settled(&self) -> watch::Receiver<u64> {
        self.settled.subscribe()
    }

    /// Takes a request. Returns at once; what comes of it is sent to the peer or waits in the
    /// journal.
    pub fn request(self: &Arc<Self>, peer: Arc<dyn Peer>, request: CallRequest) {
        // The time to live counts from here.
        let deadline = Deadline::after(Duration::from_millis(request.ttl_ms));
        let say = match self.admit(&peer, &request) {
            Admitted::Opened(call) => {
                let calls = self.clone();
                self.tasks.spawn(async move { calls.carry_out(&call, &request, deadline).await });
                return;
            }
            Admitted::Joined(None) => return,
            Admitted::Joined(Some(phase)) => {
                DeviceFrame::Received { tool_call_id: request.tool_call_id, attempt_no: request.attempt_no, phase }
            }
            Admitted::Refused(code) => refused(&request.tool_call_id, request.attempt_no, code),
        };
        self.tasks.spawn(async move { peer.send(say).await });
    }

    /// Takes back this attempt and earlier ones, whether the request has come or not.
    pub fn cancel(&self, id: &ToolCallId, attempt_no: u32) {
        // The order of the two locks is the same as in `admit`: a request sees the mark or the
        // cancel sees the call.
        let open = lock(&self.open);
        lock(&self.cancels).remember(id, attempt_no);
        if let Some(call) = open.get(id) {
            call.cancel_up_to(attempt_no);
        }
    }

    /// Takes no more calls, closes open questions, and waits for what executes.
    pub async fn stop(&self) {
        self.stopping.cancel();
        self.tasks.close();
        if tokio::time::timeout(STOP_WITHIN, self.tasks.wait()).await.is_err() {
            tracing::warn!("a tool does not end; the next start settles its call as indeterminate");
        }
    }

    fn admit(&self, peer: &Arc<dyn Peer>, request: &CallRequest) -> Admitted {
        // Check 1 comes before everything, also before joining.
        if let Err(code) = checks::is_mine(&self.device_id, request) {
            return Admitted::Refused(code);
        }
        let mut open = lock(&self.open);
        if self.stopping.is_cancelled() || open.len() >= MAX_OPEN_CALLS && !open.contains_key(&request.tool_call_id) {
            return Admitted::Refused(ErrorCode::DeviceBusy);
        }
        match open.entry(request.tool_call_id.clone()) {
            Entry::Occupied(call) if !call.get().is_the_same(request, peer.owner()) => {
                Admitted::Refused(ErrorCode::IdempotencyConflict)
            }
            Entry::Occupied(call) => Admitted::Joined(call.get().join(peer.clone(), request.attempt_no)),
            Entry::Vacant(place) => {
                let call = Arc::new(OpenCall::new(peer.clone(), request));
                if let Some(attempt_no) = lock(&self.cancels).up_to(&request.tool_call_id) {
                    call.cancel_up_to(attempt_no);
                }
                Admitted::Opened(place.insert(call).clone())
            }
        }
    }

    /// Judges and, if allowed, executes one call.
    async fn carry_out(&self, call: &OpenCall, request: &CallRequest, deadline: Deadline) {
        let ended = self.judge(call, request, deadline).await;
        // First closed, then told: a repeated request from now on finds the row.
        lock(&self.open).remove(&request.tool_call_id);
        match ended {
            Ok(()) => self.settled.send_modify(|count| *count += 1),
            Err(Stop::Refused(code)) => {
                tracing::info!(tool_call.id = %request.tool_call_id, %code, "call refused");
                call.say(|id, attempt_no| refused(id, attempt_no, code)).await;
            }
            Err(Stop::Repeat(result)) => call.say_result(*result).await,
            Err(Stop::Verdict(_)) => tracing::error!("a verdict was not recorded"),
        }
    }

    /// The checks of the specification, in their order. `Ok` means: settled, durably.
    async fn judge(&self, call: &OpenCall, request: &CallRequest, deadline: Deadline) -> Result<(), Stop> {
        let id = &request.tool_call_id;
        // 1. The device was checked at the door. 6, looked at first: a repeated call gets its first
        // verdict, and a call from before the journal's memory none.
        if let Some(row) = self.journal.find(id).await? {
            return Err(checks::repeat(row, request, call.owner()));
        }
        self.journal.admit(request.call_created_at).await?;
        // 2 to 5. Tool and version, arguments, paths, age.
        let mut ready = match self.examine(request, &deadline).await {
            Err(Stop::Verdict(verdict)) => {
                self.journal.record_verdict(request, call.owner(), &verdict).await?;
                return Ok(());
            }
            examined => examined?,
        };
        // 6. From here on the call is known, whatever happens.
        self.journal.reserve(request, call.owner()).await?;
        call.enter(Phase::Reserved).await;
        // 7 and 8. The person, and whether it is still wanted.
        let settlement = match self.decide(call, request, &mut ready, &deadline).await {
            Err(refusal) => refusal,
            // 9. Only a call that was reserved begins.
            Ok(slot) => {
                if !self.journal.begin(id).await? {
                    return Err(Stop::Refused(ErrorCode::DeviceJournalFailed));
                }
                call.enter(Phase::Executing).await;
                self.execute(call, request, ready, slot).await
            }
        };
        self.journal.settle(id, &settlement).await?;
        Ok(())
    }
}

enum Admitted {
    Opened(Arc<OpenCall>),
    /// The call is being judged (`None`) or has got so far.
    Joined(Option<Phase>),
    Refused(ErrorCode),
}

fn refused(id: &ToolCallId, attempt_no: u32, code: ErrorCode) -> DeviceFrame {
    DeviceFrame::Refused { tool_call_id: id.clone(), attempt_no, code: code.as_str().to_owned() }
}

/// A lock whose data stays whole even if a holder panicked: every change under it is one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
