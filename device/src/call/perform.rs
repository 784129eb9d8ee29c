//! How each effect of a call is performed: the journal's steps, opening (check 4), the person (7), the
//! second look (8), and executing (9).

use super::frame_size::{fits, surely_fits};
use super::open_call::OpenCall;
use super::{Calls, checks};
use crate::confirm::{self, ConfirmationRequest};
use crate::journal::{JournalError, Settlement};
use crate::tools::{Execution, Prepared, ToolFailure};
use devmind_domain::ErrorCode;
use devmind_domain::device_channel::device_call::{Answer, Effect, Failure, Input, Known, Said};
use devmind_domain::ids::ToolCallId;
use devmind_domain::limits::TOOL_EXECUTION_MS;
use devmind_domain::protocol::{CallRequest, CallResult, DeviceFrame};
use devmind_domain::tool_call::{Phase, ResultStatus};
use devmind_domain::tools::ToolDefinition;
use serde_json::Value;
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

/// How much longer than its time a blocked tool is waited for: one that watches its limits ends by
/// itself.
const GRACE: Duration = Duration::from_secs(1);
/// Of a call that nobody is asked about it is told that it runs when it has run for so long: most have ended by then,
/// and their result says it all.
const TOLD_AFTER: Duration = Duration::from_millis(50);
/// How long a call waits for one of the slots of blocking work before it is refused as too much.
const SLOT_WAIT: Duration = Duration::from_secs(1);

/// What one step of a call leaves for a later one.
#[derive(Default)]
pub(super) struct Work {
    /// The result that the journal had.
    stored: Option<CallResult>,
    /// What was examined.
    ready: Option<Ready>,
    /// Whether a person was asked: then it is news at once that the question is closed.
    was_asked: bool,
    /// That it runs, which is not told yet.
    untold: Option<DeviceFrame>,
    /// The slot to execute in, where the call is about to begin.
    slot: Option<OwnedSemaphorePermit>,
}

/// A call that passed checks 2 to 4.
struct Ready {
    prepared: Box<dyn Prepared>,
    definition: &'static ToolDefinition,
    arguments: Value,
}

impl Calls {
    /// Performs one effect; what came of it is the machine's next input.
    pub(super) async fn perform(
        &self,
        effect: Effect,
        call: &OpenCall,
        request: &CallRequest,
        work: &mut Work,
    ) -> Option<Input> {
        let (journal, id) = (&self.journal, &request.tool_call_id);
        let declined = |error: JournalError| Input::Declined(error.code());
        Some(match effect {
            Effect::LookUp => match journal.find(id) {
                Ok(row) => {
                    let known = row.as_ref().map(|row| (row.call_hash.as_str(), &row.owner, row.outcome.is_ok()));
                    let known = Known::of(known, &request.call_hash, call.owner());
                    work.stored = row.and_then(|row| row.outcome.ok());
                    Input::Found(known)
                }
                Err(error) => declined(error),
            },
            Effect::Admit => journal.admit(request.call_created_at).map_or_else(declined, |()| Input::Admitted),
            Effect::Examine => self.examine(request, work).await,
            Effect::RecordVerdict(verdict) => {
                journal.record_verdict(request, call.owner(), &verdict).await.map_or_else(declined, |()| Input::Settled)
            }
            Effect::Reserve => {
                journal.reserve(request, call.owner()).await.map_or_else(declined, |()| Input::Journalled)
            }
            Effect::Ask => {
                work.was_asked = true;
                let question = question(call, request, work.ready.as_ref()?);
                let open = call.interrupt.child_token();
                let _closes = open.clone().drop_guard();
                tokio::select! {
                    biased;
                    () = call.interrupt.cancelled() => return None,
                    answer = self.confirm.ask(&question, &open) => Input::Answered(match answer {
                        confirm::Answer::Allow => Answer::Allow,
                        confirm::Answer::Deny => Answer::Deny,
                        confirm::Answer::NoAnswer => Answer::NoAnswer,
                    }),
                }
            }
            Effect::LookAgain => tokio::select! {
                biased;
                () = call.interrupt.cancelled() => return None,
                looked = self.look_again(work) => Input::LookedAgain(looked.map_err(failure)),
            },
            Effect::Begin => match journal.begin(id).await {
                Ok(true) => Input::Journalled,
                Ok(false) => Input::Declined(ErrorCode::DeviceJournalFailed),
                Err(error) => declined(error),
            },
            Effect::BeginAtOnce => {
                journal.begin_at_once(request, call.owner()).await.map_or_else(declined, |()| Input::Journalled)
            }
            Effect::Execute => {
                let untold = work.untold.take();
                let executing = telling(call, untold, self.execute(call, request, work));
                Input::Executed(executing.await.map_err(failure))
            }
            Effect::Settle(settlement) => {
                journal.settle(id, &settlement).await.map_or_else(declined, |_first| Input::Settled)
            }
            Effect::Say(Said::StoredResult) => {
                if let Some(result) = work.stored.take() {
                    call.say_result(result).await;
                }
                return None;
            }
            Effect::Say(Said::Received { attempt_no, phase }) => {
                let received = DeviceFrame::Received { tool_call_id: id.clone(), attempt_no, phase };
                match phase {
                    Phase::Executing if !work.was_asked => work.untold = Some(received),
                    Phase::Reserved | Phase::Confirming | Phase::Executing => call.say(received).await,
                }
                return None;
            }
            Effect::Say(Said::Refused { attempt_no, code }) => {
                tracing::info!(tool_call.id = %id, %code, "call refused");
                call.say(refused(id, attempt_no, code)).await;
                return None;
            }
            Effect::Announce => {
                self.settled.send_modify(|count| *count += 1);
                return None;
            }
            // Done as they come, and the end of the task.
            Effect::Interrupt | Effect::Abort | Effect::End => return None,
        })
    }

