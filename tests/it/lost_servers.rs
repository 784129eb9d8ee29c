//! A server process that is gone, one that was frozen, and two of one name: what those say that share its database.

use devmind_tests::raw_device::{file_output, success};
use devmind_tests::{
    Asked, Client, DeviceProcess, Fact, ModelEndpoint, Process, Question, RawDevice, Reply, ServerProcess, agui,
    eventually, workspace,
};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Short, so that a test sees it end; far longer than a busy machine keeps a process from renewing it.
const LEASE: (&str, &str) = ("DEVMIND_NODE_LEASE_MS", "6000");
const TERMINAL: [&str; 3] = ["RunSucceeded", "RunFailed", "RunCancelled"];

fn held() -> Reply {
    Reply::stream().text("half").hold()
}

/// A server over a database of its own, with this model.
async fn first(endpoint: &ModelEndpoint) -> ServerProcess {
    ServerProcess::on_postgres(&environment("one", &endpoint.url())).await
}

fn environment<'a>(name: &'a str, url: &'a str) -> [(&'a str, &'a str); 4] {
    [("DEVMIND_NODE_ID", name), LEASE, ("MODEL_BASE_URL", url), ("MODEL_NAME", "scripted")]
}

/// A run under way at a server.
async fn running(client: &Client, question: &Question) -> (Asked, devmind_tests::RunStream) {
    let asked = client.ask(question).await;
    let mut stream = client.stream(&asked).await;
    stream.until("text", |event| event["delta"] == "half").await;
    (asked, stream)
}

async fn wait_status(client: &Client, asked: &Asked, status: &str) -> Value {
    eventually(&format!("the turn is {status}"), || async {
        // The views of others go on once the database has ended what a frozen process had begun.
        let answer = client.get(&format!("/api/turns?conversation_id={}", asked.conversation_id)).await;
        let turn = answer.body[0].clone();
        if turn["status"] == status { Ok(turn) } else { Err(format!("{answer:?}")) }
    })
    .await
}

fn ends(facts: &[Fact], asked: &Asked) -> usize {
    let own = |fact: &&Fact| TERMINAL.contains(&fact.kind.as_str()) && fact.payload["run_id"] == asked.run_id.as_str();
    facts.iter().filter(own).count()
}

/// B07 with a second live server.
#[tokio::test]
async fn a_server_that_was_killed_is_lost_after_its_lease_and_no_boot_ends_what_a_live_one_executes() {
    let endpoint = ModelEndpoint::start([held(), held()]).await;
    let url = endpoint.url();
    let one = first(&endpoint).await;
    let two = one.beside(&environment("two", &url)).await;
    let (ann, bob) = (one.client("ann"), two.client("bob"));
    let (killed, killed_stream) = running(&ann, &Question::new("running")).await;
    let (living, living_stream) = running(&bob, &Question::new("living")).await;
    let queued = ann.ask(&Question::new("queued")).await;
    let killed_one = one.kill().await;
    drop(killed_stream);

    // A third starts while the lease of the first still lives: it ends neither's run.
    let three = two.beside(&environment("three", &url)).await;
    assert_eq!(three.client("bob").turn(&living).await["status"], "running");
    let (ann, bob) = (two.client("ann"), three.client("bob"));
    assert_eq!(wait_status(&ann, &killed, "failed").await["error_code"], "SERVER_RESTARTED");
    let lost = two.log().await.one("NodeLost").await;
    assert_eq!(lost.payload, json!({ "node_id": "one", "epoch": 1 }));
    assert_eq!(bob.turn(&living).await["status"], "running");
    // What was prepared at the lost one is executed at another.
    endpoint.then([Reply::say("fine")]);
    agui::assert_success(&ann.run(&queued).await);

    // The first comes back: nothing is ended a second time, and nothing of others at all.
    let one = killed_one.start_with(&environment("one", &url)).await;
    assert_eq!(one.client("bob").turn(&living).await["status"], "running");
    let facts = one.log().await.all().await;
    assert_eq!((ends(&facts, &killed), ends(&facts, &living), ends(&facts, &queued)), (1, 0, 1));
    assert_eq!(one.client("bob").stop(&living.run_id).await, "cancelled");
    living_stream.rest().await;
    for server in [three, two, one] {
        server.finish().await;
    }
}

