//! Processes that are killed without warning: what was dispatched is unknown until the device has
//! reported it, nothing is carried out twice, and nothing runs for ever.

use devmind_domain::ids::ToolCallId;
use devmind_projections::{ToolCallQuery, Views};
use devmind_tests::{
    Asked, Client, DeviceProcess, ModelEndpoint, Process, Question, Reply, ServerProcess, Traces, agui, eventually,
    workspace,
};
use serde_json::{Value, json};

/// The only device of the client, once it is online.
async fn online_device(client: &Client) -> String {
    eventually("a device is online", || async {
        let devices = client.devices().await;
        let online = devices.iter().find(|device| device["online"] == true);
        online.map(|device| device["device_id"].as_str().unwrap().to_owned()).ok_or(format!("{devices:?}"))
    })
    .await
}

/// Waits until the run's only call has this status.
async fn call_is(client: &Client, asked: &Asked, status: &str) -> Value {
    eventually(status, || async {
        let call = client.tool_call(asked).await;
        if call["status"] == status { Ok(call) } else { Err(call.to_string()) }
    })
    .await
}

#[tokio::test]
async fn inv_b16_a_server_killed_between_dispatch_and_result_knows_after_its_restart_that_it_does_not_know_until_the_device_reports()
 {
    let (server, folder, traces) = (ServerProcess::start(&[]).await, workspace(), Traces::new());
    let ann = server.client("ann");
    let state = tempfile::tempdir().unwrap();
    let device = DeviceProcess::start_slow(&server.url(), "ann", folder.path(), state, &traces);
    let asked = ann.ask(&Question::new("read README.md").on(&online_device(&ann).await)).await;
    let stream = ann.stream(&asked).await;
    traces.reading().await;
    let call = ann.tool_call(&asked).await;
    assert_eq!(call["status"], "dispatched");
    let killed = server.kill().await;
    drop(stream);

    // The device still reads: it cannot have reported anything, whether it is back or not.
    let server = killed.start().await;
    let log = server.log().await;
    let restarted = log.of("NodeStarted").await.pop().unwrap();
    let id = ToolCallId::from(call["tool_call_id"].as_str().unwrap());
    let replayed = |position: u64| {
        let (id, reader) = (id.clone(), log.0.clone());
        async move {
            let (views, unread) =
                Views::at(&reader, position, &["conversation", "tool_call"], |_, _| {}).await.unwrap();
            assert!(unread.is_empty(), "{unread:?}");
            serde_json::to_value(views.tool_calls(ToolCallQuery::Call(id)).await.unwrap().remove(0)).unwrap()
        }
    };
    assert_eq!(replayed(restarted.position - 1).await["status"], "dispatched");
    let row = replayed(restarted.position).await;
    assert_eq!((&row["status"], &row["error_code"]), (&json!("unknown"), &json!("SERVER_RESTARTED")));
    assert_eq!(row["settled"], false);

    // The run was settled before the server listened; its prompt is complete.
    let ann = server.client("ann");
    let turn = ann.turn(&asked).await;
    assert_eq!((&turn["status"], &turn["error_code"]), (&json!("failed"), &json!("SERVER_RESTARTED")));
    assert_eq!(log.one("ToolResultObserved").await.payload["error"], "SERVER_RESTARTED");
    assert_eq!(ann.tool_call(&asked).await["status"], "unknown");
    let (_, events) = ann.converse(&Question::new("hello").within(&asked.conversation_id)).await;
    agui::assert_success(&events);

    traces.go();
    let call = call_is(&ann, &asked, "succeeded").await;
    assert_eq!((&call["origin"], &call["settled"]), (&json!("redelivered"), &json!(true)));
    log.wait_kind("ToolResultAcked").await;
    log.one("ToolDispatched").await;
    assert_eq!(traces.reads(), [call["tool_call_id"].as_str().unwrap()], "the file was read once");
    assert_eq!(ann.turn(&asked).await["status"], "failed", "a settled run never changes");
    device.finish().await;
    server.finish().await;
}

#[tokio::test]
async fn a_device_killed_while_it_executes_reports_that_it_cannot_know_and_never_executes_again() {
    let (server, folder, traces) = (ServerProcess::start(&[]).await, workspace(), Traces::new());
    let ann = server.client("ann");
    let state = tempfile::tempdir().unwrap();
    let device = DeviceProcess::start_slow(&server.url(), "ann", folder.path(), state, &traces);
    let asked = ann.ask(&Question::new("read README.md").on(&online_device(&ann).await)).await;
    let stream = ann.stream(&asked).await;
    traces.reading().await;
    let state = device.kill().await;
    let events = stream.rest().await;
    agui::assert_success(&events);
    assert_eq!(agui::results(&events)[0]["error"]["code"], "RESULT_UNKNOWN");
    assert_eq!(ann.tool_call(&asked).await["status"], "unknown");
    let journal = state.path().join("device/journal.sqlite").to_str().unwrap().to_owned();
    let reconcile = async |at: u64| {
        let order = ["--json", "reconcile", "--journal", journal.as_str(), "--at", &at.to_string()];
        let told = Process::replay(&server.data, &order).await;
        told.assert_success();
        serde_json::from_str::<Value>(told.stdout.trim()).expect("one line of JSON")
    };
    let told = reconcile(server.log().await.head().await).await;
    assert!(told["open"][0]["journal"].as_str().unwrap().starts_with("begun"), "{told:#}");
    assert_eq!((&told["open"][1], &told["journal"]["calls"]), (&Value::Null, &json!({ "unknown": 1 })), "{told:#}");
    // What the device has of a later call is no contradiction to an earlier log.
    let told = reconcile(1).await;
    assert_eq!((&told["open"], &told["journal"]["conflicts"]), (&json!([]), &json!([])), "{told:#}");

    // A read would not wait any more: if it were made again, it would be made in full.
    traces.go();
    let device = DeviceProcess::start_slow(&server.url(), "ann", folder.path(), state, &traces);
    let call = call_is(&ann, &asked, "indeterminate").await;
    assert_eq!((&call["error_code"], &call["settled"]), (&json!("DEVICE_RESTARTED"), &json!(true)));
    server.log().await.wait_kind("ToolResultAcked").await;
    assert_eq!(traces.reads().len(), 1, "{:?}", traces.reads());

    // A third start has nothing more to report, and the device works.
    let state = device.kill().await;
    let device = DeviceProcess::start_slow(&server.url(), "ann", folder.path(), state, &traces);
    let again = ann.ask(&Question::new("read README.md").on(&online_device_again(&ann, 3).await)).await;
    agui::assert_success(&ann.run(&again).await);
    assert_eq!(ann.tool_call(&again).await["status"], "succeeded");
    assert_eq!(ann.tool_call(&asked).await["status"], "indeterminate");
    assert_eq!(traces.reads().len(), 2, "{:?}", traces.reads());
    device.finish().await;
    server.finish().await;
}

