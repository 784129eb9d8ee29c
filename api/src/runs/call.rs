//! One tool call of a run: admitted or refused, guarded, carried out in the server or on the device inside the execute
//! wrappers, and finished for the model.
//!
//! All that it needs is shared, so that several calls can be under way at once. Which calls begin when, and that the
//! thread observes what became of each, is left to `tools`.

use super::active::{StopReason, StopSignal};
use super::execution::Halt;
use super::live::{Caller, Live};
use super::unchanged::Unchanged;
use crate::device_gateway::calls::{CallContext, CallEnd};
use crate::ids::now;
use crate::state::App;
use crate::tools::{BodyEnd, Clock, ToolContext, ToolSet, Wrapped, WrappedCall, around};
use devmind_domain::ErrorCode;
use devmind_domain::agent::{Approvals, Permission, PlannedCall};
use devmind_domain::canonical::hash_json;
use devmind_domain::conversation::Conversation;
use devmind_domain::device::{Device, stream_key};
use devmind_domain::event::Metadata;
use devmind_domain::ids::ToolCallId;
use devmind_domain::thread::Deferred;
use devmind_domain::tool_call::*;
use devmind_domain::tools::{
    Admission, AtDispatch, Ended, Finish, POLICY_STAGE, Refusal, Registry, Seen, ToolDefinition, ToolOutcome, Verdict,
    admit, ask_guards,
};
use devmind_ledger::{AppendError, ExecuteError, execute, load};
use devmind_projections::RunRow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Before a tool is run again for the first time; it doubles.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// How often a conversation that changes is looked at before a call is given up.
const MAX_LOOKS: usize = 8;

/// What calls of one run share.
#[derive(Clone)]
pub(super) struct Calls {
    pub app: Arc<App>,
    pub run: RunRow,
    /// The tools as they were when the run began.
    pub tools: Arc<ToolSet>,
    pub signal: StopSignal,
    /// Whether this process executes the run; else nobody does, and the calls are a person's own.
    pub claimed: bool,
    /// The execution that makes these calls, where it is not the model itself.
    pub parent: Option<Arc<Caller>>,
}

/// What became of a call: what the thread is to observe.
pub(super) struct Carried {
    pub tool_call_id: ToolCallId,
    /// What it gave; the value is whole, whatever the model sees of it.
    pub outcome: ToolOutcome,
    /// What the model sees of it.
    pub content: String,
    /// What the tool left for the time after its message.
    pub deferred: Deferred,
    /// The run was stopped while the call was under way.
    pub stopped: Option<StopReason>,
}

impl Calls {
    /// Carries out a call, or refuses it; either is recorded in the call's own stream, and so is what later stages make
    /// of it.
    pub async fn carry_out(&self, planned: &PlannedCall) -> Result<Carried, Halt> {
        if let Some(reason) = self.signal.reason() {
            return Err(Halt::Stopped(reason));
        }
        let tool_call_id = ToolCallId::of(&self.run.graph_thread_id, &planned.call.id);
        let admission = self.admit(planned);
        let finish = Finish::captured(self.callable(), &admission.tool, self.tools.post_execute());
        let Ran { ended, deferred, stopped } = self.decide_and_run(&tool_call_id, planned, &admission).await?;
        if let Some(caller) = &self.parent {
            caller.recorded(&admission.arguments, &ended.outcome);
        }
        let Seen { outcome, content, revisions } = finish.see(&admission.arguments, ended);
        if !revisions.is_empty() {
            self.call_command(&tool_call_id, ToolCallCommand::Revise(revisions)).await?;
        }
        Ok(Carried { tool_call_id, outcome, content, deferred, stopped })
    }

    /// The call at the door. Of an execution's own calls the limit is what they put into the log.
    fn admit(&self, planned: &PlannedCall) -> Admission {
        let mut admission = admit(self.callable(), &planned.call, planned.over_limit);
        if let (Some(("limit", error)), Some(caller)) = (&mut admission.refusal, &self.parent) {
            let most = caller.most_bytes;
            error.message =
                format!("the calls before this one have taken and given {most} bytes, which is all they may");
        }
        admission
    }

