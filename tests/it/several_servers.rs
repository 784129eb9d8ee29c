//! Several servers on one database: what is prepared, asked, answered and stopped at one of them holds at every
//! other, and the log is all there is between them. B07 and B13 with a second live server are here and in
//! `lost_servers`.

use devmind_device::Fixed;
use devmind_tests::raw_device::{failure, file_output, success};
use devmind_tests::sse::interrupts;
use devmind_tests::{
    Asked, Client, Fact, Question, RawDevice, Script, ScriptedModel, TestDevice, TestServer, agui, eventually,
    workspace,
};
use futures::future::{join, join_all};
use serde_json::{Value, json};
use std::sync::Arc;

/// Two servers on one database, each with a model of its own.
struct Two {
    a: TestServer,
    b: TestServer,
    model_a: Arc<ScriptedModel>,
    model_b: Arc<ScriptedModel>,
}

impl Two {
    async fn start() -> Self {
        let (model_a, model_b) = (ScriptedModel::new([]), ScriptedModel::new([]));
        let a = TestServer::on_postgres(model_a.clone(), |_| {}).await;
        let b = a.beside("other", model_b.clone()).await;
        Self { a, b, model_a, model_b }
    }

    fn clients(&self, user: &str) -> (Client, Client) {
        (self.a.client(user), self.b.client(user))
    }

    async fn finish(self) {
        self.b.finish().await;
        self.a.finish().await;
    }
}

fn read(path: &str) -> Script {
    Script::calls(&[("c", "workspace_read_file", &json!({ "path": path }).to_string())])
}

