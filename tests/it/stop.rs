//! Stopping: at any moment, once or twice, a run ends with one terminal event, what was streamed is
//! kept, and nothing is begun after it.

use devmind_tests::raw_device::{failure, file_output, success};
use devmind_tests::{
    Fact, ModelEndpoint, Question, RawDevice, Reply, Script, ScriptedModel, StalledReader, TestServer, agui, sse,
};
use futures::future::join;
use serde_json::json;

/// More than any stop takes that waits for nobody, less than one that waits for a client.
const AT_ONCE: std::time::Duration = std::time::Duration::from_secs(20);

const TERMINAL: [&str; 3] = ["RunSucceeded", "RunFailed", "RunCancelled"];

/// B06 (1).
#[tokio::test]
async fn a_run_that_was_stopped_before_its_claim_is_never_begun() {
    let model = ScriptedModel::new([]);
    let server = TestServer::with_scripted(model.clone()).await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("tell me")).await;
    assert_eq!(ann.stop(&asked.run_id).await, "cancelled");
    let refused = ann.post_stream("/api/agent", &asked.input()).await.err().unwrap();
    assert_eq!(refused.refused(), (409, "RUN_ALREADY_CLAIMED"));
    assert_eq!(ann.stop(&asked.run_id).await, "cancelled");
    assert_eq!(server.log().one("RunCancelled").await.payload["error_code"], "STOPPED");
    assert!(server.log().of("RunClaimed").await.is_empty());
    assert_eq!(model.times_asked(), 0);
    let turn = ann.turn(&asked).await;
    assert_eq!((&turn["status"], &turn["error_code"]), (&json!("cancelled"), &json!("STOPPED")));
    assert_eq!((&turn["answer"], &turn["partial"]), (&json!(null), &json!(false)));
    server.finish().await;
}

/// B06 (2).
#[tokio::test]
async fn a_stop_before_the_first_byte_ends_the_run_and_the_request_to_the_model() {
    let endpoint = ModelEndpoint::start([Reply::Silence]).await;
    let server = TestServer::with_model(&endpoint).await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("tell me")).await;
    let stream = ann.stream(&asked).await;
    endpoint.asked(1).await;
    assert_eq!(ann.stop(&asked.run_id).await, "cancelled");
    endpoint.aborted(1).await;
    let events = stream.rest().await;
    assert_eq!(agui::types(&events), ["RUN_STARTED", "RUN_FINISHED"]);
    assert_eq!(agui::last(&events)["outcome"]["type"], "cancelled");
    let cancelled = server.log().one("RunCancelled").await;
    assert_eq!((&cancelled.payload["error_code"], &cancelled.payload["partial_text"]), (&json!("STOPPED"), &json!("")));
    server.finish().await;
}

#[tokio::test]
async fn a_stop_in_the_middle_of_the_text_keeps_what_was_streamed_and_closes_everything() {
    let endpoint = ModelEndpoint::start([Reply::stream().text("one two ").text("three").hold()]).await;
    let server = TestServer::with_model(&endpoint).await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("count")).await;
    let mut stream = ann.stream(&asked).await;
    stream.until("the second piece", |event| event["delta"] == "three").await;
    let (first, second) = join(ann.stop(&asked.run_id), ann.stop(&asked.run_id)).await;
    assert_eq!((first, second), (json!("cancelled"), json!("cancelled")));
    // The answer to the stop is given when all is recorded: what follows needs no waiting.
    let turn = ann.turn(&asked).await;
    assert_eq!((&turn["status"], &turn["error_code"]), (&json!("cancelled"), &json!("STOPPED")));
    assert_eq!((&turn["answer"], &turn["partial"]), (&json!("one two three"), &json!(true)));
    endpoint.aborted(1).await;
    let events = stream.rest().await;
    assert_eq!(agui::last(&events)["outcome"]["type"], "cancelled");
    let head = server.log().head().await;
    assert_eq!(ann.stop(&asked.run_id).await, "cancelled");
    assert_eq!(server.log().head().await, head, "stopping again adds nothing");
    server.log().one("RunCancelled").await;
    server.finish().await;
}

#[tokio::test]
async fn a_client_that_declares_no_version_is_told_of_a_stop_by_an_error_and_never_by_a_success() {
    let model = ScriptedModel::new([Script::new().text("half").hold()]);
    let server = TestServer::with_scripted(model).await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("tell me")).await;
    let mut input = asked.input();
    input.as_object_mut().unwrap().remove("protocolVersion");
    let mut stream = ann.post_stream("/api/agent", &input).await.unwrap();
    stream.until("text", |event| event["delta"] == "half").await;
    ann.stop(&asked.run_id).await;
    let events = sse::events(&stream.rest().await);
    assert_eq!(agui::error_code(&events), "cancelled");
    assert_eq!(agui::types(&events)[events.len() - 2], "TEXT_MESSAGE_END");
    server.finish().await;
}

