//! MCP servers as a source of tools: the project's own reference servers from npm (`tests/peers/mcp`; node 20.15 or
//! later and npm, and it is said when they are skipped), and one that means no good.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use devmind_api::config::McpConfig;
use devmind_domain::agent::Message;
use devmind_domain::tools::{Amendment, Approval, PostExecute};
use devmind_tests::sse::interrupts;
use devmind_tests::wait::within_deadline;
use devmind_tests::{
    Client, ModelEndpoint, Question, Reply, Script, ScriptedModel, ServerProcess, TestServer, agui, eventually,
    own_address, peers, program,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

fn text(path: &Path) -> String {
    path.to_str().expect("a plain path").to_owned()
}

/// A server that nobody is asked about.
fn program_named(name: &str, command: &str, args: &[&str]) -> McpConfig {
    McpConfig {
        name: name.to_owned(),
        command: Some(command.to_owned()),
        args: args.iter().map(|&argument| argument.to_owned()).collect(),
        approval: Approval::Never,
        ..McpConfig::default()
    }
}

fn hostile(mode: &str, folder: &Path) -> McpConfig {
    program_named("evil", &text(&program("hostile_mcp")), &[mode, &text(folder)])
}

/// Waits until the server's only MCP server is in this state.
async fn is(server: &TestServer, state: &str) -> devmind_api::mcp::Status {
    eventually(state, || async {
        let status = server.app().mcp.status().remove(0);
        if status.state == state { Ok(status) } else { Err(format!("{status:?}")) }
    })
    .await
}

/// Has the model make one call, to its end: the recorded call.
async fn call(server: &TestServer, model: &ScriptedModel, tool: &str, arguments: Value) -> Value {
    model.then([Script::calls(&[("c", tool, &arguments.to_string())]), Script::say("done")]);
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("call it")).await;
    agui::assert_success(&events);
    ann.tool_call(&asked).await
}

fn outcome(call: &Value) -> (&str, &str) {
    (call["status"].as_str().unwrap(), call["error_code"].as_str().unwrap_or_default())
}

/// What the model was told last.
fn told(model: &ScriptedModel) -> Value {
    match model.prompts().pop().and_then(|mut prompt| prompt.pop()) {
        Some(Message::Tool { content, .. }) => serde_json::from_str(&content).expect("JSON"),
        other => panic!("no result: {other:?}"),
    }
}

/// The process whose command line has this in it.
fn process_of(part: &str) -> Option<Pid> {
    let processes = std::fs::read_dir("/proc").expect("Linux").flatten();
    let mut found = processes.filter_map(|process| {
        let id = process.file_name().to_str()?.parse().ok()?;
        let command = std::fs::read(process.path().join("cmdline")).ok()?;
        String::from_utf8_lossy(&command).contains(part).then(|| Pid::from_raw(id))?
    });
    found.next()
}

async fn is_gone(part: &str) {
    eventually("the program is gone", || async {
        process_of(part).map_or(Ok(()), |pid| Err(format!("{pid:?} of {part}")))
    })
    .await;
}

/// The page, as this person sees it.
async fn operations(server: &TestServer, who: &str) -> String {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = http.get(format!("{}/operations", server.url())).header("accept", "text/html");
    request.header("cookie", format!("devmind-user={who}")).send().await.unwrap().text().await.unwrap()
}

fn got(folder: &Path, what: &str) -> usize {
    let lines = std::fs::read_to_string(folder.join("got")).unwrap_or_default();
    lines.lines().filter(|line| line.trim() == what).count()
}

