//! A device's reports: recorded once, acknowledged every time, and taken only from the device that
//! was asked.

use devmind_tests::raw_device::{failure, file_output, success};
use devmind_tests::{Asked, Client, Question, RawDevice, RawSocket, RunStream, TestServer, agui};
use serde_json::{Value, json};

/// A call under way: the run's stream, the socket it was sent on, and the request.
struct UnderWay {
    server: TestServer,
    ann: Client,
    device: RawDevice,
    socket: RawSocket,
    asked: Asked,
    stream: RunStream,
    request: Value,
}

impl UnderWay {
    async fn begin() -> Self {
        let server = TestServer::start().await;
        let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
        let mut socket = device.online(&ann).await;
        let asked = ann.ask(&Question::new("read README.md").on(&device.device_id)).await;
        let stream = ann.stream(&asked).await;
        let request = socket.expect("tool.call.request").await;
        Self { server, ann, device, socket, asked, stream, request }
    }

    fn id(&self) -> String {
        self.request["tool_call_id"].as_str().unwrap().to_owned()
    }

    /// Answers well, and reads the run to its end.
    async fn answer(mut self) {
        let report = success(&self.request, &file_output("as asked"));
        self.socket.send(report).await;
        assert_eq!(self.socket.acked(&self.request["tool_call_id"]).await, "stored");
        let events = self.stream.rest().await;
        agui::assert_success(&events);
        assert!(agui::spoken(&events).contains("as asked"));
        assert_eq!(self.ann.tool_call(&self.asked).await["status"], "succeeded");
        self.server.log().one("ToolResultRecorded").await;
        self.socket.close().await;
        self.server.finish().await;
    }
}

#[tokio::test]
async fn inv_b04_a_request_carries_what_the_device_needs_and_its_dispatch_was_recorded_before() {
    let mut call = UnderWay::begin().await;
    let request = &call.request;
    let log = call.server.log();
    let dispatched = log.one("ToolDispatched").await;
    assert_eq!(dispatched.stream_id, call.id());
    assert_eq!(dispatched.payload["connection_id"], call.socket.connection_id.as_str());
    assert_eq!(dispatched.payload["journal_id"], call.device.journal_id.as_str());
    assert_eq!(request["device_id"], call.device.device_id.as_str());
    assert_eq!((&request["attempt_no"], &request["run_id"]), (&json!(1), &json!(call.asked.run_id)));
    assert_eq!((&request["tool_name"], &request["tool_version"]), (&json!("workspace.read_file"), &json!("1")));
    assert_eq!(request["arguments_json"], "{\"path\":\"README.md\"}");
    assert_eq!(request["requires_confirmation"], true);
    let arguments = json!({ "path": "README.md" });
    assert_eq!(request["call_hash"], devmind_domain::canonical::call_hash("workspace.read_file", "1", &arguments));
    for phase in ["reserved", "confirming", "executing"] {
        let received =
            json!({ "type": "tool.call.received", "tool_call_id": call.id(), "attempt_no": 1, "phase": phase });
        call.socket.send(received).await;
        log.wait(phase, |fact| fact.is("ToolReceived") && fact.payload["phase"] == phase).await;
        assert_eq!(call.ann.tool_call(&call.asked).await["attempts"][0]["phase"], phase);
        assert_eq!(call.ann.tool_call(&call.asked).await["status"], "dispatched");
    }
    call.answer().await;
}

#[tokio::test]
async fn inv_b13_the_same_report_twice_is_recorded_once_and_acknowledged_twice() {
    let mut call = UnderWay::begin().await;
    let report = success(&call.request, &file_output("once"));
    call.socket.send(report.clone()).await;
    call.socket.send(report.clone()).await;
    let id = call.request["tool_call_id"].clone();
    assert_eq!(call.socket.acked(&id).await, "stored");
    assert_eq!(call.socket.acked(&id).await, "duplicate");
    agui::assert_success(&call.stream.rest().await);

    // Also on a later connection, without the output that the device keeps no longer.
    call.socket.close().await;
    let mut socket = call.device.online(&call.ann).await;
    let mut discarded = report;
    discarded.as_object_mut().unwrap().remove("output");
    discarded["output_discarded"] = true.into();
    socket.send(discarded).await;
    assert_eq!(socket.acked(&id).await, "duplicate");

    let log = call.server.log();
    log.one("ToolResultRecorded").await;
    let acked = log.of("ToolResultAcked").await;
    let said: Vec<_> = acked.iter().map(|fact| fact.payload["disposition"].clone()).collect();
    assert_eq!(said, ["stored", "duplicate", "duplicate"]);
    let recorded = log.one("ToolResultRecorded").await.position;
    assert!(acked.iter().all(|fact| fact.position > recorded), "recorded before acknowledged");
    let row = call.ann.tool_call(&call.asked).await;
    assert_eq!((&row["acks"], &row["late_results"], &row["status"]), (&json!(3), &json!(2), &json!("succeeded")));
    socket.close().await;
    call.server.finish().await;
}