    /// Everything up to the recorded result: approval → guards → wrappers around the body.
    async fn decide_and_run(&self, id: &ToolCallId, planned: &PlannedCall, admission: &Admission) -> Result<Ran, Halt> {
        let parent_tool_call_id = self.parent.as_ref().map(|caller| caller.tool_call_id.clone());
        let request = ToolCallRequested { parent_tool_call_id, ..requested(&self.run, &planned.call.id, admission) };
        if let Some((stage, error)) = refusal(admission, &planned.permission) {
            let by = decider(&planned.permission);
            return Ok(self.refuse(id, request, stage, error, by).await?.into());
        }
        if let Permission::Allowed(_) = &planned.permission {
            // The decision stands in the call's own stream before the call is dispatched.
            let (code, by) = (ErrorCode::ApprovalGiven.as_str().to_owned(), decider(&planned.permission));
            let (stage, decision) = ("approval".to_owned(), Decision::Allow);
            self.decide(id, request.clone(), ToolCallDecided { stage, decision, code, by, reason: None }).await?;
        }
        if let Permission::Granted(verdict) = &planned.permission {
            let (verdict, _) = self.standing(verdict).await?;
            self.decide(id, request.clone(), verdict.decided()).await?;
            if verdict.decision != Decision::Allow {
                return Ok(Ended::from(ToolOutcome { result: Err(verdict.error()) }).into());
            }
        }
        let granted = match &planned.permission {
            Permission::Granted(verdict) => Some(verdict).filter(|verdict| verdict.grant().is_some()),
            _ => None,
        };
        let Some(definition) = self.callable().get(&admission.tool) else {
            let error = tool_error(ErrorCode::UnknownTool, ErrorCode::UnknownTool.help());
            return Ok(self.refuse(id, request, "resolve", error, "pipeline").await?.into());
        };
        let looked_at = Instant::now();
        if let Err((by, refusal)) = self.guard(id, planned, definition, &request).await? {
            let error = tool_error(refusal.code, refusal.reason);
            return Ok(self.refuse(id, request, "guard", error, by).await?.into());
        }
        if let Some(reason) = self.signal.reason() {
            let error = tool_error(ErrorCode::AbortedBeforeDispatch, ErrorCode::AbortedBeforeDispatch.help());
            let ran: Ran = self.refuse(id, request, "dispatch", error, "stop").await?.into();
            return Ok(Ran { stopped: Some(reason), ..ran });
        }
        let Ran { ended, deferred, .. } = match admission.target {
            Target::Server => self.run_in_server(id, definition, request, granted).await?,
            Target::Device => self.run_on_device(id, definition, request, granted, looked_at).await?.into(),
        };
        // Whatever was under way was awaited.
        let stopped = self.signal.reason();
        Ok(Ran { ended: Ended { aborted: stopped.is_some(), ..ended }, deferred, stopped })
    }

    /// Asks the guards about what stands in the log now.
    async fn guard(
        &self,
        id: &ToolCallId,
        planned: &PlannedCall,
        definition: &ToolDefinition,
        request: &ToolCallRequested,
    ) -> Result<Result<(), (String, Refusal)>, Halt> {
        let reader = self.app.ledger.reader();
        let conversation = async {
            match self.claimed {
                true => load::<Conversation>(reader, self.run.conversation_id.as_str()).await.map(|(state, _)| state),
                // What is decided in a conversation is decided for its runs.
                false => Ok(Arc::default()),
            }
        };
        // Where it goes is looked at together with it.
        let device = async {
            match &request.device_id {
                Some(id) => load::<Device>(reader, &stream_key(&request.user_id, id)).await.map(drop),
                None => Ok(()),
            }
        };
        let call = load::<ToolCall>(reader, id.as_str());
        let (conversation, (call, _), ()) = futures::try_join!(conversation, call, device)?;
        let (conversation, call) = (&*conversation, &*call);
        let mut approvals = Approvals::of(conversation, &self.run.graph_thread_id);
        let verdict = call.verdict().unwrap_or_else(|| Verdict::of_tool(definition.approval));
        approvals.judged(id.clone(), request.call_hash.clone(), verdict);
        let permission = &approvals.about(self.callable(), &planned.call, planned.over_limit);
        let conversation = Some(conversation).filter(|_| self.claimed);
        let at = AtDispatch { definition, request, call, conversation, permission };
        Ok(ask_guards(self.tools.guards(), &at))
    }

