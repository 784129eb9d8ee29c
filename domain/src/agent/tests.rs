//! The agent's decisions, its prompt and its loop.

mod approvals;
mod conclusion;
mod schedule;

use super::*;
use crate::aggregate::Decider;
use crate::ids::*;
use crate::limits::{MAX_MODEL_ROUNDS_PER_RUN, MAX_TOOL_CALLS_PER_RUN};
use crate::thread::*;
use crate::tools::{Registry, Verdict, admit, catalogue};
use serde_json::json;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

fn request(round: u32) -> ThreadEvent {
    ModelRequested {
        run_id: "r".into(),
        round,
        provider: "demo".into(),
        model: "demo".into(),
        parameters: json!({}),
        request_hash: "h".into(),
        tools_hash: "h".into(),
        tool_set: None,
    }
    .into()
}
fn response(round: u32, call_ids: &[String]) -> ThreadEvent {
    let call = |id: &String| ModelToolCall { id: id.clone(), name: "add".into(), arguments: "{}".into() };
    ModelResponded {
        run_id: "r".into(),
        round,
        message_id: format!("m{round}").into(),
        content: format!("answer {round}"),
        reasoning: None,
        tool_calls: call_ids.iter().map(call).collect(),
        finish_reason: "stop".into(),
        usage: TokenUsage::default(),
        served_model: "demo".into(),
        latency_ms: 1,
    }
    .into()
}
fn result(call: &str) -> ThreadEvent {
    ToolResultObserved {
        tool_call_id: ToolCallId::of(&"g".into(), call),
        ok: true,
        content: format!("result of {call}"),
        error: None,
    }
    .into()
}
fn failure(round: u32) -> ThreadEvent {
    let (code, message) = ("MODEL_TIMEOUT".to_owned(), "silent".to_owned());
    ModelFailed { run_id: "r".into(), round, code, message, retriable: true }.into()
}
fn fold(events: &[ThreadEvent]) -> Thread {
    let mut thread = Thread::default();
    events.iter().for_each(|event| thread.evolve(event));
    thread
}
fn ids(round: u32, count: u32) -> Vec<String> {
    (0..count).map(|index| format!("c{round}.{index}")).collect()
}
/// Rounds that each made this many calls, all answered.
fn rounds(calls: &[u32]) -> Vec<ThreadEvent> {
    let mut events = Vec::new();
    for (round, count) in (1..).zip(calls) {
        events.extend([request(round), response(round, &ids(round, *count))]);
        events.extend(ids(round, *count).iter().map(|id| result(id)));
    }
    events
}
/// Judged as the tools themselves say of these calls: no policy has a word.
fn judged_by_tools<'a>(approvals: &Approvals, calls: impl IntoIterator<Item = &'a ModelToolCall>) -> Approvals {
    let mut approvals = approvals.clone();
    for call in calls {
        let admission = admit(catalogue(), call, false);
        if let Some(definition) = catalogue().get(&admission.tool) {
            let verdict = Verdict::of_tool(definition.approval);
            for thread in ["", "g", "g2", "g-before-the-retry"] {
                let id = ToolCallId::of(&thread.into(), &call.id);
                approvals.judged(id, admission.call_hash.clone(), verdict.clone());
            }
        }
    }
    approvals
}
fn calls_of(thread: &Thread) -> impl Iterator<Item = &ModelToolCall> {
    thread.exchanges.last().into_iter().flat_map(|last| &last.calls)
}
/// The step in one word, with what it is about.
fn step(events: &[ThreadEvent]) -> String {
    let thread = fold(events);
    let approvals = judged_by_tools(&Approvals::default(), calls_of(&thread));
    match next_step(&thread, &approvals, catalogue()) {
        Step::Judge(calls) => format!("judge {}", calls.len()),
        Step::CallModel { round } => format!("call model {round}"),
        Step::RunTools(calls) => {
            let word = |call: &PlannedCall| format!("{}{}", call.call.id, if call.over_limit { "!" } else { "" });
            format!("run {}", calls.iter().map(word).collect::<Vec<_>>().join(" "))
        }
        Step::AwaitApproval(calls) => format!("await {}", calls.len()),
        Step::Finish { message_id, answer } => format!("finish {message_id}: {answer}"),
        Step::Fail { code, message } => format!("fail {code}: {message}"),
    }
}

