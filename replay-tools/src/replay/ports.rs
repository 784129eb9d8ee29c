//! The loop over a record: models, tools and people answer what the log says they answered. Where the loop asks
//! for anything else, it is left with the difference.

use super::Difference;
use super::record::{Record, Unreadable, readable};
use super::what_if::{ToolPolicy, WhatIf};
use devmind_domain::agent::{
    AgentEnd, AgentPorts, Approvals, Message, Permission, PlannedCall, Schedule, context_hash, prompt,
};
use devmind_domain::conversation::ConversationEvent;
use devmind_domain::event::{AggregateType, StreamId};
use devmind_domain::ids::ToolCallId;
use devmind_domain::thread::{Thread, ThreadCommand, ThreadEvent, ToolResultObserved};
use devmind_domain::tool_call::{Decision, ToolCallDecided, ToolCallEvent, ToolError};
use devmind_domain::tools::{Admission, CallFacts, POLICY_STAGE, Registry, ToolOutcome, Verdict, admit, told};
use devmind_domain::{Decider, ErrorCode};
use devmind_ledger::{LedgerError, LedgerReader};
use std::collections::BTreeSet;

/// Why the loop was left.
pub(super) enum Halt {
    /// The log has no more, and need not: the run was cut off there.
    Cut,
    Differs(Difference),
    Unreadable(Unreadable),
    Ledger(LedgerError),
}

impl From<LedgerError> for Halt {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

pub(super) struct Ports<'a> {
    pub reader: &'a LedgerReader,
    pub record: Record,
    pub what_if: &'a WhatIf,
    /// The tools that there were.
    pub tools: &'a Registry,
    /// Decisions that were the same.
    pub decisions: u32,
}

