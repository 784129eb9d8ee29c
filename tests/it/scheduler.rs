//! The calls of one message: which run beside which, what is recorded when, and that a stop, wherever it comes, leaves
//! one result of every call. Bodies wait at gates that a test opens; nothing here waits for time.

use devmind_api::tools::{BodyEnd, ServerTool, ToolContext};
use devmind_domain::agent::{Lane, Message, Permission, PlannedCall, Schedule};
use devmind_domain::thread::ModelToolCall;
use devmind_domain::tools::{Approval, ToolDefinition, ToolOutcome, always_beside_others};
use devmind_tests::raw_device::{file_output, success};
use devmind_tests::sse::interrupts;
use devmind_tests::wait::within_deadline;
use devmind_tests::{Asked, Fact, Question, RawDevice, Script, ScriptedModel, TestServer, agui};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// A body that says that it began, and ends when its gate opens or it is asked to end.
struct Gated(mpsc::UnboundedSender<Begun>);

/// A body that has begun.
struct Begun {
    /// The model's id of the call.
    call: String,
    gate: oneshot::Sender<()>,
}

impl ServerTool for Gated {
    fn call(&self, _: Value, context: ToolContext) -> BoxFuture<'_, BodyEnd> {
        async move {
            let (gate, opened) = oneshot::channel();
            let call = context.tool_call_id.as_str().split_once(':').expect("thread:call").1.to_owned();
            self.0.send(Begun { call: call.clone(), gate }).expect("the test listens");
            let asked_to_end = tokio::select! {
                _ = opened => false,
                () = context.cancel.cancelled() => true,
            };
            ToolOutcome::success(json!({ "call": call, "asked_to_end": asked_to_end })).into()
        }
        .boxed()
    }
}

/// The bodies that have begun and whose gates are closed.
struct Gates {
    begun: mpsc::UnboundedReceiver<Begun>,
    closed: BTreeMap<String, oneshot::Sender<()>>,
}

impl Gates {
    /// Adds the tools `gated` and `gated_alone` to a server.
    fn of(server: &TestServer) -> Self {
        let (sender, begun) = mpsc::unbounded_channel();
        for (name, concurrency_safe) in [("gated", always_beside_others()), ("gated_alone", None)] {
            let any = json!({ "type": "object" });
            let approval = Approval::Never;
            let definition =
                ToolDefinition { approval, concurrency_safe, ..ToolDefinition::new(name, "", any.clone(), any) };
            let body = Arc::new(Gated(sender.clone()));
            server.app().tools.change(|tools| tools.register(definition, body)).expect("a whole tool");
        }
        Self { begun, closed: BTreeMap::new() }
    }

    /// Waits until exactly these are under way: a body that should not have begun fails the test.
    async fn under_way(&mut self, expected: &BTreeSet<String>) {
        while self.closed.len() < expected.len() {
            let Begun { call, gate } =
                within_deadline("a body begins", self.begun.recv()).await.expect("the tools are there");
            assert!(expected.contains(&call), "{call} began beside {expected:?}");
            self.closed.insert(call, gate);
        }
        assert_eq!(self.closed.keys().cloned().collect::<BTreeSet<_>>(), *expected);
    }

    fn open(&mut self, call: &str) {
        self.closed.remove(call).expect("a closed gate").send(()).expect("the body waits");
    }
}

/// A small generator (SplitMix64): a seed that fails can be tried again.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as usize % end
    }
}

/// The facts of a run's thread and calls, in order.
async fn facts_of(server: &TestServer, asked: &Asked) -> Vec<Fact> {
    let all = server.log().all().await;
    all.into_iter().filter(|fact| fact.metadata["conversation_id"] == asked.conversation_id.as_str()).collect()
}

/// The model's id of the call that a fact is about.
fn call_of(fact: &Fact) -> &str {
    let id = fact.payload["tool_call_id"].as_str().unwrap_or(&fact.stream_id);
    id.split_once(':').expect("thread:call").1
}

/// The calls whose results the thread observed, in order, with the code of each that failed.
fn observed(facts: &[Fact]) -> Vec<(String, Value)> {
    let observed = facts.iter().filter(|fact| fact.is("ToolResultObserved"));
    observed.map(|fact| (call_of(fact).to_owned(), fact.payload["error"].clone())).collect()
}

/// The results in a prompt, by the model's ids.
fn told(prompt: &[Message]) -> Vec<&str> {
    let results = prompt.iter().filter_map(|message| match message {
        Message::Tool { tool_call_id, .. } => Some(tool_call_id.as_str()),
        _ => None,
    });
    results.collect()
}