#[test]
fn the_thread_alone_decides_the_next_step() {
    let two = [request(1), response(1, &ids(1, 2))];
    let one_of_two = [two.to_vec(), vec![result("c1.1")]].concat();
    let both = [one_of_two.clone(), vec![result("c1.0")]].concat();
    for (events, expected) in [
        (vec![], "call model 1"),
        (vec![request(1)], "call model 1"),
        (vec![request(1), response(1, &[])], "finish m1: answer 1"),
        (two.to_vec(), "run c1.0 c1.1"),
        (one_of_two, "run c1.0"),
        (both.clone(), "call model 2"),
        ([both, vec![request(2), response(2, &[])]].concat(), "finish m2: answer 2"),
        (vec![request(1), failure(1)], "fail MODEL_TIMEOUT: silent"),
        (vec![request(1), failure(1), request(1)], "call model 1"),
    ] {
        assert_eq!(step(&events), expected, "{events:?}");
    }
}

#[test]
fn the_seventeenth_call_of_a_run_is_over_the_limit_however_the_calls_are_spread() {
    let limit = MAX_TOOL_CALLS_PER_RUN;
    let last = format!("c1.{limit}");
    let at_once = step(&[request(1), response(1, &ids(1, limit + 1))]);
    assert!(at_once.ends_with(&format!("c1.{} {last}!", limit - 1)), "{at_once}");
    let one_by_one = rounds(&vec![1; limit as usize]);
    let next = limit + 1;
    let seventeenth = [one_by_one, vec![request(next), response(next, &ids(next, 1))]].concat();
    assert_eq!(step(&seventeenth), format!("run c{next}.0!"));
    let sixteen = [rounds(&[10]), vec![request(2), response(2, &ids(2, limit - 10))]].concat();
    assert!(!step(&sixteen).contains('!'), "{}", step(&sixteen));
    let answered_first = [request(1), response(1, &ids(1, limit + 1)), result("c1.0")];
    assert!(step(&answered_first).ends_with("c1.15 c1.16!"), "an answered call still counts");
}

#[test]
fn after_the_last_round_the_run_fails_unless_it_has_its_answer() {
    let before = rounds(&vec![1; MAX_MODEL_ROUNDS_PER_RUN as usize - 1]);
    assert_eq!(step(&before), format!("call model {MAX_MODEL_ROUNDS_PER_RUN}"));
    let all = rounds(&vec![1; MAX_MODEL_ROUNDS_PER_RUN as usize]);
    assert!(step(&all).starts_with("fail MODEL_ROUND_LIMIT: "), "{}", step(&all));
    let last = MAX_MODEL_ROUNDS_PER_RUN;
    let answered = [before, vec![request(last), response(last, &[])]].concat();
    assert_eq!(step(&answered), format!("finish m{last}: answer {last}"));
}

#[test]
fn every_call_in_the_prompt_is_followed_by_exactly_one_result_in_the_models_order() {
    let mut events = vec![request(1), response(1, &ids(1, 3))];
    events.extend([result("c1.2"), result("c1.0"), result("c1.1"), result("c1.0"), request(2)]);
    let context = assemble(CallsInAnswer::One, &[], "question");
    let messages = prompt(&context, &fold(&events));
    assert_eq!(messages[..context.len()], context[..]);
    let Message::Assistant { content, tool_calls } = &messages[context.len()] else {
        panic!("an answer comes after the context: {messages:?}");
    };
    assert_eq!((content.as_str(), tool_calls.len()), ("answer 1", 3));
    let tool = |id: &str| Message::Tool { tool_call_id: id.into(), content: format!("result of {id}") };
    assert_eq!(messages[context.len() + 1..], [tool("c1.0"), tool("c1.1"), tool("c1.2")]);
}

