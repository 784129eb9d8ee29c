//! The rules of a thread, and the fold that the agent loop reads.

use super::{command::*, event::*};
use crate::aggregate::{Decider, adapt_to_cqrs_es};
use crate::event::AggregateType;
use crate::ids::*;
use crate::limits::{MAX_MODEL_CALL_ID_CHARS, MAX_PARTIAL_TEXT_JSON_BYTES};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The agent loop's state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Thread {
    /// Who and where; absent before the first event.
    pub started: Option<ThreadStarted>,
    /// The answers of the model, in order.
    pub exchanges: Vec<Exchange>,
    /// The round that waits for the model.
    pub asked: Option<u32>,
    /// What the model streamed in that round so far.
    pub progress: Option<Progress>,
    /// The last failure of the model, until it is asked again.
    pub failure: Option<ModelFailed>,
    /// The set of tools that the model was last offered, where it is not what the program brings along.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_set: Option<String>,
}

/// One answer of the model and what its calls brought.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// The answer's message.
    pub message_id: MessageId,
    /// Its text.
    pub content: String,
    /// Its calls, in the model's order.
    pub calls: Vec<ModelToolCall>,
    /// Their results, in the order they came.
    pub results: Vec<ToolResultObserved>,
    /// What the model is told after all of them, in the order it came.
    pub contexts: Vec<ContextDeferred>,
    /// The calls that end the turn, in the order they did.
    pub concluded_by: Vec<ToolCallId>,
}

/// A streamed text that has not become an answer yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The answer's message.
    pub message_id: MessageId,
    /// The text so far.
    pub text: String,
}

impl Exchange {
    /// The result of a call, by the model's id of it.
    pub fn result_of(&self, model_call_id: &str) -> Option<&ToolResultObserved> {
        self.results.iter().find(|result| is_call(&result.tool_call_id, model_call_id))
    }

    /// What the model is told after all results: by the model's order of the calls, as each of them left it.
    pub fn contexts(&self) -> impl Iterator<Item = &str> {
        let left_by = |call: &ModelToolCall| {
            let id = call.id.clone();
            self.contexts.iter().filter(move |context| is_call(&context.tool_call_id, &id))
        };
        self.calls.iter().flat_map(left_by).map(|context| context.message.as_str())
    }

    /// The results of the calls that end the turn, in the model's order.
    pub fn concluding(&self) -> impl Iterator<Item = &ToolResultObserved> {
        let concludes = |call: &&ModelToolCall| self.concluded_by.iter().any(|id| is_call(id, &call.id));
        self.calls.iter().filter(concludes).filter_map(|call| self.result_of(&call.id))
    }

    /// Calls that have no result yet, in the model's order.
    pub fn unanswered(&self) -> impl Iterator<Item = &ModelToolCall> {
        self.calls.iter().filter(|call| self.result_of(&call.id).is_none())
    }
}

/// Whether a tool call id is `<thread>:<model_call_id>`; thread ids have no colon.
fn is_call(id: &ToolCallId, model_call_id: &str) -> bool {
    id.as_str().split_once(':').is_some_and(|(_, own)| own == model_call_id)
}

impl Thread {
    /// Rounds the model has been asked.
    pub fn rounds(&self) -> u32 {
        u32::try_from(self.exchanges.len()).unwrap_or(u32::MAX)
    }

    /// What was streamed to the user so far, for a run that ends before its answer: its first
    /// [`MAX_PARTIAL_TEXT_JSON_BYTES`], so that the run's last event always fits; the thread's own events hold all.
    pub fn streamed_text(&self) -> (Option<MessageId>, String) {
        let finished = self.exchanges.iter().map(|exchange| (&exchange.message_id, exchange.content.as_str()));
        let open = self.progress.iter().map(|progress| (&progress.message_id, progress.text.as_str()));
        let pieces: Vec<_> = finished.chain(open).filter(|(_, text)| !text.is_empty()).collect();
        let mut text = pieces.iter().map(|(_, text)| *text).collect::<Vec<_>>().join("\n\n");
        let mut written = 0;
        let too_long = text.char_indices().find(|(_, char)| {
            written += match char {
                '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
                '\0'..='\x1f' => "\\u0000".len(),
                char => char.len_utf8(),
            };
            written > MAX_PARTIAL_TEXT_JSON_BYTES
        });
        if let Some((end, _)) = too_long {
            text.truncate(end);
        }
        (pieces.last().map(|(id, _)| (*id).clone()), text)
    }

    /// The calls with ids that no earlier call of the thread has. An id that could not be sent back
    /// by a client, for its length or its control characters, counts as none, and so does one that could be a sub-call's.
    fn with_unique_ids(&self, round: u32, mut calls: Vec<ModelToolCall>) -> Vec<ModelToolCall> {
        let mut seen: BTreeSet<String> =
            self.exchanges.iter().flat_map(|exchange| exchange.calls.iter().map(|call| call.id.clone())).collect();
        for (index, call) in calls.iter_mut().enumerate() {
            let unusable = call.id.chars().count() > MAX_MODEL_CALL_ID_CHARS
                || call.id.chars().any(|char| char.is_control() || char == SUB_CALL_MARK);
            if unusable {
                call.id.clear();
            }
            // More than once only where the model itself wrote an id of this form.
            while call.id.is_empty() || seen.contains(&call.id) {
                call.id = format!("{}~{round}.{index}", call.id);
            }
            seen.insert(call.id.clone());
        }
        calls
    }