#[tokio::test]
async fn the_reference_server_of_files_is_asked_for_with_a_persons_word_killed_and_back_again() {
    let Some(peer) = peers::node("mcp").await else { return };
    let files = tempfile::tempdir().unwrap();
    let root = files.path().canonicalize().unwrap();
    std::fs::write(root.join("note.txt"), "kept in a file").unwrap();
    let script = text(&peer.join("node_modules/@modelcontextprotocol/server-filesystem/dist/index.js"));
    let note = json!({ "path": text(&root.join("note.txt")) });
    let model = ScriptedModel::new([
        Script::calls(&[("c", "mcp_files_read_text_file", &note.to_string())]),
        Script::say("I have read it."),
    ]);
    let server = TestServer::scripted_with(model.clone(), |config| {
        let tools = vec!["read_*".to_owned(), "list_directory".to_owned()];
        let of_files = program_named("files", "node", &[&script, &text(&root)]);
        config.mcp = vec![McpConfig { tools, approval: Approval::Always, ..of_files }];
    })
    .await;
    let ann = server.client("ann");

    // The first run has the tools; the call waits for a person, and is what that person allowed.
    let (asked, events) = ann.converse(&Question::new("read my note")).await;
    let open = interrupts(&events);
    assert_eq!(open.len(), 1, "{events:#?}");
    let reply = ann.answer(&open[0], true).await.ok();
    let events = ann.resume(&asked, reply["run_id"].as_str().unwrap(), &open).await;
    assert_eq!(agui::spoken(&events), "I have read it.");
    let recorded = ann.tool_call(&asked).await;
    assert_eq!((outcome(&recorded), &recorded["tool"]), (("succeeded", ""), &json!("mcp_files_read_text_file")));
    let requested = server.log().one("ToolCallRequested").await.payload;
    assert_eq!((&requested["risk"], requested["tool_version"].as_str().map(str::len)), (&json!("HIGH"), Some(64)));
    let result = server.log().one("ToolResultRecorded").await.payload;
    assert_eq!(result["output"]["content"][0]["text"], "kept in a file");
    // The server promises structured content: that is what the model reads.
    assert_eq!(told(&model)["data"], json!({ "content": "kept in a file" }));
    let status = is(&server, "connected").await;
    assert!(status.tools.iter().all(|tool| tool.contains("_read_") || tool.ends_with("list_directory")), "{status:?}");
    assert_eq!((status.tools.len(), status.left_out), (5, 0), "{status:?}");

    // What the server refuses, it says itself.
    let outside = json!({ "path": "/etc/hostname" });
    model.then([Script::calls(&[("d", "mcp_files_read_text_file", &outside.to_string())]), Script::say("no")]);
    let (asked, events) = ann.converse(&Question::new("read another").within(&asked.conversation_id)).await;
    let open = interrupts(&events);
    let reply = ann.answer(&open[0], true).await.ok();
    ann.resume(&asked, reply["run_id"].as_str().unwrap(), &open).await;
    assert_eq!(told(&model)["error"]["code"], "EXECUTION_FAILED");
    assert!(told(&model)["error"]["message"].as_str().unwrap().contains("outside allowed directories"));

    // Killed, it is started again.
    let first = process_of(&text(&root)).expect("it runs");
    kill_process(first, Signal::KILL).unwrap();
    eventually("another process", || async {
        let connected = server.app().mcp.status()[0].state == "connected";
        process_of(&text(&root)).filter(|pid| *pid != first && connected).ok_or("the same".to_owned())
    })
    .await;
    assert_eq!(server.client("ann").get("/readyz").await.ok()["mcp"][0]["state"], "connected");
    server.finish().await;
    is_gone(&text(&root)).await;
}