    /// What can be called: by the model, or by a program of it.
    pub fn callable(&self) -> &Registry {
        if self.parent.is_some() { self.tools.callable() } else { self.tools.registry() }
    }

    fn metadata(&self) -> Metadata {
        self.app.server_metadata().run(&self.run.run_id).conversation(&self.run.conversation_id)
    }

    async fn decide(&self, id: &ToolCallId, request: ToolCallRequested, decided: ToolCallDecided) -> Result<(), Halt> {
        self.call_command(id, ToolCallCommand::Decide { request: Box::new(request), decided }).await.map(drop)
    }

    async fn refuse(
        &self,
        id: &ToolCallId,
        request: ToolCallRequested,
        stage: &str,
        error: ToolError,
        by: impl Into<String>,
    ) -> Result<Ended, Halt> {
        // What is recorded is what the model is told.
        let outcome = ToolOutcome { result: Err(error) }.bounded();
        if let Err(error) = &outcome.result {
            self.decide(id, request, ToolCallDecided::deny(stage, error, by)).await?;
        }
        Ok(outcome.into())
    }

    async fn run_in_server(
        &self,
        id: &ToolCallId,
        definition: &ToolDefinition,
        request: ToolCallRequested,
        granted: Option<&Verdict>,
    ) -> Result<Ran, Halt> {
        let cancel = self.signal.narrowed();
        let mut retries = definition.retries;
        loop {
            let clock = Clock::default();
            let call =
                WrappedCall { tool_call_id: id, definition, arguments: &request.arguments, clock: clock.clone() };
            let body = |cancel| async {
                // Run again, it is the same call: what was allowed when it began is.
                let granted = granted.filter(|_| retries == definition.retries);
                let attempt = Attempt { definition, request: &request, granted, again: retries > 0 };
                let ran = self.attempt(id, attempt, cancel, &clock).await;
                let unrecorded = || ToolOutcome::failure(ErrorCode::LedgerUnavailable, "nothing could be recorded");
                (ran.as_ref().map_or_else(|_| unrecorded(), |ran| ran.outcome.clone()), ran)
            };
            let Wrapped { ran, overruled } = around(self.tools.wrappers(), &call, &cancel, body).await;
            let Some(ran) = ran.transpose()? else {
                let (by, error) = overruled.unwrap_or_else(never_ran);
                return Ok(self.refuse(id, request, "execute", error, by).await?.into());
            };
            let Attempted { outcome, deferred, unrecorded } = ran;
            let ran = |outcome, overruled| Ran {
                ended: Ended { outcome, overruled, aborted: false },
                deferred,
                stopped: None,
            };
            let Some(result) = unrecorded else { return Ok(ran(outcome, overruled)) };
            if overruled.is_some() || self.signal.reason().is_some() {
                self.record(id, result).await?;
                return Ok(ran(outcome, overruled));
            }
            retries -= 1;
            tracing::warn!(tool_call.id = %id, error.code = ?outcome.error_code(), retries, "a tool is run again");
            let pause = RETRY_PAUSE * 2_u32.saturating_pow(definition.retries - retries - 1);
            // A stop ends the pause; the next attempt finds it.
            let _ = tokio::time::timeout(pause, cancel.cancelled()).await;
        }
    }

