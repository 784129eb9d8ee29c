//! The state of a conversation: what must be known to decide about its latest turn.

use super::{command::*, error::ConversationError, event::*, grant::*};
use crate::aggregate::{Decider, adapt_to_cqrs_es};
use crate::event::AggregateType;
use crate::ids::*;
use crate::time::Timestamp;
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
    /// What its owner allowed for all of it, oldest first.
    pub grants: Vec<Grant>,
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
    /// The answer's message, once there is one (also a partial one).
    pub answer_message_id: Option<MessageId>,
    /// The interrupts of the active run's thread, oldest first.
    pub interrupts: Vec<Interrupt>,
}

/// A pause of the latest turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interrupt {
    /// The interrupt.
    pub interrupt_id: InterruptId,
    /// The run that paused.
    pub run_id: RunId,
    /// The one call it is bound to.
    pub tool_call_id: ToolCallId,
    /// The hash of what may be approved.
    pub arguments_hash: String,
    /// When silence ends it.
    pub expires_at: Option<Timestamp>,
    /// Where it stands.
    pub status: InterruptStatus,
}

/// Where an interrupt stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InterruptStatus {
    /// Nobody has decided.
    Open,
    /// A person decided.
    Resolved {
        /// How.
        approved: bool,
        /// Who.
        by: UserId,
    },
    /// It was taken back.
    Cancelled,
    /// Nobody decided in time.
    Expired,
}

impl LatestTurn {
    /// Interrupts that nobody has decided about.
    pub fn open_interrupts(&self) -> impl Iterator<Item = &Interrupt> {
        self.interrupts.iter().filter(|interrupt| interrupt.status == InterruptStatus::Open)
    }

    pub(super) fn cancel_open_interrupts(
        &self,
        reason: InterruptCancelReason,
    ) -> impl Iterator<Item = ConversationEvent> {
        self.open_interrupts()
            .map(move |open| InterruptCancelled { interrupt_id: open.interrupt_id.clone(), reason }.into())
    }
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
    /// Whether whoever executes it was asked to stop it.
    pub stop_requested: bool,
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

impl Conversation {
    fn set_run(&mut self, run_id: &RunId, status: RunStatus) {
        if let Some(run) = self.latest.as_mut().and_then(|turn| turn.run.as_mut()).filter(|run| run.run_id == *run_id) {
            run.status = status;
        }
    }

    fn set_interrupt(&mut self, interrupt_id: &InterruptId, status: InterruptStatus) {
        let all = self.latest.iter_mut().flat_map(|turn| turn.interrupts.iter_mut());
        if let Some(interrupt) = all.into_iter().find(|own| own.interrupt_id == *interrupt_id) {
            interrupt.status = status;
        }
    }

    fn set_answer(&mut self, run_id: &RunId, message_id: Option<&MessageId>) {
        let turn = self.latest.as_mut().filter(|turn| turn.run.as_ref().is_some_and(|run| run.run_id == *run_id));
        if let (Some(turn), Some(message_id)) = (turn, message_id) {
            turn.answer_message_id = Some(message_id.clone());
        }
    }
}

impl Decider for Conversation {
    const TYPE: AggregateType = AggregateType::Conversation;
    const STATE_VERSION: u32 = 3;
    type Command = ConversationCommand;
    type Event = ConversationEvent;
    type Error = ConversationError;

    fn decide(&self, command: ConversationCommand) -> Result<Vec<ConversationEvent>, ConversationError> {
        self.decide_command(command)
    }

    fn held_bytes(&self) -> usize {
        self.title.len() + self.latest.as_ref().map_or(0, |turn| turn.content.len())
    }

