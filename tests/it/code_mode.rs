//! Code mode: the model sees `run_code` alone, and every call that its program makes goes through the same stages as
//! any other and stands in the log under its parent.

use devmind_api::config::{CodeMode, ServerConfig};
use devmind_tests::{ModelEndpoint, Question, Reply, TestServer, agui, program};
use serde_json::{Value, json};

fn code_mode(config: &mut ServerConfig) {
    config.code_mode = CodeMode { enabled: true, executable: Some(program("devmind")), ..CodeMode::default() };
}

async fn server(endpoint: &ModelEndpoint) -> TestServer {
    TestServer::start_with(|config| {
        config.model = Some(endpoint.config());
        code_mode(config);
    })
    .await
}

fn run_code(source: &str) -> Reply {
    Reply::call("c1", "run_code", &json!({ "source": source }))
}

fn told(endpoint: &ModelEndpoint, request: usize) -> Value {
    let messages = endpoint.messages(request);
    let result = messages.iter().rfind(|message| message["role"] == "tool").expect("a result");
    serde_json::from_str(result["content"].as_str().expect("text")).expect("JSON")
}

#[tokio::test]
async fn a_program_calls_tools_and_each_call_is_recorded_under_its_parent() {
    let source = "const sums = [];
        for (const n of [1, 2, 3]) sums.push((await tools.add({ a: n, b: n })).sum);
        const refused = {};
        for (const [name, arguments] of [['rm_rf', {}], ['add', { a: 'x' }], ['run_code', { source: 'return 1' }],
            ['demo_text', {}]]) {
            try { await tools[name](arguments) } catch (error) { refused[name] = error.code }
        }
        console.log('done');
        return { sums, refused };";
    let endpoint = ModelEndpoint::start([run_code(source), Reply::say("done")]).await;
    let server = server(&endpoint).await;
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("add them")).await;
    agui::assert_success(&events);
    let offered = &endpoint.requests()[0]["tools"];
    assert_eq!(offered.as_array().map(Vec::len), Some(1), "{offered}");
    assert_eq!(offered[0]["function"]["name"], "run_code");
    let refused = json!({
        "rm_rf": "UNKNOWN_TOOL",
        "add": "INVALID_ARGUMENTS",
        // A program does not start programs.
        "run_code": "UNKNOWN_TOOL",
        // A person would have to allow it, and a program cannot wait for one.
        "demo_text": "APPROVAL_UNAVAILABLE",
    });
    let expected = json!({ "value": {"sums": [2, 4, 6], "refused": refused}, "printed": "done\n" });
    assert_eq!(told(&endpoint, 1), json!({ "ok": true, "tool": "run_code", "data": expected }));

    let calls = ann.tool_calls(&asked).await;
    let parent = &calls[0]["tool_call_id"];
    let described: Vec<_> =
        calls.iter().map(|call| json!([call["tool"], call["status"], call["parent_tool_call_id"]])).collect();
    let of_program = |tool: &str, status: &str| json!([tool, status, parent]);
    assert_eq!(
        described,
        [
            json!(["run_code", "succeeded", null]),
            of_program("add", "succeeded"),
            of_program("add", "succeeded"),
            of_program("add", "succeeded"),
            of_program("rm_rf", "rejected"),
            of_program("add", "rejected"),
            of_program("run_code", "rejected"),
            of_program("demo_text", "rejected"),
        ]
    );
    // What was hashed when it was asked for is what was dispatched and what a reader can hash again.
    assert_eq!(server.log().of("ToolDispatched").await.len(), 4);
    assert_eq!(server.log().of("ToolSetRecorded").await.len(), 1, "what the model was offered is in the log, once");
    server.finish().await;
}