/// B07: the stop was asked for at another server, and the one that executed the run is gone.
#[tokio::test]
async fn a_run_whose_stop_was_asked_for_ends_cancelled_although_its_server_was_killed() {
    let endpoint = ModelEndpoint::start([held()]).await;
    let url = endpoint.url();
    let one = first(&endpoint).await;
    let two = one.beside(&environment("two", &url)).await;
    let (asked, stream) = running(&one.client("ann"), &Question::new("running")).await;
    // Frozen, it hears of the stop as little as a process that dies in this moment.
    one.signal(Signal::STOP);
    let stopping = {
        let (ann, run_id) = (two.client("ann"), asked.run_id.clone());
        tokio::spawn(async move { ann.post("/api/runs/stop", &json!({ "run_id": run_id })).await })
    };
    two.log().await.wait_kind("RunStopRequested").await;
    let gone = one.kill().await;
    drop(stream);
    assert_eq!(wait_status(&two.client("ann"), &asked, "cancelled").await["error_code"], "STOPPED");
    let answer = stopping.await.unwrap();
    assert!(answer.status == 200 || answer.refused() == (409, "RUN_IN_PROGRESS"), "{answer:?}");
    drop(gone);
    two.finish().await;
}

/// H33, and the fence: a claim is of one start of one process.
#[tokio::test]
async fn a_server_that_was_frozen_past_its_lease_ends_by_itself_and_writes_nothing_any_more() {
    let endpoint = ModelEndpoint::start([held()]).await;
    let url = endpoint.url();
    let one = first(&endpoint).await;
    let two = one.beside(&environment("two", &url)).await;
    let device = RawDevice::new(one.address);
    let mut socket = device.online(&one.client("ann")).await;
    let (asked, stream) = running(&one.client("ann"), &Question::new("running")).await;
    one.signal(Signal::STOP);
    let ann = two.client("ann");
    let turn = wait_status(&ann, &asked, "failed").await;
    assert_eq!(turn["error_code"], "SERVER_RESTARTED");
    // Nobody is there for its device, and nothing waits for it.
    let devices = ann.devices().await;
    assert_eq!((&devices[0]["online"], &devices[0]["close_reason"]), (&json!(false), &json!("SERVER_RESTARTED")));
    let head = two.log().await.head().await;
    one.signal(Signal::CONT);
    let ended = one.ended().await;
    ended.assert_refused("NODE_LOST");
    assert_eq!(socket.close_code().await, 1012);
    drop(stream);
    let facts = two.log().await.all().await;
    let of_the_lost = |fact: &&Fact| fact.position > head && fact.metadata["node_id"] == "one";
    assert!(!facts.iter().any(|fact| of_the_lost(&fact)), "{}", devmind_tests::log::list(&facts));
    assert_eq!(ends(&facts, &asked), 1);
    two.finish().await;
}

#[tokio::test]
async fn a_second_process_of_one_name_is_refused_while_the_first_lives_and_may_begin_once_it_is_gone() {
    let endpoint = ModelEndpoint::start([]).await;
    let url = endpoint.url();
    let one = first(&endpoint).await;
    let refused = one.beside_refused(&environment("one", &url)).await;
    refused.assert_refused("NODE_ID_IN_USE");
    assert!(refused.stderr.contains("--node-id"), "{refused:#?}");
    assert_eq!(one.log().await.of("NodeStarted").await.len(), 1, "a start that is refused is none");
    // Killed, it comes back under its name without waiting for its lease.
    let one = one.kill().await.start_with(&environment("one", &url)).await;
    assert_eq!(one.log().await.of("NodeStarted").await.len(), 2);
    assert!(one.log().await.of("NodeLost").await.is_empty());
    one.finish().await;
}

