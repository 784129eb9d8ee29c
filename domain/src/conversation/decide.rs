//! The rules of a conversation: which events a command causes, or why it is refused.

use super::{command::*, error::ConversationError, event::*, grant::*, state::*};
use crate::ids::*;
use crate::limits::MAX_TITLE_CHARS;
use crate::time::Timestamp;

/// The first 50 characters of a question, never half a character.
pub fn title_of(question: &str) -> String {
    question.trim().chars().take(MAX_TITLE_CHARS).collect()
}

/// The end of a run that nobody executes.
fn cancelled_before_claim(run: &ActiveRun, reason: RunCancelReason) -> ConversationEvent {
    RunCancelled { run_id: run.run_id.clone(), error_code: reason, message_id: None, partial_text: String::new() }
        .into()
}

impl Conversation {
    /// What a command causes.
    pub(super) fn decide_command(
        &self,
        command: ConversationCommand,
    ) -> Result<Vec<ConversationEvent>, ConversationError> {
        match command {
            ConversationCommand::Ask(ask) => self.ask(ask),
            ConversationCommand::Rerun(rerun) => self.rerun(rerun),
            ConversationCommand::Interrupt { run_id, claim, interrupts } => {
                self.owned_run(&run_id, &claim)?;
                // A run that waits for nothing would wait for ever.
                if interrupts.is_empty() {
                    return Err(ConversationError::NothingToAsk);
                }
                Ok(self.interrupt(run_id, interrupts))
            }
            ConversationCommand::Answer(answer) => self.answer(answer),
            ConversationCommand::RevokeGrant { user_id, grant_id } => {
                self.owned_by(&user_id)?;
                if self.grants.iter().all(|own| own.grant_id != grant_id) {
                    return Err(ConversationError::GrantNotFound);
                }
                Ok(vec![ToolGrantRevoked { grant_id, revoked_by: user_id }.into()])
            }
            ConversationCommand::Expire { now, run_id } => Ok(self.expire(now, &run_id)),
            ConversationCommand::Stop { user_id, run_id } => self.stop(&user_id, &run_id),
            ConversationCommand::RequestStop { user_id, run_id } => self.request_stop(&user_id, run_id),
            ConversationCommand::Rename { user_id, title } => {
                self.owned_by(&user_id)?;
                if title == self.title {
                    return Ok(vec![]);
                }
                Ok(vec![ConversationRenamed { title, source: TitleSource::Manual }.into()])
            }
            ConversationCommand::Delete { user_id } => self.delete(&user_id),
            ConversationCommand::RecordRead { by, role, what } => match &self.owner {
                None => Err(ConversationError::NotFound),
                Some(owner) if *owner == by => Ok(vec![]),
                // Also where it was deleted: the log still shows it to those who may read everything.
                Some(_) => Ok(vec![ConversationRead { by, role, what }.into()]),
            },
            ConversationCommand::ClaimRun { .. } if self.deleted => Err(ConversationError::NotFound),
            ConversationCommand::ClaimRun { run_id, claim, context_hash } => match self.active_run(&run_id)?.status {
                RunStatus::Queued => {
                    let Claim { node_id, epoch } = claim;
                    Ok(vec![RunClaimed { run_id, node_id, epoch, context_hash }.into()])
                }
                RunStatus::Running(_)
                | RunStatus::Interrupted
                | RunStatus::Succeeded
                | RunStatus::Failed
                | RunStatus::Cancelled => Err(ConversationError::AlreadyClaimed),
            },
            ConversationCommand::CompleteRun { run_id, claim, message_id, answer } => {
                self.owned_run(&run_id, &claim)?;
                Ok(vec![RunSucceeded { run_id, message_id, answer }.into()])
            }
            ConversationCommand::FailRun { run_id, claim, error_code, error_message, message_id, partial_text } => {
                self.owned_run(&run_id, &claim)?;
                Ok(vec![RunFailed { run_id, error_code, error_message, message_id, partial_text }.into()])
            }
            ConversationCommand::CancelRun { run_id, claim, reason, message_id, partial_text } => {
                self.owned_run(&run_id, &claim)?;
                Ok(vec![RunCancelled { run_id, error_code: reason, message_id, partial_text }.into()])
            }
        }
    }

    fn active_run(&self, run_id: &RunId) -> Result<&ActiveRun, ConversationError> {
        let run = self.latest.as_ref().and_then(|turn| turn.run.as_ref());
        run.filter(|run| run.run_id == *run_id).ok_or(ConversationError::RunNotFound)
    }

