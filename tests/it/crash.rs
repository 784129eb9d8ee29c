//! After a crash: nothing runs for ever, what can go on goes on, and who was replaced writes nothing.

use devmind_domain::agent::{CallsInAnswer, assemble, context_hash};
use devmind_domain::canonical::hash_json;
use devmind_domain::conversation::{Claim, Conversation, ConversationCommand, ConversationError, RunCancelReason};
use devmind_domain::event::{Actor, Metadata};
use devmind_domain::ids::*;
use devmind_domain::thread::*;
use devmind_domain::tool_call::*;
use devmind_domain::tools::{admit, catalogue};
use devmind_ledger::{ExecuteError, Ledger, execute};
use devmind_tests::raw_device::{file_output, success};
use devmind_tests::sse::interrupts;
use devmind_tests::{
    Asked, ModelEndpoint, Question, RawDevice, Reply, Script, ScriptedModel, ServerProcess, Stopped, TestServer, agui,
};
use serde_json::{Value, json};

/// B07.
#[tokio::test]
async fn after_a_kill_every_run_is_where_it_belongs_and_no_conversation_is_blocked() {
    let held = Reply::stream().text("half").hold();
    let approval = Reply::call("c1", "demo_text", &json!({}));
    let endpoint = ModelEndpoint::start([held.clone(), held, approval]).await;
    let url = endpoint.url();
    let model = [("MODEL_BASE_URL", url.as_str()), ("MODEL_NAME", "scripted")];
    let server = ServerProcess::start(&model).await;
    let ann = server.client("ann");
    let mut asked = Vec::new();
    for question in ["running", "stopped", "interrupted", "queued"] {
        asked.push(ann.ask(&Question::new(question)).await);
    }
    let [running, stopped, interrupted, queued] = &asked[..] else { panic!("four") };
    let mut streams = Vec::new();
    for asked in [running, stopped] {
        let mut stream = ann.stream(asked).await;
        stream.until("text", |event| event["delta"] == "half").await;
        streams.push(stream);
    }
    assert_eq!(ann.stop(&stopped.run_id).await, "cancelled");
    let open = interrupts(&ann.run(interrupted).await);
    let server = server.kill().await.start_with(&model).await;
    drop(streams);

    let ann = server.client("ann");
    let status = async |asked: &Asked| ann.turn(asked).await["status"].clone();
    assert_eq!(ann.turn(running).await["error_code"], "SERVER_RESTARTED");
    let statuses = [status(running).await, status(stopped).await, status(interrupted).await, status(queued).await];
    assert_eq!(statuses, ["failed", "cancelled", "interrupted", "pending"].map(|status| json!(status)));
    // A stop that comes after the end says how it ended, and changes nothing.
    assert_eq!(ann.stop(&running.run_id).await, "failed");

    // The second restart adds its start and nothing else.
    let head = server.log().await.head().await;
    let server = server.kill().await.start_with(&model).await;
    let more = server.log().await.all().await.split_off(head as usize);
    assert_eq!(more.iter().map(|fact| fact.kind.as_str()).collect::<Vec<_>>(), ["NodeStarted"]);

    let ann = server.client("ann");
    for asked in [running, stopped] {
        let (_, events) = ann.converse(&Question::new("go on").within(&asked.conversation_id)).await;
        agui::assert_success(&events);
    }
    agui::assert_success(&ann.run(queued).await);
    let reply = ann.answer(&open[0], true).await.ok();
    agui::assert_success(&ann.resume(interrupted, reply["run_id"].as_str().unwrap(), &open).await);
    let (_, events) = ann.converse(&Question::new("go on").within(&interrupted.conversation_id)).await;
    agui::assert_success(&events);
    server.finish().await;
}