    fn evolve(&mut self, event: &ConversationEvent) {
        match event {
            ConversationEvent::ConversationStarted(e) => {
                self.owner = Some(e.user_id.clone());
                self.title.clone_from(&e.title);
            }
            ConversationEvent::ConversationRenamed(e) => self.title.clone_from(&e.title),
            ConversationEvent::ConversationDeleted(_) => {
                self.deleted = true;
                self.grants.clear();
            }
            ConversationEvent::ConversationRead(_) => {}
            ConversationEvent::TurnPrepared(e) => {
                self.latest = Some(LatestTurn {
                    turn_id: e.turn_id.clone(),
                    sequence_no: e.sequence_no,
                    message_id: e.message_id.clone(),
                    content: e.content.clone(),
                    run: None,
                    answer_message_id: None,
                    interrupts: Vec::new(),
                });
            }
            ConversationEvent::TurnRerunPrepared(e) => {
                if let Some(turn) = self.latest.as_mut().filter(|turn| turn.turn_id == e.turn_id) {
                    turn.message_id = e.message_id.clone();
                    turn.content.clone_from(&e.content);
                    turn.answer_message_id = None;
                }
            }
            ConversationEvent::RunPrepared(e) => {
                if let Some(turn) = self.latest.as_mut().filter(|turn| turn.turn_id == e.turn_id) {
                    // Decisions belong to a thread: a run that resumes it needs them, another must not see them.
                    if e.kind != RunKind::Resume {
                        turn.interrupts.clear();
                    }
                    turn.run = Some(ActiveRun {
                        run_id: e.run_id.clone(),
                        kind: e.kind,
                        run_seq: e.run_seq,
                        graph_thread_id: e.graph_thread_id.clone(),
                        device_id: e.device_id.clone(),
                        status: RunStatus::Queued,
                        stop_requested: false,
                    });
                }
            }
            ConversationEvent::RunClaimed(e) => {
                let claim = Claim { node_id: e.node_id.clone(), epoch: e.epoch };
                self.set_run(&e.run_id, RunStatus::Running(claim));
            }
            ConversationEvent::RunStopRequested(e) => {
                let run = self.latest.as_mut().and_then(|turn| turn.run.as_mut());
                if let Some(run) = run.filter(|run| run.run_id == e.run_id) {
                    run.stop_requested = true;
                }
            }
            ConversationEvent::InterruptRaised(e) => {
                if let Some(turn) = self.latest.as_mut().filter(|turn| turn.turn_id == e.turn_id) {
                    turn.interrupts.push(Interrupt {
                        interrupt_id: e.interrupt_id.clone(),
                        run_id: e.run_id.clone(),
                        tool_call_id: e.tool_call_id.clone(),
                        arguments_hash: e.arguments_hash.clone(),
                        expires_at: e.expires_at,
                        status: InterruptStatus::Open,
                    });
                }
            }
            ConversationEvent::RunInterrupted(e) => self.set_run(&e.run_id, RunStatus::Interrupted),
            ConversationEvent::InterruptResolved(e) => {
                let status = InterruptStatus::Resolved { approved: e.approved, by: e.resolved_by.clone() };
                self.set_interrupt(&e.interrupt_id, status);
            }
            ConversationEvent::InterruptCancelled(e) => self.set_interrupt(&e.interrupt_id, InterruptStatus::Cancelled),
            ConversationEvent::InterruptExpired(e) => self.set_interrupt(&e.interrupt_id, InterruptStatus::Expired),
            ConversationEvent::ToolGrantGiven(e) => self.grants.push(Grant {
                grant_id: e.grant_id.clone(),
                interrupt_id: e.interrupt_id.clone(),
                tool: e.tool.clone(),
                tool_version: e.tool_version.clone(),
                scope: e.scope.clone(),
            }),
            ConversationEvent::ToolGrantRevoked(e) => self.grants.retain(|own| own.grant_id != e.grant_id),
            ConversationEvent::RunSucceeded(e) => {
                self.set_answer(&e.run_id, Some(&e.message_id));
                self.set_run(&e.run_id, RunStatus::Succeeded);
            }
            ConversationEvent::RunFailed(e) => {
                self.set_answer(&e.run_id, e.message_id.as_ref());
                self.set_run(&e.run_id, RunStatus::Failed);
            }
            ConversationEvent::RunCancelled(e) => {
                self.set_answer(&e.run_id, e.message_id.as_ref());
                self.set_run(&e.run_id, RunStatus::Cancelled);
            }
        }
    }
}

adapt_to_cqrs_es!(Conversation, "conversation");