    /// The fence against a zombie: only the start of the process that claimed a run may end it.
    fn owned_run(&self, run_id: &RunId, claim: &Claim) -> Result<(), ConversationError> {
        let run = self.active_run(run_id).map_err(|_| ConversationError::RunNotActive)?;
        if run.status == RunStatus::Running(claim.clone()) { Ok(()) } else { Err(ConversationError::RunNotActive) }
    }

    fn ask(&self, ask: Ask) -> Result<Vec<ConversationEvent>, ConversationError> {
        let mut events = Vec::new();
        match &self.owner {
            None if ask.existing => return Err(ConversationError::NotFound),
            None => {
                events.push(ConversationStarted { user_id: ask.user_id.clone(), title: title_of(&ask.content) }.into())
            }
            Some(owner) if *owner != ask.user_id => return Err(ConversationError::NotOwner),
            Some(_) if self.deleted => return Err(ConversationError::NotFound),
            Some(_) => {}
        }
        if let Some(run) = self.latest.as_ref().and_then(|turn| turn.run.as_ref()) {
            match run.status {
                RunStatus::Running(_) => return Err(ConversationError::RunInProgress),
                RunStatus::Interrupted => return Err(ConversationError::WaitingApproval),
                RunStatus::Queued => events.push(cancelled_before_claim(run, RunCancelReason::Abandoned)),
                RunStatus::Succeeded | RunStatus::Failed | RunStatus::Cancelled => {}
            }
        }
        events.push(
            TurnPrepared {
                turn_id: ask.turn_id.clone(),
                sequence_no: self.latest.as_ref().map_or(0, |turn| turn.sequence_no) + 1,
                message_id: ask.message_id,
                content: ask.content,
                device_id: ask.device_id.clone(),
            }
            .into(),
        );
        events.push(
            RunPrepared {
                run_id: ask.run_id,
                turn_id: ask.turn_id,
                kind: RunKind::Normal,
                trigger: RunTrigger::Ask,
                run_seq: 1,
                graph_thread_id: ask.graph_thread_id,
                parent_run_id: None,
                device_id: ask.device_id,
            }
            .into(),
        );
        Ok(events)
    }

    fn owned_by(&self, user_id: &UserId) -> Result<(), ConversationError> {
        match &self.owner {
            None => Err(ConversationError::NotFound),
            Some(owner) if owner != user_id => Err(ConversationError::NotOwner),
            Some(_) if self.deleted => Err(ConversationError::NotFound),
            Some(_) => Ok(()),
        }
    }

    fn rerun(&self, rerun: Rerun) -> Result<Vec<ConversationEvent>, ConversationError> {
        self.owned_by(&rerun.user_id)?;
        let turn = self.latest.as_ref().filter(|turn| turn.turn_id == rerun.turn_id);
        let turn = turn.ok_or(ConversationError::TurnNotLatest)?;
        let mut events = Vec::new();
        let run = turn.run.as_ref();
        match run.map(|run| &run.status) {
            Some(RunStatus::Running(_)) => return Err(ConversationError::RunInProgress),
            Some(RunStatus::Queued) => {
                events.extend(run.map(|run| cancelled_before_claim(run, RunCancelReason::ReplacedByRerun)));
            }
            Some(RunStatus::Interrupted) => events.extend(turn.cancel_open_interrupts(InterruptCancelReason::Edited)),
            Some(RunStatus::Succeeded | RunStatus::Failed | RunStatus::Cancelled) | None => {}
        }
        let edited = rerun.content.is_some();
        let content = rerun.content.unwrap_or_else(|| turn.content.clone());
        let replaced_question = edited.then(|| turn.message_id.clone());
        if edited && turn.sequence_no == 1 {
            events.push(ConversationRenamed { title: title_of(&content), source: TitleSource::Derived }.into());
        }
        events.push(
            TurnRerunPrepared {
                turn_id: rerun.turn_id.clone(),
                message_id: if edited { rerun.message_id } else { turn.message_id.clone() },
                content,
                previous_message_id: turn.message_id.clone(),
                edited,
                replaced_message_ids: replaced_question.into_iter().chain(turn.answer_message_id.clone()).collect(),
            }
            .into(),
        );
        events.push(
            RunPrepared {
                run_id: rerun.run_id,
                turn_id: rerun.turn_id,
                kind: RunKind::Retry,
                trigger: if edited { RunTrigger::Edit } else { RunTrigger::Retry },
                run_seq: run.map_or(0, |run| run.run_seq) + 1,
                graph_thread_id: rerun.graph_thread_id,
                parent_run_id: run.map(|run| run.run_id.clone()),
                device_id: run.and_then(|run| run.device_id.clone()),
            }
            .into(),
        );
        Ok(events)
    }

