//! A run's stream as a fold of its recorded events.
//!
//! The live stream and its replay are one function: what a client saw can be shown again, the same
//! events in the same order. Only streamed text runs ahead of the log; it is noted here, so that the
//! recorded text adds no more than what was not sent yet.

use super::{AgUiEvent, Interrupt, Outcome, PROTOCOL_VERSION, Usage};
use devmind_domain::agent::is_tools_answer;
use devmind_domain::conversation::{ConversationEvent, InterruptRaised};
use devmind_domain::event::{DomainEvent, StreamId};
use devmind_domain::ids::{MessageId, RunId, ThreadId, ToolCallId};
use devmind_domain::thread::{ModelResponded, ThreadEvent};

/// The ids that the client knows the run by, and how much of the protocol it knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audience {
    /// Its thread.
    pub thread_id: String,
    /// Its run.
    pub run_id: String,
    /// Whether it declared a protocol version: older clients take an unknown outcome for success.
    pub declared: bool,
}

/// The fold.
#[derive(Clone, Debug)]
pub struct RunStream {
    run_id: RunId,
    audience: Audience,
    started: bool,
    finished: bool,
    provider: String,
    open: Option<OpenText>,
    interrupts: Vec<Interrupt>,
    usage: Vec<Usage>,
}

#[derive(Clone, Debug)]
struct OpenText {
    message_id: MessageId,
    /// Bytes that the client has.
    sent: usize,
    /// Bytes that the log has.
    recorded: usize,
}

impl RunStream {
    /// The stream of a run, before its first event.
    pub fn new(run_id: RunId, audience: Audience) -> Self {
        Self {
            run_id,
            audience,
            started: false,
            finished: false,
            provider: String::new(),
            open: None,
            interrupts: Vec::new(),
            usage: Vec::new(),
        }
    }

    /// Whether the terminal event was made.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Text that the model streams, before it is recorded.
    pub fn text(&mut self, message_id: &MessageId, delta: &str) -> Vec<AgUiEvent> {
        let mut events = self.open_text(message_id);
        if let Some(open) = &mut self.open {
            open.sent += delta.len();
        }
        events.push(content(message_id, delta));
        events
    }

    /// What a recorded event of this run means to the client; `stream` is the event's.
    pub fn see(&mut self, stream: &StreamId, event: &DomainEvent) -> Vec<AgUiEvent> {
        match event {
            DomainEvent::Conversation(event) => self.see_conversation(event),
            DomainEvent::Thread(event) => self.see_thread(&stream.aggregate_id.as_str().into(), event),
            DomainEvent::ToolCall(_)
            | DomainEvent::Device(_)
            | DomainEvent::Node(_)
            | DomainEvent::Redaction(_)
            | DomainEvent::Projection(_)
            | DomainEvent::History(_)
            | DomainEvent::ToolSet(_) => Vec::new(),
        }
    }

    fn see_conversation(&mut self, event: &ConversationEvent) -> Vec<AgUiEvent> {
        match event {
            ConversationEvent::RunClaimed(e) if e.run_id == self.run_id => self.start(),
            ConversationEvent::InterruptRaised(e) if e.run_id == self.run_id => {
                self.interrupts.push(interrupt(e));
                Vec::new()
            }
            ConversationEvent::RunInterrupted(e) if e.run_id == self.run_id => {
                let interrupts = std::mem::take(&mut self.interrupts);
                let last = self.finish_with(Outcome::Interrupt { interrupts });
                self.end(last)
            }
            ConversationEvent::RunSucceeded(e) if e.run_id == self.run_id => {
                let last = self.finish_with(Outcome::Success);
                // What tools gave as the answer was never streamed.
                let mut events = Vec::new();
                if is_tools_answer(&e.message_id) && !self.finished {
                    events.extend(self.start());
                    events.extend(self.recorded_text(&e.message_id, &e.answer));
                }
                events.extend(self.end(last));
                events
            }
            ConversationEvent::RunFailed(e) if e.run_id == self.run_id => {
                self.end(AgUiEvent::RunError { message: e.error_message.clone(), code: e.error_code.clone() })
            }
            ConversationEvent::RunCancelled(e) if e.run_id == self.run_id => {
                let last = if self.audience.declared {
                    self.finish_with(Outcome::Cancelled)
                } else {
                    AgUiEvent::RunError { message: "the run was stopped".to_owned(), code: "cancelled".to_owned() }
                };
                self.end(last)
            }
            ConversationEvent::ConversationStarted(_)
            | ConversationEvent::ConversationRenamed(_)
            | ConversationEvent::ConversationDeleted(_)
            | ConversationEvent::ConversationRead(_)
            | ConversationEvent::TurnPrepared(_)
            | ConversationEvent::TurnRerunPrepared(_)
            | ConversationEvent::RunPrepared(_)
            | ConversationEvent::RunClaimed(_)
            | ConversationEvent::InterruptRaised(_)
            | ConversationEvent::RunStopRequested(_)
            | ConversationEvent::RunInterrupted(_)
            | ConversationEvent::InterruptResolved(_)
            | ConversationEvent::InterruptCancelled(_)
            | ConversationEvent::ToolGrantGiven(_)
            | ConversationEvent::ToolGrantRevoked(_)
            | ConversationEvent::InterruptExpired(_)
            | ConversationEvent::RunSucceeded(_)
            | ConversationEvent::RunFailed(_)
            | ConversationEvent::RunCancelled(_) => Vec::new(),
        }
    }