    /// One sending of a server call: what the body really gave is recorded before anybody sees it, except for a
    /// failure after which it is run again.
    async fn attempt(
        &self,
        id: &ToolCallId,
        attempt: Attempt<'_>,
        cancel: CancellationToken,
        clock: &Clock,
    ) -> Result<Attempted, Halt> {
        let Attempt { definition, request, granted, again } = attempt;
        let dispatch = Dispatch {
            run_id: self.run.run_id.clone(),
            node_id: self.app.claim.node_id.clone(),
            epoch: self.app.claim.epoch,
            connection_id: None,
            journal_id: None,
            wait_ms: definition.timeout_ms.unwrap_or(0),
            ttl_ms: 0,
            attempt_is_live: false,
            age_ms: 0,
            request: request.clone(),
        };
        let state = match self.dispatch(id, dispatch, granted).await? {
            Ok(state) => state,
            Err(refused) => {
                let deferred = Deferred::default();
                return Ok(Attempted { outcome: refused, deferred, unrecorded: None });
            }
        };
        // What was settled before is not begun, whatever it was settled by.
        let refused = || state.refusal().map(|refusal| ToolOutcome { result: Err(refusal.error()) });
        if let Some(outcome) = state.result.as_ref().map(ToolOutcome::of).or_else(refused) {
            return Ok(Attempted { outcome, deferred: Deferred::default(), unrecorded: None });
        }
        let started_at = now();
        let context = ToolContext::new(id.clone(), cancel);
        let end = if context.cancel.is_cancelled() {
            // Between its dispatch and its body: nothing ran.
            let code = ErrorCode::AbortedBeforeDispatch;
            BodyEnd { status: ResultStatus::Cancelled, outcome: ToolOutcome::failure(code, code.help()) }
        } else {
            let live = self.app.live.enter(self, &context, &request.model_call_id);
            let context = ToolContext { sub_calls: live.as_ref().map(Live::sub_calls), ..context.clone() };
            clock.begin();
            let end = self.tools.execute(&request.tool, request.arguments.clone(), context).await;
            clock.end();
            end
        };
        let BodyEnd { status, outcome } = end;
        let (output, error) = (outcome.result.as_ref().ok().cloned(), outcome.result.as_ref().err().cloned());
        let result = ToolResultRecorded {
            executed_attempt_no: state.last_attempt(),
            status,
            output_sha256: output.as_ref().map(hash_json),
            output,
            error,
            started_at: Some(started_at),
            finished_at: Some(now()),
            origin: ResultOrigin::Live,
            connection_id: None,
        };
        let passing = outcome.error_code().and_then(|code| ErrorCode::parse(&code)).is_some_and(ErrorCode::retriable);
        if again && passing && status == ResultStatus::Failed {
            return Ok(Attempted { outcome, deferred: Deferred::default(), unrecorded: Some(result) });
        }
        self.record(id, result).await?;
        Ok(Attempted { outcome, deferred: context.take_deferred(), unrecorded: None })
    }

    /// Dispatches; what a grant allows, only as long as it counts. Otherwise the refusal, which is recorded.
    async fn dispatch(
        &self,
        id: &ToolCallId,
        dispatch: Dispatch,
        granted: Option<&Verdict>,
    ) -> Result<Result<Arc<ToolCall>, ToolOutcome>, Halt> {
        let request = dispatch.request.clone();
        let command = ToolCallCommand::Dispatch(Box::new(dispatch));
        for _ in 0..MAX_LOOKS {
            let unchanged = match self.still_granted(id, &request, granted).await? {
                Ok(Some(unchanged)) => unchanged,
                Ok(None) => return Ok(Ok(self.call_command(id, command).await?)),
                Err(refused) => return Ok(Err(refused)),
            };
            match unchanged.execute(&self.app.ledger, id, &self.metadata(), &command).await {
                Err(error) if unchanged.is_why(&error) => {}
                done => return Ok(Ok(done.map_err(halted)?.state)),
            }
        }
        Err(AppendError::Overloaded.into())
    }

