//! Policies and grants over HTTP: what a rule, a person's permission or a policy with a fault makes of a call, and
//! that the event says who decided. Every `finish` replays every run: the recorded verdict counts there, too.

use devmind_api::tools::{BodyEnd, ServerTool, ToolContext};
use devmind_domain::tool_call::Risk;
use devmind_domain::tools::{Approval, Policy, PolicyAnswer, PolicyCall, PolicyRule, ToolDefinition, ToolOutcome};
use devmind_tests::sse::interrupts;
use devmind_tests::{Asked, Client, Question, Script, ScriptedModel, TestServer, agui, new_id};
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

fn rules(list: Value) -> Vec<PolicyRule> {
    serde_json::from_value(list).unwrap()
}

async fn server(policies: Value, scripts: impl IntoIterator<Item = Script>) -> (TestServer, Arc<ScriptedModel>) {
    let model = ScriptedModel::new(scripts);
    let server = TestServer::scripted_with(model.clone(), |config| config.policies = rules(policies)).await;
    (server, model)
}

/// Two answers of the model: these calls, and the end.
fn turn(calls: &[(&str, &str, &str)]) -> [Script; 2] {
    [Script::calls(calls), Script::say("end")]
}

/// What the log says was decided about a call of the model: stage, decision, code and decider.
async fn decided(server: &TestServer, call: &str) -> Vec<String> {
    let facts = server.log().of("ToolCallDecided").await;
    let own = facts.iter().filter(|fact| fact.stream_id.ends_with(&format!(":{call}")));
    let word = |payload: &Value, field: &str| payload[field].as_str().unwrap().to_owned();
    own.map(|fact| ["stage", "decision", "code", "by"].map(|field| word(&fact.payload, field)).join(" ")).collect()
}

/// The code of each result, by the model's id of its call.
fn codes(events: &[Value]) -> BTreeMap<&str, Value> {
    let results = events.iter().filter(|event| event["type"] == "TOOL_CALL_RESULT");
    let code = |event| {
        let content: Value = serde_json::from_str(agui::text(event, "content")).unwrap();
        (agui::text(event, "toolCallId").split_once(':').unwrap().1, content["error"]["code"].clone())
    };
    results.map(code).collect()
}

async fn resumed(client: &Client, asked: &Asked, interrupt: &str, body: Value) -> Vec<Value> {
    let mut request = json!({ "interrupt_id": interrupt, "approved": true, "idempotency_key": new_id() });
    request.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
    let reply = client.post("/api/runs/resume", &request).await.ok();
    client.resume(asked, reply["run_id"].as_str().unwrap(), &[interrupt.to_owned()]).await
}

async fn grants(client: &Client, asked: &Asked) -> Vec<Value> {
    let path = format!("/api/conversations/grants?conversation_id={}", asked.conversation_id);
    client.get(&path).await.ok().as_array().unwrap().clone()
}

