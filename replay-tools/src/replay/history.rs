//! What the model was told of a conversation when a run was claimed, folded from the conversation's stream alone:
//! a second way to the prompt, which the hashes in the log are compared with.

use devmind_domain::agent::{HistoryTurn, TurnEnd};
use devmind_domain::conversation::ConversationEvent;
use devmind_domain::ids::{RunId, TurnId};

/// The turns of a conversation, as far as its events were seen.
#[derive(Debug, Default)]
pub(super) struct History {
    turns: Vec<Turn>,
}

#[derive(Debug)]
struct Turn {
    id: TurnId,
    question: String,
    run: Option<RunId>,
    end: Option<(TurnEnd, Option<String>)>,
}

impl History {
    pub fn see(&mut self, event: &ConversationEvent) {
        match event {
            ConversationEvent::TurnPrepared(e) => {
                self.turns.push(Turn { id: e.turn_id.clone(), question: e.content.clone(), run: None, end: None });
            }
            ConversationEvent::TurnRerunPrepared(e) => {
                if let Some(turn) = self.turn(&e.turn_id) {
                    turn.question.clone_from(&e.content);
                    turn.end = None;
                }
            }
            ConversationEvent::RunPrepared(e) => {
                if let Some(turn) = self.turn(&e.turn_id) {
                    turn.run = Some(e.run_id.clone());
                    turn.end = None;
                }
            }
            ConversationEvent::RunSucceeded(e) => self.end(&e.run_id, TurnEnd::Completed, Some(e.answer.clone())),
            ConversationEvent::RunFailed(e) => self.end(&e.run_id, TurnEnd::Failed, Some(e.partial_text.clone())),
            ConversationEvent::RunCancelled(e) => {
                self.end(&e.run_id, TurnEnd::Cancelled, Some(e.partial_text.clone()));
            }
            ConversationEvent::ConversationStarted(_)
            | ConversationEvent::ConversationRenamed(_)
            | ConversationEvent::ConversationDeleted(_)
            | ConversationEvent::ConversationRead(_)
            | ConversationEvent::RunClaimed(_)
            | ConversationEvent::RunStopRequested(_)
            | ConversationEvent::InterruptRaised(_)
            | ConversationEvent::RunInterrupted(_)
            | ConversationEvent::InterruptResolved(_)
            | ConversationEvent::InterruptCancelled(_)
            | ConversationEvent::ToolGrantGiven(_)
            | ConversationEvent::ToolGrantRevoked(_)
            | ConversationEvent::InterruptExpired(_) => {}
        }
    }

    /// The ended turns before one, oldest first, and its own question.
    pub fn before(&self, turn: &TurnId) -> Option<(Vec<HistoryTurn>, &str)> {
        let own = self.turns.iter().position(|known| known.id == *turn)?;
        let ended = self.turns[..own].iter().filter_map(|turn| {
            let (end, answer) = turn.end.clone()?;
            Some(HistoryTurn { question: turn.question.clone(), answer, end })
        });
        Some((ended.collect(), &self.turns[own].question))
    }

    fn turn(&mut self, id: &TurnId) -> Option<&mut Turn> {
        self.turns.iter_mut().find(|turn| turn.id == *id)
    }

    fn end(&mut self, run: &RunId, end: TurnEnd, answer: Option<String>) {
        if let Some(turn) = self.turns.iter_mut().find(|turn| turn.run.as_ref() == Some(run) && turn.end.is_none()) {
            turn.end = Some((end, answer));
        }
    }
}