    /// Checks 2 to 4.
    async fn examine(&self, request: &CallRequest, work: &mut Work) -> Input {
        let refused = |error: ToolFailure| Input::Examined(Err(failure(error)));
        // 2. Tool and version.
        let (tool, definition) = match checks::known_tool(&self.tools, request) {
            Ok(known) => known,
            Err(error) => return refused(error),
        };
        // 3. Arguments and hash.
        let arguments = match checks::arguments(request) {
            Ok(arguments) => arguments,
            Err(error) => return refused(error),
        };
        // 4. Paths; what is opened here is kept.
        // A moment's rush is waited out; slots that stay taken are stuck.
        let Ok(Ok(slot)) = timeout(SLOT_WAIT, self.blocking.clone().acquire_owned()).await else {
            return Input::Declined(ErrorCode::DeviceBusy);
        };
        let (tool, workspace, given) = (tool.clone(), self.workspace.clone(), arguments.clone());
        let opening = move || tool.prepare(&workspace, &given);
        let (slot, prepared) = blocking(slot, Duration::from_millis(TOOL_EXECUTION_MS), opening).await;
        match prepared.and_then(|prepared| prepared) {
            Ok(prepared) => {
                work.ready = Some(Ready { prepared, definition, arguments });
                // Either side may want the person to be asked. No slot is kept for as long as that may take.
                let needs_person = request.requires_confirmation || definition.requires_confirmation;
                work.slot = slot.filter(|_| !needs_person);
                Input::Examined(Ok(needs_person))
            }
            Err(error) => refused(error),
        }
    }

    /// Check 8: whether the file is still the one that was shown. Keeps the slot to execute in.
    async fn look_again(&self, work: &mut Work) -> Result<bool, ToolFailure> {
        // The semaphore is never closed.
        let slot = self.blocking.clone().acquire_owned().await.map_err(|_| not_prepared())?;
        let Ready { prepared, definition, arguments } = work.ready.take().ok_or_else(not_prepared)?;
        let looking = move || (prepared.is_unchanged(), prepared);
        let (slot, looked) = blocking(slot, Duration::from_millis(TOOL_EXECUTION_MS), looking).await;
        let (is_unchanged, prepared) = looked?;
        work.ready = Some(Ready { prepared, definition, arguments });
        work.slot = slot;
        Ok(is_unchanged)
    }

    /// Check 9. The device goes on serving whatever the tool does.
    async fn execute(
        &self,
        call: &OpenCall,
        request: &CallRequest,
        work: &mut Work,
    ) -> Result<Settlement, ToolFailure> {
        let ready = work.ready.take().ok_or_else(not_prepared)?;
        let slot = work.slot.take().ok_or_else(not_prepared)?;
        let allowed = Duration::from_millis(
            request
                .execution_timeout_ms
                .min(ready.definition.timeout_ms.unwrap_or(devmind_domain::limits::TOOL_EXECUTION_MS)),
        );
        let execution = Execution {
            tool_call_id: request.tool_call_id.clone(),
            ends_at: Instant::now() + allowed,
            cancel: call.abort.clone(),
        };
        let ran = blocking(slot, allowed + GRACE, move || ready.prepared.run(&execution)).await.1;
        let output = ran.and_then(|ran| ran)?;
        Ok(within_limit(request, Settlement::succeeded(&output), call.max_message_bytes()))
    }
}

/// What is said about a call's progress; the rest of the effects say nothing of it.
pub(super) fn progress(id: &ToolCallId, effect: &Effect) -> Option<DeviceFrame> {
    match effect {
        Effect::Say(Said::Received { attempt_no, phase }) => {
            Some(DeviceFrame::Received { tool_call_id: id.clone(), attempt_no: *attempt_no, phase: *phase })
        }
        _ => None,
    }
}

pub(super) fn refused(id: &ToolCallId, attempt_no: u32, code: ErrorCode) -> DeviceFrame {
    DeviceFrame::Refused { tool_call_id: id.clone(), attempt_no, code: code.as_str().to_owned() }
}

fn question(call: &OpenCall, request: &CallRequest, ready: &Ready) -> ConfirmationRequest {
    ConfirmationRequest {
        tool_call_id: request.tool_call_id.clone(),
        tool: request.tool_name.clone(),
        arguments: ready.arguments.clone(),
        subject: ready.prepared.subject(),
        conversation_title: request.conversation_title.clone(),
        deadline: call.deadline,
    }
}

fn failure(error: ToolFailure) -> Failure {
    Failure { code: error.code, message: error.message }
}

/// Waits for the end of what executes, and says meanwhile that it does, if that takes long.
async fn telling<T>(call: &OpenCall, untold: Option<DeviceFrame>, executing: impl Future<Output = T>) -> T {
    let Some(frame) = untold else { return executing.await };
    tokio::pin!(executing);
    if let Ok(done) = timeout(TOLD_AFTER, &mut executing).await {
        return done;
    }
    call.say(frame).await;
    executing.await
}

/// A fault of this program: a step that needs what an earlier one leaves was performed without it.
fn not_prepared() -> ToolFailure {
    ToolFailure::new(ErrorCode::ExecutionFailed, "the call was not prepared")
}

/// Runs a blocking step in its slot, and gives the slot back if the step ended. One that does not end
/// keeps it, but nobody waits.
async fn blocking<T: Send + 'static>(
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
    let output = settlement.output.as_deref().filter(|output| !surely_fits(output, max_message_bytes));
    let Some(output) = output.and_then(|output| serde_json::from_str(output).ok()) else { return settlement };
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
