//! The checks that take time: opening (4), age (5), the person (7), whether it is still wanted (8),
//! and executing (9).

use super::frame_size::fits;
use super::open_call::OpenCall;
use super::{Calls, Stop, checks};
use crate::clock::Deadline;
use crate::confirm::{Answer, ConfirmationRequest};
use crate::journal::Settlement;
use crate::tools::{Execution, Prepared, ToolFailure};
use devmind_domain::ErrorCode;
use devmind_domain::limits::TOOL_EXECUTION_MS;
use devmind_domain::protocol::{CallRequest, CallResult};
use devmind_domain::tool_call::{Phase, ResultStatus};
use devmind_domain::tools::ToolDefinition;
use serde_json::Value;
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;

/// How much longer than its time a blocked tool is waited for: one that watches its limits ends by
/// itself.
const GRACE: Duration = Duration::from_secs(1);

/// A call that passed checks 2 to 5.
pub(super) struct Ready {
    prepared: Box<dyn Prepared>,
    definition: &'static ToolDefinition,
    arguments: Value,
}

impl Calls {
    /// Checks 2 to 5.
    pub(super) async fn examine(&self, request: &CallRequest, deadline: &Deadline) -> Result<Ready, Stop> {
        // 2. Tool and version.
        let (tool, definition) = checks::known_tool(&self.tools, request).map_err(checks::verdict)?;
        // 3. Arguments and hash.
        let arguments = checks::arguments(request).map_err(checks::verdict)?;
        // 4. Paths; what is opened here is kept.
        let slot = self.blocking.clone().try_acquire_owned().map_err(|_| Stop::Refused(ErrorCode::DeviceBusy))?;
        let (tool, workspace, given) = (tool.clone(), self.workspace.clone(), arguments.clone());
        let opening = move || tool.prepare(&workspace, &given);
        let prepared = blocking(slot, Duration::from_millis(TOOL_EXECUTION_MS), opening).await;
        let prepared = prepared.and_then(|prepared| prepared).map_err(checks::verdict)?;
        // 5. Age.
        if deadline.has_passed() {
            return Err(checks::verdict(expired()));
        }
        Ok(Ready { prepared, definition, arguments })
    }

    /// Checks 7 and 8. `Ok` holds the slot to execute in; the call may begin.
    pub(super) async fn decide(
        &self,
        call: &OpenCall,
        request: &CallRequest,
        ready: &mut Ready,
        deadline: &Deadline,
    ) -> Result<OwnedSemaphorePermit, Settlement> {
        self.still_wanted(call, deadline)?;
        // 7. Either side may want the person to be asked.
        if request.requires_confirmation || ready.definition.requires_confirmation {
            let question = ConfirmationRequest {
                tool_call_id: request.tool_call_id.clone(),
                tool: request.tool_name.clone(),
                arguments: ready.arguments.clone(),
                subject: ready.prepared.subject(),
                conversation_title: request.conversation_title.clone(),
                deadline: *deadline,
            };
            self.ask(call, &question, deadline).await?;
        }
        // 8. Still wanted, and the file still the one that was shown.
        let slot = tokio::select! {
            biased;
            interrupted = self.interrupted(call, deadline) => return Err(interrupted),
            // The semaphore is never closed.
            slot = self.blocking.clone().acquire_owned() => slot.map_err(|_| not_executed())?,
        };
        let prepared = std::mem::replace(&mut ready.prepared, Box::new(Taken));
        let looking = move || (prepared.is_unchanged(), prepared);
        let (slot, looked) = blocking_with(slot, Duration::from_millis(TOOL_EXECUTION_MS), looking).await;
        let (is_unchanged, prepared) = looked.map_err(rejected)?;
        ready.prepared = prepared;
        let slot = slot.ok_or_else(not_executed)?;
        if !is_unchanged {
            let message = "the file changed while the question was open";
            return Err(rejected(ToolFailure::new(ErrorCode::FileChanged, message)));
        }
        self.still_wanted(call, deadline)?;
        Ok(slot)
    }

    async fn ask(
        &self,
        call: &OpenCall,
        question: &ConfirmationRequest,
        deadline: &Deadline,
    ) -> Result<(), Settlement> {
        call.enter(Phase::Confirming).await;
        let open = call.cancel.child_token();
        let _closes = open.clone().drop_guard();
        let answer = tokio::select! {
            biased;
            // Taken back, expired or stopping: the question closes, and that is not the person's no.
            interrupted = self.interrupted(call, deadline) => return Err(interrupted),
            answer = self.confirm.ask(question, &open) => answer,
        };
        // A question that closed because the call was taken back comes back unanswered.
        self.still_wanted(call, deadline)?;
        let (code, message) = match answer {
            Answer::Allow => return Ok(()),
            Answer::Deny => (ErrorCode::ConfirmationRejected, "the person at the device said no"),
            Answer::NoAnswer => (ErrorCode::ConfirmationExpired, "nobody answered at the device"),
        };
        Err(rejected(ToolFailure::new(code, message)))
    }