#[tokio::test]
async fn thirty_calls_of_every_kind_begin_as_the_schedule_says_and_are_recorded_as_their_gates_open() {
    let model = ScriptedModel::new([]);
    let server = TestServer::with_scripted(model.clone()).await;
    let (ann, mut gates) = (server.client("ann"), Gates::of(&server));
    // Of what is never begun there is less: sixteen calls of a run are carried out.
    let kinds = ["gated", "gated", "gated", "gated_alone", "demo_text", "add", "no_such_tool"];
    let (mut fullest, mut reordered) = (0, 0);
    for seed in 0..10 {
        let mut random = Random(seed);
        // Some messages have no call that runs alone, so that the pool fills.
        let kinds = if seed % 5 == 0 { &kinds[..3] } else { &kinds[..] };
        let names: Vec<&str> = (0..30).map(|_| kinds[random.below(kinds.len())]).collect();
        let ids: Vec<String> = (0..30).map(|n| format!("c{n}")).collect();
        let calls: Vec<_> = ids.iter().zip(&names).map(|(id, name)| (id.as_str(), *name, arguments(name))).collect();
        model.then([Script::calls(&calls), Script::say("the end")]);
        let asked = ann.ask(&Question::new("go")).await;
        let stream = ann.stream(&asked).await;

        // Everything but what a person is asked about, with what is refused at once among it.
        let ready: Vec<usize> = (0..30).filter(|n| !(names[*n] == "demo_text" && *n < 16)).collect();
        let waits_at_a_gate = |n: usize| names[n].starts_with("gated") && n < 16;
        let planned = |n: usize| PlannedCall {
            call: ModelToolCall { id: ids[n].clone(), name: names[n].into(), arguments: arguments(names[n]).into() },
            over_limit: n >= 16,
            permission: Permission::NotNeeded,
        };
        let tools = server.app().tools.current();
        let mut schedule = Schedule::new(ready.iter().map(|n| Lane::of(tools.registry(), &planned(*n))));
        let (mut opened, mut follower) = (Vec::new(), server.log().0.follow(0));
        let mut seen = BTreeSet::new();
        loop {
            let mut begun = schedule.begin();
            while let Some(place) = begun.pop() {
                if !waits_at_a_gate(ready[place]) {
                    schedule.end(place);
                    begun.extend(schedule.begin());
                }
            }
            let open: Vec<usize> = (0..ready.len()).filter(|place| schedule.is_under_way(*place)).collect();
            gates.under_way(&open.iter().map(|place| ids[ready[*place]].clone()).collect()).await;
            fullest = fullest.max(open.len());
            let Some(place) = (!open.is_empty()).then(|| open[random.below(open.len())]) else { break };
            let id = &ids[ready[place]];
            gates.open(id);
            schedule.end(place);
            opened.push(id.clone());
            // Recorded when it happens: before anything else is let go.
            while !seen.contains(id) {
                let events = within_deadline("a result is recorded", follower.next()).await.expect("the log is read");
                let own = events.iter().filter(|event| event.event_type == "ToolResultObserved");
                let payloads = own.map(|event| serde_json::from_str::<Value>(&event.payload).expect("JSON"));
                let mine = format!("{}:", asked_thread(&server, &asked).await);
                seen.extend(payloads.filter_map(|payload| {
                    payload["tool_call_id"].as_str().and_then(|call| call.strip_prefix(&mine)).map(str::to_owned)
                }));
            }
        }
        let events = stream.rest().await;
        let asks = agui::last(&events)["outcome"]["type"] == "interrupt";
        let interrupts = if asks { interrupts(&events) } else { Vec::new() };
        assert_eq!(interrupts.len(), 30 - ready.len(), "seed {seed}: only what needs a person is left");
        if !interrupts.is_empty() {
            let mut reply = Value::Null;
            for interrupt in &interrupts {
                reply = ann.answer(interrupt, true).await.ok();
            }
            let run_id = reply["run_id"].as_str().expect("a run goes on").to_owned();
            agui::assert_success(&ann.resume(&asked, &run_id, &interrupts).await);
        } else {
            agui::assert_success(&events);
        }

        let facts = facts_of(&server, &asked).await;
        let observed: Vec<String> = observed(&facts).into_iter().map(|(call, _)| call).collect();
        let gated: Vec<_> = observed.iter().filter(|call| opened.contains(*call)).cloned().collect();
        assert_eq!(gated, opened, "seed {seed}: results are recorded in the order in which they came");
        reordered += usize::from(observed != ids);
        let once: BTreeSet<_> = observed.iter().collect();
        assert_eq!((once.len(), observed.len()), (30, 30), "seed {seed}");
        assert_eq!(told(model.prompts().last().expect("a prompt")), ids, "seed {seed}: the model's own order");
        // What runs alone: everything before has its result, and nothing begins until it has its own.
        for (n, id) in ids.iter().enumerate().filter(|(n, _)| names[*n] == "gated_alone" && *n < 16) {
            let at = |kind: &str, call: &str| {
                let found = facts.iter().position(|fact| fact.is(kind) && call_of(fact) == call);
                found.unwrap_or_else(|| panic!("seed {seed}: no {kind} of {call}"))
            };
            let (begun, ended) = (at("ToolDispatched", id), at("ToolResultObserved", id));
            let between = facts[begun + 1..ended].iter().filter(|fact| fact.is("ToolDispatched")).count();
            assert_eq!(between, 0, "seed {seed}: something began beside {id}");
            for earlier in ready.iter().filter(|earlier| **earlier < n) {
                assert!(at("ToolResultObserved", &ids[*earlier]) < begun, "seed {seed}: {id} began before c{earlier}");
            }
        }
    }
    assert!(fullest == 10 && reordered > 5, "at most {fullest} at once, {reordered} reordered");
    server.finish().await;
}