#[tokio::test]
async fn a_kill_while_a_call_is_under_way_on_the_device_of_another_server_leaves_one_late_result() {
    let call = Reply::call("c", "workspace_read_file", &json!({ "path": "x" }));
    let endpoint = ModelEndpoint::start([call]).await;
    let url = endpoint.url();
    let one = first(&endpoint).await;
    let two = one.beside(&environment("two", &url)).await;
    let (ann_one, ann) = (one.client("ann"), two.client("ann"));
    let device = RawDevice::new(two.address);
    let mut socket = device.online(&ann).await;
    let asked = ann_one.ask(&Question::new("go").on(&device.device_id)).await;
    let stream = ann_one.stream(&asked).await;
    let request = socket.expect("tool.call.request").await;
    let gone = one.kill().await;
    drop(stream);
    let turn = wait_status(&ann, &asked, "failed").await;
    assert_eq!(turn["error_code"], "SERVER_RESTARTED");
    let lost = ann.tool_call(&asked).await;
    assert_eq!((&lost["status"], &lost["error_code"]), (&json!("unknown"), &json!("SERVER_RESTARTED")));
    for disposition in ["stored", "duplicate"] {
        socket.send(success(&request, &file_output("x"))).await;
        assert_eq!(socket.acked(&request["tool_call_id"]).await, disposition);
    }
    let call = ann.tool_call(&asked).await;
    assert_eq!((&call["status"], &call["late_results"]), (&json!("succeeded"), &json!(1)));
    two.log().await.one("ToolResultRecorded").await;
    let facts = two.log().await.all().await;
    assert_eq!(ends(&facts, &asked), 1);
    drop(gone);
    two.finish().await;
}

/// The holder of the socket dies: whoever waits elsewhere learns it, and the device comes to the other server.
#[tokio::test]
async fn a_call_whose_socket_was_held_by_a_killed_server_ends_unknown_at_the_one_that_waits() {
    let call = Reply::call("c", "workspace_read_file", &json!({ "path": "x" }));
    let endpoint = ModelEndpoint::start([call, Reply::say("fine")]).await;
    let url = endpoint.url();
    let one = first(&endpoint).await;
    let two = one.beside(&environment("two", &url)).await;
    let mut device = RawDevice::new(one.address);
    let mut socket = device.online(&one.client("ann")).await;
    let ann = two.client("ann");
    let asked = ann.ask(&Question::new("go").on(&device.device_id)).await;
    let stream = ann.stream(&asked).await;
    let request = socket.expect("tool.call.request").await;
    let gone = one.kill().await;
    let events = stream.rest().await;
    assert_eq!(agui::results(&events)[0]["error"]["code"], "RESULT_UNKNOWN");
    device.address = two.address;
    let mut socket = device.online(&ann).await;
    socket.send(success(&request, &file_output("x"))).await;
    assert_eq!(socket.acked(&request["tool_call_id"]).await, "stored");
    assert_eq!(ann.tool_call(&asked).await["status"], "succeeded");
    drop(gone);
    two.finish().await;
}

/// The README's form: two servers, a device's program at each, an unnamed node.
#[tokio::test]
async fn two_programs_on_one_database_with_a_device_at_each_answer_questions_about_the_others_files() {
    let one = ServerProcess::on_postgres(&[]).await;
    let two = one.beside(&[]).await;
    let (folder, state) = (workspace(), || tempfile::tempdir().unwrap());
    let mut at_one = DeviceProcess::start(&one.url(), "ann", folder.path(), state(), &["--yes"]);
    let mut at_two = DeviceProcess::start(&two.url(), "ann", folder.path(), state(), &["--yes"]);
    at_one.connected().await;
    at_two.connected().await;
    let ann = one.client("ann");
    let devices = eventually("both devices are online", || async {
        let devices = ann.devices().await;
        let online = devices.iter().filter(|device| device["online"] == true).count();
        if online == 2 { Ok(devices) } else { Err(format!("{devices:?}")) }
    })
    .await;
    assert_ne!(devices[0]["node_id"], devices[1]["node_id"], "each was given a name of its own");
    for device in &devices {
        for client in [one.client("ann"), two.client("ann")] {
            let question = Question::new("list the files of my workspace root, then read README.md");
            let (asked, events) = client.converse(&question.on(device["device_id"].as_str().unwrap())).await;
            agui::assert_success(&events);
            assert!(agui::spoken(&events).contains("The quick brown fox"));
            let calls = client.tool_calls(&asked).await;
            assert!(calls.len() == 2 && calls.iter().all(|call| call["status"] == "succeeded"), "{calls:#?}");
        }
    }
    at_one.finish().await;
    at_two.finish().await;
    let data = two.data.clone();
    two.finish().await;
    one.finish().await;
    for arguments in [&["verify"][..], &["rebuild", "--check"]] {
        Process::replay(&data, arguments).await.assert_success();
    }
}
