//! The stages of a tool call, each as what it must do and must not: the edge table over the real pipeline, calls that
//! are cancelled anywhere, and what models were told, made anew from the log.

mod probe;
mod table;

use devmind_api::runs::SubCalls;
use devmind_api::tools::{BodyEnd, ServerTool, ToolContext};
use devmind_device::Fixed;
use devmind_domain::canonical::call_hash;
use devmind_domain::conversation::{Conversation, ConversationCommand};
use devmind_domain::error_code::ErrorCode;
use devmind_domain::tools::{Amendment, Approval, PostExecute, Registry, ToolDefinition, ToolOutcome};
use devmind_ledger::execute;
use devmind_replay_tools::told::check_told;
use devmind_tests::sse::interrupts;
use devmind_tests::{Asked, Client, Fact, Question, Script, ScriptedModel, TestDevice, TestServer, agui, new_id};
use futures::FutureExt;
use futures::future::BoxFuture;
use probe::{FILLER, Probe};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use table::{Act, Row};

async fn probed() -> (TestServer, Arc<ScriptedModel>, Probe) {
    probed_with(true).await
}

/// `approvals`: whether people are asked.
async fn probed_with(approvals: bool) -> (TestServer, Arc<ScriptedModel>, Probe) {
    let model = ScriptedModel::new([]);
    let rules = json!([
        { "id": "never", "decision": "deny", "tool": "probe_denied" },
        { "id": "asks", "decision": "ask", "tool": "workspace.*", "arguments": { "/path": { "regex": ".*revoke" } } },
    ]);
    let server = TestServer::scripted_with(model.clone(), |config| {
        config.policies = serde_json::from_value(rules).expect("rules");
        config.approvals = approvals;
    })
    .await;
    let probe = Probe::new(server.app().runs.clone());
    server.app().tools.change(|tools| probe.install(tools));
    assert!(server.app().policies.add("probe_policy", Arc::new(probe.clone())));
    (server, model, probe)
}

/// The model's id of the call that a row is about.
const IT: &str = "it";

/// What came of a row.
struct Played {
    code: Option<String>,
    content: String,
    /// The call's own stream.
    facts: Vec<Fact>,
    /// Everything since the question.
    log: Vec<Fact>,
}

/// The conversation in which a person allowed the row's call once and for all.
async fn granted(world: &World<'_>, row: &Row, device: Option<&str>) -> Question {
    let World { server, ann, model, probe } = world;
    model.then([Script::calls(&[("before", row.call.0, row.call.1)]), Script::say("done")]);
    let (asked, events) = ann.converse(&question(row, device)).await;
    let open = interrupts(&events);
    let scope = json!({ "scope": "tool" });
    let body = json!({ "interrupt_id": open[0], "approved": true, "grant": scope, "idempotency_key": open[0] });
    let reply = ann.post("/api/runs/resume", &body).await.ok();
    agui::assert_success(&ann.resume(&asked, reply["run_id"].as_str().unwrap(), &open).await);
    let grant = server.log().of("ToolGrantGiven").await.pop().unwrap().payload["grant_id"].clone();
    probe.may_revoke(ann, json!({ "conversation_id": asked.conversation_id, "grant_id": grant }));
    drop((probe.trace(), probe.executed()));
    question(row, device).within(&asked.conversation_id)
}

fn question(row: &Row, device: Option<&str>) -> Question {
    let question = Question::new(row.given);
    match device {
        Some(id) => question.on(id),
        None => question,
    }
}

/// Lets the time of open questions pass; the run that goes on.
async fn expire(server: &TestServer, asked: &Asked) -> String {
    let run_id = new_id();
    let later = devmind_domain::Timestamp::from_micros(i64::MAX);
    let command = ConversationCommand::Expire { now: later, run_id: run_id.as_str().into() };
    let id = asked.conversation_id.as_str();
    let metadata = server.app().server_metadata().conversation(&id.into());
    execute::<Conversation>(&server.app().ledger, id, &metadata, command, None).await.expect("expired");
    run_id
}

/// A server with its probe, and who asks it.
struct World<'a> {
    server: &'a TestServer,
    ann: &'a Client,
    model: &'a ScriptedModel,
    probe: &'a Probe,
}

