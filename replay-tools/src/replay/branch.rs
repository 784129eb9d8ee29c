//! A what-if branch: the run once more from its claim, with a model that really answers. It has the results
//! that the log has of the same call (tool, version and arguments); at any other call it stops and says what it
//! would have called. Nothing is written, and no tool can be reached from here.

use super::model::AskedModel;
use super::ports::refusal;
use super::record::{Record, readable};
use super::what_if::{ToolPolicy, WhatIf};
use crate::failure::Failure;
use devmind_domain::agent::{AgentEnd, AgentPorts, Approvals, Message, PlannedCall, context_hash, prompt, run_agent};
use devmind_domain::canonical::hash_json;
use devmind_domain::event::{AggregateType, StreamId};
use devmind_domain::ids::{MessageId, RunId, ToolCallId};
use devmind_domain::thread::{
    Deferred, ModelRequested, ModelResponded, Thread, ThreadCommand, ThreadEvent, ToolResultObserved,
};
use devmind_domain::tool_call::{Target, ToolCallEvent};
use devmind_domain::tools::{Approval, PolicyCall, Registry, ToolOutcome, Verdict, admit, judge, with_defaults};
use devmind_domain::{Decider, ErrorCode};
use devmind_ledger::LedgerReader;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Instant;

/// What happened in a branch, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub(super) enum Step {
    /// The model answered.
    Model { round: u32, model: String, content: String, calls: Vec<String> },
    /// A tool's result, and the event that has it; none where the call is refused before it is begun.
    Tool {
        tool: String,
        arguments: Value,
        ok: bool,
        content: String,
        from: Option<u64>,
        /// What it left for the model after all results, as in the log.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        contexts: Vec<String>,
    },
}

/// How a branch ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub(super) enum End {
    Answered {
        answer: String,
    },
    /// It fails with a stable code.
    Fails {
        code: String,
    },
    /// A person would be asked.
    Asks {
        tool: String,
        arguments: Value,
    },
    /// A tool would be called, and the log has no result of such a call.
    Calls {
        tool: String,
        arguments: Value,
    },
}

/// What a branch says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Told {
    pub run_id: RunId,
    /// The event that it branches off at: the run's claim.
    pub from: u64,
    pub steps: Vec<Step>,
    #[serde(flatten)]
    pub end: End,
}

/// Why a branch was left.
pub(super) enum Left {
    Ended(End),
    Failed(Failure),
}

/// A result that the log has.
struct Known {
    position: u64,
    ok: bool,
    content: String,
    error: Option<String>,
    /// What it left for the time after all results of its message.
    deferred: Deferred,
}

struct Branch<'a> {
    record: Record,
    tools: &'a Registry,
    what_if: &'a WhatIf,
    model: &'a AskedModel,
    run_id: RunId,
    /// By the hash of tool, version and arguments.
    known: BTreeMap<String, Known>,
    steps: Vec<Step>,
}

/// Runs a branch to its end.
pub(super) async fn branch(
    reader: &LedgerReader,
    tools: &Registry,
    record: Record,
    run_id: &RunId,
    what_if: &WhatIf,
    model: &AskedModel,
) -> Result<Told, Failure> {
    let known = known(reader, &record).await?;
    let from = record.claimed_at;
    let mut branch = Branch { record, tools, what_if, model, run_id: run_id.clone(), known, steps: Vec::new() };
    let end = match run_agent(&mut branch).await {
        Ok(AgentEnd::Answered { answer, .. }) => End::Answered { answer },
        Ok(AgentEnd::Failed { code, .. }) => End::Fails { code },
        // Left with the question itself, before that.
        Ok(AgentEnd::Interrupted) => End::Fails { code: ErrorCode::ApprovalRequired.as_str().to_owned() },
        Err(Left::Ended(end)) => end,
        Err(Left::Failed(failure)) => return Err(failure),
    };
    Ok(Told { run_id: run_id.clone(), from, steps: branch.steps, end })
}