impl Ports<'_> {
    /// Whether the loop ended as the log says.
    pub fn check_end(&self, end: &AgentEnd) -> Result<(), Halt> {
        if let Some((position, fact)) = self.record.facts.front()
            && !self.record.was_cut()
        {
            return Err(differs(*position, name_of_end(end), name_of(fact)));
        }
        let Some((position, recorded)) = &self.record.end else { return Ok(()) };
        let same = match (end, recorded) {
            (AgentEnd::Answered { message_id, answer }, ConversationEvent::RunSucceeded(e)) => {
                e.message_id == *message_id && e.answer == *answer
            }
            (AgentEnd::Interrupted, ConversationEvent::RunInterrupted(_)) => true,
            (AgentEnd::Failed { code, .. }, ConversationEvent::RunFailed(e)) => e.error_code == *code,
            (AgentEnd::Answered { .. } | AgentEnd::Interrupted | AgentEnd::Failed { .. }, _) => false,
        };
        // Who stops a run, or the machine that dies, may come between the last decision and its record.
        if same || self.record.was_cut() {
            return Ok(());
        }
        Err(differs(*position, name_of_end(end), name_of_recorded(recorded)))
    }

    fn missing(&self, looped: impl Into<String>) -> Halt {
        if self.record.was_cut() {
            return Halt::Cut;
        }
        let log = self.record.end.as_ref().map_or("nothing", |(_, event)| name_of_recorded(event));
        differs(self.record.end.as_ref().map_or(0, |(position, _)| *position), looped, format!("the end: {log}"))
    }

    /// The messages that the model would be asked with.
    fn messages(&self) -> Vec<Message> {
        let mut messages = prompt(&self.record.context, &self.record.thread);
        if let (Some(system), Some(Message::System { content })) = (&self.what_if.system, messages.first_mut()) {
            content.clone_from(system);
        }
        messages
    }

    fn take(&mut self) -> Option<(u64, ThreadEvent)> {
        self.record.facts.pop_front()
    }

    /// Holds a call against the log, and what the model was told of it.
    async fn compare(&self, planned: &PlannedCall, told: Option<(u64, &ToolResultObserved)>) -> Result<(), Halt> {
        let admission = admit(self.tools, &planned.call, planned.over_limit);
        let id = ToolCallId::of(&self.record.thread_id, &planned.call.id);
        let refusal = refusal(&admission, &planned.permission, self.what_if.tools.get(&admission.tool));
        let call = RecordedCall::read(self.reader, &id, self.record.until()).await?;
        call.compare(&admission, refusal.as_ref(), self.record.claimed_at)?;
        let Some((position, observed)) = told else { return Ok(()) };
        if call.is_empty() && !self.record.was_cut() {
            return Err(differs(position, format!("{} {id} is begun", admission.tool), "no call of this id"));
        }
        call.compare_result(self.tools, &admission, refusal.as_ref(), observed, position, self.record.was_cut())
    }

    /// The next result in the log: which of the calls it is of, where it stands, and what it says.
    fn take_result(&mut self, ids: &[ToolCallId]) -> Result<Option<(usize, u64, ToolResultObserved)>, Halt> {
        let looped = || format!("a result of one of {} calls", ids.len());
        let Some((position, fact)) = self.take() else { return Ok(None) };
        let ThreadEvent::ToolResultObserved(observed) = fact else {
            return Err(differs(position, looped(), name_of(&fact)));
        };
        match ids.iter().position(|id| *id == observed.tool_call_id) {
            Some(index) => Ok(Some((index, position, observed))),
            None => Err(differs(position, looped(), format!("a result of {}", observed.tool_call_id))),
        }
    }

    /// Takes what the run refused before its loop began: calls that a person was asked about, whose tool was another
    /// by then. Which tools there were then is given.
    pub async fn pass_what_changed(&mut self) -> Result<(), Halt> {
        while let Some((_, fact @ ThreadEvent::ToolResultObserved(observed))) =
            self.record.facts.front().cloned().as_ref()
        {
            let call = RecordedCall::read(self.reader, &observed.tool_call_id, self.record.until()).await?;
            let refused = call.0.iter().any(|(_, event)| {
                matches!(event, ToolCallEvent::ToolCallDecided(e) if e.code == ErrorCode::ToolChanged.as_str())
            });
            if !refused {
                break;
            }
            self.take();
            self.record.thread.evolve(fact);
            self.decisions += 1;
        }
        Ok(())
    }

    /// What the call that was taken last left for later: given, like its result.
    fn take_deferred(&mut self, of: &ToolCallId) {
        let is_its = |fact: &ThreadEvent| match fact {
            ThreadEvent::ContextDeferred(e) => e.tool_call_id == *of,
            ThreadEvent::TurnConcluded(e) => e.tool_call_id == *of,
            ThreadEvent::ThreadStarted(_)
            | ThreadEvent::ModelRequested(_)
            | ThreadEvent::AnswerProgressed(_)
            | ThreadEvent::ModelResponded(_)
            | ThreadEvent::ModelFailed(_)
            | ThreadEvent::ToolResultObserved(_) => false,
        };
        while self.record.facts.front().is_some_and(|(_, fact)| is_its(fact)) {
            self.take().iter().for_each(|(_, fact)| self.record.thread.evolve(fact));
        }
    }

    /// The call as it would be planned.
    fn with_policy(&self, planned: &PlannedCall) -> PlannedCall {
        let mut planned = planned.clone();
        if let Some(most) = self.what_if.calls {
            let exchanges = &self.record.thread.exchanges;
            let earlier: usize = exchanges.iter().rev().skip(1).map(|exchange| exchange.calls.len()).sum();
            let own = exchanges.last().and_then(|last| last.calls.iter().position(|call| call.id == planned.call.id));
            planned.over_limit |= earlier + own.unwrap_or(0) >= most as usize;
        }
        let tool = admit(self.tools, &planned.call, planned.over_limit).tool;
        match self.what_if.tools.get(&tool) {
            Some(ToolPolicy::Allow) => planned.permission = Permission::NotNeeded,
            Some(ToolPolicy::Ask) if matches!(planned.permission, Permission::NotNeeded | Permission::Granted(_)) => {
                planned.permission = Permission::Undecided;
            }
            Some(ToolPolicy::Ask | ToolPolicy::Deny) | None => {}
        }
        planned
    }
}