    fn interrupt(&self, run_id: RunId, interrupts: Vec<NewInterrupt>) -> Vec<ConversationEvent> {
        let turn_id = self.latest.as_ref().map(|turn| turn.turn_id.clone()).unwrap_or_default();
        let interrupted = RunInterrupted { run_id: run_id.clone() }.into();
        let raised = interrupts.into_iter().map(|new| {
            InterruptRaised {
                interrupt_id: new.interrupt_id,
                run_id: run_id.clone(),
                turn_id: turn_id.clone(),
                kind: InterruptKind::ToolApproval,
                tool_call_id: new.tool_call_id,
                tool: new.tool,
                arguments: new.arguments,
                arguments_hash: new.arguments_hash,
                message: new.message,
                expires_at: new.expires_at,
            }
            .into()
        });
        raised.chain([interrupted]).collect()
    }

    fn answer(&self, answer: Answer) -> Result<Vec<ConversationEvent>, ConversationError> {
        self.owned_by(&answer.user_id)?;
        let turn = self.latest.as_ref().ok_or(ConversationError::InterruptNotFound)?;
        let mut events = Vec::new();
        let mut decided: Vec<&InterruptId> = Vec::new();
        let mut granted: Vec<&NewGrant> = Vec::new();
        for (index, (interrupt_id, approved)) in answer.decisions.iter().enumerate() {
            // Named twice in one request: as if the second answer came after the first.
            match answer.decisions[..index].iter().find(|(earlier, _)| earlier == interrupt_id) {
                Some((_, earlier)) if earlier == approved => continue,
                Some(_) => return Err(ConversationError::InterruptAlreadyResolved),
                None => {}
            }
            let interrupt = turn.interrupts.iter().find(|own| own.interrupt_id == *interrupt_id);
            let interrupt = interrupt.ok_or(ConversationError::InterruptNotFound)?;
            let grant = answer.grants.iter().find(|new| new.interrupt_id == *interrupt_id);
            match &interrupt.status {
                InterruptStatus::Resolved { approved: earlier, .. } if earlier == approved => {
                    // What was not allowed with the answer is not allowed by repeating it.
                    let given = |new: &NewGrant| {
                        self.grants.iter().any(|own| own.interrupt_id == new.interrupt_id && own.scope == new.scope)
                    };
                    if grant.is_some_and(|new| !given(new)) {
                        return Err(ConversationError::InterruptAlreadyResolved);
                    }
                }
                InterruptStatus::Resolved { .. } => return Err(ConversationError::InterruptAlreadyResolved),
                InterruptStatus::Cancelled => return Err(ConversationError::InterruptClosed),
                InterruptStatus::Expired => return Err(ConversationError::InterruptExpired),
                InterruptStatus::Open if interrupt.expires_at.is_some_and(|end| end <= answer.now) => {
                    return Err(ConversationError::InterruptExpired);
                }
                InterruptStatus::Open => {
                    events.push(
                        InterruptResolved {
                            interrupt_id: interrupt_id.clone(),
                            approved: *approved,
                            resolved_by: answer.user_id.clone(),
                            arguments_hash: interrupt.arguments_hash.clone(),
                        }
                        .into(),
                    );
                    decided.push(interrupt_id);
                    if let Some(new) = grant {
                        new.check(&interrupt.arguments_hash)?;
                        granted.push(new);
                    }
                }
            }
        }
        if answer.grants.iter().any(|new| !answer.decisions.contains(&(new.interrupt_id.clone(), true))) {
            return Err(ConversationError::GrantRefused("it comes with a yes to its approval"));
        }
        if self.grants.len() + granted.len() > MAX_GRANTS {
            return Err(ConversationError::GrantRefused("the conversation has as many as it may: revoke one"));
        }
        events.extend(granted.into_iter().map(|new| Self::given(new, &answer.user_id)));
        events.extend(self.resume_when_decided(&decided, &answer.run_id));
        Ok(events)
    }