/// Every call of the thread that was really carried out, and what it gave.
async fn known(reader: &LedgerReader, record: &Record) -> Result<BTreeMap<String, Known>, Failure> {
    let mut known = BTreeMap::new();
    let earlier = record.thread.exchanges.iter().flat_map(|exchange| exchange.calls.iter());
    let own = record.facts.iter().filter_map(|(_, fact)| match fact {
        ThreadEvent::ModelResponded(answer) => Some(answer.tool_calls.iter()),
        _ => None,
    });
    let ids: Vec<ToolCallId> =
        earlier.chain(own.flatten()).map(|call| ToolCallId::of(&record.thread_id, &call.id)).collect();
    for id in ids {
        let (mut call, mut given, mut revised) = (None, None, false);
        for event in reader.read_stream(&StreamId::new(AggregateType::ToolCall, id.as_str()), 0).await? {
            let position = event.position;
            if position >= record.until() {
                break;
            }
            // What was erased has no result to give.
            for fact in readable::<ToolCallEvent>(&event).unwrap_or_default() {
                revised |= matches!(fact, ToolCallEvent::ToolOutcomeRevised(_));
                if let ToolCallEvent::ToolCallRequested(e) = &fact {
                    call = Some((e.call_hash.clone(), e.tool.clone()));
                }
                if let (ToolCallEvent::ToolResultRecorded(e), Some((_, tool)), None) = (&fact, &call, &given) {
                    let outcome = ToolOutcome::of(e);
                    let error = outcome.result.as_ref().err().map(|error| error.code.clone());
                    given = Some((position, outcome.result.is_ok(), outcome.content(tool), error));
                }
            }
        }
        let (Some((hash, _)), Some((position, mut ok, mut content, mut error))) = (call, given) else { continue };
        if revised {
            // What was held back from one model is for no other either: it is told what that one was.
            let Some(told) = record.told.get(&id) else { continue };
            (ok, content, error) = (told.ok, told.content.clone(), told.error.clone());
        }
        let deferred = record.deferred.get(&id).cloned().unwrap_or_default();
        known.entry(hash).or_insert(Known { position, ok, content, error, deferred });
    }
    Ok(known)
}

impl Branch<'_> {
    fn messages(&self) -> Vec<Message> {
        let mut messages = prompt(&self.record.context, &self.record.thread);
        if let (Some(system), Some(Message::System { content })) = (&self.what_if.system, messages.first_mut()) {
            content.clone_from(system);
        }
        messages
    }

    fn decide(&mut self, command: ThreadCommand) -> Result<(), Left> {
        let decided = self.record.thread.decide(command).map_err(|error| Left::Failed(Failure::internal(error)))?;
        decided.iter().for_each(|event| self.record.thread.evolve(event));
        Ok(())
    }
}