impl AgentPorts for Ports<'_> {
    type Halt = Halt;

    fn thread(&self) -> &Thread {
        &self.record.thread
    }

    fn approvals(&self) -> &Approvals {
        &self.record.approvals
    }

    fn tools(&self) -> &Registry {
        self.tools
    }

    async fn call_model(&mut self, round: u32) -> Result<(), Halt> {
        let looped = format!("the model is asked, round {round}");
        let Some((position, fact)) = self.take() else { return Err(self.missing(looped)) };
        let ThreadEvent::ModelRequested(asked) = &fact else { return Err(differs(position, looped, name_of(&fact))) };
        if self.what_if.rounds.is_some_and(|most| round > most) {
            let code = ErrorCode::ModelRoundLimit;
            return Err(differs(position, format!("the run fails with {code}"), format!("round {round} is asked")));
        }
        if let Some(model) = self.what_if.model.as_ref().filter(|model| **model != asked.model) {
            let looped = format!("the model {model} is asked: its answer is not in the log");
            return Err(differs(position, looped, format!("the model {} was asked", asked.model)));
        }
        let hash = context_hash(&self.messages());
        if (asked.round, &asked.request_hash) != (round, &hash) {
            let looped = format!("{looped}, with the messages {hash}");
            let log = format!("round {} with the messages {}", asked.round, asked.request_hash);
            return Err(differs(position, looped, log));
        }
        self.decisions += 1;
        self.record.thread.evolve(&fact);
        loop {
            let Some((position, fact)) = self.take() else { return Err(self.missing("an answer of the model")) };
            match &fact {
                ThreadEvent::AnswerProgressed(_) => self.record.thread.evolve(&fact),
                ThreadEvent::ModelResponded(answer) => {
                    let decided = self.record.thread.decide(ThreadCommand::RecordResponse(answer.clone()));
                    if decided.as_deref() != Ok(std::slice::from_ref(&fact)) {
                        return Err(differs(position, "the answer is recorded otherwise", name_of(&fact)));
                    }
                    self.record.thread.evolve(&fact);
                    return Ok(());
                }
                ThreadEvent::ModelFailed(_) => {
                    self.record.thread.evolve(&fact);
                    return Ok(());
                }
                ThreadEvent::ThreadStarted(_)
                | ThreadEvent::ModelRequested(_)
                | ThreadEvent::ToolResultObserved(_)
                | ThreadEvent::ContextDeferred(_)
                | ThreadEvent::TurnConcluded(_) => {
                    return Err(differs(position, "an answer of the model", name_of(&fact)));
                }
            }
        }
    }

    async fn judge(&mut self, calls: Vec<PlannedCall>) -> Result<(), Halt> {
        for planned in &calls {
            let admission = admit(self.tools, &planned.call, planned.over_limit);
            let Some(definition) = self.tools.get(&admission.tool) else { continue };
            let id = ToolCallId::of(&self.record.thread_id, &planned.call.id);
            let recorded = RecordedCall::read(self.reader, &id, self.record.until()).await?.verdict();
            let recorded = recorded.map(|(_, verdict)| verdict);
            // Where no policy had a word, the tool itself has it: no event says so.
            let verdict = recorded.unwrap_or_else(|| Verdict::of_tool(definition.approval));
            self.record.approvals.judged(id, admission.call_hash, verdict);
        }
        Ok(())
    }

    /// Results come in the order in which the calls ended: any that the schedule of the server allows.
    async fn run_tools(&mut self, calls: Vec<PlannedCall>) -> Result<(), Halt> {
        let calls: Vec<_> = calls.iter().map(|planned| self.with_policy(planned)).collect();
        let ids: Vec<_> = calls.iter().map(|call| ToolCallId::of(&self.record.thread_id, &call.call.id)).collect();
        let mut schedule = Schedule::of(self.tools, &calls);
        let mut left: BTreeSet<usize> = (0..calls.len()).collect();
        for id in &ids {
            RecordedCall::read(self.reader, id, self.record.until()).await?.check_known(self.tools)?;
        }
        while !left.is_empty() {
            schedule.begin();
            let Some((index, position, observed)) = self.take_result(&ids)? else {
                for index in &left {
                    self.compare(&calls[*index], None).await?;
                }
                return Err(self.missing(format!("results of {} calls", left.len())));
            };
            if !left.remove(&index) {
                return Err(differs(position, "one result of every call", format!("a second one of {}", ids[index])));
            }
            // What had not begun when the run was cut off has a stand-in.
            if !(schedule.is_under_way(index) || self.record.was_cut() && !observed.ok) {
                let looped = format!("{} waits for the calls before it", ids[index]);
                return Err(differs(position, looped, "it had a result before they had theirs"));
            }
            self.compare(&calls[index], Some((position, &observed))).await?;
            schedule.end(index);
            self.record.thread.evolve(&observed.into());
            self.take_deferred(&ids[index]);
            self.decisions += 1;
        }
        Ok(())
    }

    async fn await_approval(&mut self, calls: Vec<PlannedCall>) -> Result<(), Halt> {
        for planned in &calls {
            let admission = admit(self.tools, &planned.call, planned.over_limit);
            let id = ToolCallId::of(&self.record.thread_id, &planned.call.id);
            let raised = self.record.raised.iter().find(|(_, call, _)| call == id.as_str());
            let Some((position, _, hash)) = raised else {
                return Err(self.missing(format!("a person is asked about {} {id}", admission.tool)));
            };
            let asked = format!("a person is asked about {} {id}", admission.tool);
            if *hash != admission.call_hash {
                let looped = format!("{asked}, hash {}", admission.call_hash);
                return Err(differs(*position, looped, format!("a person was asked about the hash {hash}")));
            }
            match self.what_if.tools.get(&admission.tool) {
                Some(ToolPolicy::Allow) => return Err(differs(*position, format!("{id} is carried out"), asked)),
                Some(ToolPolicy::Deny) => return Err(differs(*position, format!("{id} is refused"), asked)),
                Some(ToolPolicy::Ask) | None => self.decisions += 1,
            }
        }
        Ok(())
    }
}