    fn given(new: &NewGrant, given_by: &UserId) -> ConversationEvent {
        let call = &new.call;
        ToolGrantGiven {
            grant_id: new.grant_id.clone(),
            interrupt_id: new.interrupt_id.clone(),
            tool_call_id: ToolCallId::of(&call.graph_thread_id, &call.model_call_id),
            tool: call.tool.clone(),
            tool_version: call.tool_version.clone(),
            scope: new.scope.clone(),
            given_by: given_by.clone(),
        }
        .into()
    }

    fn expire(&self, now: Timestamp, run_id: &RunId) -> Vec<ConversationEvent> {
        let open = self.latest.iter().flat_map(LatestTurn::open_interrupts);
        let over: Vec<&InterruptId> = open
            .filter(|interrupt| interrupt.expires_at.is_some_and(|end| end <= now))
            .map(|interrupt| &interrupt.interrupt_id)
            .collect();
        let mut events: Vec<ConversationEvent> =
            over.iter().map(|id| InterruptExpired { interrupt_id: (*id).clone() }.into()).collect();
        events.extend(self.resume_when_decided(&over, run_id));
        events
    }

    /// The run that goes on, once `now_decided` were the last open interrupts of an interrupted run.
    fn resume_when_decided(&self, now_decided: &[&InterruptId], run_id: &RunId) -> Option<ConversationEvent> {
        let turn = self.latest.as_ref()?;
        let run = turn.run.as_ref().filter(|run| run.status == RunStatus::Interrupted)?;
        let left = turn.open_interrupts().any(|open| !now_decided.contains(&&open.interrupt_id));
        if now_decided.is_empty() || left {
            return None;
        }
        Some(
            RunPrepared {
                run_id: run_id.clone(),
                turn_id: turn.turn_id.clone(),
                kind: RunKind::Resume,
                trigger: RunTrigger::Approval,
                run_seq: run.run_seq + 1,
                graph_thread_id: run.graph_thread_id.clone(),
                parent_run_id: Some(run.run_id.clone()),
                device_id: run.device_id.clone(),
            }
            .into(),
        )
    }

    fn stop(&self, user_id: &UserId, run_id: &RunId) -> Result<Vec<ConversationEvent>, ConversationError> {
        self.owned_by(user_id)?;
        // A run of an earlier turn, or one that was replaced, has ended: stopping twice is the same as once.
        let Ok(run) = self.active_run(run_id) else { return Ok(vec![]) };
        match run.status {
            RunStatus::Queued => Ok(vec![cancelled_before_claim(run, RunCancelReason::Stopped)]),
            RunStatus::Interrupted => {
                let open =
                    self.latest.iter().flat_map(|turn| turn.cancel_open_interrupts(InterruptCancelReason::RunStopped));
                Ok(open.chain([cancelled_before_claim(run, RunCancelReason::Stopped)]).collect())
            }
            RunStatus::Running(_) => Err(ConversationError::RunExecuting),
            RunStatus::Succeeded | RunStatus::Failed | RunStatus::Cancelled => Ok(vec![]),
        }
    }

    /// Where nobody executes the run, there is nobody to ask.
    fn request_stop(&self, user_id: &UserId, run_id: RunId) -> Result<Vec<ConversationEvent>, ConversationError> {
        self.owned_by(user_id)?;
        match self.active_run(&run_id) {
            Ok(run) if matches!(run.status, RunStatus::Running(_)) && !run.stop_requested => {
                Ok(vec![RunStopRequested { run_id }.into()])
            }
            Ok(_) | Err(_) => Ok(vec![]),
        }
    }

    fn delete(&self, user_id: &UserId) -> Result<Vec<ConversationEvent>, ConversationError> {
        if self.deleted && self.owner.as_ref() == Some(user_id) {
            return Ok(vec![]);
        }
        self.owned_by(user_id)?;
        let mut events = Vec::new();
        if let Some(turn) = &self.latest {
            let run = turn.run.as_ref();
            match run.map(|run| &run.status) {
                Some(RunStatus::Running(_)) => return Err(ConversationError::RunInProgress),
                Some(RunStatus::Queued) => {
                    events.extend(run.map(|run| cancelled_before_claim(run, RunCancelReason::Abandoned)));
                }
                Some(RunStatus::Interrupted) => {
                    events.extend(turn.cancel_open_interrupts(InterruptCancelReason::ConversationDeleted));
                    events.extend(run.map(|run| cancelled_before_claim(run, RunCancelReason::Stopped)));
                }
                Some(RunStatus::Succeeded | RunStatus::Failed | RunStatus::Cancelled) | None => {}
            }
        }
        events.push(ConversationDeleted {}.into());
        Ok(events)
    }
}