#[tokio::test]
async fn the_reference_server_of_everything_answers_over_its_output_and_a_stopped_call_is_cancelled() {
    let Some(peer) = peers::node("mcp").await else { return };
    let script = text(&peer.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js"));
    let model = ScriptedModel::new([]);
    let server = TestServer::scripted_with(model.clone(), |config| {
        config.mcp = vec![program_named("all", "node", &[&script, "stdio"])];
    })
    .await;
    for (tool, arguments, expected) in [
        ("echo", json!({ "message": "hi" }), json!("Echo: hi")),
        ("get-sum", json!({ "a": 2, "b": 3 }), json!("The sum of 2 and 3 is 5.")),
    ] {
        let recorded = call(&server, &model, &format!("mcp_all_{tool}"), arguments).await;
        assert_eq!((outcome(&recorded), &told(&model)["data"]), (("succeeded", ""), &expected), "{tool}");
    }
    let weather = call(&server, &model, "mcp_all_get-structured-content", json!({ "location": "Chicago" })).await;
    assert_eq!(outcome(&weather), ("succeeded", ""));
    assert!(told(&model)["data"]["temperature"].is_number(), "{}", told(&model));
    // A picture is kept, and not read out to the model.
    call(&server, &model, "mcp_all_get-tiny-image", json!({})).await;
    let picture = told(&model)["data"].to_string();
    assert!(picture.contains("characters of base64 are in the log") && picture.len() < 1_000, "{picture}");
    // Its environment has none of ours.
    call(&server, &model, "mcp_all_get-env", json!({})).await;
    let env = told(&model)["data"].to_string();
    assert!(env.contains("PATH") && !env.contains("CARGO"), "{env}");
    // Refused before it is sent.
    let recorded = call(&server, &model, "mcp_all_get-sum", json!({ "a": "two" })).await;
    assert_eq!(outcome(&recorded), ("rejected", "INVALID_ARGUMENTS"));

    // Stopped in the middle: the server was told, and nobody can say how far it had got.
    let long = r#"{"duration":600,"steps":2}"#;
    model.then([Script::calls(&[("c", "mcp_all_trigger-long-running-operation", long)])]);
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("take long")).await;
    let stream = ann.stream(&asked).await;
    let of_long = |fact: &devmind_tests::Fact| fact.is("ToolDispatched") && fact.payload["run_id"] == asked.run_id;
    server.log().wait("the call is under way", of_long).await;
    assert_eq!(ann.stop(&asked.run_id).await, "cancelled");
    drop(stream);
    assert_eq!(outcome(&ann.tool_call(&asked).await), ("indeterminate", "RESULT_UNKNOWN"));
    let recorded = call(&server, &model, "mcp_all_echo", json!({ "message": "still there" })).await;
    assert_eq!(outcome(&recorded), ("succeeded", ""));
    server.finish().await;
}

/// The reference server over HTTP, until it is dropped, and how many messages it has got.
async fn over_http(script: &str, port: u16) -> (Child, watch::Receiver<usize>) {
    let mut command = Command::new("node");
    command.args([script, "streamableHttp"]).env("PORT", port.to_string()).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().expect("node runs");
    let mut words = BufReader::new(process.stderr.take().unwrap()).lines();
    let listening = async { while !words.next_line().await.unwrap().expect("it runs").contains("listening") {} };
    within_deadline("the server listens", listening).await;
    tokio::spawn(async move { while let Ok(Some(_)) = words.next_line().await {} });
    let (count, messages) = watch::channel(0);
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            count.send_modify(|messages| *messages += usize::from(line.contains("POST")));
        }
    });
    (process, messages)
}