/// A question at `client` whose only call goes to the device, under way.
async fn calling(client: &Client, model: &ScriptedModel, device: &RawDevice) -> (Asked, devmind_tests::RunStream) {
    model.then([read("x")]);
    let asked = client.ask(&Question::new("go").on(&device.device_id)).await;
    let stream = client.stream(&asked).await;
    (asked, stream)
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_five_calls_each_way_reach_the_devices_at_the_other_server_and_run_once_each() {
    const CALLS: usize = 25;
    let two = Two::start().await;
    let (ann_a, ann_b) = two.clients("ann");
    let (folder_a, folder_b) = (workspace(), workspace());
    let at_a = TestDevice::start(&two.a, "ann", folder_a.path(), Arc::new(Fixed(true))).await;
    let at_b = TestDevice::start(&two.b, "ann", folder_b.path(), Arc::new(Fixed(true))).await;
    let scripts = |n: usize| (0..n).map(|_| read("README.md")).collect::<Vec<_>>();
    // Each answer is one call, then "done": they take turns.
    for model in [&two.model_a, &two.model_b] {
        model.then(scripts(CALLS).into_iter().flat_map(|call| [call, Script::say("read")]));
    }
    let one_way = async |client: Client, device: &TestDevice| {
        for _ in 0..CALLS {
            let (asked, events) = client.converse(&Question::new("read README.md").on(&device.id)).await;
            agui::assert_success(&events);
            assert_eq!(agui::results(&events)[0]["ok"], true, "{events:#?}");
            let call = client.tool_call(&asked).await;
            assert_eq!((&call["status"], &call["origin"]), (&json!("succeeded"), &json!("live")));
            assert_eq!(call["attempts"].as_array().map(Vec::len), Some(1));
        }
    };
    join(one_way(ann_a, &at_b), one_way(ann_b, &at_a)).await;
    assert_eq!((at_a.executions(), at_b.executions()), (CALLS, CALLS));
    let facts = two.a.log().all().await;
    let count = |kind: &str| facts.iter().filter(|fact| fact.is(kind)).count();
    let each = ["ToolCallRequested", "ToolDispatched", "ToolResultRecorded", "ToolResultAcked"].map(count);
    assert_eq!(each, [2 * CALLS; 4]);
    at_a.stop().await;
    at_b.stop().await;
    two.finish().await;
}

#[tokio::test]
async fn an_approval_is_answered_at_the_other_server_where_the_run_goes_on() {
    let two = Two::start().await;
    let (ann_a, ann_b) = two.clients("ann");
    two.model_a.then([Script::calls(&[("c", "demo_text", "{}")])]);
    two.model_b.then([Script::say("thank you")]);
    let (asked, events) = ann_a.converse(&Question::new("go")).await;
    let open = interrupts(&events);
    let reply = ann_b.answer(&open[0], true).await.ok();
    let events = ann_b.resume(&asked, reply["run_id"].as_str().unwrap(), &open).await;
    agui::assert_success(&events);
    assert_eq!(agui::spoken(&events), "thank you");
    // Of two answers at two servers, the other way round, the first counts.
    assert_eq!(ann_a.answer(&open[0], false).await.refused(), (409, "INTERRUPT_ALREADY_RESOLVED"));
    assert_eq!(ann_a.turn(&asked).await["answer"], "thank you");
    two.finish().await;
}

#[tokio::test]
async fn a_run_is_stopped_at_the_server_that_does_not_execute_it_and_followed_there_as_it_goes() {
    let two = Two::start().await;
    let (ann_a, ann_b) = two.clients("ann");
    two.model_a.then([Script::new().text("half").hold()]);
    let asked = ann_a.ask(&Question::new("tell me")).await;
    let mut stream = ann_a.stream(&asked).await;
    stream.until("text", |event| event["delta"] == "half").await;
    let mut followed = ann_b.replay(&asked.run_id, None).await;
    followed.until("text", |event| event["delta"] == "half").await;

    // Somebody else's run is not theirs to stop, wherever they ask.
    let foreign = two.b.client("eve").post("/api/runs/stop", &json!({ "run_id": asked.run_id })).await;
    assert_eq!(foreign.refused(), (403, "FORBIDDEN"));
    let (first, second) = join(ann_b.stop(&asked.run_id), ann_b.stop(&asked.run_id)).await;
    assert_eq!((first, second), (json!("cancelled"), json!("cancelled")));
    two.model_a.dropped(1).await;
    assert_eq!(agui::last(&stream.rest().await)["outcome"]["type"], "cancelled");
    let rest = followed.rest().await;
    assert_eq!(rest.last().unwrap().event["outcome"]["type"], "cancelled");
    let turn = ann_b.turn(&asked).await;
    assert_eq!((&turn["error_code"], &turn["answer"]), (&json!("STOPPED"), &json!("half")));
    // It is asked once, and ended by whoever executed it.
    two.b.log().one("RunStopRequested").await;
    two.b.log().one("RunCancelled").await;
    two.finish().await;
}

#[tokio::test]
async fn a_stop_reaches_the_device_at_the_other_server_and_its_late_result_settles_the_call() {
    let two = Two::start().await;
    let (ann_a, ann_b) = two.clients("ann");
    let device = RawDevice::new(two.b.address());
    let mut socket = device.online(&ann_b).await;
    let (asked, stream) = calling(&ann_a, &two.model_a, &device).await;
    let request = socket.expect("tool.call.request").await;
    assert_eq!((&request["attempt_no"], &request["conversation_title"]), (&json!(1), &json!("go")));
    assert_eq!(ann_b.stop(&asked.run_id).await, "cancelled");
    let cancel = socket.expect("tool.call.cancel").await;
    assert_eq!((&cancel["tool_call_id"], &cancel["reason"]), (&request["tool_call_id"], &json!("RUN_CANCELLED")));
    stream.rest().await;
    socket.send(success(&request, &file_output("late"))).await;
    assert_eq!(socket.acked(&request["tool_call_id"]).await, "stored");
    assert_eq!(ann_a.tool_call(&asked).await["status"], "succeeded");
    two.finish().await;
}

/// The refusal is a fact, so it ends the wait wherever somebody waits.
#[tokio::test]
async fn a_devices_refusal_of_an_attempt_ends_the_wait_at_the_other_server() {
    let two = Two::start().await;
    let (ann_a, ann_b) = two.clients("ann");
    let device = RawDevice::new(two.b.address());
    let mut socket = device.online(&ann_b).await;
    let (asked, stream) = calling(&ann_a, &two.model_a, &device).await;
    let request = socket.expect("tool.call.request").await;
    let refused = json!({
        "type": "tool.call.refused", "tool_call_id": request["tool_call_id"], "attempt_no": 1, "code": "DEVICE_BUSY",
    });
    socket.send(refused.clone()).await;
    socket.send(refused).await;
    let events = stream.rest().await;
    assert_eq!(agui::results(&events)[0]["error"]["code"], "DEVICE_BUSY");
    assert_eq!(two.a.log().one("ToolAttemptRefused").await.payload, json!({ "attempt_no": 1, "code": "DEVICE_BUSY" }));
    let call = ann_a.tool_call(&asked).await;
    assert_eq!((&call["status"], &call["error_code"]), (&json!("created"), &json!("DEVICE_BUSY")));
    assert_eq!(call["attempts"][0]["status"], "refused");
    two.finish().await;
}

#[tokio::test]
async fn the_end_of_a_socket_at_the_other_server_ends_the_wait_and_the_result_comes_on_a_socket_here() {
    let two = Two::start().await;
    let (ann_a, ann_b) = two.clients("ann");
    let mut device = RawDevice::new(two.b.address());
    let mut socket = device.online(&ann_b).await;
    let (asked, stream) = calling(&ann_a, &two.model_a, &device).await;
    let request = socket.expect("tool.call.request").await;
    drop(socket);
    let events = stream.rest().await;
    assert_eq!(agui::results(&events)[0]["error"]["code"], "RESULT_UNKNOWN");
    assert_eq!(ann_a.tool_call(&asked).await["status"], "unknown");
    // It reconnects to the other server, and brings what really happened.
    device.address = two.a.address();
    let mut socket = device.online(&ann_a).await;
    socket.send(success(&request, &file_output("x"))).await;
    assert_eq!(socket.acked(&request["tool_call_id"]).await, "stored");
    let call = ann_b.tool_call(&asked).await;
    assert_eq!((&call["status"], &call["origin"]), (&json!("succeeded"), &json!("redelivered")));
    two.finish().await;
}

#[tokio::test]
async fn a_socket_that_takes_over_at_another_server_closes_the_older_one_and_ends_its_calls() {
    let two = Two::start().await;
    let (ann_a, ann_b) = two.clients("ann");
    // Waited for at the server that holds the socket, and at the one that does not.
    for (waiting, model) in [(&ann_a, &two.model_a), (&ann_b, &two.model_b)] {
        let mut device = RawDevice::new(two.b.address());
        let mut old = device.online(&ann_b).await;
        let (_, stream) = calling(waiting, model, &device).await;
        old.expect("tool.call.request").await;
        device.address = two.a.address();
        let _new = device.online(&ann_a).await;
        assert_eq!(old.close_code().await, 4409);
        assert_eq!(agui::results(&stream.rest().await)[0]["error"]["code"], "RESULT_UNKNOWN");
        let online = ann_b.devices().await;
        let own = online.iter().find(|own| own["device_id"] == *device.device_id).unwrap();
        assert_eq!((&own["online"], &own["node_id"]), (&json!(true), &json!("test")));
    }
    two.finish().await;
}

/// H29.
#[tokio::test]
async fn a_ticket_of_one_server_opens_a_socket_at_another_and_only_one_of_two_at_once() {
    let two = Two::start().await;
    let (ann_a, ann_b) = two.clients("ann");
    let at = |server: &TestServer, device: &RawDevice| RawDevice { address: server.address(), ..device.clone() };
    let own = RawDevice::new(two.a.address());
    let ticket = own.ticket(&ann_a).await;
    let mut socket = devmind_tests::RawSocket::open(at(&two.b, &own).request(&ticket)).await;
    socket.send(own.register()).await;
    socket.expect("device.registered").await;
    socket.close().await;
    for _ in 0..10 {
        let device = RawDevice::new(two.a.address());
        let ticket = device.ticket(&ann_b).await;
        let open = async |server: &TestServer| {
            let mut socket = devmind_tests::RawSocket::open(at(server, &device).request(&ticket)).await;
            socket.send(device.register()).await;
            socket.next().await.map(|frame| (socket, frame)).map_err(|end| end.code)
        };
        let (a, b) = join(open(&two.a), open(&two.b)).await;
        let opened = [a.is_ok(), b.is_ok()];
        let refused: Vec<_> = [a.err(), b.err()].into_iter().flatten().collect();
        assert_eq!((opened.iter().filter(|opened| **opened).count(), refused), (1, vec![4401]));
    }
    two.finish().await;
}

#[tokio::test]
async fn a_call_that_another_server_waits_for_is_joined_and_sent_once() {
    let two = Two::start().await;
    let (ann_a, ann_b) = two.clients("ann");
    let device = RawDevice::new(two.b.address());
    let mut socket = device.online(&ann_b).await;
    let asked = ann_a.ask(&Question::new("go").on(&device.device_id)).await;
    let call = |client: &Client, id: Option<&Value>| {
        let mut body = json!({
            "run_id": asked.run_id, "tool_name": "workspace.read_file", "arguments": { "path": "x" },
        });
        if let Some(id) = id {
            body["tool_call_id"] = id.clone();
        }
        let client = client.clone();
        tokio::spawn(async move { client.post("/api/desktop/dev/tool-calls", &body).await.ok() })
    };
    let first = call(&ann_a, None);
    let request = socket.expect("tool.call.request").await;
    let second = call(&ann_b, Some(&request["tool_call_id"]));
    eventually("the second call waits", || async {
        if two.b.app().gateway.waiters.is_empty() { Err("nobody".to_owned()) } else { Ok(()) }
    })
    .await;
    socket.send(failure(&request, "rejected", "CONFIRMATION_REJECTED")).await;
    let (first, second): (Value, Value) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!((&first["error"]["code"], &first), (&json!("CONFIRMATION_REJECTED"), &second));
    assert_eq!(socket.acked(&request["tool_call_id"]).await, "stored");
    assert_eq!(two.a.log().of("ToolDispatched").await.len(), 1, "sent once");
    two.finish().await;
}

/// B13.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_questions_at_once_at_two_servers_one_is_accepted_each_time() {
    const ROUNDS: usize = 100;
    let two = Two::start().await;
    let (ann_a, ann_b) = two.clients("ann");
    // What a run says never ends: whoever comes second while it runs is refused.
    let scripts = || vec![Script::new().text("x").hold(); ROUNDS];
    two.model_a.then(scripts());
    two.model_b.then(scripts());
    join_all((0..ROUNDS).map(|round| {
        let (ann_a, ann_b) = (&ann_a, &ann_b);
        async move {
            let first = ann_a.ask(&Question::new(&format!("q{round}"))).await;
            assert_eq!(ann_b.stop(&first.run_id).await, "cancelled");
            let go = async |client: &Client| {
                let question = Question::new("go").within(&first.conversation_id);
                let reply = client.post("/api/turns", question.body()).await;
                if reply.status != 200 {
                    assert_eq!(reply.refused(), (409, "RUN_IN_PROGRESS"));
                    return None;
                }
                let asked = Asked::prepared(&reply.body, "go");
                match client.post_stream("/api/agent", &asked.input()).await {
                    Ok(stream) => Some((asked, stream)),
                    Err(refused) => {
                        assert_eq!(refused.refused(), (409, "RUN_ALREADY_CLAIMED"));
                        None
                    }
                }
            };
            let (a, b) = join(go(ann_a), go(ann_b)).await;
            let mut won: Vec<_> = a.into_iter().chain(b).collect();
            assert_eq!(won.len(), 1, "round {round}");
            let (asked, stream) = won.remove(0);
            assert_eq!(ann_b.stop(&asked.run_id).await, "cancelled");
            stream.rest().await;
        }
    }))
    .await;
    let claims = two.a.log().of("RunClaimed").await;
    assert_eq!(claims.len(), ROUNDS);
    two.finish().await;
}