/// Why a call must not be carried out: the stage and the error, as the server decides it.
pub(super) fn refusal(
    admission: &Admission,
    permission: &Permission,
    policy: Option<&ToolPolicy>,
) -> Option<(&'static str, ToolError)> {
    if let Some(refusal) = &admission.refusal {
        return Some(refusal.clone());
    }
    let code = match permission {
        _ if policy == Some(&ToolPolicy::Deny) => ErrorCode::ApprovalRejected,
        Permission::NotNeeded | Permission::Granted(_) | Permission::Allowed(_) => return None,
        Permission::Denied(verdict) => return Some((POLICY_STAGE, verdict.error())),
        Permission::Unjudged | Permission::Undecided => ErrorCode::ApprovalRequired,
        Permission::Rejected(_) => ErrorCode::ApprovalRejected,
        Permission::Expired => ErrorCode::ApprovalExpired,
        Permission::Cancelled => ErrorCode::ApprovalCancelled,
    };
    Some(("approval", ToolError { code: code.as_str().to_owned(), message: code.help().to_owned() }))
}

/// The events of a tool call, with positions.
pub(super) struct RecordedCall(pub(super) Vec<(u64, ToolCallEvent)>);

/// The stages that the loop itself decides; others speak of devices and processes.
const PURE_STAGES: [&str; 6] = ["parse", "resolve", "validate", "limit", POLICY_STAGE, "approval"];

/// Those of them before the policies.
const UNHEARD_STAGES: [&str; 4] = ["parse", "resolve", "validate", "limit"];

impl RecordedCall {
    pub async fn read(reader: &LedgerReader, id: &ToolCallId, until: u64) -> Result<Self, Halt> {
        let mut events = Vec::new();
        for event in reader.read_stream(&StreamId::new(AggregateType::ToolCall, id.as_str()), 0).await? {
            let facts = readable(&event).map_err(Halt::Unreadable)?;
            if event.position < until {
                events.extend(facts.into_iter().map(|fact| (event.position, fact)));
            }
        }
        Ok(Self(events))
    }

    /// What the policies decided about the call, and where: it is what the loop was given.
    pub fn verdict(&self) -> Option<(u64, Verdict)> {
        self.0.iter().find_map(|(position, event)| match event {
            ToolCallEvent::ToolCallDecided(e) if e.stage == POLICY_STAGE => Some((*position, Verdict::recorded(e))),
            _ => None,
        })
    }