#[tokio::test]
async fn a_killed_process_is_lost_to_one_of_another_name_which_settles_its_run_and_its_calls() {
    let endpoint = ModelEndpoint::start([Reply::stream().text("half").hold()]).await;
    let url = endpoint.url();
    let model = [("MODEL_BASE_URL", url.as_str()), ("MODEL_NAME", "scripted")];
    // On SQLite, where one process at a time is certain; `lost_servers` has the leases of PostgreSQL.
    let server = ServerProcess::on_sqlite(&model).await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("go")).await;
    let mut stream = ann.stream(&asked).await;
    stream.until("text", |event| event["delta"] == "half").await;
    let renamed = [model[0], model[1], ("DEVMIND_NODE_ID", "other")];
    let server = server.kill().await.start_with(&renamed).await;
    assert_eq!(server.client("ann").turn(&asked).await["error_code"], "SERVER_RESTARTED");
    let lost = server.log().await.one("NodeLost").await;
    assert_eq!(lost.payload, json!({ "node_id": "local", "epoch": 1 }));
    let again = server.kill().await.start_with(&renamed).await;
    again.log().await.one("NodeLost").await;
    again.finish().await;
}

/// B10.
#[tokio::test]
async fn a_kill_after_the_answer_that_made_the_calls_leaves_one_result_for_each_of_them() {
    let calls = Reply::stream()
        .text("I will look.")
        .call(0, "a", "workspace_read_file", r#"{"path":"x"}"#)
        .call(1, "b", "add", r#"{"a":1,"b":2}"#)
        .calls();
    let endpoint = ModelEndpoint::start([calls, Reply::say("fine")]).await;
    let url = endpoint.url();
    let model = [("MODEL_BASE_URL", url.as_str()), ("MODEL_NAME", "scripted")];
    let server = ServerProcess::start(&model).await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address));
    let mut socket = device.online(&ann).await;
    let asked = ann.ask(&Question::new("go").on(&device.device_id)).await;
    let stream = ann.stream(&asked).await;
    let request = socket.expect("tool.call.request").await;
    // What waits for nobody has ended meanwhile.
    server.log().await.wait_kind("ToolResultObserved").await;
    let server = server.kill().await.start_with(&model).await;
    drop((stream, socket));

    let ann = server.client("ann");
    let facts = server.log().await.all().await;
    let observed: Vec<_> = facts.iter().filter(|fact| fact.is("ToolResultObserved")).collect();
    let ids: Vec<_> = observed.iter().map(|fact| agui::text(&fact.payload, "tool_call_id")).collect();
    assert!(ids.len() == 2 && ids[0].ends_with(":b") && ids[1].ends_with(":a"), "{ids:?}");
    assert_eq!((&observed[0].payload["ok"], &observed[1].payload["error"]), (&json!(true), &json!("SERVER_RESTARTED")));
    let end = facts.iter().find(|fact| fact.is("RunFailed")).unwrap();
    assert_eq!(observed[1].position + 1, end.position, "in one append with the run's end");

    let (_, events) = ann.converse(&Question::new("go on").within(&asked.conversation_id)).await;
    agui::assert_success(&events);
    let prompt = endpoint.messages(1);
    let roles: Vec<_> = prompt.iter().map(|message| agui::text(message, "role")).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user"]);
    assert!(agui::text(&prompt[2], "content").starts_with("I will look.\n\n("));
    // The device's report still counts for its call.
    let mut socket = RawDevice { journal_epoch: 2, ..device }.online(&ann).await;
    socket.send(success(&request, &file_output("read"))).await;
    assert_eq!(socket.acked(&request["tool_call_id"]).await, "stored");
    assert_eq!(ann.turn(&asked).await["status"], "failed");
    socket.close().await;
    server.finish().await;
}

