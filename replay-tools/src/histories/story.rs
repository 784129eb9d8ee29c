//! What the steps of another agent become: the events that ours would have written.
//!
//! A pure fold: the same steps give the same events, so that an import can go on where an earlier one ended.

use super::{Said, Step};
use devmind_domain::Timestamp;
use devmind_domain::canonical::{call_hash, hash_json};
use devmind_domain::event::{AggregateType, DomainEvent, StreamId};
use devmind_domain::history::IMPORTED;
use devmind_domain::ids::{ConversationId, RunId, ThreadId, ToolCallId};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Characters of a title.
const TITLE_CHARS: usize = 50;

/// An event and where it belongs.
pub(super) struct Fact {
    pub stream: StreamId,
    pub event: DomainEvent,
    pub run: Option<RunId>,
    pub at: Option<Timestamp>,
}

struct Run {
    id: RunId,
    thread: ThreadId,
    round: u32,
    /// Id and text of the last answer.
    answer: Option<(String, String)>,
    calls: BTreeSet<String>,
    open: BTreeSet<String>,
}

/// One session so far.
pub(super) struct Story {
    conversation: ConversationId,
    user: String,
    turns: u32,
    runs_of_turn: u32,
    run: Option<Run>,
    last_run: Option<RunId>,
    now: Option<Timestamp>,
}

impl Story {
    pub fn new(conversation: ConversationId, user: &str) -> Self {
        Self { conversation, user: user.to_owned(), turns: 0, runs_of_turn: 0, run: None, last_run: None, now: None }
    }

    /// The events of a step; none where it has no place, such as an answer before any question.
    pub fn tell(&mut self, step: Step, at: Option<Timestamp>) -> Vec<Fact> {
        let mut facts = Vec::new();
        self.now = if let Step::Said(said) = &step { said.at.or(at) } else { at };
        match step {
            Step::Asked(question) => {
                self.end(&mut facts);
                self.turns += 1;
                self.runs_of_turn = 0;
                if self.turns == 1 {
                    let title: String = question.chars().take(TITLE_CHARS).collect();
                    self.conversation_fact(
                        &mut facts,
                        "ConversationStarted",
                        json!({ "user_id": self.user, "title": title }),
                    );
                }
                let (turn_id, message_id) = (self.turn_id(), format!("{}:q{}", self.conversation, self.turns));
                let asked = json!({
                    "turn_id": turn_id, "sequence_no": self.turns, "message_id": message_id, "content": question,
                });
                self.conversation_fact(&mut facts, "TurnPrepared", asked);
                self.begin(&mut facts, "normal", "ask");
            }
            Step::Said(said) if self.turns > 0 => {
                if self.run.is_none() {
                    self.begin(&mut facts, "retry", "retry");
                }
                self.said(&mut facts, *said);
            }
            Step::Returned { call_id, ok, output } => self.returned(&mut facts, &call_id, ok, output, at),
            Step::Stopped => self.cancel(&mut facts),
            Step::Ended => self.end(&mut facts),
            Step::Said(_) => {}
        }
        facts
    }

    /// The end of a file: a run that has answered, and waits for no tool, is over as far as anybody knows.
    pub fn pause(&mut self, at: Option<Timestamp>) -> Vec<Fact> {
        let mut facts = Vec::new();
        self.now = at;
        if self.run.as_ref().is_some_and(|run| run.answer.is_some() && run.open.is_empty()) {
            self.end(&mut facts);
        }
        facts
    }

    fn turn_id(&self) -> String {
        format!("{}:t{}", self.conversation, self.turns)
    }

    fn begin(&mut self, facts: &mut Vec<Fact>, kind: &str, trigger: &str) {
        self.runs_of_turn += 1;
        let id = RunId::from(format!("{}:t{}r{}", self.conversation, self.turns, self.runs_of_turn));
        let thread = ThreadId::from(format!("{}:t{}g{}", self.conversation, self.turns, self.runs_of_turn));
        let turn_id = self.turn_id();
        let parent = self.last_run.take().filter(|_| self.runs_of_turn > 1);
        let mut prepared = json!({
            "run_id": id, "turn_id": turn_id, "kind": kind, "trigger": trigger, "run_seq": self.runs_of_turn,
            "graph_thread_id": thread,
        });
        if let Some(parent) = parent {
            prepared["parent_run_id"] = json!(parent);
        }
        let started = json!({
            "conversation_id": self.conversation, "turn_id": turn_id, "run_id": id, "user_id": self.user,
        });
        let claimed = json!({ "run_id": id, "node_id": IMPORTED, "epoch": 1, "context_hash": IMPORTED });
        self.last_run = Some(id.clone());
        let (calls, open) = (BTreeSet::new(), BTreeSet::new());
        self.run = Some(Run { id, thread: thread.clone(), round: 0, answer: None, calls, open });
        self.conversation_fact(facts, "RunPrepared", prepared);
        self.conversation_fact(facts, "RunClaimed", claimed);
        self.fact(facts, AggregateType::Thread, &thread.0, "ThreadStarted", started);
    }