    fn see_thread(&mut self, thread_id: &ThreadId, event: &ThreadEvent) -> Vec<AgUiEvent> {
        match event {
            ThreadEvent::ThreadStarted(_) => Vec::new(),
            ThreadEvent::ModelRequested(e) => {
                self.provider.clone_from(&e.provider);
                self.close_text()
            }
            ThreadEvent::AnswerProgressed(e) => self.recorded_text(&e.message_id, &e.text),
            ThreadEvent::ModelResponded(e) => self.answer(thread_id, e),
            ThreadEvent::ModelFailed(_) => self.close_text(),
            ThreadEvent::ToolResultObserved(e) => vec![AgUiEvent::ToolCallResult {
                // Derived, so that a replay has the same id.
                message_id: format!("result:{}", e.tool_call_id),
                tool_call_id: e.tool_call_id.to_string(),
                content: e.content.clone(),
                role: "tool",
            }],
            ThreadEvent::ContextDeferred(_) | ThreadEvent::TurnConcluded(_) => Vec::new(),
        }
    }

    fn answer(&mut self, thread_id: &ThreadId, answer: &ModelResponded) -> Vec<AgUiEvent> {
        let recorded = self.open.as_ref().filter(|open| open.message_id == answer.message_id).map_or(0, |o| o.recorded);
        let rest = answer.content.get(recorded..).unwrap_or_default();
        let mut events = if rest.is_empty() { Vec::new() } else { self.recorded_text(&answer.message_id, rest) };
        events.extend(self.close_text());
        self.usage.extend(Usage::of(&self.provider, &answer.served_model, &answer.usage));
        for call in &answer.tool_calls {
            let tool_call_id = ToolCallId::of(thread_id, &call.id).to_string();
            events.push(AgUiEvent::ToolCallStart {
                tool_call_id: tool_call_id.clone(),
                tool_call_name: call.name.clone(),
                parent_message_id: answer.message_id.to_string(),
            });
            if !call.arguments.is_empty() {
                let delta = call.arguments.clone();
                events.push(AgUiEvent::ToolCallArgs { tool_call_id: tool_call_id.clone(), delta });
            }
            events.push(AgUiEvent::ToolCallEnd { tool_call_id });
        }
        events
    }

    /// Text that the log has: what the client has not is sent.
    fn recorded_text(&mut self, message_id: &MessageId, text: &str) -> Vec<AgUiEvent> {
        let mut events = self.open_text(message_id);
        if let Some(open) = &mut self.open {
            open.recorded += text.len();
            let missing = open.recorded.saturating_sub(open.sent).min(text.len());
            open.sent = open.sent.max(open.recorded);
            if missing > 0
                && let Some(rest) = text.get(text.len() - missing..)
            {
                events.push(content(message_id, rest));
            }
        }
        events
    }

    fn open_text(&mut self, message_id: &MessageId) -> Vec<AgUiEvent> {
        if self.open.as_ref().is_some_and(|open| open.message_id == *message_id) {
            return Vec::new();
        }
        let mut events = self.close_text();
        self.open = Some(OpenText { message_id: message_id.clone(), sent: 0, recorded: 0 });
        events.push(AgUiEvent::TextMessageStart { message_id: message_id.to_string(), role: "assistant" });
        events
    }

    fn close_text(&mut self) -> Vec<AgUiEvent> {
        let open = self.open.take();
        open.map(|open| AgUiEvent::TextMessageEnd { message_id: open.message_id.to_string() }).into_iter().collect()
    }

    fn start(&mut self) -> Vec<AgUiEvent> {
        if std::mem::replace(&mut self.started, true) {
            return Vec::new();
        }
        vec![AgUiEvent::RunStarted {
            thread_id: self.audience.thread_id.clone(),
            run_id: self.audience.run_id.clone(),
            protocol_version: PROTOCOL_VERSION,
        }]
    }

    fn finish_with(&self, outcome: Outcome) -> AgUiEvent {
        AgUiEvent::RunFinished {
            thread_id: self.audience.thread_id.clone(),
            run_id: self.audience.run_id.clone(),
            outcome,
            usage: self.usage.clone(),
        }
    }

    /// The terminal event, with everything closed before it; only the first one counts.
    fn end(&mut self, last: AgUiEvent) -> Vec<AgUiEvent> {
        if std::mem::replace(&mut self.finished, true) {
            return Vec::new();
        }
        // A run that was stopped before its claim has no beginning of its own.
        let mut events = self.start();
        events.extend(self.close_text());
        events.push(last);
        events
    }
}

fn content(message_id: &MessageId, delta: &str) -> AgUiEvent {
    AgUiEvent::TextMessageContent { message_id: message_id.to_string(), delta: delta.to_owned() }
}

fn interrupt(raised: &InterruptRaised) -> Interrupt {
    Interrupt {
        id: raised.interrupt_id.to_string(),
        reason: "tool_call",
        message: raised.message.clone(),
        tool_call_id: raised.tool_call_id.to_string(),
        response_schema: serde_json::json!({
            "type": "object",
            "properties": { "approved": { "type": "boolean" } },
            "required": ["approved"],
        }),
        expires_at: raised.expires_at.map(|at| at.to_string()),
    }
}