impl AgentPorts for Branch<'_> {
    type Halt = Left;

    fn thread(&self) -> &Thread {
        &self.record.thread
    }

    fn approvals(&self) -> &Approvals {
        &self.record.approvals
    }

    fn tools(&self) -> &Registry {
        self.tools
    }

    async fn call_model(&mut self, round: u32) -> Result<(), Left> {
        if self.what_if.rounds.is_some_and(|most| round > most) {
            return Err(Left::Ended(End::Fails { code: ErrorCode::ModelRoundLimit.as_str().to_owned() }));
        }
        let messages = self.messages();
        self.decide(ThreadCommand::RequestModel(ModelRequested {
            run_id: self.run_id.clone(),
            round,
            provider: "what-if".to_owned(),
            model: self.model.name.clone(),
            parameters: Value::Object(serde_json::Map::new()),
            request_hash: context_hash(&messages),
            tools_hash: hash_json(&self.tools.model_visible()),
            tool_set: self.record.thread.tool_set.clone(),
        }))?;
        let asked = Instant::now();
        let answered = self.model.ask(&messages, self.tools).await.map_err(Left::Failed)?;
        let calls = answered.tool_calls.iter().map(|call| format!("{}({})", call.name, call.arguments)).collect();
        self.steps.push(Step::Model {
            round,
            model: answered.served_model.clone(),
            content: answered.content.clone(),
            calls,
        });
        self.decide(ThreadCommand::RecordResponse(ModelResponded {
            run_id: self.run_id.clone(),
            round,
            message_id: MessageId(format!("what-if-{round}")),
            content: answered.content,
            reasoning: None,
            tool_calls: answered.tool_calls,
            finish_reason: answered.finish_reason,
            usage: answered.usage,
            served_model: answered.served_model,
            latency_ms: u64::try_from(asked.elapsed().as_millis()).unwrap_or(u64::MAX),
        }))
    }

    async fn judge(&mut self, calls: Vec<PlannedCall>) -> Result<(), Left> {
        for planned in &calls {
            let admission = admit(self.tools, &planned.call, planned.over_limit);
            let Some(definition) = self.tools.get(&admission.tool) else { continue };
            let ruled = self.what_if.rules.as_ref().map(|rules| {
                let on_device = admission.target == Target::Device;
                let call = PolicyCall {
                    conversation_id: self.record.conversation_id.clone(),
                    user_id: self.record.user_id.clone(),
                    device_id: self.record.device_id.clone().filter(|_| on_device),
                    tool: admission.tool.clone(),
                    tool_version: admission.version.clone(),
                    target: admission.target,
                    risk: admission.risk,
                    approval: definition.approval,
                    arguments: with_defaults(&definition.parameters, &admission.arguments),
                };
                judge(rules, self.record.grants_at(self.record.claimed_at), &call, true)
            });
            let verdict = match (self.what_if.tools.get(&admission.tool), ruled) {
                // Refused when its turn comes, as the policy says.
                (Some(ToolPolicy::Allow | ToolPolicy::Deny), _) => Verdict::of_tool(Approval::Never),
                (Some(ToolPolicy::Ask), _) => Verdict::of_tool(Approval::Always),
                (None, Some(verdict)) => verdict,
                // Exactly this call was carried out: it was allowed.
                (None, None) if self.known.contains_key(&admission.call_hash) => Verdict::of_tool(Approval::Never),
                (None, None) => Verdict::of_tool(definition.approval),
            };
            let id = ToolCallId::of(&self.record.thread_id, &planned.call.id);
            self.record.approvals.judged(id, admission.call_hash, verdict);
        }
        Ok(())
    }

    async fn run_tools(&mut self, calls: Vec<PlannedCall>) -> Result<(), Left> {
        for planned in &calls {
            let over_limit = planned.over_limit || self.what_if.calls.is_some_and(|most| self.calls_before() >= most);
            let admission = admit(self.tools, &planned.call, over_limit);
            let id = ToolCallId::of(&self.record.thread_id, &planned.call.id);
            let refused = refusal(&admission, &planned.permission, self.what_if.tools.get(&admission.tool));
            let (ok, content, error, from, deferred) = match (refused, self.known.get(&admission.call_hash)) {
                (Some((_, error)), _) => {
                    let code = error.code.clone();
                    let content = ToolOutcome { result: Err(error) }.content(&admission.tool);
                    (false, content, Some(code), None, Deferred::default())
                }
                (None, Some(Known { position, ok, content, error, deferred })) => {
                    (*ok, content.clone(), error.clone(), Some(*position), deferred.clone())
                }
                (None, None) => {
                    let (tool, arguments) = (admission.tool, admission.arguments);
                    return Err(Left::Ended(End::Calls { tool, arguments }));
                }
            };
            let (tool, arguments, contexts) = (admission.tool, admission.arguments, deferred.contexts.clone());
            self.steps.push(Step::Tool { tool, arguments, ok, content: content.clone(), from, contexts });
            let observed = ToolResultObserved { tool_call_id: id, ok, content, error };
            self.decide(ThreadCommand::ObserveResult(observed, deferred))?;
        }
        Ok(())
    }

    async fn await_approval(&mut self, calls: Vec<PlannedCall>) -> Result<(), Left> {
        let Some(planned) = calls.first() else { return Ok(()) };
        let admission = admit(self.tools, &planned.call, planned.over_limit);
        Err(Left::Ended(End::Asks { tool: admission.tool, arguments: admission.arguments }))
    }
}

impl Branch<'_> {
    /// Calls that had their result so far.
    fn calls_before(&self) -> u32 {
        let results = self.record.thread.exchanges.iter().map(|exchange| exchange.results.len()).sum::<usize>();
        u32::try_from(results).unwrap_or(u32::MAX)
    }
}
