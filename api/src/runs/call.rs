//! One tool call of a run: admitted or refused, guarded, carried out in the server or on the device inside the execute
//! wrappers, and finished for the model.
//!
//! All that it needs is shared, so that several calls can be under way at once. Which calls begin when, and that the
//! thread observes what became of each, is left to `tools`.

use super::active::{StopReason, StopSignal};
use super::execution::Halt;
use super::live::Live;
use crate::device_gateway::calls::{CallContext, CallEnd};
use crate::ids::now;
use crate::state::App;
use crate::tools::{BodyEnd, Clock, ToolContext, ToolSet, Wrapped, WrappedCall, around};
use devmind_domain::ErrorCode;
use devmind_domain::agent::{Approvals, Permission, PlannedCall};
use devmind_domain::canonical::hash_json;
use devmind_domain::conversation::Conversation;
use devmind_domain::event::Metadata;
use devmind_domain::ids::ToolCallId;
use devmind_domain::thread::Deferred;
use devmind_domain::tool_call::*;
use devmind_domain::tools::{
    Admission, AtDispatch, Ended, Finish, POLICY_STAGE, Refusal, Registry, Seen, ToolDefinition, ToolOutcome, Verdict,
    admit, ask_guards,
};
use devmind_ledger::{ExecuteError, execute, load};
use devmind_projections::RunRow;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Before a tool is run again for the first time; it doubles.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

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
    pub parent: Option<ToolCallId>,
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

impl Carried {
    /// What the model is told of an outcome that no stage changes.
    pub(super) fn plain(tool_call_id: ToolCallId, tool: &str, outcome: ToolOutcome) -> Self {
        Self { tool_call_id, content: outcome.content(tool), outcome, deferred: Deferred::default(), stopped: None }
    }
}

impl Calls {
    /// Carries out a call, or refuses it; either is recorded in the call's own stream, and so is what later stages make
    /// of it.
    pub async fn carry_out(&self, planned: &PlannedCall) -> Result<Carried, Halt> {
        if let Some(reason) = self.signal.reason() {
            return Err(Halt::Stopped(reason));
        }
        let tool_call_id = ToolCallId::of(&self.run.graph_thread_id, &planned.call.id);
        let admission = admit(self.callable(), &planned.call, planned.over_limit);
        let finish = Finish::captured(self.callable(), &admission.tool, self.tools.post_execute());
        let Ran { ended, deferred, stopped } = self.decide_and_run(&tool_call_id, planned, &admission).await?;
        let Seen { outcome, content, revisions } = finish.see(&admission.arguments, ended);
        if !revisions.is_empty() {
            self.call_command(&tool_call_id, ToolCallCommand::Revise(revisions)).await?;
        }
        Ok(Carried { tool_call_id, outcome, content, deferred, stopped })
    }

    /// Everything up to the recorded result: approval → guards → wrappers around the body.
    async fn decide_and_run(&self, id: &ToolCallId, planned: &PlannedCall, admission: &Admission) -> Result<Ran, Halt> {
        let parent_tool_call_id = self.parent.clone();
        let request = ToolCallRequested { parent_tool_call_id, ..requested(&self.run, &planned.call.id, admission) };
        if let Some((stage, error)) = refusal(admission, &planned.permission) {
            let by = decider(&planned.permission);
            return Ok(self.refuse(id, request, stage, error, by).await?.into());
        }
        if let Permission::Allowed(_) = &planned.permission {
            // The decision stands in the call's own stream before the call is dispatched.
            let (code, by) = (ErrorCode::ApprovalGiven.as_str(), decider(&planned.permission));
            self.decide(id, request.clone(), decided("approval", Decision::Allow, code, by)).await?;
        }
        if let Permission::Granted(verdict) = &planned.permission {
            let verdict = self.standing(verdict).await?;
            self.decide(id, request.clone(), verdict.decided()).await?;
            if verdict.decision != Decision::Allow {
                return Ok(Ended::from(ToolOutcome { result: Err(verdict.error()) }).into());
            }
        }
        let Some(definition) = self.callable().get(&admission.tool) else {
            let error = tool_error(ErrorCode::UnknownTool, ErrorCode::UnknownTool.help());
            return Ok(self.refuse(id, request, "resolve", error, "pipeline").await?.into());
        };
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
            Target::Server => self.run_in_server(id, definition, request).await?,
            Target::Device => self.run_on_device(id, definition, request).await?.into(),
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
        let (conversation, (call, _)) = futures::try_join!(conversation, load::<ToolCall>(reader, id.as_str()))?;
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
        self.decide(id, request, decided(stage, Decision::Deny, &error.code, by.into())).await?;
        Ok(ToolOutcome { result: Err(error) }.into())
    }

    async fn run_in_server(
        &self,
        id: &ToolCallId,
        definition: &ToolDefinition,
        request: ToolCallRequested,
    ) -> Result<Ran, Halt> {
        let cancel = self.signal.narrowed();
        let mut retries = definition.retries;
        loop {
            let clock = Clock::default();
            let call =
                WrappedCall { tool_call_id: id, definition, arguments: &request.arguments, clock: clock.clone() };
            let body = |cancel| async {
                let ran = self.attempt(id, definition, &request, cancel, &clock, retries > 0).await;
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
        definition: &ToolDefinition,
        request: &ToolCallRequested,
        cancel: CancellationToken,
        clock: &Clock,
        again: bool,
    ) -> Result<Attempted, Halt> {
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
        let state = self.call_command(id, ToolCallCommand::Dispatch(Box::new(dispatch))).await?;
        if let Some(recorded) = &state.result {
            return Ok(Attempted {
                outcome: ToolOutcome::of(recorded),
                deferred: Deferred::default(),
                unrecorded: None,
            });
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
    ) -> Result<Ended, Halt> {
        let clock = Clock::default();
        let call = WrappedCall { tool_call_id: id, definition, arguments: &request.arguments, clock: clock.clone() };
        let body = |_| async {
            let context = CallContext {
                run_id: self.run.run_id.clone(),
                conversation_title: self.run.title.clone(),
                metadata: self.metadata(),
                signal: self.signal.clone(),
            };
            clock.begin();
            let app = &self.app;
            let end = app.gateway.call(&app.ledger, &app.claim, context, id, request.clone()).await;
            clock.end();
            let outcome = match &end {
                // Of a call that was sent before a stop the prompt says what is known of it now.
                Ok(CallEnd::Outcome(outcome) | CallEnd::Stopped(_, outcome)) => outcome.clone(),
                Err(error) => ToolOutcome::failure(ErrorCode::LedgerUnavailable, error.to_string()),
            };
            (outcome.clone(), end.map(|_| outcome).map_err(halted))
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

/// One sending of a server call.
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

fn decided(stage: &str, decision: Decision, code: &str, by: String) -> ToolCallDecided {
    ToolCallDecided { stage: stage.to_owned(), decision, code: code.to_owned(), by }
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
