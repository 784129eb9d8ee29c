//! The main job: a question about the user's files, a real device over a real socket, a person who
//! allows or refuses, and what log, views and stream say of it.

use devmind_device::{Answer, Fixed};
use devmind_tests::workspace::{README, SECRET};
use devmind_tests::{Fact, ModelEndpoint, Question, Reply, TestDevice, TestServer, Turnstile, agui, workspace};
use serde_json::{Value, json};
use std::sync::Arc;

const DEMO: &str = "list the files of my workspace root, then read README.md";

#[tokio::test]
async fn files_are_listed_and_one_is_read_once_after_the_person_allows_it() {
    let (server, folder) = (TestServer::start().await, workspace());
    let (person, mut turnstile) = Turnstile::new();
    let device = TestDevice::start(&server, "ann", folder.path(), person).await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new(DEMO).on(&device.id)).await;
    let mut stream = ann.stream(&asked).await;
    let shown = turnstile.shown().await;
    assert_eq!(device.executions(), 1, "listed without a question, and nothing is read before the answer");
    assert_eq!((shown.tool.as_str(), &shown.arguments), ("workspace.read_file", &json!({ "path": "README.md" })));
    assert_eq!(shown.conversation_title, "list the files of my workspace root, then read REA");
    let subject = shown.subject.expect("the person is shown the file");
    assert!(subject.resolved_path.ends_with("README.md"), "{subject:?}");
    turnstile.answer(Answer::Allow);
    stream.until("the answer", |event| event["type"] == "TEXT_MESSAGE_START").await;
    let events = stream.rest().await;

    agui::assert_success(&events);
    let call = ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"];
    let text = ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"];
    let expected = [&["RUN_STARTED"][..], &call, &call, &text, &["RUN_FINISHED"]].concat();
    assert_eq!(agui::outline(&events), expected);
    let results = agui::results(&events);
    let names: Vec<_> =
        results[0]["data"]["entries"].as_array().unwrap().iter().map(|entry| entry["name"].clone()).collect();
    assert_eq!(names, ["README.md", "src"], "sorted, without the file of secrets");
    assert_eq!(results[1]["data"]["content"], README);
    assert!(agui::spoken(&events).contains("The quick brown fox"));

    // The views.
    let turn = ann.turn(&asked).await;
    assert_eq!((&turn["status"], &turn["partial"]), (&json!("completed"), &json!(false)));
    assert_eq!(turn["answer"], agui::spoken(&events).as_str());
    let calls = ann.tool_calls(&asked).await;
    let shown: Vec<_> = calls.iter().map(|call| (call["tool"].clone(), call["status"].clone())).collect();
    assert_eq!(
        shown,
        [(json!("workspace.list_files"), json!("succeeded")), (json!("workspace.read_file"), json!("succeeded"))]
    );
    for call in &calls {
        assert_eq!((&call["acks"], &call["late_results"], &call["origin"]), (&json!(1), &json!(0), &json!("live")));
        assert_eq!(call["device_id"], device.id.as_str());
        assert_eq!(call["attempts"].as_array().unwrap().len(), 1);
    }

    // The log: facts before effects, each once.
    let read = calls[1]["tool_call_id"].as_str().unwrap();
    let mut kinds = server.log().kinds_of_stream(read).await;
    kinds.retain(|kind| kind != "ToolReceived");
    assert_eq!(kinds, ["ToolCallRequested", "ToolDispatched", "ToolResultRecorded", "ToolResultAcked"]);
    let conversation = server.log().kinds_of_stream(&asked.conversation_id).await;
    assert_eq!(conversation, ["ConversationStarted", "TurnPrepared", "RunPrepared", "RunClaimed", "RunSucceeded"]);
    assert_eq!(device.executions(), 2, "one listing, one reading");
    assert!(!turnstile.was_asked(), "asked once");
    device.stop().await;
    server.finish().await;
}

#[tokio::test]
async fn a_persons_no_reaches_the_model_as_confirmation_rejected_and_nothing_is_read() {
    let (server, folder) = (TestServer::start().await, workspace());
    let (person, mut turnstile) = Turnstile::new();
    let device = TestDevice::start(&server, "ann", folder.path(), person).await;
    turnstile.answer(Answer::Deny);
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("read README.md").on(&device.id)).await;
    assert!(turnstile.was_asked());
    refused(&server, &device, &asked, &events, "CONFIRMATION_REJECTED").await;
    device.stop().await;
    server.finish().await;
}

#[tokio::test]
async fn a_confirmation_that_nobody_answers_is_expired_which_is_no_refusal() {
    let (server, folder) = (TestServer::start().await, workspace());
    let (person, turnstile) = Turnstile::new();
    let device = TestDevice::start(&server, "ann", folder.path(), person).await;
    turnstile.answer(Answer::NoAnswer);
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("read README.md").on(&device.id)).await;
    refused(&server, &device, &asked, &events, "CONFIRMATION_EXPIRED").await;
    device.stop().await;
    server.finish().await;
}

