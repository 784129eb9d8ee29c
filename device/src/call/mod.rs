//! Tool calls on the device: the shell around the device's calls of
//! [`devmind_domain::device_channel::device_call`].
//!
//! Which step follows which is decided there. Here the steps are carried out: every call has one task,
//! which no lost connection ends; it performs what the machine says and brings back what came of it.
//! Requests, cancels and the program's end are fed to the machine as they come. Results are not sent
//! from here but wait in the journal, from where `connection` sends them until they are acknowledged.

mod checks;
mod frame_size;
mod open_call;
mod perform;
#[cfg(test)]
mod tests;

use crate::clock::Deadline;
use crate::confirm::Confirm;
use crate::journal::{Journal, Owner};
use crate::tools::LocalTool;
use crate::workspace::Workspace;
use async_trait::async_trait;
use devmind_domain::device_channel::device_call::{Asked, DeviceCalls, Door, Effect, Input};
use devmind_domain::ids::{DeviceId, ToolCallId};
use devmind_domain::limits::{DEVICE_SLOTS, TOOL_TTL_MS};
use devmind_domain::protocol::{CallRequest, DeviceFrame};
pub(crate) use frame_size::fitting;
use open_call::OpenCall;
use perform::Work;
use std::collections::HashMap;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::task::TaskTracker;

/// How long after its attempt's deadline a cancel is remembered.
const CANCEL_OUTLIVES_DEADLINE: Duration = Duration::from_secs(60);
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
    table: Mutex<Table>,
    pub(crate) blocking: Arc<Semaphore>,
    tasks: TaskTracker,
    settled: watch::Sender<u64>,
    /// Moments count from here.
    started: Instant,
}

/// The calls under way: their states, and what performs their effects.
#[derive(Default)]
struct Table {
    calls: DeviceCalls<ToolCallId>,
    open: HashMap<ToolCallId, Arc<OpenCall>>,
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
            table: Mutex::default(),
            blocking: Arc::new(Semaphore::new(DEVICE_SLOTS)),
            tasks: TaskTracker::new(),
            settled: watch::Sender::new(0),
            started: Instant::now(),
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
        let (id, attempt_no) = (request.tool_call_id.clone(), request.attempt_no);
        let mut table = self.table();
        let under_way = table.open.get(&id).cloned();
        let asked = Asked {
            attempt_no,
            is_mine: request.device_id == self.device_id,
            is_the_same: under_way.as_ref().is_some_and(|call| call.is_the_same(&request, peer.owner())),
        };
        let say: Vec<DeviceFrame> = match table.calls.request(&id, asked, self.started.elapsed()) {
            Door::Opened(effects) => {
                let (call, queue) = OpenCall::new(peer, &request, deadline);
                call.take(effects);
                table.open.insert(id, call.clone());
                drop(table);
                let calls = self.clone();
                self.tasks.spawn(async move { calls.carry_out(&call, &request, queue).await });
                return;
            }
            Door::Joined(effects) => {
                if let Some(call) = under_way {
                    call.answers(peer.clone());
                }
                // Not in the call's own order: its task may be waiting for the person.
                effects.iter().filter_map(|effect| perform::progress(&id, effect)).collect()
            }
            Door::Refused(code) => vec![perform::refused(&id, attempt_no, code)],
        };
        drop(table);
        self.tasks.spawn(async move {
            for frame in say {
                peer.send(frame).await;
            }
        });
    }

    /// Takes back this attempt and earlier ones, whether the request has come or not.
    pub fn cancel(&self, id: &ToolCallId, attempt_no: u32) {
        // The request, which would tell its time to live, may not have come: the longest is assumed.
        let now = self.started.elapsed();
        let until = now + Duration::from_millis(TOOL_TTL_MS) + CANCEL_OUTLIVES_DEADLINE;
        let mut table = self.table();
        let effects = table.calls.cancel(id, attempt_no, until, now);
        if let Some(call) = table.open.get(id) {
            call.take(effects);
        }
    }

    /// Takes no more calls, closes open questions, and waits for what executes.
    pub async fn stop(&self) {
        {
            let mut table = self.table();
            for (id, effects) in table.calls.stop() {
                if let Some(call) = table.open.get(&id) {
                    call.take(effects);
                }
            }
        }
        self.tasks.close();
        if tokio::time::timeout(STOP_WITHIN, self.tasks.wait()).await.is_err() {
            tracing::warn!("a tool does not end; the next start settles its call as indeterminate");
        }
    }

    /// Performs the effects of one call, in their order, until it has ended.
    async fn carry_out(
        &self,
        call: &Arc<OpenCall>,
        request: &CallRequest,
        mut effects: mpsc::UnboundedReceiver<Effect>,
    ) {
        let working = async {
            let mut work = Work::default();
            while let Some(effect) = effects.recv().await {
                if effect == Effect::End {
                    break;
                }
                let name = effect.name();
                let performing = self.perform(effect, call, request, &mut work);
                if let Some(input) = kill_point::around(|| format!("perform {name}"), performing).await {
                    self.feed(call, input);
                }
            }
        };
        let alarm = async {
            call.deadline.passed().await;
            self.feed(call, Input::Expired);
            pending().await
        };
        tokio::select! {
            () = working => {}
            () = alarm => {}
        }
    }

    /// Brings an input to the call's machine, and hands out what follows.
    fn feed(&self, call: &Arc<OpenCall>, input: Input) {
        let (mut table, id) = (self.table(), &call.tool_call_id);
        // Another call may be under way by now under the same id.
        if !table.open.get(id).is_some_and(|own| Arc::ptr_eq(own, call)) {
            return;
        }
        // The alarm may be late: after a suspend it looks again within a second.
        if call.deadline.has_passed() {
            call.take(table.calls.step(id, Input::Expired));
        }
        call.take(table.calls.step(id, input));
        // First closed, then told: a repeated request from now on finds the row.
        if table.calls.get(id).is_none() {
            table.open.remove(id);
        }
    }

    /// The table; its data stays whole even if a holder panicked: every change under it is one step.
    fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