#[test]
fn the_context_hash_is_that_of_the_exact_messages() {
    let hash = |question: &str| context_hash(&assemble(CallsInAnswer::One, &[], question));
    assert_eq!(hash("a"), hash("a"));
    assert_ne!(hash("a"), hash("b"));
    let messages = [Message::User { content: "a".into() }];
    assert_eq!(context_hash(&messages), crate::canonical::sha256_hex(br#"[{"content":"a","role":"user"}]"#));
}

#[test]
fn messages_have_the_shape_of_the_chat_completion_apis() {
    let calls = vec![ModelToolCall { id: "c".into(), name: "add".into(), arguments: "{}".into() }];
    for (message, expected) in [
        (Message::System { content: "s".into() }, json!({"role": "system", "content": "s"})),
        (Message::User { content: "u".into() }, json!({"role": "user", "content": "u"})),
        (Message::Assistant { content: "a".into(), tool_calls: vec![] }, json!({"role": "assistant", "content": "a"})),
        (
            Message::Assistant { content: String::new(), tool_calls: calls },
            json!({"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "add", "arguments": "{}"}]}),
        ),
        (
            Message::Tool { tool_call_id: "c".into(), content: "r".into() },
            json!({"role": "tool", "tool_call_id": "c", "content": "r"}),
        ),
    ] {
        assert_eq!(serde_json::to_value(&message).expect("JSON"), expected);
    }
}

/// Ports that follow a script: what the model answers in each round, and where the world stops.
#[derive(Default)]
struct Script {
    thread: Thread,
    approvals: Approvals,
    answers: Vec<ThreadEvent>,
    halt_at: Option<&'static str>,
    log: Vec<String>,
}

impl Script {
    fn halts(&mut self, at: &str) -> Result<(), &'static str> {
        self.log.push(at.to_owned());
        match self.halt_at {
            Some(halt) if at.starts_with(halt) => Err(halt),
            _ => Ok(()),
        }
    }
}

impl AgentPorts for Script {
    type Halt = &'static str;

    fn thread(&self) -> &Thread {
        &self.thread
    }
    fn approvals(&self) -> &Approvals {
        &self.approvals
    }
    fn tools(&self) -> &Registry {
        catalogue()
    }
    async fn judge(&mut self, calls: Vec<PlannedCall>) -> Result<(), &'static str> {
        self.approvals = judged_by_tools(&self.approvals, calls.iter().map(|planned| &planned.call));
        Ok(())
    }
    async fn await_approval(&mut self, calls: Vec<PlannedCall>) -> Result<(), &'static str> {
        self.halts(&format!("await {}", calls.len()))
    }
    async fn call_model(&mut self, round: u32) -> Result<(), &'static str> {
        self.halts(&format!("model {round}"))?;
        self.thread.evolve(&request(round));
        let answer = self.answers.remove(0);
        self.thread.evolve(&answer);
        Ok(())
    }
    async fn run_tools(&mut self, calls: Vec<PlannedCall>) -> Result<(), &'static str> {
        let names: Vec<_> = calls.iter().map(|planned| planned.call.id.clone()).collect();
        self.halts(&format!("tools {}", names.join(" ")))?;
        // The last one is the first to come back.
        names.iter().rev().for_each(|id| self.thread.evolve(&result(id)));
        Ok(())
    }
}

/// Runs a future whose awaits are all ready.
fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("nothing here waits"),
    }
}

#[test]
fn the_loop_asks_and_runs_tools_until_there_is_an_answer() {
    let answers = vec![response(1, &ids(1, 2)), response(2, &ids(2, 1)), response(3, &[])];
    let mut script = Script { answers, ..Script::default() };
    let end = ready(run_agent(&mut script));
    assert_eq!(end, Ok(AgentEnd::Answered { message_id: "m3".into(), answer: "answer 3".into() }));
    assert_eq!(script.log, ["model 1", "tools c1.0 c1.1", "model 2", "tools c2.0", "model 3"]);
    let order: Vec<_> = prompt(&[], &script.thread)
        .into_iter()
        .filter_map(|message| match message {
            Message::Tool { tool_call_id, .. } => Some(tool_call_id),
            _ => None,
        })
        .collect();
    assert_eq!(order, ["c1.0", "c1.1", "c2.0"], "the model sees its own order");
}

#[test]
fn the_loop_goes_on_where_the_recorded_thread_stands() {
    let thread = fold(&[request(1), response(1, &ids(1, 2)), result("c1.0")]);
    let mut script = Script { thread, answers: vec![response(2, &[])], ..Script::default() };
    assert!(ready(run_agent(&mut script)).is_ok());
    assert_eq!(script.log, ["tools c1.1", "model 2"]);
}

#[test]
fn a_failure_of_the_model_ends_the_loop_with_its_code() {
    let mut script = Script { answers: vec![failure(1)], ..Script::default() };
    let end = ready(run_agent(&mut script));
    assert_eq!(end, Ok(AgentEnd::Failed { code: "MODEL_TIMEOUT".into(), message: "silent".into() }));
    assert_eq!(script.log, ["model 1"]);
}

#[test]
fn a_model_that_never_stops_calling_tools_is_stopped_by_the_round_limit() {
    let answers = (1..=MAX_MODEL_ROUNDS_PER_RUN + 1).map(|round| response(round, &ids(round, 1))).collect();
    let mut script = Script { answers, ..Script::default() };
    let end = ready(run_agent(&mut script));
    assert!(matches!(end, Ok(AgentEnd::Failed { code, .. }) if code == "MODEL_ROUND_LIMIT"));
    assert_eq!(script.log.iter().filter(|at| at.starts_with("model")).count(), MAX_MODEL_ROUNDS_PER_RUN as usize);
}

#[test]
fn a_halt_of_either_port_leaves_the_loop_at_once() {
    for (halt_at, last) in [("model 1", "model 1"), ("tools", "tools c1.0"), ("model 2", "model 2")] {
        let answers = vec![response(1, &ids(1, 1)), response(2, &[])];
        let mut script = Script { answers, halt_at: Some(halt_at), ..Script::default() };
        assert_eq!(ready(run_agent(&mut script)), Err(halt_at));
        assert_eq!(script.log.last().map(String::as_str), Some(last));
    }
}
