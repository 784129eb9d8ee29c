//! The spans of one run, after OpenTelemetry's semantic conventions for generative AI: one `invoke_agent`, within it
//! one `chat` a question to the model and one `execute_tool` a tool call
//! (<https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-agent-spans/>).
//!
//! A pure function of the run's events. Ids are made from the ids of the log, so that an export that is repeated gives
//! the same spans. What people, models and tools said is content, and left out unless it is asked for. What the
//! conventions have no name for is under `devmind.`.

use super::wire::{Attribute, Context, Kind, Span, SpanEvent, span_id, trace_id};
use devmind_domain::Timestamp;
use devmind_domain::conversation::ConversationEvent;
use devmind_domain::event::{DomainEvent, RecordedEvent};
use devmind_domain::ids::RunId;
use devmind_domain::thread::{ModelRequested, ModelResponded, ThreadEvent};
use devmind_domain::tool_call::{Decision, ResultStatus, ToolCallEvent, ToolCallRequested};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The name of the agent, as spans carry it.
const AGENT: &str = "devmind";
/// What a model is asked with, by our name and by the conventions'.
const PARAMETERS: [(&str, &str); 6] = [
    ("temperature", "gen_ai.request.temperature"),
    ("top_p", "gen_ai.request.top_p"),
    ("max_tokens", "gen_ai.request.max_tokens"),
    ("seed", "gen_ai.request.seed"),
    ("frequency_penalty", "gen_ai.request.frequency_penalty"),
    ("presence_penalty", "gen_ai.request.presence_penalty"),
];
/// The `error.type` of a call that was dispatched and has no result.
const UNKNOWN: &str = "RESULT_UNKNOWN";

/// What came of a run's events.
pub(super) struct RunSpans {
    pub spans: Vec<Span>,
    /// Events that this program cannot read; they are in no span.
    pub undecodable: u64,
}

/// The trace of a run and the id of its span: the client's own trace, where it sent one.
fn context_of(run_id: &RunId, events: &[Arc<RecordedEvent>]) -> (Context, Option<String>) {
    let own = span_id(&format!("run {run_id}"));
    let sent = events
        .iter()
        .filter_map(|event| event.metadata().ok())
        .filter(|told| told.correlation_id.as_ref() == Some(run_id));
    let parent = sent.filter_map(|metadata| metadata.traceparent).find_map(|text| Context::parse(&text));
    match parent {
        Some(parent) => (Context { trace_id: parent.trace_id, span_id: own }, Some(parent.span_id)),
        None => (Context { trace_id: trace_id(&run_id.0), span_id: own }, None),
    }
}

/// The spans of a run whose events these are; none while nobody has claimed it.
pub(super) fn of_run(run_id: &RunId, events: &[Arc<RecordedEvent>], content: bool) -> RunSpans {
    let (context, parent_span_id) = context_of(run_id, events);
    let mut build = Build {
        run_id,
        content,
        context,
        parent_span_id,
        claimed: None,
        question: None,
        links: Vec::new(),
        chats: BTreeMap::new(),
        calls: BTreeMap::new(),
        spans: Vec::new(),
        ended: None,
        last: None,
        tokens: [None; 2],
        provider: None,
        undecodable: 0,
    };
    for event in events {
        let Ok(facts) = event.decode() else {
            build.undecodable += 1;
            continue;
        };
        for fact in facts {
            match fact {
                DomainEvent::Conversation(inner) => build.see_conversation(event, inner),
                DomainEvent::Thread(inner) => build.see_thread(event, inner),
                DomainEvent::ToolCall(inner) => build.see_call(event, inner),
                DomainEvent::Device(_)
                | DomainEvent::Node(_)
                | DomainEvent::Redaction(_)
                | DomainEvent::Projection(_)
                | DomainEvent::History(_)
                | DomainEvent::ToolSet(_) => {}
            }
        }
    }
    build.finish()
}