    fn said(&mut self, facts: &mut Vec<Fact>, said: Said) {
        let Some(run) = &mut self.run else { return };
        run.round += 1;
        let (id, thread, round) = (run.id.clone(), run.thread.clone(), run.round);
        let message_id = format!("{id}:m{round}");
        // A call that came before is no second one; its line is kept all the same.
        let calls: Vec<_> = said.calls.into_iter().filter(|(call, _, _)| run.calls.insert(call.clone())).collect();
        run.open.extend(calls.iter().map(|(call, _, _)| call.clone()));
        if !said.text.is_empty() {
            run.answer = Some((message_id.clone(), said.text.clone()));
        }
        let requested = json!({
            "run_id": id, "round": round, "provider": said.provider, "model": said.model, "parameters": {},
            "request_hash": IMPORTED, "tools_hash": IMPORTED,
        });
        self.fact(facts, AggregateType::Thread, &thread.0, "ModelRequested", requested);
        let written: Vec<_> = calls
            .iter()
            .map(|(call, name, arguments)| json!({ "id": call, "name": name, "arguments": arguments }))
            .collect();
        let mut responded = json!({
            "run_id": id, "round": round, "message_id": message_id, "content": said.text, "tool_calls": written,
            "finish_reason": said.finish_reason, "usage": said.usage, "served_model": said.model, "latency_ms": 0,
        });
        if let Some(reasoning) = said.reasoning {
            responded["reasoning"] = json!(reasoning);
        }
        self.fact(facts, AggregateType::Thread, &thread.0, "ModelResponded", responded);
        for (call, name, text) in calls {
            let arguments = serde_json::from_str(&text).ok().filter(Value::is_object).unwrap_or(Value::String(text));
            let stream = ToolCallId::of(&thread, &call).0;
            let requested = json!({
                "conversation_id": self.conversation, "turn_id": self.turn_id(), "run_id": id, "user_id": self.user,
                "graph_thread_id": thread, "model_call_id": call, "tool": name, "tool_version": IMPORTED,
                "target": "server", "call_hash": call_hash(&name, IMPORTED, &arguments), "arguments": arguments,
                // What a foreign tool can do is not known: the most.
                "risk": "HIGH",
            });
            self.fact(facts, AggregateType::ToolCall, &stream, "ToolCallRequested", requested);
            let dispatched = json!({
                "attempt_no": 1, "run_id": id, "node_id": IMPORTED, "epoch": 1, "wait_ms": 0, "ttl_ms": 0,
            });
            self.fact(facts, AggregateType::ToolCall, &stream, "ToolDispatched", dispatched);
        }
    }

    fn returned(&mut self, facts: &mut Vec<Fact>, call: &str, ok: bool, output: Value, at: Option<Timestamp>) {
        let Some(run) = self.run.as_mut().filter(|run| run.open.contains(call)) else { return };
        run.open.remove(call);
        let (thread, id) = (run.thread.clone(), ToolCallId::of(&run.thread, call));
        let said = output.as_str().map_or_else(|| output.to_string(), str::to_owned);
        let mut result = json!({
            "executed_attempt_no": 1, "status": if ok { "succeeded" } else { "failed" }, "origin": "live",
        });
        if let Some(at) = at {
            result["finished_at"] = json!(at);
        }
        let mut observed = json!({ "tool_call_id": id, "ok": ok, "content": said });
        if ok {
            result["output_sha256"] = json!(hash_json(&output));
            result["output"] = output;
        } else {
            result["error"] = json!({ "code": "EXECUTION_FAILED", "message": said });
            observed["error"] = json!("EXECUTION_FAILED");
        }
        self.fact(facts, AggregateType::ToolCall, &id.0, "ToolResultRecorded", result);
        self.fact(facts, AggregateType::Thread, &thread.0, "ToolResultObserved", observed);
    }

    /// The calls that never got a result are unknown, for the reason that nobody waits for them.
    fn give_up(&self, facts: &mut Vec<Fact>, run: &Run) {
        for call in &run.open {
            let id = ToolCallId::of(&run.thread, call);
            let timed_out = json!({ "attempt_no": 1, "after_ms": 0 });
            self.fact(facts, AggregateType::ToolCall, &id.0, "ToolWaitTimedOut", timed_out);
            let observed = json!({
                "tool_call_id": id, "ok": false, "content": "The history has no result.", "error": "RESULT_UNKNOWN",
            });
            self.fact(facts, AggregateType::Thread, &run.thread.0, "ToolResultObserved", observed);
        }
    }

    fn end(&mut self, facts: &mut Vec<Fact>) {
        let Some(run) = self.run.take_if(|run| run.answer.is_some()) else { return self.cancel(facts) };
        self.run_ends(facts, run, true);
    }

    fn cancel(&mut self, facts: &mut Vec<Fact>) {
        if let Some(run) = self.run.take() {
            self.run_ends(facts, run, false);
        }
    }

    fn run_ends(&mut self, facts: &mut Vec<Fact>, run: Run, answered: bool) {
        self.give_up(facts, &run);
        let ended = match &run.answer {
            Some((message_id, answer)) if answered => {
                ("RunSucceeded", json!({ "run_id": run.id, "message_id": message_id, "answer": answer }))
            }
            answer => {
                let text = answer.as_ref().map_or("", |(_, text)| text.as_str());
                let mut cancelled = json!({ "run_id": run.id, "error_code": "STOPPED", "partial_text": text });
                if let Some((message_id, _)) = answer {
                    cancelled["message_id"] = json!(message_id);
                }
                ("RunCancelled", cancelled)
            }
        };
        self.run = Some(run);
        self.conversation_fact(facts, ended.0, ended.1);
        self.run = None;
    }

    fn conversation_fact(&self, facts: &mut Vec<Fact>, event_type: &str, payload: Value) {
        self.fact(facts, AggregateType::Conversation, &self.conversation.0, event_type, payload);
    }

    fn fact(&self, facts: &mut Vec<Fact>, kind: AggregateType, id: &str, event_type: &str, payload: Value) {
        let event = DomainEvent::decode(kind.as_str(), event_type, 1, &payload.to_string());
        debug_assert!(event.is_ok(), "{event_type}: {event:?}");
        let run = self.run.as_ref().map(|run| run.id.clone());
        facts.extend(event.unwrap_or_default().into_iter().map(|event| Fact {
            stream: StreamId::new(kind, id),
            event,
            run: run.clone(),
            at: self.now,
        }));
    }
}