/// B13: the same key again, after a lost reply, at the other server.
#[tokio::test]
async fn a_question_that_is_repeated_at_the_other_server_is_one_question() {
    let two = Two::start().await;
    let (ann_a, ann_b) = two.clients("ann");
    let question = Question::new("once").key(&devmind_tests::new_id());
    let replies = join(ann_a.post("/api/turns", question.body()), ann_b.post("/api/turns", question.body())).await;
    assert_eq!(replies.0.ok(), replies.1.ok());
    assert_eq!(two.a.log().of("TurnPrepared").await.len(), 1);
    two.finish().await;
}

/// A server that stops in order takes nobody else's runs or calls with it.
#[tokio::test]
async fn a_server_that_stops_ends_its_own_runs_and_no_others() {
    let two = Two::start().await;
    let (ann_a, ann_b) = two.clients("ann");
    let held = || Script::new().text("half").hold();
    two.model_a.then([held()]);
    two.model_b.then([held()]);
    let (asked_a, asked_b) = (ann_a.ask(&Question::new("a")).await, ann_b.ask(&Question::new("b")).await);
    let (mut stream_a, stream_b) = (ann_a.stream(&asked_a).await, ann_b.stream(&asked_b).await);
    stream_a.until("text", |event| event["delta"] == "half").await;
    let (ended, events) = join(two.b.stop(), stream_b.rest()).await;
    assert_eq!(agui::error_code(&events), "SHUTTING_DOWN");
    assert_eq!(ann_a.turn(&asked_a).await["status"], "running");
    // A start of the same name takes its lease again at once, and ends nothing that another process executes.
    let b = ended.start().await;
    assert_eq!(b.client("ann").turn(&asked_a).await["status"], "running");
    let open = |fact: &Fact| ["RunFailed", "RunCancelled"].contains(&fact.kind.as_str());
    assert_eq!(two.a.log().all().await.iter().filter(|fact| open(fact)).count(), 1);
    assert_eq!(b.client("ann").stop(&asked_a.run_id).await, "cancelled");
    stream_a.rest().await;
    eventually("nothing is left", || async {
        let turn = ann_a.turn(&asked_a).await;
        if turn["status"] == "cancelled" { Ok(()) } else { Err(turn.to_string()) }
    })
    .await;
    b.finish().await;
    two.a.finish().await;
}