#[tokio::test]
async fn a_different_second_report_is_superseded_and_changes_nothing() {
    let mut call = UnderWay::begin().await;
    let id = call.request["tool_call_id"].clone();
    call.socket.send(success(&call.request, &file_output("the first"))).await;
    assert_eq!(call.socket.acked(&id).await, "stored");
    for other in [
        success(&call.request, &file_output("another")),
        failure(&call.request, "failed", "IO_ERROR"),
        failure(&call.request, "indeterminate", "DEVICE_RESTARTED"),
    ] {
        call.socket.send(other).await;
        assert_eq!(call.socket.acked(&id).await, "superseded");
    }
    let events = call.stream.rest().await;
    assert!(agui::spoken(&events).contains("the first"));
    let row = call.ann.tool_call(&call.asked).await;
    assert_eq!((&row["status"], &row["output"]["content"]), (&json!("succeeded"), &json!("the first")));
    call.server.log().one("ToolResultRecorded").await;
    call.socket.close().await;
    call.server.finish().await;
}

#[tokio::test]
async fn a_report_of_a_call_that_nobody_made_is_acknowledged_as_unknown_and_not_recorded() {
    let mut call = UnderWay::begin().await;
    let mut report = success(&call.request, &file_output("x"));
    report["tool_call_id"] = "no-such-thread:c1".into();
    call.socket.send(report.clone()).await;
    assert_eq!(call.socket.acked(&report["tool_call_id"]).await, "unknown_call");
    assert!(call.server.log().of("ToolResultRecorded").await.is_empty());
    call.answer().await;
}

#[tokio::test]
async fn a_report_whose_hash_is_wrong_or_whose_parts_are_missing_is_parked_and_the_call_goes_on() {
    let mut call = UnderWay::begin().await;
    let with = |field: &str, value: Value| {
        let mut report = success(&call.request, &file_output("x"));
        report[field] = value;
        report
    };
    let without = |field: &str| {
        let mut report = success(&call.request, &file_output("x"));
        report.as_object_mut().unwrap().remove(field);
        report
    };
    let wrong = [
        with("output_sha256", json!("0".repeat(64))),
        with("output", file_output("not what was hashed")),
        without("output_sha256"),
        without("output"),
        with("status", json!("failed")),
        with("executed_attempt_no", json!(2)),
    ];
    for report in wrong {
        call.socket.send(report.clone()).await;
        let complaint = call.socket.expect("protocol.error").await;
        let nack = call.socket.expect("tool.call.nack").await;
        assert_eq!(
            (&nack["tool_call_id"], &nack["permanent"]),
            (&json!(call.id()), &json!(true)),
            "{complaint} {report}"
        );
    }
    assert!(call.server.log().of("ToolResultRecorded").await.is_empty());
    call.answer().await;
}

#[tokio::test]
async fn inv_b10_a_report_of_another_device_user_or_journal_is_refused_and_not_recorded() {
    let call = UnderWay::begin().await;
    let report = success(&call.request, &file_output("a lie"));
    let bob = call.server.client("bob");

    // Another device of the same user; another user with the same device id and journal id.
    let other = RawDevice::new(call.server.address());
    for (device, client) in [(&other, &call.ann), (&call.device, &bob)] {
        let mut socket = device.online(client).await;
        socket.send(report.clone()).await;
        socket.expect("protocol.error").await;
        let nack = socket.expect("tool.call.nack").await;
        assert_eq!(nack["tool_call_id"], call.request["tool_call_id"]);
        assert!(!nack.to_string().contains("ann"), "nothing is told of the other user");
        // Progress is no way in either.
        let received =
            json!({ "type": "tool.call.received", "tool_call_id": call.id(), "attempt_no": 1, "phase": "executing" });
        socket.send(received).await;
        socket.expect("protocol.error").await;
        // Nor is a refusal: it wakes nobody.
        let refused =
            json!({ "type": "tool.call.refused", "tool_call_id": call.id(), "attempt_no": 1, "code": "DEVICE_BUSY" });
        socket.send(refused).await;
        socket.close().await;
    }
    let log = call.server.log();
    assert!(log.of("ToolResultRecorded").await.is_empty() && log.of("ToolReceived").await.is_empty());
    call.answer().await;
}

#[tokio::test]
async fn a_report_from_another_journal_of_the_device_is_refused_after_which_the_right_one_counts() {
    let call = UnderWay::begin().await;
    let report = success(&call.request, &file_output("from the wrong journal"));
    // The device's program was started with another state folder: the first socket is replaced.
    let other_journal = RawDevice { journal_id: devmind_tests::new_id(), ..call.device.clone() };
    let mut socket = other_journal.online(&call.ann).await;
    socket.send(report).await;
    socket.expect("protocol.error").await;
    socket.expect("tool.call.nack").await;
    socket.close().await;
    let events = call.stream.rest().await;
    assert_eq!(agui::results(&events)[0]["error"]["code"], "RESULT_UNKNOWN");
    assert_eq!(call.ann.tool_call(&call.asked).await["status"], "unknown");

    let mut socket = call.device.online(&call.ann).await;
    socket.send(success(&call.request, &file_output("from the right one"))).await;
    assert_eq!(socket.acked(&call.request["tool_call_id"]).await, "stored");
    let row = call.ann.tool_call(&call.asked).await;
    assert_eq!((&row["status"], &row["origin"]), (&json!("succeeded"), &json!("redelivered")));
    socket.close().await;
    call.server.finish().await;
}