    /// Check 9. The device goes on serving whatever the tool does.
    pub(super) async fn execute(
        &self,
        call: &OpenCall,
        request: &CallRequest,
        ready: Ready,
        slot: OwnedSemaphorePermit,
    ) -> Settlement {
        let allowed = request.execution_timeout_ms.min(ready.definition.timeout_ms);
        let allowed = Duration::from_millis(allowed);
        let execution = Execution {
            tool_call_id: request.tool_call_id.clone(),
            ends_at: Instant::now() + allowed,
            cancel: call.cancel.clone(),
        };
        let prepared = ready.prepared;
        let ran = blocking(slot, allowed + GRACE, move || prepared.run(&execution)).await;
        match ran.and_then(|ran| ran) {
            Ok(output) => within_limit(request, Settlement::succeeded(&output), call.max_message_bytes()),
            Err(failure) if failure.code == ErrorCode::CancelledByServer => cancelled(),
            Err(failure) => Settlement::without_success(ResultStatus::Failed, failure.code, failure.message),
        }
    }

    /// Waits until the call may no longer begin; says how it ends then.
    async fn interrupted(&self, call: &OpenCall, deadline: &Deadline) -> Settlement {
        tokio::select! {
            biased;
            () = call.cancel.cancelled() => cancelled(),
            () = self.stopping.cancelled() => not_executed(),
            () = deadline.passed() => rejected(expired()),
        }
    }

    fn still_wanted(&self, call: &OpenCall, deadline: &Deadline) -> Result<(), Settlement> {
        if call.cancel.is_cancelled() {
            return Err(cancelled());
        }
        if self.stopping.is_cancelled() {
            return Err(not_executed());
        }
        if deadline.has_passed() {
            return Err(rejected(expired()));
        }
        Ok(())
    }
}

/// Stands in for a prepared call that is being looked at; it never runs.
struct Taken;

impl Prepared for Taken {
    fn is_unchanged(&self) -> bool {
        false
    }
    fn run(self: Box<Self>, _execution: &Execution) -> Result<Value, ToolFailure> {
        Err(ToolFailure::new(ErrorCode::ExecutionFailed, "the call was not prepared"))
    }
}

/// Runs a blocking step in its slot. A step that does not end keeps the slot, but nobody waits.
async fn blocking<T: Send + 'static>(
    slot: OwnedSemaphorePermit,
    within: Duration,
    step: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ToolFailure> {
    blocking_with(slot, within, step).await.1
}

/// The same, giving back the slot if the step ended.
async fn blocking_with<T: Send + 'static>(
    slot: OwnedSemaphorePermit,
    within: Duration,
    step: impl FnOnce() -> T + Send + 'static,
) -> (Option<OwnedSemaphorePermit>, Result<T, ToolFailure>) {
    let running = tokio::task::spawn_blocking(move || {
        let done = step();
        (slot, done)
    });
    match tokio::time::timeout(within, running).await {
        Ok(Ok((slot, done))) => (Some(slot), Ok(done)),
        Ok(Err(error)) => {
            tracing::error!(%error, "a tool broke down");
            (None, Err(ToolFailure::new(ErrorCode::ExecutionFailed, "the tool broke down on the device")))
        }
        Err(_) => {
            let message = "the device's disk did not answer in time";
            (None, Err(ToolFailure::new(ErrorCode::ExecutionTimeout, message)))
        }
    }
}

/// A result that the server would not take as a frame is a failure that it takes.
fn within_limit(request: &CallRequest, settlement: Settlement, max_message_bytes: usize) -> Settlement {
    let Some(output) = settlement.output.as_deref().and_then(|output| serde_json::from_str(output).ok()) else {
        return settlement;
    };
    let result = CallResult {
        tool_call_id: request.tool_call_id.clone(),
        executed_attempt_no: request.attempt_no,
        status: settlement.status,
        output: Some(output),
        output_sha256: settlement.output_sha256.clone(),
        output_discarded: false,
        error: None,
        started_at: Some(crate::clock::now()),
        finished_at: Some(crate::clock::now()),
    };
    if fits(result, max_message_bytes) {
        return settlement;
    }
    let message = "the output is larger than a message may be; ask for less at once";
    Settlement::without_success(ResultStatus::Failed, ErrorCode::ResultTooLarge, message)
}

fn expired() -> ToolFailure {
    ToolFailure::new(ErrorCode::RequestExpired, "the request was too old to begin")
}

fn rejected(failure: ToolFailure) -> Settlement {
    Settlement::without_success(ResultStatus::Rejected, failure.code, failure.message)
}

fn cancelled() -> Settlement {
    let message = "the server took the call back";
    Settlement::without_success(ResultStatus::Cancelled, ErrorCode::CancelledByServer, message)
}

fn not_executed() -> Settlement {
    let message = "the device program ended before it began the call";
    Settlement::without_success(ResultStatus::Cancelled, ErrorCode::NotExecuted, message)
}