/// B10: one call done, one refused by a person, one for a device that is away.
#[tokio::test]
async fn every_call_of_a_message_is_answered_in_its_place_whatever_became_of_it() {
    let calls = [
        ("c", "workspace_list_files", "{}"),
        ("b", "demo_text", "{}"),
        ("a", "add", r#"{"a":1,"b":2}"#),
        ("", "demo_text", "{}"),
        ("x", "nothing", "{"),
    ];
    let model = ScriptedModel::new([Script::calls(&calls), Script::say("the end")]);
    let server = TestServer::with_scripted(model.clone()).await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("go").on(&devmind_tests::new_id())).await;
    let open = interrupts(&ann.run(&asked).await);
    let mut reply = Value::Null;
    for (id, approved) in open.iter().zip([false, true]) {
        reply = ann.answer(id, approved).await.ok();
    }
    agui::assert_success(&ann.resume(&asked, reply["run_id"].as_str().unwrap(), &open).await);
    // That each result is in its place is what the model checks of every prompt.
    let results: Vec<Value> = model
        .said(1)
        .iter()
        .filter(|(role, _)| role == "tool")
        .map(|(_, content)| serde_json::from_str::<Value>(content).unwrap()["error"]["code"].clone())
        .collect();
    let expected = ["DEVICE_OFFLINE", "APPROVAL_REJECTED", "", "", "INVALID_ARGUMENTS"];
    assert_eq!(results, expected.map(|code| if code.is_empty() { Value::Null } else { json!(code) }));
    server.finish().await;
}

/// B17.
#[tokio::test]
async fn a_process_that_was_replaced_ends_no_run_and_raises_nothing() {
    let go_on = tokio_util::sync::CancellationToken::new();
    let scripts = [Script::new().text("half").hold(), Script::new().text("half").gate(&go_on).text(" whole").done()];
    let server = TestServer::with_scripted(ScriptedModel::new(scripts)).await;
    let ann = server.client("ann");
    let first = ann.ask(&Question::new("go")).await;
    let stream = ann.stream(&first).await;
    let old = claim_of(&server.log().wait_kind("RunClaimed").await.payload);
    // The next start settles that run, and executes another of the conversation.
    let server = server.restart().await;
    drop(stream);
    let ann = server.client("ann");
    let second = ann.ask(&Question::new("once more").within(&first.conversation_id)).await;
    let mut stream = ann.stream(&second).await;
    stream.until("text", |event| event["delta"] == "half").await;
    let new = claim_of(&server.log().of("RunClaimed").await.pop().unwrap().payload);
    assert!(old.node_id == new.node_id && old.epoch < new.epoch);

    let head = server.log().head().await;
    let elsewhere = Claim { node_id: "elsewhere".into(), epoch: new.epoch };
    let ahead = Claim { epoch: new.epoch + 1, ..new.clone() };
    for run_id in [&first.run_id, &second.run_id] {
        for claim in [&old, &elsewhere, &ahead] {
            for command in endings(&run_id.as_str().into(), claim) {
                let metadata = Metadata::new(Actor::server(&claim.node_id), claim.node_id.clone());
                let id = &first.conversation_id;
                let done = execute::<Conversation>(&server.app().ledger, id, &metadata, command.clone(), None).await;
                let refused = matches!(done, Err(ExecuteError::Refused(ConversationError::RunNotActive)));
                assert!(refused, "{command:?}");
            }
        }
    }
    assert_eq!(server.log().head().await, head, "none of it left a trace");
    go_on.cancel();
    let events = stream.rest().await;
    agui::assert_success(&events);
    assert_eq!(ann.turn(&second).await["answer"], "half whole");
    server.finish().await;
}

fn claim_of(claimed: &Value) -> Claim {
    Claim { node_id: agui::text(claimed, "node_id").into(), epoch: claimed["epoch"].as_u64().unwrap() }
}

