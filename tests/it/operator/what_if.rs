//! `replay --ask`: a branch of a run whose model really answers, over an endpoint that this test plays.

use super::replay;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use axum::{Json, Router};
use devmind_tests::{Process, Question, Script, ScriptedModel, ServerProcess};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// What was asked, with which key, and the answers that are left.
#[derive(Clone, Default)]
struct Endpoint {
    asked: Arc<Mutex<Vec<(String, Value)>>>,
    answers: Arc<Mutex<VecDeque<Value>>>,
}

impl Endpoint {
    async fn start(answers: impl IntoIterator<Item = Value>) -> (Self, String) {
        let endpoint = Self { answers: Arc::new(Mutex::new(answers.into_iter().collect())), ..Self::default() };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let routes = Router::new().route("/v1/chat/completions", post(answer)).with_state(endpoint.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (endpoint, url)
    }
}

async fn answer(State(endpoint): State<Endpoint>, headers: HeaderMap, Json(body): Json<Value>) -> Json<Value> {
    let key = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
    endpoint.asked.lock().unwrap().push((key, body));
    let message = endpoint.answers.lock().unwrap().pop_front().expect("an answer is left");
    Json(json!({
        "model": "played", "usage": { "prompt_tokens": 3, "completion_tokens": 2 },
        "choices": [{ "index": 0, "message": message, "finish_reason": "stop" }],
    }))
}

fn calls(arguments: &str) -> Value {
    calls_of("add", arguments)
}

fn calls_of(tool: &str, arguments: &str) -> Value {
    let function = json!({ "name": tool, "arguments": arguments });
    json!({ "role": "assistant", "content": null, "tool_calls": [{ "id": "x", "type": "function", "function": function }] })
}

#[tokio::test]
async fn a_branch_with_another_model_has_the_results_of_the_log_and_stops_at_a_call_that_was_never_made() {
    let server = ServerProcess::start(&[]).await;
    let (asked, _) = server.client("ann").converse(&Question::new("add 1 and 2")).await;
    let head = server.log().await.head().await;
    let data = server.data.clone();
    let run = asked.run_id.as_str();

    // The same call, written otherwise, then an answer.
    let same = calls(r#"{ "b": 2, "a": 1 }"#);
    let (endpoint, url) = Endpoint::start([same.clone(), json!({ "role": "assistant", "content": "three" })]).await;
    let order =
        ["--json", "replay", "--run", run, "--ask", &url, "--with", "model=other", "--with", "system=Be brief."];
    let folder = data.path().to_str().unwrap();
    let mut environment: Vec<_> = data.database_url().map(|url| ("DATABASE_URL", url)).into_iter().collect();
    environment.push(("MODEL_API_KEY", "the-secret"));
    let told = Process::run("devmind-replay", &[&["--data", folder], order.as_slice()].concat(), &environment).await;
    told.assert_success();
    let line: Value = serde_json::from_str(told.stdout.trim()).expect("JSON");
    let branch = &line["branch"];
    assert_eq!(
        (&line["position"], &branch["end"], &branch["answer"]),
        (&head.into(), &"answered".into(), &"three".into())
    );
    let steps: Vec<&Value> = branch["steps"].as_array().unwrap().iter().map(|step| &step["step"]).collect();
    assert_eq!(steps, ["model", "tool", "model"], "{line:#}");
    assert!(branch["steps"][1]["from"].is_u64() && branch["steps"][1]["ok"] == true, "{line:#}");
    assert!(line["root"].as_str().is_some_and(|root| root.len() == 64) && !told.stderr.contains("the-secret"));
    {
        let asked = endpoint.asked.lock().unwrap();
        let (key, first) = &asked[0];
        assert_eq!((key.as_str(), &first["model"]), ("Bearer the-secret", &json!("other")));
        assert_eq!(first["messages"][0], json!({ "role": "system", "content": "Be brief." }));
        assert!(
            first["tools"].as_array().is_some_and(|tools| tools.iter().any(|tool| tool["function"]["name"] == "add"))
        );
        let result = asked[1].1["messages"].as_array().unwrap().last().unwrap();
        assert!(result["role"] == "tool" && result["content"].as_str().unwrap().contains('3'), "{result}");
    }

    // Another call: there is no result of it, and nobody makes one.
    let (_, url) = Endpoint::start([calls(r#"{"a":1,"b":5}"#)]).await;
    let stops = replay(&data, &["replay", "--run", run, "--ask", &url]).await;
    stops.assert_success();
    assert!(stops.stdout.contains(r#"it would call add({"a":1,"b":5}), of which the log has no result"#), "{stops:#?}");
    // A policy of the branch's own is heard before that.
    let (_, url) = Endpoint::start([same, json!({ "role": "assistant", "content": "I may not." })]).await;
    let denied = replay(&data, &["replay", "--run", run, "--ask", &url, "--with", "add=deny"]).await;
    assert!(denied.stdout.contains("is refused") && denied.stdout.contains("it answers: I may not."), "{denied:#?}");

    replay(&data, &["replay", "--run", run, "--ask", "http://127.0.0.1:9/v1"])
        .await
        .assert_refused("MODEL_UNREACHABLE");
    assert_eq!(server.log().await.head().await, head, "nothing was written");
    server.finish().await;
}

#[tokio::test]
async fn a_branch_has_what_calls_left_for_later_and_tools_that_only_the_log_knows_can_be_judged_otherwise() {
    let arguments = r#"{"leaves":"left by a","gives":"A"}"#;
    let model = ScriptedModel::new([Script::calls(&[("a", "obey", arguments)]), Script::say("the end")]);
    let server = crate::conclusion::server(model).await;
    let (asked, _) = server.client("ann").converse(&Question::new("go")).await;
    let run = asked.run_id.as_str();
    let denied = replay(&server.data, &["replay", "--run", run, "--with", "obey=deny"]).await;
    assert!(denied.code == Some(0) && denied.stdout.contains("differs at event"), "{denied:#?}");
    let unknown = ["replay", "--run", run, "--with", "obeys=deny"];
    replay(&server.data, &unknown).await.assert_refused("VALIDATION_FAILED");

    let says = json!({ "role": "assistant", "content": "so be it" });
    let (endpoint, url) = Endpoint::start([calls_of("obey", arguments), says.clone()]).await;
    let told = replay(&server.data, &["--json", "replay", "--run", run, "--ask", &url]).await;
    told.assert_success();
    let line: Value = serde_json::from_str(told.stdout.trim()).expect("JSON");
    assert_eq!(line["branch"]["steps"][1]["contexts"], json!(["left by a"]), "{line:#}");
    let second = endpoint.asked.lock().unwrap()[1].1["messages"].clone();
    let last = second.as_array().unwrap().last().unwrap();
    assert_eq!(*last, json!({ "role": "user", "content": "left by a" }), "{second:#}");

    // Rules are heard in a branch, too.
    let rules = server.data.path().join("rules.toml");
    std::fs::write(&rules, "[[policies]]\nid = \"none\"\ntool = \"obey\"\ndecision = \"deny\"").unwrap();
    let policy = format!("policy={}", rules.display());
    let (_, url) = Endpoint::start([calls_of("obey", arguments), says]).await;
    let ruled = replay(&server.data, &["replay", "--run", run, "--ask", &url, "--with", &policy]).await;
    assert!(ruled.code == Some(0) && ruled.stdout.contains("is refused"), "{ruled:#?}");
    server.finish().await;
}
