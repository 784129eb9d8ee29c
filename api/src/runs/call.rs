//! One tool call of a run: admitted or refused, and carried out in the server or on the device.
//!
//! All that it needs is shared, so that several calls can be under way at once. Which calls begin when, and that the
//! thread observes what became of each, is left to `tools`.

use super::active::{StopReason, StopSignal};
use super::execution::Halt;
use crate::device_gateway::calls::{CallContext, CallEnd};
use crate::ids::now;
use crate::state::App;
use crate::tools::{ToolContext, ToolSet};
use devmind_domain::ErrorCode;
use devmind_domain::agent::{Permission, PlannedCall};
use devmind_domain::canonical::hash_json;
use devmind_domain::event::Metadata;
use devmind_domain::ids::ToolCallId;
use devmind_domain::tool_call::*;
use devmind_domain::tools::{Admission, POLICY_STAGE, Seen, ToolOutcome, admit};
use devmind_ledger::{ExecuteError, execute};
use devmind_projections::RunRow;
use std::sync::Arc;

/// What calls of one run share.
#[derive(Clone)]
pub(super) struct Calls {
    pub app: Arc<App>,
    pub run: RunRow,
    /// The tools as they were when the run began.
    pub tools: Arc<ToolSet>,
    pub signal: StopSignal,
}

/// What became of a call: what the thread is to observe.
pub(super) struct Carried {
    pub tool_call_id: ToolCallId,
    pub outcome: ToolOutcome,
    /// What the model sees of it.
    pub content: String,
    /// The run was stopped while the call was under way.
    pub stopped: Option<StopReason>,
}

impl Carried {
    fn plain(tool_call_id: ToolCallId, tool: &str, outcome: ToolOutcome) -> Self {
        Self { tool_call_id, content: outcome.content(tool), outcome, stopped: None }
    }
}

impl Calls {
    /// Carries out a call, or refuses it; either is recorded in the call's own stream.
    pub async fn carry_out(&self, planned: &PlannedCall) -> Result<Carried, Halt> {
        if let Some(reason) = self.signal.reason() {
            return Err(Halt::Stopped(reason));
        }
        let tool_call_id = ToolCallId::of(&self.run.graph_thread_id, &planned.call.id);
        let admission = admit(self.tools.registry(), &planned.call, planned.over_limit);
        let request = requested(&self.run, &planned.call.id, &admission);
        if let Some((stage, error)) = refusal(&admission, &planned.permission) {
            let by = decider(&planned.permission);
            self.decide(&tool_call_id, request, decided(stage, Decision::Deny, &error.code, by)).await?;
            return Ok(Carried::plain(tool_call_id, &admission.tool, ToolOutcome { result: Err(error) }));
        }
        if let Permission::Allowed(_) = &planned.permission {
            // The decision stands in the call's own stream before the call is dispatched.
            let (code, by) = (ErrorCode::ApprovalGiven.as_str(), decider(&planned.permission));
            self.decide(&tool_call_id, request.clone(), decided("approval", Decision::Allow, code, by)).await?;
        }
        if let Permission::Granted(verdict) = &planned.permission {
            let verdict = self.standing(verdict).await?;
            self.decide(&tool_call_id, request.clone(), verdict.decided()).await?;
            if verdict.decision != Decision::Allow {
                let outcome = ToolOutcome { result: Err(verdict.error()) };
                return Ok(Carried::plain(tool_call_id, &admission.tool, outcome));
            }
        }
        let outcome = match admission.target {
            Target::Server => self.run_in_server(&tool_call_id, request).await?,
            Target::Device => match self.run_on_device(&tool_call_id, request).await? {
                CallEnd::Outcome(outcome) => outcome,
                // The call was sent: the prompt says that its outcome is unknown, whatever the device reports later.
                CallEnd::Stopped(reason, outcome) => {
                    let carried = Carried::plain(tool_call_id, &admission.tool, outcome);
                    return Ok(Carried { stopped: Some(reason), ..carried });
                }
            },
        };
        let Seen { outcome, content, revision } =
            self.tools.registry().seen(&admission.tool, &admission.arguments, outcome);
        if let Some(revision) = revision {
            self.call_command(&tool_call_id, ToolCallCommand::Revise(revision)).await?;
        }
        Ok(Carried { tool_call_id, outcome, content, stopped: None })
    }

    fn metadata(&self) -> Metadata {
        self.app.server_metadata().run(&self.run.run_id).conversation(&self.run.conversation_id)
    }

    async fn decide(&self, id: &ToolCallId, request: ToolCallRequested, decided: ToolCallDecided) -> Result<(), Halt> {
        self.call_command(id, ToolCallCommand::Decide { request: Box::new(request), decided }).await.map(drop)
    }

    async fn run_in_server(&self, id: &ToolCallId, request: ToolCallRequested) -> Result<ToolOutcome, Halt> {
        let (tool, arguments) = (request.tool.clone(), request.arguments.clone());
        let dispatch = Dispatch {
            run_id: self.run.run_id.clone(),
            node_id: self.app.claim.node_id.clone(),
            epoch: self.app.claim.epoch,
            connection_id: None,
            journal_id: None,
            wait_ms: self.tools.registry().get(&tool).and_then(|definition| definition.timeout_ms).unwrap_or(0),
            ttl_ms: 0,
            attempt_is_live: false,
            age_ms: 0,
            request,
        };
        let state = self.call_command(id, ToolCallCommand::Dispatch(Box::new(dispatch))).await?;
        if let Some(recorded) = &state.result {
            return Ok(ToolOutcome::of(recorded));
        }
        let started_at = now();
        let context = ToolContext { tool_call_id: id.clone(), cancel: self.signal.narrowed() };
        let outcome = self.tools.execute(&tool, arguments, context).await;
        let (status, output, error) = match &outcome.result {
            Ok(output) => (ResultStatus::Succeeded, Some(output.clone()), None),
            Err(error) => (ResultStatus::Failed, None, Some(error.clone())),
        };
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
        let command = ToolCallCommand::RecordResult { result: Box::new(result), reporter: Reporter::Server };
        self.call_command(id, command).await?;
        Ok(outcome)
    }

    async fn run_on_device(&self, id: &ToolCallId, request: ToolCallRequested) -> Result<CallEnd, Halt> {
        let context = CallContext {
            run_id: self.run.run_id.clone(),
            conversation_title: self.run.title.clone(),
            metadata: self.metadata(),
            signal: self.signal.clone(),
        };
        self.app.gateway.call(&self.app.ledger, &self.app.claim, context, id, request).await.map_err(halted)
    }

    async fn call_command(&self, id: &ToolCallId, command: ToolCallCommand) -> Result<Arc<ToolCall>, Halt> {
        let done = execute::<ToolCall>(&self.app.ledger, id.as_str(), &self.metadata(), command, None).await;
        done.map(|done| done.state).map_err(halted)
    }
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

fn halted(error: ExecuteError<ToolCallError>) -> Halt {
    match error {
        ExecuteError::Refused(error) => error.into(),
        ExecuteError::Append(error) => error.into(),
        ExecuteError::Ledger(error) => error.into(),
    }
}