    /// Whether it was refused before any policy was heard.
    pub fn was_refused_unheard(&self) -> bool {
        self.0.iter().any(|(_, event)| match event {
            ToolCallEvent::ToolCallDecided(e) => {
                e.decision == Decision::Deny && UNHEARD_STAGES.contains(&e.stage.as_str())
            }
            _ => false,
        })
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Of a tool that is not at hand nobody can say what should have been decided.
    pub fn check_known(&self, tools: &Registry) -> Result<(), Halt> {
        let requested = self.0.iter().find_map(|(position, event)| match event {
            ToolCallEvent::ToolCallRequested(e) if !e.tool_version.is_empty() => Some((position, e)),
            _ => None,
        });
        match requested {
            Some((position, e)) if tools.get(&e.tool).is_none() => {
                let reason = format!("event {position}: the definition of the tool {} is not at hand", e.tool);
                Err(Halt::Unreadable((ErrorCode::RunNotReplayable, reason)))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Whether the same was asked for and the same was decided about it.
    fn compare(
        &self,
        admission: &Admission,
        refusal: Option<&(&'static str, ToolError)>,
        claimed_at: u64,
    ) -> Result<(), Halt> {
        for (position, event) in &self.0 {
            match event {
                ToolCallEvent::ToolCallRequested(e)
                    if (&e.tool, &e.tool_version, &e.call_hash, e.target)
                        != (&admission.tool, &admission.version, &admission.call_hash, admission.target) =>
                {
                    let looped = format!("{} with {}", admission.tool, admission.arguments);
                    return Err(differs(*position, looped, format!("{} with {}", e.tool, e.arguments)));
                }
                ToolCallEvent::ToolCallDecided(e) if *position > claimed_at => compare_decision(*position, e, refusal)?,
                ToolCallEvent::ToolDispatched(_) if *position > claimed_at => {
                    if let Some((stage, error)) = refusal {
                        let looped = format!("{} is refused at {stage} with {}", admission.tool, error.code);
                        return Err(differs(*position, looped, format!("{} was carried out", admission.tool)));
                    }
                }
                ToolCallEvent::ToolCallRequested(_)
                | ToolCallEvent::ToolCallDecided(_)
                | ToolCallEvent::ToolDispatched(_)
                | ToolCallEvent::ToolReceived(_)
                | ToolCallEvent::ToolAttemptRefused(_)
                | ToolCallEvent::ToolCancelRequested(_)
                | ToolCallEvent::ToolWaitTimedOut(_)
                | ToolCallEvent::ToolResultRecorded(_)
                | ToolCallEvent::ToolOutcomeRevised(_)
                | ToolCallEvent::ToolResultAcked(_) => {}
            }
        }
        Ok(())
    }

    /// Whether the model was told what came of the call.
    fn compare_result(
        &self,
        tools: &Registry,
        admission: &Admission,
        refusal: Option<&(&'static str, ToolError)>,
        observed: &ToolResultObserved,
        position: u64,
        cut: bool,
    ) -> Result<(), Halt> {
        let mut call = CallFacts::default();
        let before = self.0.iter().filter(|(recorded_at, _)| *recorded_at < position);
        before.for_each(|(_, event)| call.see(event.clone()));
        let Some((_, error)) = refusal.filter(|_| call.revisions.is_empty()) else {
            // That a device was away, a wait was over or a policy held something back is what the loop was given.
            let told = told(tools, &call, observed).map(|_| ());
            return told.map_err(|reason| differs(position, reason, format!("it was told {}", observed.content)));
        };
        // Its words were the policy's, which logs from before reasons were recorded have nowhere else.
        let unspoken = call.refusal.as_ref().is_some_and(|own| own.stage == POLICY_STAGE && own.reason.is_none());
        if unspoken && Some(&error.code) == observed.error.as_ref() {
            return Ok(());
        }
        let told = ToolOutcome { result: Err(error.clone()) }.content(&admission.tool);
        // A run that was cut off has stand-ins instead.
        if told == observed.content || (cut && !observed.ok) {
            return Ok(());
        }
        Err(differs(position, format!("the model is told {told}"), format!("it was told {}", observed.content)))
    }
}

fn compare_decision(
    position: u64,
    decided: &ToolCallDecided,
    refusal: Option<&(&'static str, ToolError)>,
) -> Result<(), Halt> {
    if !PURE_STAGES.contains(&decided.stage.as_str()) {
        return Ok(());
    }
    let log = |words: &str| format!("{words} at {} with {}", decided.stage, decided.code);
    match (decided.decision, refusal) {
        (Decision::Deny, None) => Err(differs(position, "the call is carried out", log("it was refused"))),
        (Decision::Deny, Some((stage, error))) if (*stage, &error.code) != (decided.stage.as_str(), &decided.code) => {
            Err(differs(position, format!("it is refused at {stage} with {}", error.code), log("it was refused")))
        }
        (Decision::Allow, Some((stage, error))) => {
            Err(differs(position, format!("it is refused at {stage} with {}", error.code), log("it was allowed")))
        }
        (Decision::Deny | Decision::Allow | Decision::Ask, _) => Ok(()),
    }
}

pub(super) fn differs(position: u64, looped: impl Into<String>, log: impl Into<String>) -> Halt {
    Halt::Differs(Difference { position, replay: looped.into(), log: log.into() })
}

fn name_of(event: &ThreadEvent) -> &'static str {
    devmind_domain::event::EventSet::type_name(event)
}

fn name_of_recorded(event: &ConversationEvent) -> &'static str {
    devmind_domain::event::EventSet::type_name(event)
}

fn name_of_end(end: &AgentEnd) -> String {
    match end {
        AgentEnd::Answered { answer, .. } => format!("the run is answered: {answer}"),
        AgentEnd::Interrupted => "the run waits for a person".to_owned(),
        AgentEnd::Failed { code, .. } => format!("the run fails with {code}"),
    }
}