/// The device, once it is online on its `epoch`th connection.
async fn online_device_again(client: &Client, epoch: u64) -> String {
    eventually("the device is online again", || async {
        let devices = client.devices().await;
        let online = devices.iter().find(|device| device["online"] == true && device["connection_epoch"] == epoch);
        online.map(|device| device["device_id"].as_str().unwrap().to_owned()).ok_or(format!("{devices:?}"))
    })
    .await
}

#[tokio::test]
async fn a_server_killed_while_the_model_speaks_keeps_what_was_flushed_and_settles_the_run_once() {
    let spoken = "word ".repeat(600);
    let endpoint = ModelEndpoint::start([Reply::stream().text(&spoken).hold()]).await;
    let url = endpoint.url();
    let server = ServerProcess::start(&[("MODEL_BASE_URL", &url), ("MODEL_NAME", "scripted")]).await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("tell me")).await;
    let queued = ann.ask(&Question::new("hello")).await;
    let stream = ann.stream(&asked).await;
    server.log().await.wait_kind("AnswerProgressed").await;
    let killed = server.kill().await;
    drop(stream);

    let server = killed.start().await;
    let ann = server.client("ann");
    let turn = ann.turn(&asked).await;
    assert_eq!((&turn["status"], &turn["error_code"]), (&json!("failed"), &json!("SERVER_RESTARTED")));
    assert_eq!((&turn["answer"], &turn["partial"]), (&json!(spoken), &json!(true)));
    assert_eq!(ann.post("/api/agent", &asked.input()).await.refused(), (409, "RUN_ALREADY_CLAIMED"));
    // What was only queued is still there to be claimed (the demo model answers now).
    agui::assert_success(&ann.run(&queued).await);

    // A second kill and start add one start, and nothing else.
    let before = server.log().await.head().await;
    let server = server.kill().await.start().await;
    let more: Vec<_> = server.log().await.all().await.split_off(before as usize);
    assert_eq!(more.iter().map(|fact| fact.kind.as_str()).collect::<Vec<_>>(), ["NodeStarted"]);
    server.finish().await;
}

#[tokio::test]
async fn a_server_killed_while_many_ask_has_lost_nothing_that_it_had_answered() {
    let server = ServerProcess::start(&[]).await;
    let ann = server.client("ann");
    let asking: Vec<_> = (0..4)
        .map(|worker| {
            let ann = ann.clone();
            tokio::spawn(async move {
                let mut answered = Vec::new();
                for n in 0.. {
                    let key = format!("{worker}-{n}");
                    match ann.try_ask(&Question::new(&format!("question {key}")).key(&key)).await {
                        Some(reply) => answered.push((key, reply)),
                        None => break,
                    }
                }
                answered
            })
        })
        .collect();
    server.log().await.wait("a few dozen questions", |fact| fact.position > 120).await;
    let server = server.kill().await.start().await;
    let ann = server.client("ann");
    let mut checked = 0;
    for worker in asking {
        for (key, reply) in worker.await.unwrap() {
            let again = ann.ask(&Question::new(&format!("question {key}")).key(&key)).await;
            assert_eq!(reply["run_id"], again.run_id.as_str(), "an answered question was lost");
            checked += 1;
        }
    }
    assert!(checked > 10, "{checked}");
    let prepared = server.log().await.of("TurnPrepared").await;
    let distinct: std::collections::BTreeSet<_> =
        prepared.iter().map(|fact| fact.payload["content"].to_string()).collect();
    assert_eq!(prepared.len(), distinct.len(), "a question was asked twice");
    server.finish().await;
}

#[tokio::test]
async fn the_file_of_a_killed_server_verifies_as_it_was_left() {
    let server = ServerProcess::start(&[]).await;
    server.client("ann").converse(&Question::new("add 1 and 2")).await;
    let killed = server.kill().await;
    for arguments in [&["verify"][..], &["rebuild", "--check"]] {
        let finished = Process::replay(&killed.data, arguments).await;
        finished.assert_success();
    }
    killed.start().await.finish().await;
}