#[tokio::test]
async fn inv_b23_a_devices_refusal_ends_the_wait_with_its_code_and_does_not_settle_the_call() {
    let mut call = UnderWay::begin().await;
    let refused =
        json!({ "type": "tool.call.refused", "tool_call_id": call.id(), "attempt_no": 1, "code": "DEVICE_BUSY" });
    call.socket.send(refused).await;
    let events = call.stream.rest().await;
    agui::assert_success(&events);
    assert_eq!(agui::results(&events)[0]["error"]["code"], "DEVICE_BUSY");
    assert_eq!(call.ann.tool_call(&call.asked).await["settled"], false);
    // A late report of it still counts.
    call.socket.send(success(&call.request, &file_output("late"))).await;
    assert_eq!(call.socket.acked(&call.request["tool_call_id"]).await, "stored");
    assert_eq!(call.ann.tool_call(&call.asked).await["status"], "succeeded");
    call.socket.close().await;
    call.server.finish().await;
}

#[tokio::test]
async fn a_code_that_is_none_for_its_length_reaches_neither_the_model_nor_the_log() {
    let mut call = UnderWay::begin().await;
    let long = "\"".repeat(1 << 20);
    let mut report = success(&call.request, &json!(null));
    report["status"] = json!("failed");
    report["error"] = json!({ "code": long, "message": "no" });
    call.socket.send(report).await;
    call.socket.expect("protocol.error").await;
    call.socket.expect("tool.call.nack").await;
    let refused = json!({ "type": "tool.call.refused", "tool_call_id": call.id(), "attempt_no": 1, "code": long });
    call.socket.send(refused).await;
    let events = call.stream.rest().await;
    agui::assert_success(&events);
    assert_eq!(agui::results(&events)[0]["error"]["code"], "TOOL_NOT_AVAILABLE");
    assert!(call.server.log().of("ToolResultRecorded").await.is_empty());
    call.socket.close().await;
    call.server.finish().await;
}

#[tokio::test]
async fn inv_b15_a_lost_connection_tells_the_model_that_the_outcome_is_unknown_and_a_later_report_settles_it() {
    let call = UnderWay::begin().await;
    let id = call.request["tool_call_id"].clone();
    // Lost, not closed: no close frame.
    drop(call.socket);
    let events = call.stream.rest().await;
    agui::assert_success(&events);
    assert_eq!(agui::results(&events)[0]["error"]["code"], "RESULT_UNKNOWN");
    let row = call.ann.tool_call(&call.asked).await;
    assert_eq!((&row["status"], &row["error_code"]), (&json!("unknown"), &json!("RESULT_UNKNOWN")));
    assert_eq!(row["settled"], false);
    let turn_before = call.ann.turn(&call.asked).await;

    let mut socket = call.device.online(&call.ann).await;
    socket.send(success(&call.request, &file_output("it was read"))).await;
    assert_eq!(socket.acked(&id).await, "stored");
    let row = call.ann.tool_call(&call.asked).await;
    assert_eq!(
        (&row["status"], &row["origin"], &row["settled"]),
        (&json!("succeeded"), &json!("redelivered"), &json!(true))
    );
    // What the model had been told stays what it was.
    assert_eq!(call.ann.turn(&call.asked).await["answer"], turn_before["answer"]);
    let log = call.server.log();
    log.one("ToolDispatched").await;
    log.one("ToolResultObserved").await;
    socket.close().await;
    call.server.finish().await;
}

#[tokio::test]
async fn a_report_that_overtakes_its_own_request_is_not_lost_on_the_waiting_run() {
    let server = TestServer::start().await;
    let (ann, device) = (server.client("ann"), RawDevice::new(server.address()));
    let mut socket = device.online(&ann).await;
    for n in 0..20 {
        let asked = ann.ask(&Question::new("read README.md").on(&device.device_id)).await;
        let stream = ann.stream(&asked).await;
        // As soon as the dispatch is recorded, before the request can have been read.
        let dispatched = server
            .log()
            .wait("the dispatch", |fact| fact.is("ToolDispatched") && fact.payload["run_id"] == asked.run_id.as_str())
            .await;
        let call = json!({ "tool_call_id": dispatched.stream_id, "attempt_no": 1 });
        let content = format!("report {n}");
        socket.send(success(&call, &file_output(&content))).await;
        let events = stream.rest().await;
        assert_eq!(agui::results(&events)[0]["data"]["content"], content);
        while socket.next().await.expect("the socket stays open")["type"] != "tool.call.ack" {}
    }
    assert_eq!(server.log().of("ToolResultRecorded").await.len(), 20);
    socket.close().await;
    server.finish().await;
}