fn endings(run_id: &RunId, claim: &Claim) -> [ConversationCommand; 4] {
    let (run_id, claim) = (run_id.clone(), claim.clone());
    [
        ConversationCommand::CompleteRun {
            run_id: run_id.clone(),
            claim: claim.clone(),
            message_id: "m".into(),
            answer: "stolen".to_owned(),
        },
        ConversationCommand::FailRun {
            run_id: run_id.clone(),
            claim: claim.clone(),
            error_code: "INTERNAL".to_owned(),
            error_message: "late".to_owned(),
            message_id: None,
            partial_text: String::new(),
        },
        ConversationCommand::CancelRun {
            run_id: run_id.clone(),
            claim: claim.clone(),
            reason: RunCancelReason::Stopped,
            message_id: None,
            partial_text: String::new(),
        },
        ConversationCommand::Interrupt { run_id, claim, interrupts: Vec::new() },
    ]
}

/// Rule 9: the answer was recorded, the end of the run was not.
#[tokio::test]
async fn a_run_that_was_finished_in_its_thread_when_the_server_died_is_settled_as_a_success() {
    // What a server that died between the two appends leaves behind.
    let Left { stopped, ledger, asked, run_id, thread, metadata, .. } = left_claimed().await;
    for command in answered(&asked, &run_id, Vec::new()) {
        execute::<Thread>(&ledger, &thread, &metadata, command, None).await.unwrap();
    }
    ledger.close().await;

    let server = stopped.start().await;
    let ann = server.client("ann");
    let turn = ann.turn(&asked).await;
    assert_eq!((&turn["status"], &turn["answer"]), (&json!("completed"), &json!("all of it")));
    let events = devmind_tests::sse::events(&ann.replayed(&asked.run_id).await);
    agui::assert_success(&events);
    assert_eq!(agui::spoken(&events), "all of it");
    let server = server.restart().await;
    server.log().one("RunSucceeded").await;
    server.finish().await;
}

/// The results of two calls were recorded, one of them refused, and the thread had observed neither; a third had not begun.
#[tokio::test]
async fn a_result_that_was_recorded_and_not_told_when_the_server_died_is_told_as_it_is() {
    let Left { stopped, ledger, asked, run_id, claim, thread, metadata } = left_claimed().await;
    let call = |id: &str, a: Value| {
        let arguments = json!({ "a": a, "b": 2 }).to_string();
        ModelToolCall { id: id.into(), name: "add".into(), arguments }
    };
    let calls = vec![call("done", json!(1)), call("refused", json!("x")), call("waiting", json!(1))];
    for command in answered(&asked, &run_id, calls.clone()) {
        execute::<Thread>(&ledger, &thread, &metadata, command, None).await.unwrap();
    }
    let of_call = |call: &ModelToolCall| {
        let admission = admit(catalogue(), call, false);
        let request = ToolCallRequested {
            conversation_id: asked.conversation_id.as_str().into(),
            turn_id: asked.turn_id.as_str().into(),
            run_id: run_id.clone(),
            user_id: "ann".into(),
            graph_thread_id: thread.as_str().into(),
            model_call_id: call.id.clone(),
            parent_tool_call_id: None,
            tool: admission.tool.clone(),
            tool_version: admission.version.clone(),
            target: admission.target,
            device_id: None,
            arguments: admission.arguments.clone(),
            call_hash: admission.call_hash.clone(),
            risk: admission.risk,
        };
        (ToolCallId::of(&thread.as_str().into(), &call.id), request, admission.refusal)
    };
    let (done, request, _) = of_call(&calls[0]);
    let dispatch = Dispatch {
        request,
        run_id: run_id.clone(),
        node_id: claim.node_id.clone(),
        epoch: claim.epoch,
        connection_id: None,
        journal_id: None,
        wait_ms: 0,
        ttl_ms: 0,
        attempt_is_live: false,
        age_ms: 0,
    };
    let output = json!({ "sum": 3 });
    let result = ToolResultRecorded {
        executed_attempt_no: 1,
        status: ResultStatus::Succeeded,
        output_sha256: Some(hash_json(&output)),
        output: Some(output),
        error: None,
        started_at: None,
        finished_at: None,
        origin: ResultOrigin::Live,
        connection_id: None,
    };
    let record = ToolCallCommand::RecordResult { result: Box::new(result), reporter: Reporter::Server };
    let (refused, request, refusal) = of_call(&calls[1]);
    let (stage, error) = refusal.unwrap();
    let decided = ToolCallDecided::deny(stage, &error, "pipeline");
    for (id, command) in [
        (&done, ToolCallCommand::Dispatch(Box::new(dispatch))),
        (&done, record),
        (&refused, ToolCallCommand::Decide { request: Box::new(request), decided }),
    ] {
        execute::<ToolCall>(&ledger, id.as_str(), &metadata, command, None).await.unwrap();
    }
    ledger.close().await;

    let server = stopped.start().await;
    assert_eq!(server.client("ann").turn(&asked).await["error_code"], "SERVER_RESTARTED");
    let events = devmind_tests::sse::events(&server.client("ann").replayed(&asked.run_id).await);
    let results = agui::results(&events);
    assert_eq!(results[0], json!({ "ok": true, "tool": "add", "data": { "sum": 3 } }));
    assert_eq!(results[1]["error"], json!({ "code": "INVALID_ARGUMENTS", "message": error.message }));
    assert_eq!(results[2]["error"]["code"], "SERVER_RESTARTED");
    server.finish().await;
}