async fn play(world: &World<'_>, row: &Row, device: Option<&str>) -> Played {
    let World { server, ann, model, .. } = world;
    let before: Vec<_> = match row.act {
        Act::After(calls) => (0..calls).map(|n| (format!("c{n}"), "add", FILLER)).collect(),
        Act::AfterStop => vec![("c0".to_owned(), "probe", r#"{"stop":"body"}"#)],
        Act::Nothing | Act::Approve | Act::Reject | Act::Expire | Act::Granted => vec![],
    };
    let question = match row.act {
        Act::Granted => granted(world, row, device).await,
        _ => question(row, device),
    };
    let mut calls: Vec<_> = before.iter().map(|(id, tool, arguments)| (id.as_str(), *tool, *arguments)).collect();
    calls.push((IT, row.call.0, row.call.1));
    // After the results the model has nothing more to do, and says so.
    model.then([Script::calls(&calls)]);
    let head = server.log().head().await;
    let (asked, events) = ann.converse(&question).await;
    if matches!(row.act, Act::Approve | Act::Reject) {
        let open = interrupts(&events);
        let reply = ann.answer(&open[0], row.act == Act::Approve).await.ok();
        agui::assert_success(&ann.resume(&asked, reply["run_id"].as_str().unwrap(), &open).await);
    }
    if row.act == Act::Expire {
        agui::assert_success(&ann.resume(&asked, &expire(server, &asked).await, &[]).await);
    }
    let log: Vec<_> = server.log().all().await.into_iter().filter(|fact| fact.position > head).collect();
    let is_it = |id: &str| id.ends_with(&format!(":{IT}"));
    let of_it = |fact: &&Fact| is_it(fact.payload["tool_call_id"].as_str().unwrap_or_default());
    let mut told = log.iter().filter(|fact| fact.is("ToolResultObserved")).filter(of_it);
    let observed = told.next().unwrap_or_else(|| panic!("{}: no result in {log:#?}", row.given)).payload.clone();
    assert!(told.next().is_none(), "{}: two results", row.given);
    let facts = log.iter().filter(|fact| fact.stream_type == "tool_call" && is_it(&fact.stream_id)).cloned().collect();
    let code = observed["error"].as_str().map(str::to_owned);
    assert_eq!(code.is_none(), observed["ok"] == true, "{}", row.given);
    Played { code, content: observed["content"].as_str().unwrap().to_owned(), facts, log }
}

/// A call's stream in short. How far a device said to be, and the acknowledgement, nobody waits for: they are no word.
fn short(facts: &[Fact]) -> String {
    facts.iter().filter_map(in_short).collect::<Vec<_>>().join(", ")
}

fn in_short(fact: &Fact) -> Option<String> {
    let of = |field: &str| fact.payload[field].as_str().unwrap_or_default();
    Some(match fact.kind.as_str() {
        "ToolCallRequested" => "requested".to_owned(),
        "ToolCallDecided" => {
            let by = if of("by").starts_with("grant:") { "grant" } else { of("by") };
            format!("{} {} {} by {by}", of("stage"), of("decision"), of("code"))
        }
        "ToolDispatched" => format!("dispatched {}", fact.payload["attempt_no"]),
        "ToolResultRecorded" => {
            let code = fact.payload["error"]["code"].as_str().map(|code| format!(" {code}"));
            format!("result {}{}", of("status"), code.unwrap_or_default())
        }
        "ToolOutcomeRevised" => format!("revised {} {}", of("by"), of("reason")),
        "ToolReceived" | "ToolResultAcked" => return None,
        other => other.to_owned(),
    })
}

/// What is hashed is what was asked about, and what was sent.
fn assert_one_hash(given: &str, played: &Played) {
    let Some(requested) = played.facts.iter().find(|fact| fact.is("ToolCallRequested")) else { return };
    let of = |field: &str| requested.payload[field].as_str().unwrap();
    let hash = call_hash(of("tool"), of("tool_version"), &requested.payload["arguments"]);
    assert_eq!(of("call_hash"), hash, "{given}: what was recorded is what was hashed");
    for raised in played.log.iter().filter(|fact| fact.is("InterruptRaised")) {
        assert_eq!(raised.payload["arguments_hash"], hash.as_str(), "{given}: what was asked about");
        assert_eq!(raised.payload["arguments"], requested.payload["arguments"], "{given}: what a person was shown");
    }
}

async fn assert_rows(server: &TestServer, model: &ScriptedModel, probe: &Probe, rows: &[Row], device: Option<&str>) {
    let ann = server.client("ann");
    let world = World { server, ann: &ann, model, probe };
    let mut wrong = Vec::new();
    for row in rows {
        let played = play(&world, row, device).await;
        let (events, trace) = (short(&played.facts), probe.trace().join(", "));
        if (played.code.as_deref(), events.as_str(), trace.as_str()) != (row.code, row.events, row.trace) {
            let Row { given, code, events: expected, trace: passed, .. } = row;
            let got = format!("got      {:?} | {events} | {trace}", played.code);
            wrong.push(format!("{given}:\n  expected {code:?} | {expected} | {passed}\n  {got}"));
        }
        let said = serde_json::from_str::<Value>(&played.content).unwrap_or(Value::Null);
        if let Some(code) = row.code {
            assert_eq!((&said["ok"], &said["error"]["code"]), (&json!(false), &json!(code)), "{}", row.given);
            assert_eq!(said["data"], Value::Null, "{}", row.given);
        }
        // A refusal is recorded with the words that the model is told.
        let refused = played.facts.iter().find(|fact| fact.payload["decision"] == "deny");
        if let Some(refused) = refused.filter(|_| !row.events.contains("revised")) {
            assert_eq!(said["error"]["message"], refused.payload["reason"], "{}", row.given);
        }
        assert_one_hash(row.given, &played);
        for (arguments, hash) in probe.executed() {
            let requested = played.log.iter().filter(|fact| fact.is("ToolCallRequested"));
            let known = requested
                .clone()
                .any(|fact| fact.payload["arguments"] == arguments && fact.payload["call_hash"] == hash.as_str());
            assert!(known, "{}: the body got {arguments}, which nobody requested", row.given);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn every_row_of_the_edge_table_holds_for_tools_of_the_server() {
    let (server, model, probe) = probed().await;
    assert_rows(&server, &model, &probe, table::IN_SERVER, None).await;
    // Calls that took time are counted by tool, and the model's own words are no labels.
    let figures = reqwest::get(format!("{}/metrics", server.url())).await.unwrap().text().await.unwrap();
    let counted = |tool: &str| format!("devmind_tool_call_duration_seconds_count{{tool=\"{tool}\"}}");
    assert!(figures.contains(&counted("probe")) && !figures.contains(&counted("rm_rf")), "{figures}");
    assert_only_what_ran_is_counted(&server, "probe_asks").await;
    server.finish().await;
}

/// A call that was refused when it was to be sent has no duration: its permission was taken back.
async fn assert_only_what_ran_is_counted(server: &TestServer, tool: &str) {
    let figures = reqwest::get(format!("{}/metrics", server.url())).await.unwrap().text().await.unwrap();
    let name = format!("devmind_tool_call_duration_seconds_count{{tool=\"{tool}\"}} ");
    let counted = figures.lines().find_map(|line| line.strip_prefix(&name)).map(|count| count.parse().unwrap());
    let log = server.log().all().await;
    let of_tool = |fact: &&Fact| fact.is("ToolCallRequested") && fact.payload["tool"] == tool;
    let streams: Vec<_> = log.iter().filter(of_tool).map(|fact| &fact.stream_id).collect();
    let sent = log.iter().filter(|fact| fact.is("ToolDispatched") && streams.contains(&&fact.stream_id)).count();
    assert_eq!(counted, Some(sent), "{tool}");
}

#[tokio::test]
async fn every_row_of_the_edge_table_holds_for_tools_of_a_device() {
    let (server, model, probe) = probed().await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("README.md"), "read me").unwrap();
    for name in ["wrapper=panic_after", "wrapper=revoke", "post=block", "stop=wrapper after"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    let device = TestDevice::start(&server, "ann", folder.path(), Arc::new(Fixed(true))).await;
    assert_rows(&server, &model, &probe, table::ON_DEVICE, Some(&device.id)).await;
    let succeeded = table::ON_DEVICE.iter().filter(|row| row.events.contains("result succeeded")).count();
    let granted = table::ON_DEVICE.iter().filter(|row| row.act == Act::Granted).count();
    assert_eq!(device.executions(), succeeded + granted, "what was refused never ran");
    assert_only_what_ran_is_counted(&server, "workspace.list_files").await;
    device.stop().await;
    server.finish().await;
}

#[tokio::test]
async fn every_row_of_the_edge_table_holds_where_nobody_is_asked() {
    let (server, model, probe) = probed_with(false).await;
    assert_rows(&server, &model, &probe, table::UNATTENDED, None).await;
    server.finish().await;
}

#[test]
fn every_code_of_the_pipeline_has_its_row() {
    let rows = || table::IN_SERVER.iter().chain(table::ON_DEVICE).chain(table::UNATTENDED);
    for code in [
        ErrorCode::UnknownTool,
        ErrorCode::InvalidArguments,
        ErrorCode::ToolDenied,
        ErrorCode::ApprovalUnavailable,
        ErrorCode::ApprovalRejected,
        ErrorCode::ApprovalExpired,
        ErrorCode::ApprovalCancelled,
        ErrorCode::GuardRefused,
        ErrorCode::ToolTimeout,
        ErrorCode::AbortedBeforeDispatch,
        ErrorCode::Aborted,
        ErrorCode::InvalidToolOutput,
        ErrorCode::RenderFailed,
        ErrorCode::BlockedByPolicy,
        ErrorCode::ToolNotStarted,
        ErrorCode::ToolLimitReached,
        ErrorCode::ResultUnknown,
        ErrorCode::ExecutionFailed,
    ] {
        let shown = rows().any(|row| row.code == Some(code.as_str()));
        assert!(shown, "{code} is in no row");
    }
}

/// A call of the property test: how each stage behaves, and where the run is stopped, if it is.
fn random_call() -> impl Strategy<Value = (&'static str, Value)> {
    let tool = prop_oneof![3 => Just("probe"), 1 => Just("probe_brief"), 1 => Just("probe_again"), 1 => Just("rm_rf")];
    let stop = prop_oneof![
        4 => Just(""), 1 => Just("guard"), 1 => Just("wrapper before"), 1 => Just("body"),
        1 => Just("wrapper after"), 1 => Just("render"), 1 => Just("post"), 1 => Just("policy"),
    ];
    let policy = prop_oneof![6 => Just(""), 1 => Just("deny"), 1 => Just("panic")];
    let guard = prop_oneof![5 => Just(""), 1 => Just("refuse"), 1 => Just("panic")];
    let wrapper = prop_oneof![
        5 => Just(""), 1 => Just("refuse"), 1 => Just("lie"), 1 => Just("panic_before"), 1 => Just("panic_after"),
        1 => Just("fail"),
    ];
    let body = prop_oneof![4 => Just(""), 1 => Just("panic"), 1 => Just("fail"), 1 => Just("wrong")];
    let post = prop_oneof![
        5 => Just(""), 1 => Just("content"), 1 => Just("value"), 1 => Just("wrong_value"), 1 => Just("block"),
        1 => Just("panic"),
    ];
    let stages = (policy, guard, wrapper, body, post);
    (tool, stop, stages).prop_map(|(tool, stop, (policy, guard, wrapper, body, post))| {
        // What is stopped while it runs ends only because it is asked to.
        let body = if stop == "body" { "until_asked" } else { body };
        (
            tool,
            json!({ "stop": stop, "policy": policy, "guard": guard, "wrapper": wrapper, "body": body, "post": post }),
        )
    })
}

#[tokio::test]
async fn whatever_fails_or_is_cancelled_when_every_call_of_a_message_has_exactly_one_result() {
    let (server, model, _) = probed().await;
    let ann = server.client("ann");
    let mut runner = TestRunner::deterministic();
    let messages = prop::collection::vec(random_call(), 1..5);
    for _ in 0..40 {
        let message = messages.new_tree(&mut runner).expect("a message").current();
        let texts: Vec<_> = message.iter().map(|(_, arguments)| arguments.to_string()).collect();
        let ids: Vec<_> = (0..message.len()).map(|n| format!("c{n}")).collect();
        let named = message.iter().zip(&texts).zip(&ids);
        let calls: Vec<_> = named.map(|(((tool, _), text), id)| (id.as_str(), *tool, text.as_str())).collect();
        model.then([Script::calls(&calls)]);
        let head = server.log().head().await;
        ann.converse(&Question::new("go")).await;
        let log: Vec<_> = server.log().all().await.into_iter().filter(|fact| fact.position > head).collect();
        for id in &ids {
            let end = format!(":{id}");
            let told = log.iter().filter(|fact| {
                fact.is("ToolResultObserved")
                    && fact.payload["tool_call_id"].as_str().is_some_and(|it| it.ends_with(&end))
            });
            assert_eq!(told.count(), 1, "{id} of {message:?}");
            let own = |kind: &str| {
                let own = log.iter().filter(|fact| fact.stream_type == "tool_call" && fact.stream_id.ends_with(&end));
                own.filter(|fact| fact.is(kind)).count()
            };
            assert_eq!(own("ToolResultRecorded"), own("ToolDispatched").min(1), "{id} of {message:?}");
            assert!(own("ToolCallRequested") <= 1, "{id} of {message:?}");
        }
    }
    server.finish().await;
}

#[tokio::test]
async fn a_render_that_is_not_the_one_of_the_recorded_calls_is_found_in_the_log() {
    let (server, model, probe) = probed().await;
    model.then([Script::calls(&[("a", "probe", r#"{"n":2}"#), ("b", "add", r#"{"a":1,"b":1}"#)])]);
    server.client("ann").converse(&Question::new("go")).await;
    drop(probe);
    let tools = server.app().tools.current();
    let reader = server.log().0;
    let sound = check_told(&reader, tools.registry()).await.expect("readable");
    assert_eq!((sound.recomputed, sound.differences.len()), (2, 0), "{sound:?}");
    let with = |render: &'static str| {
        let changed = |definition: &ToolDefinition| match definition.name.as_str() {
            "probe" => ToolDefinition {
                render: Some(Arc::new(move |_, value| Ok(json!(format!("{render}{}", value["n"]))))),
                ..definition.clone()
            },
            _ => definition.clone(),
        };
        Registry::new(tools.registry().definitions().map(changed)).expect("whole")
    };
    let same = check_told(&reader, &with("n is ")).await.expect("readable");
    assert_eq!(same, sound);
    let other = check_told(&reader, &with("N is ")).await.expect("readable");
    assert_eq!((other.recomputed, other.differences.len()), (1, 1), "{other:?}");
    server.finish().await;
}

/// A body that calls a tool, and keeps what it called it with: what it kept the last time, where there is that.
struct Keeps(Arc<Mutex<Option<SubCalls>>>);

impl ServerTool for Keeps {
    fn call(&self, _: Value, context: ToolContext) -> BoxFuture<'_, BodyEnd> {
        let own = context.sub_calls.expect("a call of a run may call tools");
        async move {
            let kept = self.0.lock().unwrap().replace(own.clone());
            let outcome = kept.unwrap_or(own).call("add".to_owned(), FILLER.to_owned()).await;
            ToolOutcome::success(json!({ "got": outcome.result.unwrap_or_else(|error| json!(error.code)) })).into()
        }
        .boxed()
    }
}

/// A tool that nobody is asked about.
fn free(name: &str) -> ToolDefinition {
    let any = json!({ "type": "object" });
    ToolDefinition { approval: Approval::Never, ..ToolDefinition::new(name, "", any.clone(), any) }
}

#[tokio::test]
async fn a_body_gets_what_later_stages_left_of_its_sub_calls_and_makes_none_once_it_has_ended() {
    let model = ScriptedModel::new([Script::calls(&[("c", "keeps", "{}"), ("d", "keeps", "{}")])]);
    let server = TestServer::with_scripted(model).await;
    let kept = Arc::default();
    server.app().tools.change(|tools| tools.register(free("keeps"), Arc::new(Keeps(Arc::clone(&kept))))).unwrap();
    let hides = PostExecute::new("hides", |call| match call.tool {
        "add" => Amendment::Content("not for you".to_owned()),
        _ => Amendment::Keep,
    });
    server.app().tools.change(|tools| tools.add_post_execute(hides));
    let (_, events) = server.client("ann").converse(&Question::new("go")).await;
    let results = agui::results(&events);
    assert_eq!(results[0]["data"], json!({ "got": "not for you" }), "what a step took away is away");
    // Also while another execution is under way, which has a handle of its own.
    assert_eq!(results[1]["data"], json!({ "got": "UNKNOWN_TOOL" }), "the handle of an execution that is over");
    let recorded = server.log().of("ToolResultRecorded").await;
    assert_eq!(recorded[0].payload["output"], json!({ "sum": 2 }), "what really happened");
    let head = server.log().head().await;
    let kept = kept.lock().unwrap().take().unwrap();
    let outcome = kept.call("add".to_owned(), FILLER.to_owned()).await;
    assert_eq!(outcome.error_code().as_deref(), Some("UNKNOWN_TOOL"));
    assert_eq!(server.log().head().await, head, "before anything is recorded");
    server.finish().await;
}