#[tokio::test]
async fn the_reference_server_of_everything_is_reached_over_http_and_no_call_is_sent_twice_when_it_is_killed() {
    let Some(peer) = peers::node("mcp").await else { return };
    let script = text(&peer.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js"));
    let port = own_address().port();
    let (mut process, mut messages) = over_http(&script, port).await;
    let model = ScriptedModel::new([]);
    let server = TestServer::scripted_with(model.clone(), |config| {
        let url = Some(format!("http://127.0.0.1:{port}/mcp"));
        let [all, short] =
            ["all", "short"].map(|name| McpConfig { url: url.clone(), command: None, ..program_named(name, "", &[]) });
        config.mcp = vec![all, McpConfig { call_ms: 300, ..short }];
    })
    .await;
    let echo = json!({ "message": "hi" });
    assert_eq!(outcome(&call(&server, &model, "mcp_all_echo", echo.clone()).await), ("succeeded", ""));
    assert_eq!(told(&model)["data"], "Echo: hi");

    // How far it is, which it says meanwhile, is no answer and gives it no more time.
    let short = json!({ "duration": 0.1, "steps": 4 });
    let recorded = call(&server, &model, "mcp_all_trigger-long-running-operation", short).await;
    assert_eq!(outcome(&recorded), ("succeeded", ""));
    assert!(told(&model)["data"].as_str().is_some_and(|words| words.contains("completed")), "{}", told(&model));

    // Its time is over: the server is told, and what it did is unknown.
    let long = json!({ "duration": 600, "steps": 2 });
    let recorded = call(&server, &model, "mcp_short_trigger-long-running-operation", long.clone()).await;
    assert_eq!(outcome(&recorded), ("indeterminate", "RESULT_UNKNOWN"));
    assert_eq!(told(&model)["error"]["code"], "TOOL_TIMEOUT");

    // Killed in the middle of a call.
    let before = *messages.borrow();
    model.then([Script::calls(&[("c", "mcp_all_trigger-long-running-operation", &long.to_string())])]);
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("take long")).await;
    let stream = ann.stream(&asked).await;
    let of_long = |fact: &devmind_tests::Fact| fact.is("ToolDispatched") && fact.payload["run_id"] == asked.run_id;
    server.log().wait("the call is under way", of_long).await;
    within_deadline("the server has it", messages.wait_for(|count| *count > before)).await.unwrap();
    process.kill().await.unwrap();
    agui::assert_success(&stream.rest().await);
    assert_eq!(outcome(&ann.tool_call(&asked).await), ("indeterminate", "RESULT_UNKNOWN"));

    // Nothing is sent where nobody listens, and after its restart the server is found by itself.
    let recorded = call(&server, &model, "mcp_all_echo", echo.clone()).await;
    assert_eq!(outcome(&recorded), ("failed", "MCP_UNAVAILABLE"));
    let (mut process, _) = over_http(&script, port).await;
    eventually("connected again", || async {
        let status = server.app().mcp.status();
        if status.iter().all(|status| status.state == "connected") { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    assert_eq!(outcome(&call(&server, &model, "mcp_all_echo", echo.clone()).await), ("succeeded", ""));

    // A server that has forgotten the session refuses; that is no call, and the next one is one of a new session.
    process.kill().await.unwrap();
    let (process, _) = over_http(&script, port).await;
    let recorded = call(&server, &model, "mcp_all_echo", echo.clone()).await;
    assert!([("failed", "MCP_UNAVAILABLE"), ("succeeded", "")].contains(&outcome(&recorded)), "{recorded}");
    eventually("a call of a new session", || async {
        let recorded = call(&server, &model, "mcp_all_echo", echo.clone()).await;
        if outcome(&recorded) == ("succeeded", "") { Ok(()) } else { Err(recorded.to_string()) }
    })
    .await;
    server.finish().await;
    drop(process);
}

/// A server over HTTP whose sessions can be ended: what it got in the one that counts, by method.
#[derive(Clone, Default)]
struct Forgetful(Arc<Mutex<(u32, Vec<String>)>>);

impl Forgetful {
    async fn serve(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let app = axum::Router::new().route("/mcp", post(Self::answer)).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        url
    }

    /// As <https://modelcontextprotocol.io/specification/2025-06-18/basic/transports#session-management> has it.
    async fn answer(State(own): State<Self>, headers: HeaderMap, Json(message): Json<Value>) -> Response {
        let method = message["method"].as_str().unwrap_or_default().to_owned();
        let mut state = own.0.lock().unwrap();
        if method == "initialize" {
            state.0 += 1;
        } else if headers.get("mcp-session-id").is_none_or(|id| id.to_str().ok() != Some(&state.0.to_string())) {
            return StatusCode::NOT_FOUND.into_response();
        }
        let result = match method.as_str() {
            "initialize" => json!({
                "protocolVersion": "2025-06-18", "capabilities": { "tools": {} },
                "serverInfo": { "name": "forgetful", "version": "1" },
            }),
            "tools/list" => json!({ "tools": [{ "name": "echo", "inputSchema": { "type": "object" } }] }),
            _ => json!({ "content": [{ "type": "text", "text": format!("in session {}", state.0) }] }),
        };
        state.1.push(method);
        let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
        match message["id"].is_null() {
            true => StatusCode::ACCEPTED.into_response(),
            false => ([("mcp-session-id", state.0.to_string())], Json(answer)).into_response(),
        }
    }

    fn got(&self, method: &str) -> usize {
        self.0.lock().unwrap().1.iter().filter(|got| *got == method).count()
    }
}

#[tokio::test]
async fn a_session_that_its_server_has_ended_is_followed_by_a_new_one_and_the_call_that_found_it_was_not_carried_out() {
    let forgetful = Forgetful::default();
    let url = Some(forgetful.serve().await);
    let model = ScriptedModel::new([]);
    let server = TestServer::scripted_with(model.clone(), |config| {
        config.mcp = vec![McpConfig { url, command: None, ..program_named("far", "", &[]) }];
    })
    .await;
    let echo = async || call(&server, &model, "mcp_far_echo", json!({})).await;
    assert_eq!((outcome(&echo().await), &told(&model)["data"]), (("succeeded", ""), &json!("in session 1")));
    forgetful.0.lock().unwrap().0 = 7;
    assert_eq!(outcome(&echo().await), ("failed", "MCP_UNAVAILABLE"), "what was not looked at is not unknown");
    assert_eq!(forgetful.got("tools/call"), 1);
    eventually("a new session", || async {
        if forgetful.got("tools/list") == 2 { Ok(()) } else { Err("the old one".to_owned()) }
    })
    .await;
    is(&server, "connected").await;
    assert_eq!((outcome(&echo().await), &told(&model)["data"]), (("succeeded", ""), &json!("in session 8")));
    assert_eq!((forgetful.got("initialize"), forgetful.got("tools/call")), (2, 2));
    server.finish().await;
}

#[tokio::test]
async fn a_hostile_server_has_only_the_tools_that_can_be_checked_and_each_bad_manner_ends_its_own_call() {
    let folder = tempfile::tempdir().unwrap();
    let model = ScriptedModel::new([]);
    let server = TestServer::scripted_with(model.clone(), |config| {
        // A variable that every test has, as a secret.
        let env_from = [("HOSTILE_TOKEN".to_owned(), "CARGO_MANIFEST_DIR".to_owned())].into();
        config.mcp = vec![McpConfig { env_from, call_ms: 20_000, ..hostile("hostile", folder.path()) }];
    })
    .await;
    let recorded = call(&server, &model, "mcp_evil_echo", json!({})).await;
    assert_eq!((outcome(&recorded), &told(&model)["data"]), (("succeeded", ""), &json!("hello")));
    let status = is(&server, "connected").await;
    let reasons: Vec<(&str, &str)> =
        status.why_left_out.iter().map(|(tool, reason)| (tool.as_str(), reason.as_str())).collect();
    for (tool, part) in [
        ("echo", "one of this name"),
        ("a/b", "1 to 64"),
        ("own-keyword", "x-own is not supported"),
        ("endless", "leads to itself"),
        ("elsewhere", "leads out of"),
        ("no-schema", "no object"),
        ("no-output", "output schema"),
        ("huge", "bytes"),
        ("", "no name"),
    ] {
        assert!(reasons.iter().any(|(left, reason)| *left == tool && reason.contains(part)), "{tool}: {reasons:#?}");
    }
    assert_eq!((status.tools.len(), status.left_out), (14, 11), "{status:#?}");
    for (who, knows) in [("ann", false), ("olga:operator", true)] {
        let page = operations(&server, who).await;
        assert!(page.contains("mcp_evil_echo") && page.contains("leads to itself") == knows, "{who}: {page}");
    }

    for (tool, expected, words) in [
        ("garbage", ("succeeded", ""), "after all"),
        ("fails", ("failed", "EXECUTION_FAILED"), "no such thing"),
        ("refuses", ("failed", "EXECUTION_FAILED"), "not like that"),
        ("large", ("failed", "RESULT_TOO_LARGE"), "ask for less"),
        ("none", ("failed", "INVALID_TOOL_OUTPUT"), "no result"),
        ("big-number", ("failed", "INVALID_TOOL_OUTPUT"), "2^53"),
        // It ran, and its value is in the log; the model is told that it is not what was promised.
        ("lies", ("succeeded", ""), "INVALID_TOOL_OUTPUT"),
        ("secret", ("succeeded", ""), "it is ***"),
        // A person is not asked, a model not lent, folders not shown; that this side is there is answered.
        (
            "asks",
            ("succeeded", ""),
            r#"[[\"e\",\"answered\",\"decline\"],[\"p\",\"answered\",\"\"],[\"r\",\"refused\",\"\"],[\"s\",\"refused\",\"\"]]"#,
        ),
        ("dies", ("indeterminate", "RESULT_UNKNOWN"), "after the call was sent"),
        ("giant", ("indeterminate", "RESULT_UNKNOWN"), "after the call was sent"),
    ] {
        is(&server, "connected").await;
        let recorded = call(&server, &model, &format!("mcp_evil_{tool}"), json!({})).await;
        assert_eq!(outcome(&recorded), expected, "{tool}: {recorded}");
        let told = told(&model).to_string();
        assert!(told.contains(words) && told.len() < 3_000, "{tool}: {told}");
        assert_eq!(got(folder.path(), &format!("tools/call {tool}")), 1, "{tool} was sent once");
    }
    let log = server.log().all().await;
    assert!(!log.iter().any(|fact| fact.text.contains(env!("CARGO_MANIFEST_DIR"))), "a secret is in the log");
    server.finish().await;
}

#[tokio::test]
async fn a_tool_that_its_server_changed_is_not_called_as_what_it_was_and_a_stopped_call_is_cancelled_there() {
    let folder = tempfile::tempdir().unwrap();
    let asked_again = CancellationToken::new();
    let later = Script::new().gate(&asked_again).piece(0, Some("d"), Some("mcp_evil_echo"), "{}").finish("tool_calls");
    let model = ScriptedModel::new([Script::calls(&[("c", "mcp_evil_changes", "{}")]), later, Script::say("done")]);
    let server = TestServer::scripted_with(model.clone(), |config| {
        config.mcp = vec![hostile("hostile", folder.path())];
    })
    .await;
    let ann = server.client("ann");
    let stream = ann.stream(&ann.ask(&Question::new("change, then call another")).await).await;
    model.asked(2).await;
    let version = |server: &TestServer| {
        let tools = server.app().tools.current();
        tools.registry().get("mcp_evil_echo").map(|tool| (tool.version.clone(), tool.description.clone()))
    };
    eventually("the tools are others", || async {
        version(&server).filter(|(_, words)| words == "Does something else.").ok_or("the same".to_owned())
    })
    .await;
    asked_again.cancel();
    // The run keeps the tools that its model was offered; that one is not there any more.
    agui::assert_success(&stream.rest().await);
    assert_eq!(told(&model)["error"]["code"], "TOOL_CHANGED");
    assert_eq!(got(folder.path(), "tools/call echo"), 0);
    let recorded = call(&server, &model, "mcp_evil_echo", json!({})).await;
    assert_eq!(outcome(&recorded), ("succeeded", ""), "a later run has the tool as it is now");

    model.then([Script::calls(&[("c", "mcp_evil_hangs", "{}")])]);
    let asked = ann.ask(&Question::new("hang")).await;
    let stream = ann.stream(&asked).await;
    eventually("the call was sent", || async {
        if got(folder.path(), "tools/call hangs") == 1 { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    assert_eq!(ann.stop(&asked.run_id).await, "cancelled");
    drop(stream);
    assert_eq!(outcome(&ann.tool_call(&asked).await), ("indeterminate", "RESULT_UNKNOWN"));
    eventually("it was told", || async {
        if got(folder.path(), "notifications/cancelled") == 1 { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    server.finish().await;
}

#[tokio::test]
async fn a_call_that_a_person_allowed_is_refused_when_its_tool_is_another_by_then_or_gone() {
    let folder = tempfile::tempdir().unwrap();
    let echo = || Script::calls(&[("c", "mcp_evil_echo", "{}")]);
    let model = ScriptedModel::new([echo(), Script::say("changed"), echo(), Script::say("gone")]);
    let server = TestServer::scripted_with(model.clone(), |config| {
        config.mcp = vec![McpConfig { approval: Approval::Always, ..hostile("hostile", folder.path()) }];
    })
    .await;
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("echo")).await;
    let open = interrupts(&events);
    std::fs::write(folder.path().join("changed"), "").unwrap();
    let mut stopped = server.stop().await;
    let server = stopped.start().await;
    let ann = server.client("ann");
    let reply = ann.answer(&open[0], true).await.ok();
    let events = ann.resume(&asked, reply["run_id"].as_str().unwrap(), &open).await;
    assert_eq!((agui::spoken(&events).as_str(), &told(&model)["error"]["code"]), ("changed", &json!("TOOL_CHANGED")));
    assert_eq!(outcome(&ann.tool_call(&asked).await), ("rejected", "TOOL_CHANGED"));

    let (asked, events) = ann.converse(&Question::new("echo")).await;
    let open = interrupts(&events);
    stopped = server.stop().await;
    stopped.config.mcp.clear();
    let server = stopped.start().await;
    let ann = server.client("ann");
    let shows = PostExecute::new("shows", |call| Amendment::Content(format!("seen: {}", call.content)));
    server.app().tools.change(|tools| tools.add_post_execute(shows));
    let reply = ann.answer(&open[0], true).await.ok();
    let events = ann.resume(&asked, reply["run_id"].as_str().unwrap(), &open).await;
    assert_eq!(agui::spoken(&events), "gone");
    let seen = model.said(3).pop().unwrap().1;
    assert!(seen.starts_with("seen: ") && seen.contains("TOOL_CHANGED"), "later stages see this refusal, too: {seen}");
    assert_eq!(got(folder.path(), "tools/call echo"), 0);
    server.finish().await;
}

#[tokio::test]
async fn a_server_that_never_answers_keeps_nobody_from_working() {
    let folder = tempfile::tempdir().unwrap();
    let model = ScriptedModel::new([]);
    let server = TestServer::scripted_with(model.clone(), |config| {
        config.mcp = vec![McpConfig { start_ms: 300, ..hostile("silent", folder.path()) }];
    })
    .await;
    let recorded = call(&server, &model, "add", json!({ "a": 1, "b": 2 })).await;
    assert_eq!(outcome(&recorded), ("succeeded", ""));
    let recorded = call(&server, &model, "mcp_evil_echo", json!({})).await;
    assert_eq!(outcome(&recorded), ("rejected", "UNKNOWN_TOOL"));
    let status = is(&server, "away").await;
    assert!(status.reason.unwrap().contains("300 ms") && status.tools.is_empty());
    server.finish().await;
    is_gone(&text(folder.path())).await;
}

#[tokio::test]
async fn a_call_that_was_under_way_when_the_process_was_killed_is_unknown_and_never_sent_again() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = ModelEndpoint::start([Reply::call("c", "mcp_evil_hangs", &json!({}))]).await;
    let url = endpoint.url();
    let environment = [("MODEL_BASE_URL", url.as_str()), ("MODEL_NAME", "scripted")];
    let settings = folder.path().join("devmind.toml");
    let (command, traces) = (text(&program("hostile_mcp")), text(folder.path()));
    let own =
        format!("[[mcp]]\nname = 'evil'\ncommand = '{command}'\nargs = ['hostile', '{traces}']\napproval = 'never'\n");
    std::fs::write(&settings, own).unwrap();
    let config = ["--config", &text(&settings)];
    let server = ServerProcess::start_with(&config, &environment).await;
    let ann: Client = server.client("ann");
    let asked = ann.ask(&Question::new("hang")).await;
    let stream = ann.stream(&asked).await;
    let sent = || got(folder.path(), "tools/call hangs");
    eventually("the call was sent", || async { if sent() == 1 { Ok(()) } else { Err("not yet".to_owned()) } }).await;
    let killed = server.kill().await;
    drop(stream);
    let server = killed.start_as(&config, &environment).await;
    let ann = server.client("ann");
    let recorded = ann.tool_call(&asked).await;
    assert_eq!(outcome(&recorded), ("unknown", "SERVER_RESTARTED"));
    // It is there again, and was not asked again.
    let (_, events) = ann.converse(&Question::new("hello").within(&asked.conversation_id)).await;
    agui::assert_success(&events);
    assert!(got(folder.path(), "initialize") >= 2 && sent() == 1);
    server.finish().await;
    is_gone(&traces).await;
}