/// The refusal of the run's one call: in the stream, the answer, the view and the log.
async fn refused(server: &TestServer, device: &TestDevice, asked: &devmind_tests::Asked, events: &[Value], code: &str) {
    agui::assert_success(events);
    let result = &agui::results(events)[0];
    assert_eq!((&result["ok"], &result["error"]["code"], &result["data"]), (&json!(false), &json!(code), &json!(null)));
    assert!(agui::spoken(events).contains(code), "the model answers from the refusal: {}", agui::spoken(events));
    let ann = server.client("ann");
    let call = ann.tool_call(asked).await;
    assert_eq!(
        (&call["status"], &call["error_code"], &call["settled"]),
        (&json!("rejected"), &json!(code), &json!(true))
    );
    assert_eq!((&call["output"], &call["acks"]), (&json!(null), &json!(1)));
    assert_eq!(ann.turn(asked).await["status"], "completed");
    assert_eq!(device.executions(), 0);
    let id = call["tool_call_id"].as_str().unwrap();
    let facts = server.log().all().await;
    let of_call: Vec<&Fact> = facts.iter().filter(|fact| fact.stream_id == id).collect();
    assert_eq!(of_call.iter().filter(|fact| fact.is("ToolResultRecorded")).count(), 1);
    let observed =
        facts.iter().find(|fact| fact.is("ToolResultObserved") && fact.payload["tool_call_id"] == id).unwrap();
    assert_eq!((&observed.payload["ok"], &observed.payload["error"]), (&json!(false), &json!(code)));
}

#[tokio::test]
async fn paths_out_of_the_workspace_and_files_of_secrets_are_refused_and_nobody_is_asked() {
    let (server, folder) = (TestServer::start().await, workspace());
    std::fs::write(folder.path().parent().unwrap().join("devmind-outside.txt"), "outside").unwrap();
    let (person, mut turnstile) = Turnstile::new();
    let device = TestDevice::start(&server, "ann", folder.path(), person).await;
    let ann = server.client("ann");
    for (path, code) in [
        ("../devmind-outside.txt", "PATH_OUT_OF_SCOPE"),
        ("../no-such-file.txt", "PATH_OUT_OF_SCOPE"),
        ("src/../../devmind-outside.txt", "PATH_OUT_OF_SCOPE"),
        ("/etc/passwd", "ABSOLUTE_PATH_DENIED"),
        (".env", "SENSITIVE_PATH_DENIED"),
        (".env.production", "SENSITIVE_PATH_DENIED"),
        ("no-such-file.md", "PATH_NOT_FOUND"),
        ("src/", "NOT_A_FILE"),
    ] {
        let (asked, events) = ann.converse(&Question::new(&format!("read `{path}`")).on(&device.id)).await;
        refused(&server, &device, &asked, &events, code).await;
        assert!(!turnstile.was_asked(), "{path}: a person was asked");
    }
    std::fs::remove_file(folder.path().parent().unwrap().join("devmind-outside.txt")).unwrap();
    for fact in server.log().all().await {
        assert!(!fact.text.contains(SECRET), "a secret is in the log: {fact}");
    }
    device.stop().await;
    server.finish().await;
}

#[tokio::test]
async fn arguments_that_do_not_match_the_schema_never_reach_the_device() {
    let folder = workspace();
    let endpoint = ModelEndpoint::start([
        Reply::call("c1", "workspace_read_file", &json!({ "path": "README.md", "mode": "rw" })),
        Reply::say("I see."),
    ])
    .await;
    let server = TestServer::with_model(&endpoint).await;
    let device = TestDevice::start(&server, "ann", folder.path(), Arc::new(Fixed(true))).await;
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("read it").on(&device.id)).await;
    assert_eq!(agui::results(&events)[0]["error"]["code"], "INVALID_ARGUMENTS");
    assert_eq!(ann.tool_call(&asked).await["status"], "rejected");
    assert!(server.log().of("ToolDispatched").await.is_empty());
    device.stop().await;
    server.finish().await;
}

#[tokio::test]
async fn a_large_file_is_read_in_pages_that_rejoin_exactly() {
    let folder = workspace();
    let text: String = (0..40_000).map(|n| format!("Zeile {n} — ünïcödé\n")).collect();
    std::fs::write(folder.path().join("large.txt"), &text).unwrap();
    let page = |n: u64, offset: u64| {
        Reply::call(&format!("c{n}"), "workspace_read_file", &json!({ "path": "large.txt", "offset": offset }))
    };
    // The next offset is known only from the page before: the pages are asked for one run at a time.
    let server_folder = folder.path().to_owned();
    let (mut rejoined, mut offset, mut n) = (String::new(), 0, 0);
    let endpoint = ModelEndpoint::start([]).await;
    let server = TestServer::with_model(&endpoint).await;
    let device = TestDevice::start(&server, "ann", &server_folder, Arc::new(Fixed(true))).await;
    let ann = server.client("ann");
    loop {
        endpoint.then([page(n, offset), Reply::say("next")]);
        let (_, events) = ann.converse(&Question::new("next page").on(&device.id)).await;
        let result = agui::results(&events).remove(0);
        assert_eq!(result["ok"], true, "{result}");
        rejoined.push_str(result["data"]["content"].as_str().unwrap());
        n += 1;
        match result["data"]["next_offset"].as_u64() {
            Some(next) => offset = next,
            None => break,
        }
    }
    assert!(n > 1, "it was one page");
    assert_eq!(rejoined, text);
    device.stop().await;
    server.finish().await;
}
