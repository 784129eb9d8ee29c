//! The rules of a conversation.

use super::{command::*, error::ConversationError, event::*};
use crate::aggregate::{Decider, adapt_to_cqrs_es};
use crate::event::AggregateType;
use crate::ids::*;
use crate::limits::MAX_TITLE_CHARS;
use serde::{Deserialize, Serialize};

/// What must be known to decide about a conversation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conversation {
    /// The owner; absent before the first event.
    pub owner: Option<UserId>,
    /// Whether the owner removed it.
    pub deleted: bool,
    /// The title.
    pub title: String,
    /// The latest turn.
    pub latest: Option<LatestTurn>,
}

/// The one turn about which anything can still be decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatestTurn {
    /// The turn.
    pub turn_id: TurnId,
    /// Its number.
    pub sequence_no: u32,
    /// The question's message.
    pub message_id: MessageId,
    /// The question.
    pub content: String,
    /// The run that counts; absent between a turn and its run's event.
    pub run: Option<ActiveRun>,
    /// Interrupts without an answer.
    pub open_interrupts: Vec<InterruptId>,
}

/// The run that counts for the latest turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActiveRun {
    /// The run.
    pub run_id: RunId,
    /// What it continues.
    pub kind: RunKind,
    /// 1, 2, 3 … within the turn.
    pub run_seq: u32,
    /// Its thread.
    pub graph_thread_id: ThreadId,
    /// The device whose tools it may use.
    pub device_id: Option<DeviceId>,
    /// Where it stands.
    pub status: RunStatus,
}

/// Where a run stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunStatus {
    /// Prepared, not claimed.
    Queued,
    /// Claimed.
    Running(Claim),
    /// Waits for a person.
    Interrupted,
    /// Ended with an answer.
    Succeeded,
    /// Ended with an error.
    Failed,
    /// Ended because it was stopped.
    Cancelled,
}

/// The first 50 characters of a question, never half a character.
pub fn title_of(question: &str) -> String {
    question.trim().chars().take(MAX_TITLE_CHARS).collect()
}

impl Conversation {
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
                RunStatus::Queued => events.push(
                    RunCancelled {
                        run_id: run.run_id.clone(),
                        error_code: RunCancelReason::Abandoned,
                        message_id: None,
                        partial_text: String::new(),
                    }
                    .into(),
                ),
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

    fn set_run(&mut self, run_id: &RunId, status: RunStatus) {
        if let Some(run) = self.latest.as_mut().and_then(|turn| turn.run.as_mut()).filter(|run| run.run_id == *run_id) {
            run.status = status;
        }
    }

    fn close_interrupt(&mut self, interrupt_id: &InterruptId) {
        if let Some(turn) = &mut self.latest {
            turn.open_interrupts.retain(|open| open != interrupt_id);
        }
    }
}

impl Decider for Conversation {
    const TYPE: AggregateType = AggregateType::Conversation;
    type Command = ConversationCommand;
    type Event = ConversationEvent;
    type Error = ConversationError;

    fn decide(&self, command: ConversationCommand) -> Result<Vec<ConversationEvent>, ConversationError> {
        match command {
            ConversationCommand::Ask(ask) => self.ask(ask),
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

    fn evolve(&mut self, event: &ConversationEvent) {
        match event {
            ConversationEvent::ConversationStarted(e) => {
                self.owner = Some(e.user_id.clone());
                self.title.clone_from(&e.title);
            }
            ConversationEvent::ConversationRenamed(e) => self.title.clone_from(&e.title),
            ConversationEvent::ConversationDeleted(_) => self.deleted = true,
            ConversationEvent::TurnPrepared(e) => {
                self.latest = Some(LatestTurn {
                    turn_id: e.turn_id.clone(),
                    sequence_no: e.sequence_no,
                    message_id: e.message_id.clone(),
                    content: e.content.clone(),
                    run: None,
                    open_interrupts: Vec::new(),
                });
            }
            ConversationEvent::TurnRerunPrepared(e) => {
                if let Some(turn) = self.latest.as_mut().filter(|turn| turn.turn_id == e.turn_id) {
                    turn.message_id = e.message_id.clone();
                    turn.content.clone_from(&e.content);
                }
            }
            ConversationEvent::RunPrepared(e) => {
                if let Some(turn) = self.latest.as_mut().filter(|turn| turn.turn_id == e.turn_id) {
                    turn.run = Some(ActiveRun {
                        run_id: e.run_id.clone(),
                        kind: e.kind,
                        run_seq: e.run_seq,
                        graph_thread_id: e.graph_thread_id.clone(),
                        device_id: e.device_id.clone(),
                        status: RunStatus::Queued,
                    });
                }
            }
            ConversationEvent::RunClaimed(e) => {
                let claim = Claim { node_id: e.node_id.clone(), epoch: e.epoch };
                self.set_run(&e.run_id, RunStatus::Running(claim));
            }
            ConversationEvent::InterruptRaised(e) => {
                if let Some(turn) = self.latest.as_mut().filter(|turn| turn.turn_id == e.turn_id) {
                    turn.open_interrupts.push(e.interrupt_id.clone());
                }
            }
            ConversationEvent::RunInterrupted(e) => self.set_run(&e.run_id, RunStatus::Interrupted),
            ConversationEvent::InterruptResolved(e) => self.close_interrupt(&e.interrupt_id),
            ConversationEvent::InterruptCancelled(e) => self.close_interrupt(&e.interrupt_id),
            ConversationEvent::InterruptExpired(e) => self.close_interrupt(&e.interrupt_id),
            ConversationEvent::RunSucceeded(e) => self.set_run(&e.run_id, RunStatus::Succeeded),
            ConversationEvent::RunFailed(e) => self.set_run(&e.run_id, RunStatus::Failed),
            ConversationEvent::RunCancelled(e) => self.set_run(&e.run_id, RunStatus::Cancelled),
        }
    }
}

adapt_to_cqrs_es!(Conversation, "conversation");