#[tokio::test]
async fn a_tool_by_its_own_name_does_not_exist_for_the_model_and_an_id_of_a_sub_call_is_not_the_models_to_give() {
    let calls = Reply::stream()
        .call(0, "c1", "add", "{\"a\":1,\"b\":1}")
        .call(1, "c2/1", "run_code", "{\"source\":\"return (await tools.add({a:1,b:1})).sum\"}")
        .calls();
    let endpoint = ModelEndpoint::start([calls, Reply::say("I see.")]).await;
    let server = server(&endpoint).await;
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("add")).await;
    agui::assert_success(&events);
    assert_eq!(agui::results(&events)[0]["error"]["code"], "UNKNOWN_TOOL");
    let calls = ann.tool_calls(&asked).await;
    let seen: Vec<_> =
        calls.iter().map(|call| (call["tool"].as_str().unwrap(), call["status"].as_str().unwrap())).collect();
    assert_eq!(seen, [("add", "rejected"), ("run_code", "succeeded"), ("add", "succeeded")]);
    let ids: Vec<_> =
        calls.iter().map(|call| call["tool_call_id"].as_str().unwrap().rsplit(':').next().unwrap()).collect();
    assert!(!ids[1].contains('/') && ids[2] == format!("{}/1", ids[1]), "{ids:?}");
    server.finish().await;
}

#[tokio::test]
async fn the_calls_of_one_program_put_only_so_much_into_the_log_together_and_the_next_program_as_much_again() {
    let source = "const given = [];
        try { for (;;) given.push((await tools.add({ a: 1, b: 1 })).sum) }
        catch (error) { return { given, code: error.code, message: error.message } }";
    let endpoint = ModelEndpoint::start([run_code(source), run_code(source), Reply::say("I see.")]).await;
    let server = TestServer::start_with(|config| {
        config.model = Some(endpoint.config());
        code_mode(config);
        // Each takes 13 bytes and gives 9.
        config.code_mode.limits.recorded_bytes = 50;
    })
    .await;
    let (_, events) = server.client("ann").converse(&Question::new("add them")).await;
    agui::assert_success(&events);
    for request in [1, 2] {
        let value = &told(&endpoint, request)["data"]["value"];
        assert_eq!((&value["given"], &value["code"]), (&json!([2, 2, 2]), &json!("TOOL_LIMIT_REACHED")), "{value}");
        assert!(value["message"].as_str().is_some_and(|words| words.contains("50 bytes")), "{value}");
    }
    let refused = server.log().of("ToolCallDecided").await;
    let refused = refused.iter().filter(|fact| fact.payload["decision"] == "deny").map(|fact| &fact.payload["stage"]);
    assert_eq!(refused.collect::<Vec<_>>(), ["limit", "limit"], "a refusal is a fact as well");
    server.finish().await;
}

#[tokio::test]
async fn a_run_that_is_stopped_ends_its_program_and_a_program_that_never_ends_is_ended() {
    let small = |config: &mut ServerConfig| {
        code_mode(config);
        config.code_mode.limits.operations = 1_000_000;
    };
    let endless = "for (;;) await tools.add({ a: 1, b: 1 })";
    let endpoint = ModelEndpoint::start([run_code("for (;;) {}"), Reply::say("I see."), run_code(endless)]).await;
    let server = TestServer::start_with(|config| {
        config.model = Some(endpoint.config());
        small(config);
        config.code_mode.limits.calls = u32::MAX;
    })
    .await;
    let ann = server.client("ann");
    let (_, events) = ann.converse(&Question::new("loop")).await;
    agui::assert_success(&events);
    assert_eq!(told(&endpoint, 1)["error"]["code"], "EXECUTION_FAILED");

    let asked = ann.ask(&Question::new("call for ever")).await;
    let stream = ann.stream(&asked).await;
    server.log().wait("a call of the program", |fact| fact.payload["parent_tool_call_id"].is_string()).await;
    assert_eq!(ann.stop(&asked.run_id).await, "cancelled");
    assert_eq!(agui::last(&stream.rest().await)["outcome"]["type"], "cancelled");
    let calls = ann.tool_calls(&asked).await;
    let unfinished = calls
        .iter()
        .filter(|call| !matches!(call["status"].as_str(), Some("succeeded" | "failed" | "rejected" | "cancelled")));
    assert_eq!(unfinished.count(), 0, "{calls:#?}");
    server.finish().await;
}