    /// The conversation in which the grant was found that a call rests on, if it rests on one; where there is none any
    /// more, the refusal, which is recorded.
    async fn still_granted(
        &self,
        id: &ToolCallId,
        request: &ToolCallRequested,
        granted: Option<&Verdict>,
    ) -> Result<Result<Option<Unchanged>, ToolOutcome>, Halt> {
        let Some(verdict) = granted else { return Ok(Ok(None)) };
        let (verdict, unchanged) = self.standing(verdict).await?;
        if verdict.decision == Decision::Allow {
            return Ok(Ok(unchanged));
        }
        // The policies' own word stands: it was allowed, and is not any more.
        let decided = ToolCallDecided::deny("dispatch", &verdict.error(), verdict.by.clone());
        self.decide(id, request.clone(), decided).await?;
        Ok(Err(ToolOutcome { result: Err(verdict.error()) }))
    }

    async fn record(&self, id: &ToolCallId, result: ToolResultRecorded) -> Result<(), Halt> {
        let command = ToolCallCommand::RecordResult { result: Box::new(result), reporter: Reporter::Server };
        self.call_command(id, command).await.map(drop)
    }

    /// The same wrappers stand around the wait for a device. They cannot take back what was sent to it: a stop does,
    /// and the end of the wait.
    async fn run_on_device(
        &self,
        id: &ToolCallId,
        definition: &ToolDefinition,
        request: ToolCallRequested,
        granted: Option<&Verdict>,
        looked_at: Instant,
    ) -> Result<Ended, Halt> {
        let clock = Clock::default();
        let call = WrappedCall { tool_call_id: id, definition, arguments: &request.arguments, clock: clock.clone() };
        let body = |_| async {
            let end = self.call_device(id, &request, granted, looked_at, &clock).await;
            let failed = |halt: &Halt| ToolOutcome::failure(ErrorCode::LedgerUnavailable, halt.to_string());
            (end.as_ref().map_or_else(failed, ToolOutcome::clone), end)
        };
        let Wrapped { ran, overruled } = around(self.tools.wrappers(), &call, &self.signal.narrowed(), body).await;
        match ran.transpose()? {
            Some(outcome) => Ok(Ended { outcome, overruled, aborted: false }),
            None => {
                let (by, error) = overruled.unwrap_or_else(never_ran);
                self.refuse(id, request, "execute", error, by).await
            }
        }
    }

    async fn call_device(
        &self,
        id: &ToolCallId,
        request: &ToolCallRequested,
        granted: Option<&Verdict>,
        mut looked_at: Instant,
        clock: &Clock,
    ) -> Result<ToolOutcome, Halt> {
        for _ in 0..MAX_LOOKS {
            let unchanged = match self.still_granted(id, request, granted).await? {
                Ok(unchanged) => unchanged,
                Err(refused) => return Ok(refused),
            };
            let context = CallContext {
                run_id: self.run.run_id.clone(),
                conversation_title: self.run.title.clone(),
                metadata: self.metadata(),
                signal: self.signal.clone(),
                looked_at,
                unchanged: unchanged.clone(),
            };
            let app = &self.app;
            clock.begin();
            match app.gateway.call(&app.ledger, &app.claim, context, id, request.clone()).await {
                // Of a call that was sent before a stop the prompt says what is known of it now.
                Ok(CallEnd::Outcome(outcome) | CallEnd::Stopped(_, outcome)) => {
                    clock.end();
                    return Ok(outcome);
                }
                Err(error) if unchanged.is_some_and(|unchanged| unchanged.is_why(&error)) => looked_at = Instant::now(),
                Err(error) => return Err(halted(error)),
            }
        }
        Err(AppendError::Overloaded.into())
    }