#[tokio::test]
async fn a_rule_refuses_has_a_person_asked_or_allows_and_the_event_names_it() {
    let policies = json!([
        { "id": "no-sevens", "tool": "add", "arguments": { "/a": { "regex": "7" } }, "decision": "deny",
          "code": "NO_SEVENS", "reason": "sevens are spent" },
        { "id": "clock", "tool": "get_current_time", "user": "ann", "decision": "ask", "reason": "is it time?" },
        { "id": "demo", "tool": "demo_*", "risk": ["MEDIUM"], "decision": "allow" },
    ]);
    let calls = [
        ("denied", "add", r#"{"a":7,"b":1}"#),
        ("asked", "get_current_time", "{}"),
        ("allowed", "demo_text", "{}"),
        ("plain", "add", r#"{"a":1,"b":1}"#),
        ("invalid", "demo_text", r#"{"x":1}"#),
    ];
    let (server, model) = server(policies, turn(&calls)).await;
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("go")).await;
    let expected = [
        ("denied", json!("NO_SEVENS")),
        ("allowed", Value::Null),
        ("plain", Value::Null),
        ("invalid", json!("INVALID_ARGUMENTS")),
    ];
    assert_eq!(codes(&events), BTreeMap::from(expected));
    let results = agui::results(&events);
    assert!(results.iter().any(|result| result["error"]["message"] == "sevens are spent"), "{results:?}");
    let pending = ann.pending(&asked).await;
    assert_eq!(pending.len(), 1);
    assert!(agui::text(&pending[0], "message").ends_with("is it time?"), "{}", pending[0]);
    for (call, expected) in [
        ("denied", &["policy deny NO_SEVENS policy:no-sevens"][..]),
        ("asked", &["policy ask APPROVAL_REQUIRED policy:clock"]),
        ("allowed", &["policy allow TOOL_ALLOWED policy:demo"]),
        ("plain", &[]),
        ("invalid", &["validate deny INVALID_ARGUMENTS pipeline"]),
    ] {
        assert_eq!(decided(&server, call).await, expected, "{call}");
    }
    let allowed = server.log().kinds_of_stream(&format!("{}:allowed", thread(&server).await)).await;
    let order = ["ToolCallRequested", "ToolCallDecided", "ToolDispatched", "ToolResultRecorded"];
    assert_eq!(allowed, order);

    let events = resumed(&ann, &asked, &interrupts(&events)[0], json!({})).await;
    agui::assert_success(&events);
    let both = ["policy ask APPROVAL_REQUIRED policy:clock", "approval allow APPROVAL_GIVEN user:ann"];
    assert_eq!(decided(&server, "asked").await, both);
    assert_eq!(model.times_asked(), 2);
    server.finish().await;
}

async fn thread(server: &TestServer) -> String {
    server.log().one("ThreadStarted").await.stream_id
}

#[tokio::test]
async fn a_verdict_that_is_recorded_counts_after_a_restart_with_other_rules_and_new_calls_have_the_new_ones() {
    let ask = json!([{ "id": "old", "tool": "add", "decision": "ask" }]);
    let two = [turn(&[("first", "add", r#"{"a":1,"b":1}"#)]), turn(&[("second", "add", r#"{"a":1,"b":1}"#)])];
    let (mut server, _) = server(ask, two.concat()).await;
    let (asked, events) = server.client("ann").converse(&Question::new("go")).await;
    server.config.policies = rules(json!([{ "id": "new", "tool": "add", "decision": "deny" }]));
    let server = server.restart().await;
    let ann = server.client("ann");
    let events = resumed(&ann, &asked, &interrupts(&events)[0], json!({})).await;
    assert_eq!(agui::results(&events)[0]["data"], json!({ "sum": 2 }));
    let (_, events) = ann.converse(&Question::new("again").within(&asked.conversation_id)).await;
    assert_eq!(agui::results(&events)[0]["error"]["code"], "TOOL_DENIED");
    assert_eq!(decided(&server, "second").await, ["policy deny TOOL_DENIED policy:new"]);
    server.finish().await;
}

#[tokio::test]
async fn where_nobody_can_be_asked_a_call_that_somebody_would_be_asked_about_is_refused() {
    let model = ScriptedModel::new(turn(&[("c", "demo_text", "{}")]));
    let server = TestServer::scripted_with(model, |config| config.approvals = false).await;
    let (_, events) = server.client("ann").converse(&Question::new("go")).await;
    agui::assert_success(&events);
    assert_eq!(agui::results(&events)[0]["error"]["code"], "APPROVAL_UNAVAILABLE");
    assert_eq!(decided(&server, "c").await, ["policy deny APPROVAL_UNAVAILABLE absence"]);
    assert!(server.log().of("InterruptRaised").await.is_empty());
    server.finish().await;
}

#[tokio::test]
async fn what_a_person_allows_for_the_conversation_is_not_asked_again_there_until_it_is_revoked() {
    let turns = ["one", "two"].map(|call| turn(&[(call, "demo_text", "{}")])).concat();
    let asked_again = ["three", "four"].map(|call| Script::calls(&[(call, "demo_text", "{}")]));
    let (server, _) = server(json!([]), turns.into_iter().chain(asked_again)).await;
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("go")).await;
    let events = resumed(&ann, &asked, &interrupts(&events)[0], json!({ "grant": { "scope": "tool" } })).await;
    agui::assert_success(&events);
    let listed = grants(&ann, &asked).await;
    let given = server.log().one("ToolGrantGiven").await;
    assert_eq!(listed.len(), 1);
    let grant = listed[0]["grant_id"].as_str().unwrap().to_owned();
    assert_eq!((&listed[0]["tool"], &listed[0]["tool_version"]), (&json!("demo_text"), &json!("1")));
    assert_eq!((&listed[0]["scope"], &listed[0]["position"]), (&json!({ "kind": "tool" }), &json!(given.position)));

    // Used, also after a restart, and named.
    let server = server.restart().await;
    let ann = server.client("ann");
    let within = |text: &str| Question::new(text).within(&asked.conversation_id);
    let (_, events) = ann.converse(&within("again")).await;
    agui::assert_success(&events);
    assert_eq!(agui::results(&events)[0]["ok"], true);
    assert_eq!(decided(&server, "two").await, [format!("policy allow TOOL_ALLOWED grant:{grant}")]);

    // Another conversation is not covered, nor this one once it is revoked.
    let (_, events) = ann.converse(&Question::new("elsewhere")).await;
    assert_eq!(interrupts(&events).len(), 1);
    let revoke = json!({ "conversation_id": asked.conversation_id, "grant_id": grant });
    assert_eq!(ann.post("/api/conversations/grants/revoke", &revoke).await.ok()["revoked"], true);
    assert_eq!(ann.post("/api/conversations/grants/revoke", &revoke).await.refused(), (404, "GRANT_NOT_FOUND"));
    assert_eq!(grants(&ann, &asked).await, Vec::<Value>::new());
    let (_, events) = ann.converse(&within("and again")).await;
    assert_eq!(interrupts(&events).len(), 1);
    server.log().one("ToolGrantRevoked").await;
    server.finish().await;
}

#[tokio::test]
async fn a_grant_is_no_wider_than_the_call_that_was_shown() {
    let list = r#"{"path":"docs/./api"}"#;
    let calls = [
        ("docs", "workspace_list_files", r#"{"path":"docs/api/../api/v1"}"#),
        ("other", "workspace_list_files", r#"{"path":"docs/../src"}"#),
        ("search", "workspace_search_files", r#"{"path":"docs/api","pattern":"*"}"#),
    ];
    let scripts = [turn(&[("first", "workspace_list_files", list)]), turn(&calls)];
    let (server, _) =
        server(json!([{ "id": "all", "tool": "workspace.*", "decision": "ask" }]), scripts.concat()).await;
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("go")).await;
    let interrupt = &interrupts(&events)[0];
    let answer = async |approved: bool, grant: Value, key: &str| {
        let body = json!({ "interrupt_id": interrupt, "approved": approved, "grant": grant, "idempotency_key": key });
        ann.post("/api/runs/resume", &body).await
    };
    let head = server.log().head().await;
    for (approved, grant) in [
        (false, json!({ "scope": "tool" })),
        (true, json!({ "scope": "folder", "folder": "docs/api/v1" })),
        (true, json!({ "scope": "folder", "folder": "src" })),
    ] {
        assert_eq!(answer(approved, grant.clone(), &new_id()).await.refused(), (409, "GRANT_REFUSED"), "{grant}");
    }
    for grant in [json!({ "scope": "user" }), json!({ "scope": "tool", "folder": "." }), json!({})] {
        assert_eq!(answer(true, grant.clone(), &new_id()).await.status, 422, "{grant}");
    }
    assert_eq!(server.log().head().await, head, "a refusal leaves no trace");

    let folder = json!({ "scope": "folder", "folder": "docs//api" });
    let reply = answer(true, folder.clone(), "k").await.ok();
    assert_eq!(answer(true, folder.clone(), "k").await.ok(), reply, "the same request is the same answer");
    assert_eq!(answer(true, folder, &new_id()).await.ok(), reply, "under another key, too");
    let wider = answer(true, json!({ "scope": "tool" }), &new_id()).await;
    assert_eq!(wider.refused(), (409, "INTERRUPT_ALREADY_RESOLVED"), "an answer does not grow");
    let given = server.log().one("ToolGrantGiven").await;
    assert_eq!(given.payload["scope"], json!({ "kind": "folder", "path": "docs/api" }));
    ann.resume(&asked, reply["run_id"].as_str().unwrap(), std::slice::from_ref(interrupt)).await;

    let (_, events) = ann.converse(&Question::new("more").within(&asked.conversation_id)).await;
    // Without a device what is allowed goes no further, and that is all it needs here.
    assert_eq!(agui::results(&events).len(), 1);
    let grant = given.payload["grant_id"].as_str().unwrap();
    assert_eq!(decided(&server, "docs").await[0], format!("policy allow TOOL_ALLOWED grant:{grant}"));
    for call in ["other", "search"] {
        assert_eq!(decided(&server, call).await, ["policy ask APPROVAL_REQUIRED policy:all"], "{call}");
    }
    server.finish().await;
}

/// Panics, lies or hangs, as the first number of a sum says.
struct Faulty;

impl Policy for Faulty {
    fn judge(&self, call: &PolicyCall) -> PolicyAnswer {
        match call.arguments["a"].as_i64() {
            Some(1) => panic!("a fault"),
            Some(2) => PolicyAnswer::Deny { code: "APPROVAL_GIVEN".into(), reason: "trust me".into() },
            // For ever: nobody lets it go.
            Some(3) => loop {
                std::thread::park();
            },
            Some(_) | None => PolicyAnswer::Pass,
        }
    }
}

#[tokio::test]
async fn a_policy_that_panics_lies_or_hangs_refuses_that_call_and_nothing_else() {
    let calls = [
        ("panics", "add", r#"{"a":1,"b":0}"#),
        ("lies", "add", r#"{"a":2,"b":0}"#),
        ("hangs", "add", r#"{"a":3,"b":0}"#),
        ("passes", "add", r#"{"a":4,"b":0}"#),
    ];
    let (server, _) = server(json!([]), turn(&calls)).await;
    assert!(server.app().policies.add("faulty", Arc::new(Faulty)));
    let (_, events) = server.client("ann").converse(&Question::new("go")).await;
    agui::assert_success(&events);
    let failed = || json!("POLICY_FAILED");
    let expected = [("panics", failed()), ("lies", failed()), ("hangs", failed()), ("passes", Value::Null)];
    assert_eq!(codes(&events), BTreeMap::from(expected));
    for call in ["panics", "lies", "hangs"] {
        assert_eq!(decided(&server, call).await, ["policy deny POLICY_FAILED policy:faulty"], "{call}");
    }
    server.log().one("ToolDispatched").await;
    server.finish().await;
}

/// A tool that runs alone, and that policies are to speak of.
struct Alone;

impl ServerTool for Alone {
    fn call(&self, _: Value, _: ToolContext) -> BoxFuture<'_, BodyEnd> {
        ready(ToolOutcome::success(json!({})).into()).boxed()
    }
}

#[tokio::test]
async fn a_grant_that_is_revoked_before_its_call_begins_refuses_it() {
    let first = turn(&[("first", "alone", "{}")]);
    // The second call of the message waits until that on the device has ended.
    let calls = [("device", "workspace_list_files", "{}"), ("late", "alone", "{}")];
    let (server, _) = server(json!([]), [first, turn(&calls)].concat()).await;
    let any = json!({ "type": "object" });
    let (risk, approval) = (Risk::Medium, Approval::Policy);
    let definition = ToolDefinition { risk, approval, ..ToolDefinition::new("alone", "", any.clone(), any) };
    server.app().tools.change(|tools| tools.register(definition, Arc::new(Alone))).unwrap();
    let ann = server.client("ann");
    let device = devmind_tests::RawDevice::new(server.address());
    let mut socket = device.online(&ann).await;
    let (asked, events) = ann.converse(&Question::new("go")).await;
    resumed(&ann, &asked, &interrupts(&events)[0], json!({ "grant": { "scope": "tool" } })).await;
    let grant = grants(&ann, &asked).await[0]["grant_id"].clone();
    let more = Question::new("more").within(&asked.conversation_id).on(&device.device_id);
    let running = tokio::spawn({
        let ann = ann.clone();
        async move { ann.converse(&more).await.1 }
    });
    let request = socket.expect("tool.call.request").await;
    let revoke = json!({ "conversation_id": asked.conversation_id, "grant_id": grant });
    ann.post("/api/conversations/grants/revoke", &revoke).await.ok();
    let output = json!({ "path": ".", "entries": [], "truncated": false });
    socket.send(devmind_tests::raw_device::success(&request, &output)).await;
    let events = running.await.unwrap();
    assert_eq!(codes(&events), BTreeMap::from([("device", Value::Null), ("late", json!("APPROVAL_CANCELLED"))]));
    let by = format!("policy deny APPROVAL_CANCELLED grant:{}", grant.as_str().unwrap());
    assert_eq!(decided(&server, "late").await, [by]);
    socket.acked(&request["tool_call_id"]).await;
    socket.close().await;
    server.finish().await;
}