/// A span that has begun.
struct Begun {
    id: String,
    start: Timestamp,
    attributes: Vec<Attribute>,
    events: Vec<SpanEvent>,
}

struct Call {
    request: ToolCallRequested,
    /// When it was dispatched, or, until then, asked for.
    begun: Begun,
    dispatched: bool,
}

struct Build<'a> {
    run_id: &'a RunId,
    content: bool,
    context: Context,
    parent_span_id: Option<String>,
    claimed: Option<Begun>,
    /// The question as the conventions write messages, where content is wanted.
    question: Option<String>,
    links: Vec<Context>,
    chats: BTreeMap<u32, (Begun, ModelRequested)>,
    calls: BTreeMap<String, Call>,
    spans: Vec<Span>,
    ended: Option<(Timestamp, Option<String>)>,
    last: Option<Timestamp>,
    /// Tokens of all answers, in and out; absent while none was counted.
    tokens: [Option<u64>; 2],
    /// Who serves the model, and the model.
    provider: Option<(String, String)>,
    undecodable: u64,
}

impl Build<'_> {
    fn see_conversation(&mut self, event: &RecordedEvent, inner: ConversationEvent) {
        let at = event.happened_at();
        match inner {
            ConversationEvent::RunPrepared(e) if e.run_id == *self.run_id => {
                if let Some(parent) = e.parent_run_id {
                    // A run that another continued or replaced: its span in its own trace.
                    let span_id = span_id(&format!("run {parent}"));
                    self.links.push(Context { trace_id: trace_id(&parent.0), span_id });
                }
                self.noted(at, "devmind.run.prepared", event, vec![]);
            }
            ConversationEvent::RunClaimed(e) if e.run_id == *self.run_id => {
                let conversation = event.stream.aggregate_id.clone();
                let attributes = vec![
                    ("gen_ai.conversation.id", json!(conversation)),
                    ("devmind.run.id", json!(e.run_id)),
                    ("devmind.node.id", json!(e.node_id)),
                    ("devmind.event.position", json!(event.position)),
                ];
                self.claimed = Some(Begun { id: self.context.span_id.clone(), start: at, attributes, events: vec![] });
            }
            ConversationEvent::TurnPrepared(e) => self.asked(&e.content),
            ConversationEvent::TurnRerunPrepared(e) => self.asked(&e.content),
            ConversationEvent::InterruptRaised(e) if e.run_id == *self.run_id => {
                let what = vec![("gen_ai.tool.name", json!(e.tool)), ("devmind.tool_call.id", json!(e.tool_call_id))];
                self.noted(at, "devmind.approval.asked", event, what);
            }
            ConversationEvent::RunStopRequested(e) if e.run_id == *self.run_id => {
                self.noted(at, "devmind.run.stop_requested", event, vec![]);
            }
            ConversationEvent::RunInterrupted(e) if e.run_id == *self.run_id => {
                self.noted(at, "devmind.run.interrupted", event, vec![]);
                self.ended = Some((at, None));
            }
            ConversationEvent::RunSucceeded(e) if e.run_id == *self.run_id => {
                if self.content
                    && let Some(run) = &mut self.claimed
                {
                    let said = json!([{ "role": "assistant", "parts": [{ "type": "text", "content": e.answer }] }]);
                    run.attributes.push(("gen_ai.output.messages", json!(said.to_string())));
                }
                self.ended = Some((at, None));
            }
            ConversationEvent::RunFailed(e) if e.run_id == *self.run_id => self.ended = Some((at, Some(e.error_code))),
            ConversationEvent::RunCancelled(e) if e.run_id == *self.run_id => {
                self.ended = Some((at, Some(json!(e.error_code).as_str().unwrap_or_default().to_owned())));
            }
            ConversationEvent::RunPrepared(_)
            | ConversationEvent::RunClaimed(_)
            | ConversationEvent::InterruptRaised(_)
            | ConversationEvent::RunStopRequested(_)
            | ConversationEvent::RunInterrupted(_)
            | ConversationEvent::RunSucceeded(_)
            | ConversationEvent::RunFailed(_)
            | ConversationEvent::RunCancelled(_)
            | ConversationEvent::ConversationStarted(_)
            | ConversationEvent::ConversationRenamed(_)
            | ConversationEvent::ConversationDeleted(_)
            | ConversationEvent::ConversationRead(_)
            | ConversationEvent::InterruptResolved(_)
            | ConversationEvent::InterruptCancelled(_)
            | ConversationEvent::ToolGrantGiven(_)
            | ConversationEvent::ToolGrantRevoked(_)
            | ConversationEvent::InterruptExpired(_) => return,
        }
        self.last = self.last.max(Some(at));
    }

    /// Keeps the question for the run's span.
    fn asked(&mut self, question: &str) {
        if self.content {
            let asked = json!([{ "role": "user", "parts": [{ "type": "text", "content": question }] }]);
            self.question = Some(asked.to_string());
        }
    }

    /// Something that happened while the run was under way.
    fn noted(&mut self, at: Timestamp, name: &str, event: &RecordedEvent, mut attributes: Vec<Attribute>) {
        attributes.push(("devmind.event.position", json!(event.position)));
        if let Some(run) = &mut self.claimed {
            run.events.push(SpanEvent { at, name: name.to_owned(), attributes });
        }
    }

    fn see_thread(&mut self, event: &RecordedEvent, inner: ThreadEvent) {
        let at = event.happened_at();
        match inner {
            ThreadEvent::ModelRequested(e) if e.run_id == *self.run_id => {
                let id = span_id(&format!("round {} of {}", e.round, self.run_id));
                let mut attributes = vec![
                    ("gen_ai.operation.name", json!("chat")),
                    ("gen_ai.provider.name", json!(e.provider)),
                    ("gen_ai.request.model", json!(e.model)),
                    ("devmind.event.position", json!(event.position)),
                ];
                for (parameter, name) in PARAMETERS {
                    if let Some(value) = e.parameters.get(parameter).filter(|value| value.is_number()) {
                        attributes.push((name, value.clone()));
                    }
                }
                self.provider = Some((e.provider.clone(), e.model.clone()));
                self.chats.insert(e.round, (Begun { id, start: at, attributes, events: vec![] }, e));
            }
            ThreadEvent::ModelResponded(e) if e.run_id == *self.run_id => self.answered(at, &e),
            ThreadEvent::ModelFailed(e) if e.run_id == *self.run_id => {
                if let Some((chat, asked)) = self.chats.remove(&e.round) {
                    self.end_chat(chat, &asked, at, Some(e.code));
                }
            }
            ThreadEvent::ModelRequested(_)
            | ThreadEvent::ModelResponded(_)
            | ThreadEvent::ModelFailed(_)
            | ThreadEvent::ThreadStarted(_)
            | ThreadEvent::AnswerProgressed(_)
            | ThreadEvent::ToolResultObserved(_)
            | ThreadEvent::ContextDeferred(_)
            | ThreadEvent::TurnConcluded(_) => return,
        }
        self.last = self.last.max(Some(at));
    }

    fn answered(&mut self, at: Timestamp, answer: &ModelResponded) {
        let Some((mut chat, asked)) = self.chats.remove(&answer.round) else { return };
        chat.attributes.push(("gen_ai.response.model", json!(answer.served_model)));
        chat.attributes.push(("gen_ai.response.finish_reasons", json!([answer.finish_reason])));
        let usage = &answer.usage;
        for (sum, count) in self.tokens.iter_mut().zip([usage.input, usage.output]) {
            *sum = count.map_or(*sum, |count| Some(sum.unwrap_or(0) + count));
        }
        for (name, count) in [
            ("gen_ai.usage.input_tokens", usage.input),
            ("gen_ai.usage.output_tokens", usage.output),
            ("gen_ai.usage.cache_read.input_tokens", usage.cached),
            ("gen_ai.usage.reasoning.output_tokens", usage.reasoning),
        ] {
            chat.attributes.extend(count.map(|count| (name, json!(count))));
        }
        if self.content {
            let text =
                Some(json!({ "type": "text", "content": answer.content })).filter(|_| !answer.content.is_empty());
            let calls = answer.tool_calls.iter().map(
                |call| json!({ "type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments }),
            );
            let parts: Vec<_> = text.into_iter().chain(calls).collect();
            let said = json!([{ "role": "assistant", "parts": parts, "finish_reason": answer.finish_reason }]);
            chat.attributes.push(("gen_ai.output.messages", json!(said.to_string())));
        }
        self.end_chat(chat, &asked, at, None);
    }

    fn end_chat(&mut self, chat: Begun, asked: &ModelRequested, end: Timestamp, error: Option<String>) {
        let name = format!("chat {}", asked.model);
        self.end_span(chat, name, Kind::Client, end, error);
    }

    fn end_span(&mut self, begun: Begun, name: String, kind: Kind, end: Timestamp, error: Option<String>) {
        let Begun { id, start, mut attributes, events } = begun;
        attributes.extend(error.as_ref().map(|code| ("error.type", json!(code))));
        let context = Context { trace_id: self.context.trace_id.clone(), span_id: id };
        let parent_span_id = Some(self.context.span_id.clone());
        // The clock of a log never goes back; a span must not end before it began all the same.
        let end = end.max(start);
        self.spans.push(Span {
            context,
            parent_span_id,
            name,
            kind,
            start,
            end,
            attributes,
            events,
            links: vec![],
            error,
        });
    }

    fn see_call(&mut self, event: &RecordedEvent, inner: ToolCallEvent) {
        let (at, id) = (event.happened_at(), &event.stream.aggregate_id);
        if let ToolCallEvent::ToolCallRequested(request) = inner {
            let span = span_id(&format!("call {id} of {}", self.run_id));
            let begun = Begun { id: span, start: at, attributes: vec![], events: vec![] };
            self.calls.insert(id.clone(), Call { request, begun, dispatched: false });
            return;
        }
        let Some(call) = self.calls.get_mut(id) else { return };
        let position = ("devmind.event.position", json!(event.position));
        let mut note = |name: &str, mut attributes: Vec<Attribute>| {
            attributes.push(position.clone());
            call.begun.events.push(SpanEvent { at, name: name.to_owned(), attributes });
        };
        match inner {
            ToolCallEvent::ToolCallDecided(e) => {
                let (stage, by) = (("devmind.decision.stage", json!(e.stage)), ("devmind.decision.by", json!(e.by)));
                note("devmind.tool.decided", vec![stage, by, ("devmind.decision.code", json!(e.code))]);
                if e.decision == Decision::Deny {
                    self.end_call(id, at, Some(e.code), None);
                }
            }
            ToolCallEvent::ToolDispatched(e) => {
                if !call.dispatched {
                    call.begun.start = at;
                }
                call.dispatched = true;
                let attempt = ("devmind.attempt", json!(e.attempt_no));
                call.begun.events.push(SpanEvent {
                    at,
                    name: "devmind.tool.dispatched".to_owned(),
                    attributes: vec![attempt, ("devmind.node.id", json!(e.node_id)), position],
                });
            }
            ToolCallEvent::ToolReceived(e) => note(&format!("devmind.tool.{}", e.phase.as_str()), vec![]),
            ToolCallEvent::ToolCancelRequested(e) => {
                note("devmind.tool.cancel_requested", vec![("devmind.reason", json!(e.reason))]);
            }
            ToolCallEvent::ToolWaitTimedOut(e) => {
                note("devmind.tool.wait_timed_out", vec![("devmind.waited_ms", json!(e.after_ms))]);
            }
            ToolCallEvent::ToolAttemptRefused(e) => {
                note("devmind.tool.attempt_refused", vec![("devmind.decision.code", json!(e.code))]);
            }
            ToolCallEvent::ToolResultRecorded(e) => {
                let error = (e.status != ResultStatus::Succeeded)
                    .then(|| e.error.map_or_else(|| e.status.as_str().to_uppercase(), |error| error.code));
                self.end_call(id, at, error, e.output);
            }
            ToolCallEvent::ToolOutcomeRevised(_)
            | ToolCallEvent::ToolResultAcked(_)
            | ToolCallEvent::ToolCallRequested(_) => return,
        }
        self.last = self.last.max(Some(at));
    }

    fn end_call(&mut self, id: &str, end: Timestamp, error: Option<String>, output: Option<Value>) {
        let Some(Call { request, mut begun, dispatched }) = self.calls.remove(id) else { return };
        begun.attributes = vec![
            ("gen_ai.operation.name", json!("execute_tool")),
            ("gen_ai.tool.name", json!(request.tool)),
            ("gen_ai.tool.type", json!("function")),
            ("gen_ai.tool.call.id", json!(request.model_call_id)),
            ("devmind.tool_call.id", json!(id)),
            ("devmind.tool.target", json!(request.target)),
            ("devmind.tool.risk", json!(request.risk)),
            ("devmind.tool.dispatched", json!(dispatched)),
        ];
        begun.attributes.extend(request.device_id.as_ref().map(|device| ("devmind.device.id", json!(device))));
        if self.content {
            begun.attributes.push(("gen_ai.tool.call.arguments", json!(request.arguments.to_string())));
            begun.attributes.extend(output.map(|output| ("gen_ai.tool.call.result", json!(output.to_string()))));
        }
        self.end_span(begun, format!("execute_tool {}", request.tool), Kind::Internal, end, error);
    }

    fn finish(mut self) -> RunSpans {
        let undecodable = self.undecodable;
        let last = self.ended.as_ref().map(|(at, _)| *at).max(self.last);
        let (Some(mut run), Some(last)) = (self.claimed.take(), last) else {
            return RunSpans { spans: Vec::new(), undecodable };
        };
        // What has no end in the log ends with it, and says so.
        for id in self.calls.keys().cloned().collect::<Vec<_>>() {
            let dispatched = self.calls.get(&id).is_some_and(|call| call.dispatched);
            self.end_call(&id, last, dispatched.then(|| UNKNOWN.to_owned()), None);
        }
        for (chat, asked) in std::mem::take(&mut self.chats).into_values() {
            self.end_chat(chat, &asked, last, Some("NO_ANSWER_RECORDED".to_owned()));
        }
        let (end, error) = self.ended.unwrap_or((last, Some("NOT_ENDED".to_owned())));
        let attributes = &mut run.attributes;
        attributes.insert(0, ("gen_ai.operation.name", json!("invoke_agent")));
        attributes.push(("gen_ai.agent.name", json!(AGENT)));
        if let Some((provider, model)) = self.provider {
            attributes.push(("gen_ai.provider.name", json!(provider)));
            attributes.push(("gen_ai.request.model", json!(model)));
        }
        let [input, output] = self.tokens;
        attributes.extend(input.map(|count| ("gen_ai.usage.input_tokens", json!(count))));
        attributes.extend(output.map(|count| ("gen_ai.usage.output_tokens", json!(count))));
        attributes.extend(self.question.map(|asked| ("gen_ai.input.messages", json!(asked))));
        attributes.extend(error.as_ref().map(|code| ("error.type", json!(code))));
        let Begun { start, attributes, events, .. } = run;
        let span = Span {
            context: self.context,
            parent_span_id: self.parent_span_id,
            name: format!("invoke_agent {AGENT}"),
            kind: Kind::Internal,
            start,
            end: end.max(start),
            attributes,
            events,
            links: self.links,
            error,
        };
        self.spans.insert(0, span);
        RunSpans { spans: self.spans, undecodable }
    }
}