    async fn call_command(&self, id: &ToolCallId, command: ToolCallCommand) -> Result<Arc<ToolCall>, Halt> {
        let done = execute::<ToolCall>(&self.app.ledger, id.as_str(), &self.metadata(), command, None).await;
        done.map(|done| done.state).map_err(halted)
    }
}

/// A call up to its recorded result.
struct Ran {
    ended: Ended,
    deferred: Deferred,
    /// The run was stopped meanwhile.
    stopped: Option<StopReason>,
}

impl From<Ended> for Ran {
    fn from(ended: Ended) -> Self {
        Self { ended, deferred: Deferred::default(), stopped: None }
    }
}

/// How a server call is sent once.
struct Attempt<'a> {
    definition: &'a ToolDefinition,
    request: &'a ToolCallRequested,
    /// The grant that allows it, where one does.
    granted: Option<&'a Verdict>,
    /// Whether it is sent again after a failure that may pass.
    again: bool,
}

/// What one sending of a server call came to.
struct Attempted {
    outcome: ToolOutcome,
    /// What the body left for the time after its message.
    deferred: Deferred,
    /// What is not recorded yet, because the tool may be run again.
    unrecorded: Option<ToolResultRecorded>,
}

fn tool_error(code: ErrorCode, message: impl Into<String>) -> ToolError {
    ToolError { code: code.as_str().to_owned(), message: message.into() }
}

fn never_ran() -> (String, ToolError) {
    ("execute".to_owned(), tool_error(ErrorCode::ExecutionFailed, "the tool was not run"))
}

/// What is recorded of a call of the run.
pub(super) fn requested(run: &RunRow, model_call_id: &str, admission: &Admission) -> ToolCallRequested {
    ToolCallRequested {
        conversation_id: run.conversation_id.clone(),
        turn_id: run.turn_id.clone(),
        run_id: run.run_id.clone(),
        user_id: run.user_id.clone(),
        graph_thread_id: run.graph_thread_id.clone(),
        model_call_id: model_call_id.to_owned(),
        parent_tool_call_id: None,
        tool: admission.tool.clone(),
        tool_version: admission.version.clone(),
        target: admission.target,
        device_id: if admission.target == Target::Device { run.device_id.clone() } else { None },
        arguments: admission.arguments.clone(),
        call_hash: admission.call_hash.clone(),
        risk: admission.risk,
    }
}

/// Why a call must not be carried out, if it must not, and the stage that says so.
fn refusal(admission: &Admission, permission: &Permission) -> Option<(&'static str, ToolError)> {
    if let Some((stage, error)) = &admission.refusal {
        return Some((stage, error.clone()));
    }
    let code = match permission {
        Permission::NotNeeded | Permission::Granted(_) | Permission::Allowed(_) => return None,
        Permission::Denied(verdict) => return Some((POLICY_STAGE, verdict.error())),
        Permission::Unjudged | Permission::Undecided => ErrorCode::ApprovalRequired,
        Permission::Rejected(_) => ErrorCode::ApprovalRejected,
        Permission::Expired => ErrorCode::ApprovalExpired,
        Permission::Cancelled => ErrorCode::ApprovalCancelled,
    };
    Some(("approval", ToolError { code: code.as_str().to_owned(), message: code.help().to_owned() }))
}

fn decider(permission: &Permission) -> String {
    match permission {
        Permission::Allowed(user) | Permission::Rejected(user) => format!("user:{user}"),
        Permission::Expired => "clock".to_owned(),
        Permission::Granted(verdict) | Permission::Denied(verdict) => verdict.by.clone(),
        Permission::Unjudged | Permission::NotNeeded | Permission::Undecided | Permission::Cancelled => {
            "pipeline".to_owned()
        }
    }
}

pub(super) fn halted(error: ExecuteError<ToolCallError>) -> Halt {
    match error {
        ExecuteError::Refused(error) => error.into(),
        ExecuteError::Append(error) => error.into(),
        ExecuteError::Ledger(error) => error.into(),
    }
}