#[tokio::test]
async fn stopping_a_run_that_has_ended_answers_how_it_ended_and_changes_nothing() {
    let server = TestServer::with_scripted(ScriptedModel::new([Script::say("all of it")])).await;
    let ann = server.client("ann");
    let (asked, _) = ann.converse(&Question::new("tell me")).await;
    let head = server.log().head().await;
    assert_eq!(ann.stop(&asked.run_id).await, "succeeded");
    assert_eq!(server.log().head().await, head);
    // Also when its turn is no longer the latest.
    ann.ask(&Question::new("more").within(&asked.conversation_id)).await;
    assert_eq!(ann.stop(&asked.run_id).await, "succeeded");
    let unknown = ann.post("/api/runs/stop", &json!({ "run_id": devmind_tests::new_id() })).await;
    assert_eq!(unknown.refused(), (404, "RUN_NOT_FOUND"));
    server.finish().await;
}

/// B06, B10: A has finished, B is on the device, C (what is not known runs alone) was not begun.
#[tokio::test]
async fn a_stop_while_the_device_works_leaves_one_result_for_every_call_and_the_next_prompt_is_whole() {
    let calls = [
        ("a", "add", r#"{"a":1,"b":2}"#),
        ("b", "workspace_read_file", r#"{"path":"x"}"#),
        ("c", "no_such_tool", "{}"),
    ];
    let model = ScriptedModel::new([Script::calls(&calls), Script::say("fine")]);
    let server = TestServer::with_scripted(model.clone()).await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let mut socket = device.online(&ann).await;
    let asked = ann.ask(&Question::new("go").on(&device.device_id)).await;
    let mut stream = ann.stream(&asked).await;
    stream.until("a's result", |event| event["type"] == "TOOL_CALL_RESULT").await;
    let request = socket.expect("tool.call.request").await;
    assert_eq!(ann.stop(&asked.run_id).await, "cancelled");
    assert_eq!(socket.expect("tool.call.cancel").await["tool_call_id"], request["tool_call_id"]);
    let events = stream.rest().await;
    assert_eq!(agui::last(&events)["outcome"]["type"], "cancelled");
    let codes: Vec<_> = agui::results(&events).iter().map(|result| result["error"]["code"].clone()).collect();
    assert_eq!(codes, [json!(null), json!("RUN_CANCELLED"), json!("TOOL_NOT_STARTED")]);

    let facts = server.log().all().await;
    let end = facts.iter().find(|fact| fact.is("RunCancelled")).unwrap();
    let stand_in = facts.iter().rfind(|fact| fact.is("ToolResultObserved")).unwrap();
    assert_eq!(stand_in.position + 1, end.position, "the stand-in comes with the end, in one append");
    assert_eq!(dispatches_after(&facts, end.position), 0);
    let statuses: Vec<_> = ann.tool_calls(&asked).await.iter().map(|call| call["status"].clone()).collect();
    assert_eq!(statuses, [json!("succeeded"), json!("unknown")], "what was not begun is no call");

    // The device's report comes late: it counts for the call and changes nothing about the run.
    socket.send(success(&request, &file_output("read all the same"))).await;
    assert_eq!(socket.acked(&request["tool_call_id"]).await, "stored");
    let (_, events) = ann.converse(&Question::new("go on").within(&asked.conversation_id)).await;
    agui::assert_success(&events);
    assert_eq!(model.said(1)[0].1, "go");
    assert!(model.said(1)[1].1.starts_with('('), "a turn without an answer has a note: {:?}", model.said(1));
    assert_eq!(ann.turn(&asked).await["status"], "cancelled");
    socket.close().await;
    server.finish().await;
}

/// B06: nothing is sent to a device after the stop.
#[tokio::test]
async fn a_stop_that_comes_with_the_devices_result_lets_no_further_call_begin() {
    let calls = [("a", "workspace_read_file", r#"{"path":"x"}"#), ("b", "workspace_read_file", r#"{"path":"y"}"#)];
    let model = ScriptedModel::new([Script::calls(&calls)]);
    let server = TestServer::with_scripted(model.clone()).await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let mut socket = device.online(&ann).await;
    let asked = ann.ask(&Question::new("go").on(&device.device_id)).await;
    let stream = ann.stream(&asked).await;
    let request = socket.expect("tool.call.request").await;
    let ((), status) = join(socket.send(failure(&request, "failed", "IO_ERROR")), ann.stop(&asked.run_id)).await;
    assert_eq!(status, "cancelled");
    stream.rest().await;
    let facts = server.log().all().await;
    let end = facts.iter().find(|fact| fact.is("RunCancelled")).unwrap();
    assert_eq!(dispatches_after(&facts, end.position), 0);
    assert_eq!(facts.iter().filter(|fact| fact.is("ToolResultObserved")).count(), 2);
    assert_eq!(model.times_asked(), 1);
    socket.close().await;
    server.finish().await;
}

/// B06 (3).
#[tokio::test]
async fn of_a_hundred_runs_stopped_while_they_are_claimed_each_was_never_begun_or_was_begun_and_cancelled() {
    const RUNS: usize = 100;
    let model = ScriptedModel::new(vec![Script::new().text("x").hold(); RUNS]);
    let server = TestServer::with_scripted(model.clone()).await;
    let ann = server.client("ann");
    let mut begun = 0;
    for n in 0..RUNS {
        let asked = ann.ask(&Question::new("tell me")).await;
        let (claim, stop) = if n % 2 == 0 {
            join(ann.post_stream("/api/agent", &asked.input()), ann.stop(&asked.run_id)).await
        } else {
            let (stop, claim) = join(ann.stop(&asked.run_id), ann.post_stream("/api/agent", &asked.input())).await;
            (claim, stop)
        };
        assert_eq!(stop, "cancelled");
        let facts = facts_of(&server, &asked.run_id).await;
        let ends: Vec<_> = facts.iter().filter(|fact| TERMINAL.contains(&fact.kind.as_str())).collect();
        assert_eq!(ends.len(), 1, "{facts:#?}");
        assert!(ends[0].is("RunCancelled") && ends[0].payload["error_code"] == "STOPPED");
        assert_eq!(facts.last().unwrap().position, ends[0].position, "nothing comes after the end");
        match claim {
            Ok(stream) => {
                begun += 1;
                let events = sse::events(&stream.rest().await);
                agui::assert_in_order(&asked.conversation_id, &asked.run_id, &events);
                assert_eq!(agui::last(&events)["outcome"]["type"], "cancelled");
            }
            Err(refused) => {
                assert_eq!(refused.refused(), (409, "RUN_ALREADY_CLAIMED"));
                assert!(!facts.iter().any(|fact| fact.is("RunClaimed") || fact.is("ModelRequested")), "{facts:#?}");
            }
        }
    }
    // What was begun at all was ended at the model, too.
    let asked = model.times_asked();
    model.dropped(asked).await;
    assert!(asked <= begun, "{asked} questions to the model for {begun} runs");
    server.finish().await;
}

/// A client that keeps its connection and reads nothing must not keep a run alive.
#[tokio::test]
async fn a_run_whose_client_reads_nothing_is_stopped_at_once_all_the_same() {
    let script = (0..400_000).fold(Script::new(), |script, _| script.text("x")).hold();
    let model = ScriptedModel::new([script]);
    let server = TestServer::with_scripted(model.clone()).await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("tell me")).await;
    let body = asked.input().to_string();
    let reader = StalledReader::open(server.address(), "ann", "POST", "/api/agent", &body).await;
    model.stalled().await;
    // The system finds room for a few bytes more now and then; nobody may have to wait for that.
    let stopped = tokio::time::timeout(AT_ONCE, ann.stop(&asked.run_id)).await;
    assert_eq!(stopped.expect("the stop does not wait for the client"), "cancelled");
    model.dropped(1).await;
    let turn = ann.turn(&asked).await;
    assert_eq!((&turn["status"], &turn["partial"]), (&json!("cancelled"), &json!(true)));
    // Nothing that it reads later says that the run went well.
    let read = reader.rest().await;
    assert!(!read.is_empty());
    assert!(read.iter().all(|(_, event)| event["outcome"]["type"] != "success"));
    server.finish().await;
}

async fn facts_of(server: &TestServer, run_id: &str) -> Vec<Fact> {
    server.log().all().await.into_iter().filter(|fact| fact.metadata["correlation_id"] == run_id).collect()
}

fn dispatches_after(facts: &[Fact], position: u64) -> usize {
    let begun = |fact: &&Fact| fact.is("ToolDispatched") || fact.is("ModelRequested");
    facts.iter().filter(|fact| fact.position > position).filter(begun).count()
}