    fn in_round(&self, round: u32) -> Result<(), ThreadError> {
        match self.asked {
            Some(expected) if expected == round => Ok(()),
            Some(expected) => Err(ThreadError::WrongRound { expected, got: round }),
            None => Err(ThreadError::NotAsked),
        }
    }
}

impl Decider for Thread {
    const TYPE: AggregateType = AggregateType::Thread;
    const STATE_VERSION: u32 = 2;
    type Command = ThreadCommand;
    type Event = ThreadEvent;
    type Error = ThreadError;

    fn decide(&self, command: ThreadCommand) -> Result<Vec<ThreadEvent>, ThreadError> {
        if let ThreadCommand::Start(event) = command {
            return if self.started.is_some() { Err(ThreadError::AlreadyStarted) } else { Ok(vec![event.into()]) };
        }
        if self.started.is_none() {
            return Err(ThreadError::NotStarted);
        }
        match command {
            ThreadCommand::Start(_) => Err(ThreadError::AlreadyStarted),
            ThreadCommand::RequestModel(event) => {
                if self.exchanges.last().is_some_and(|last| last.unanswered().next().is_some()) {
                    return Err(ThreadError::ResultsMissing);
                }
                if self.exchanges.last().is_some_and(|last| !last.concluded_by.is_empty()) {
                    return Err(ThreadError::Concluded);
                }
                let expected = self.rounds() + 1;
                if event.round != expected {
                    return Err(ThreadError::WrongRound { expected, got: event.round });
                }
                Ok(vec![event.into()])
            }
            ThreadCommand::Progress(event) => {
                if self.asked.is_none() {
                    return Err(ThreadError::NotAsked);
                }
                Ok(vec![event.into()])
            }
            ThreadCommand::RecordResponse(mut event) => {
                self.in_round(event.round)?;
                event.tool_calls = self.with_unique_ids(event.round, event.tool_calls);
                event.usage = event.usage.without_inexact();
                Ok(vec![event.into()])
            }
            ThreadCommand::RecordFailure(event) => {
                self.in_round(event.round)?;
                Ok(vec![event.into()])
            }
            ThreadCommand::ObserveResult(event, deferred) => {
                let last = self.exchanges.last().ok_or(ThreadError::UnexpectedResult)?;
                let waits = last.unanswered().any(|call| is_call(&event.tool_call_id, &call.id));
                if !waits {
                    return Err(ThreadError::UnexpectedResult);
                }
                let tool_call_id = event.tool_call_id.clone();
                // A failure leaves nothing.
                let deferred = if event.ok { deferred } else { Deferred::default() };
                let mut events = vec![event.into()];
                let context = |message| ContextDeferred { tool_call_id: tool_call_id.clone(), message }.into();
                events.extend(deferred.contexts.into_iter().map(context));
                events.extend(deferred.concludes_turn.then(|| TurnConcluded { tool_call_id }.into()));
                Ok(events)
            }
        }
    }

    fn held_bytes(&self) -> usize {
        let held = |exchange: &Exchange| {
            let calls: usize = exchange.calls.iter().map(|call| call.arguments.len()).sum();
            let results: usize = exchange.results.iter().map(|result| result.content.len()).sum();
            let contexts: usize = exchange.contexts.iter().map(|context| context.message.len()).sum();
            exchange.content.len() + calls + results + contexts
        };
        self.exchanges.iter().map(held).sum::<usize>() + self.progress.as_ref().map_or(0, |open| open.text.len())
    }

    fn evolve(&mut self, event: &ThreadEvent) {
        match event {
            ThreadEvent::ThreadStarted(e) => self.started = Some(e.clone()),
            ThreadEvent::ModelRequested(e) => {
                self.asked = Some(e.round);
                self.tool_set.clone_from(&e.tool_set);
                self.progress = None;
                self.failure = None;
            }
            ThreadEvent::AnswerProgressed(e) => match &mut self.progress {
                Some(progress) if progress.message_id == e.message_id => progress.text.push_str(&e.text),
                _ => self.progress = Some(Progress { message_id: e.message_id.clone(), text: e.text.clone() }),
            },
            ThreadEvent::ModelResponded(e) => {
                self.asked = None;
                self.progress = None;
                self.exchanges.push(Exchange {
                    message_id: e.message_id.clone(),
                    content: e.content.clone(),
                    calls: e.tool_calls.clone(),
                    results: Vec::new(),
                    contexts: Vec::new(),
                    concluded_by: Vec::new(),
                });
            }
            ThreadEvent::ModelFailed(e) => {
                self.asked = None;
                self.failure = Some(e.clone());
            }
            ThreadEvent::ToolResultObserved(e) => {
                if let Some(last) = self.exchanges.last_mut() {
                    last.results.push(e.clone());
                }
            }
            ThreadEvent::ContextDeferred(e) => {
                if let Some(last) = self.exchanges.last_mut() {
                    last.contexts.push(e.clone());
                }
            }
            ThreadEvent::TurnConcluded(e) => {
                if let Some(last) = self.exchanges.last_mut() {
                    last.concluded_by.push(e.tool_call_id.clone());
                }
            }
        }
    }
}

adapt_to_cqrs_es!(Thread, "thread");