fn arguments(name: &str) -> &'static str {
    if name == "add" { r#"{"a":1,"b":2}"# } else { "{}" }
}

async fn asked_thread(server: &TestServer, asked: &Asked) -> String {
    let facts = facts_of(server, asked).await;
    facts.iter().find(|fact| fact.is("ThreadStarted")).map_or_else(String::new, |fact| fact.stream_id.clone())
}

/// A message of six calls: two at a gate, one on the device, one at once, one alone at a gate, one behind it.
const SIX: [(&str, &str, &str); 6] = [
    ("a", "gated", "{}"),
    ("b", "workspace_read_file", r#"{"path":"x"}"#),
    ("c", "add", r#"{"a":1,"b":2}"#),
    ("d", "gated", "{}"),
    ("e", "gated_alone", "{}"),
    ("f", "workspace_read_file", r#"{"path":"y"}"#),
];

#[tokio::test]
async fn a_stop_at_any_point_of_a_message_leaves_one_result_of_every_call_and_none_begins_after_it() {
    let model = ScriptedModel::new([]);
    let server = TestServer::with_scripted(model.clone()).await;
    let (ann, mut gates, device) = (server.client("ann"), Gates::of(&server), RawDevice::new(server.address()));
    let mut socket = device.online(&ann).await;
    // Each of these is done in order, and then the run is stopped.
    let points: [&[&str]; 9] = [
        &[],
        &["a"],
        &["d"],
        &["b"],
        &["b", "d"],
        &["a", "d"],
        &["a", "b", "d"],
        &["d", "b", "a", "e"],
        &["b", "d", "a", "e"],
    ];
    for done in points {
        model.then([Script::calls(&SIX)]);
        let asked = ann.ask(&Question::new("go").on(&device.device_id)).await;
        let mut stream = ann.stream(&asked).await;
        let request = socket.expect("tool.call.request").await;
        let gated = |calls: &[&str]| calls.iter().map(|call| (*call).to_owned()).collect::<BTreeSet<_>>();
        gates.under_way(&gated(&["a", "d"])).await;
        let mut results = vec!["c"];
        result_of(&mut stream, "c").await;
        for call in done {
            if *call == "b" {
                socket.send(success(&request, &file_output("read"))).await;
                assert_eq!(socket.acked(&request["tool_call_id"]).await, "stored");
            } else {
                gates.open(call);
            }
            result_of(&mut stream, call).await;
            results.push(call);
            if results.len() == 4 {
                gates.under_way(&gated(&["e"])).await;
            }
        }
        let on_device = if done.contains(&"e") { Some(socket.expect("tool.call.request").await) } else { None };
        assert_eq!(ann.stop(&asked.run_id).await, "cancelled", "{done:?}");
        let events = stream.rest().await;
        assert_eq!(agui::last(&events)["outcome"]["type"], "cancelled");
        if on_device.is_some() || !done.contains(&"b") {
            socket.expect("tool.call.cancel").await;
        }

        let facts = facts_of(&server, &asked).await;
        let observed = observed(&facts);
        let (order, codes): (Vec<&str>, BTreeMap<&str, &Value>) = (
            observed.iter().map(|(call, _)| call.as_str()).collect(),
            observed.iter().map(|(c, e)| (c.as_str(), e)).collect(),
        );
        assert_eq!(order[..results.len()], results, "{done:?}: what had ended was recorded as it ended");
        assert_eq!((order.len(), codes.len()), (6, 6), "{done:?}: one result each");
        let begun: BTreeSet<&str> = facts.iter().filter(|fact| fact.is("ToolDispatched")).map(call_of).collect();
        for (call, tool, _) in SIX {
            let code = codes[call].as_str();
            let expected: &[Option<&str>] = match (results.contains(&call), begun.contains(call), tool) {
                (true, ..) => &[None],
                // A body is awaited; what it really did is what is told.
                (false, true, "gated" | "gated_alone") => &[None, Some("ABORTED")],
                (false, true, _) => &[Some("RUN_CANCELLED")],
                (false, false, _) => &[Some("TOOL_NOT_STARTED")],
            };
            assert!(expected.contains(&code), "{done:?}: {call} has {code:?}");
        }
        let expected = match done.len() {
            4 => 6,
            3 => 5,
            _ => 4,
        };
        assert_eq!(begun.len(), expected, "{done:?}: {begun:?}");
        let end = facts.iter().find(|fact| fact.is("RunCancelled")).expect("an end").position;
        assert!(!facts.iter().any(|fact| fact.is("ToolDispatched") && fact.position > end), "{done:?}");
        for body in
            facts.iter().filter(|fact| fact.is("ToolResultRecorded") && fact.payload["output"]["call"].is_string())
        {
            let asked_to_end = !results.contains(&call_of(body));
            assert_eq!(body.payload["output"]["asked_to_end"], asked_to_end, "{done:?}");
        }
        let shown: BTreeMap<String, Value> = ann
            .tool_calls(&asked)
            .await
            .into_iter()
            .map(|call| (agui::text(&call, "tool_call_id").split_once(':').expect("an id").1.to_owned(), call))
            .collect();
        assert_eq!(shown.keys().map(String::as_str).collect::<BTreeSet<_>>(), begun, "{done:?}: what began is shown");
        for (call, shown) in shown {
            let on_device = call == "b" || call == "f";
            let expected = if on_device && !results.contains(&call.as_str()) { "unknown" } else { "succeeded" };
            assert_eq!(shown["status"], expected, "{done:?}: {call}");
        }
        assert_eq!(ann.turn(&asked).await["status"], "cancelled");
        gates.closed.clear();
    }
    assert_eq!(model.times_asked(), points.len());
    socket.close().await;
    server.finish().await;
}

async fn result_of(stream: &mut devmind_tests::RunStream, call: &str) {
    let is_its = |event: &Value| {
        event["type"] == "TOOL_CALL_RESULT" && agui::text(event, "toolCallId").ends_with(&format!(":{call}"))
    };
    stream.until(&format!("the result of {call}"), is_its).await;
}

#[tokio::test]
async fn a_run_that_cannot_go_on_asks_its_other_calls_to_end_and_records_what_they_did() {
    let model =
        ScriptedModel::new([Script::calls(&[("a", "gated", "{}"), ("b", "gated", "{}"), ("c", "gated_alone", "{}")])]);
    let server = TestServer::with_scripted(model.clone()).await;
    let (ann, mut gates) = (server.client("ann"), Gates::of(&server));
    let asked = ann.ask(&Question::new("go")).await;
    let stream = ann.stream(&asked).await;
    gates.under_way(&["a", "b"].map(str::to_owned).into()).await;
    server.ledger_refuses("NEW.event_type = 'ToolResultObserved' AND NEW.payload LIKE '%:a\"%'").await;
    gates.open("a");
    let body = server.log().wait("b's end", |fact| fact.is("ToolResultRecorded") && call_of(fact) == "b").await;
    assert_eq!(body.payload["output"]["asked_to_end"], true);
    server.ledger_takes_all().await;
    assert_eq!(agui::error_code(&stream.rest().await), "INTERNAL");
    let facts = facts_of(&server, &asked).await;
    let recorded: BTreeSet<_> = facts.iter().filter(|fact| fact.is("ToolResultRecorded")).map(call_of).collect();
    assert_eq!(recorded, ["a", "b"].into(), "what ran is in the log");
    let observed: BTreeMap<_, _> = observed(&facts).into_iter().collect();
    assert_eq!(observed.len(), 3, "{observed:?}");
    assert_eq!(observed["c"], "TOOL_NOT_STARTED");
    assert_ne!(observed["a"], "TOOL_NOT_STARTED", "it ran");
    server.finish().await;
}