/// What a server leaves that died after it had claimed a run, and the ledger, which nobody has then.
struct Left {
    stopped: Stopped,
    ledger: Ledger,
    asked: Asked,
    run_id: RunId,
    claim: Claim,
    thread: String,
    metadata: Metadata,
}

async fn left_claimed() -> Left {
    let server = TestServer::with_scripted(ScriptedModel::new([])).await;
    let asked = server.client("ann").ask(&Question::new("go")).await;
    let prepared = server.log().one("RunPrepared").await.payload;
    let claim = Claim { node_id: server.app().claim.node_id.clone(), epoch: server.app().claim.epoch };
    let stopped = server.stop().await;
    let ledger = Ledger::open(stopped.data.ledger_place()).await.unwrap();
    let run_id = RunId::from(asked.run_id.as_str());
    let metadata = Metadata::new(Actor::server(&claim.node_id), claim.node_id.clone())
        .run(&run_id)
        .conversation(&asked.conversation_id.as_str().into());
    let claimed =
        ConversationCommand::ClaimRun { run_id: run_id.clone(), claim: claim.clone(), context_hash: hash_of("go") };
    execute::<Conversation>(&ledger, &asked.conversation_id, &metadata, claimed, None).await.unwrap();
    let thread = agui::text(&prepared, "graph_thread_id").to_owned();
    Left { stopped, ledger, asked, run_id, claim, thread, metadata }
}

/// What the model is asked first about a conversation's first question.
fn hash_of(question: &str) -> String {
    context_hash(&assemble(CallsInAnswer::One, &[], question))
}

/// The model has answered, with these calls.
fn answered(asked: &Asked, run_id: &RunId, tool_calls: Vec<ModelToolCall>) -> [ThreadCommand; 3] {
    let started = ThreadStarted {
        conversation_id: asked.conversation_id.as_str().into(),
        turn_id: asked.turn_id.as_str().into(),
        run_id: run_id.clone(),
        user_id: "ann".into(),
    };
    let requested = ModelRequested {
        run_id: run_id.clone(),
        round: 1,
        provider: "p".to_owned(),
        model: "m".to_owned(),
        parameters: json!({}),
        request_hash: hash_of("go"),
        tools_hash: "0".repeat(64),
        tool_set: None,
    };
    let responded = ModelResponded {
        run_id: run_id.clone(),
        round: 1,
        message_id: "answer".into(),
        content: "all of it".to_owned(),
        reasoning: None,
        tool_calls,
        finish_reason: "stop".to_owned(),
        usage: TokenUsage::default(),
        served_model: "m".to_owned(),
        latency_ms: 1,
    };
    [ThreadCommand::Start(started), ThreadCommand::RequestModel(requested), ThreadCommand::RecordResponse(responded)]
}
