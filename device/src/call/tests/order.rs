//! The order of checks, and "at most once".

use super::*;

/// Spoils a request so that it fails one check.
type Spoil = fn(&mut CallRequest);

#[tokio::test]
async fn c02_the_first_check_that_fails_gives_the_answer() {
    // Each row fails its own check and all that follow; the answer is always its own.
    let spoils: [(&str, Spoil); 5] = [
        ("refused DEVICE_MISMATCH", |request| request.device_id = "other".into()),
        ("rejected TOOL_NOT_AVAILABLE", |request| request.tool_version = "99".into()),
        ("rejected INVALID_ARGUMENTS", |request| request.call_hash = "0".repeat(64)),
        ("rejected PATH_OUT_OF_SCOPE", |request| {
            let arguments = json!({ "path": "../x" });
            request.arguments_json = canonical_json(&arguments);
            if request.call_hash != "0".repeat(64) {
                request.call_hash = call_hash(&request.tool_name, &request.tool_version, &arguments);
            }
        }),
        ("rejected REQUEST_EXPIRED", |request| request.ttl_ms = 0),
    ];
    let (person, _answers) = person();
    let mut fixture = Fixture::new(person.clone()).await;
    for from in 0..spoils.len() {
        let mut spoiled = request(&format!("call {from}"), "README.md");
        for (_, spoil) in &spoils[from..] {
            spoil(&mut spoiled);
        }
        assert_eq!(fixture.outcome(&spoiled).await, spoils[from].0);
        let known = fixture.calls.journal.find(&spoiled.tool_call_id).expect("readable").is_some();
        assert_eq!(known, from > 0, "every verdict is a row, a foreign call is none: {}", spoils[from].0);
    }
    assert_eq!(person.asked.load(Ordering::SeqCst), 0, "nobody was asked");
    assert_eq!((fixture.ran(), fixture.progress), (0, 0), "nothing ran, nothing was reserved to run");
}

#[tokio::test]
async fn c03_a_refusal_before_the_reservation_asks_nobody_and_is_a_row_before_it_is_said() {
    let (person, _answers) = person();
    let mut fixture = Fixture::new(person.clone()).await;
    let refused = request("call", "missing.md");
    assert_eq!(fixture.outcome(&refused).await, "rejected PATH_NOT_FOUND");
    // What is sent is read from the journal: the row is all there is to say.
    let owner = fixture.peer.owner().clone();
    assert_eq!(fixture.calls.journal.pending(&owner, 0, 10).expect("readable").len(), 1);
    assert_eq!((person.asked.load(Ordering::SeqCst), fixture.ran(), fixture.progress), (0, 0, 0));
}

#[tokio::test]
async fn c04_a_call_is_reserved_before_anybody_is_asked() {
    let (person, answers) = person();
    let fixture = Fixture::new(person.clone()).await;
    let call = request("call", "README.md");
    let mut settled = fixture.calls.settled();
    fixture.send(&call);
    person.shown.notified().await;
    assert_eq!(fixture.row("call").await.outcome, Err(Phase::Reserved), "before there is an answer");
    answers.send(Answer::Allow).expect("person listens");
    settled.changed().await.expect("settled");
    assert_eq!(fixture.settled("call").await, "succeeded");
}

#[tokio::test]
async fn where_nobody_is_asked_a_call_that_goes_on_is_in_the_journal_as_begun_and_is_told_to_run() {
    let mut fixture = Fixture::new(Arc::new(Fixed(false))).await;
    let (let_go, may_go_on) = std::sync::mpsc::channel();
    let calls = Arc::get_mut(&mut fixture.calls).expect("nobody else has them");
    calls.tools = vec![Arc::new(Held(Arc::new(may_go_on.into())))];
    let mut settled = fixture.calls.settled();
    fixture.send(&with_arguments("call", "workspace.list_files", &json!({})));
    let told = fixture.next().await;
    assert!(matches!(told, DeviceFrame::Received { phase: Phase::Executing, attempt_no: 1, .. }), "{told:?}");
    assert_eq!(fixture.row("call").await.outcome, Err(Phase::Executing));
    drop(let_go);
    settled.changed().await.expect("settled");
    assert_eq!(fixture.settled("call").await, "succeeded");
}

#[tokio::test]
async fn c21_names_are_told_without_asking_and_contents_only_after_asking() {
    for (tool, arguments, is_asked) in [
        ("workspace.list_files", json!({}), 0),
        ("workspace.search_files", json!({ "pattern": "*" }), 0),
        ("workspace.read_file", json!({ "path": "README.md" }), 1),
        ("workspace.search_text", json!({ "pattern": "hello" }), 1),
    ] {
        let (person, answers) = person();
        let mut fixture = Fixture::new(person.clone()).await;
        answers.send(Answer::Allow).expect("person listens");
        assert_eq!(fixture.outcome(&with_arguments("call", tool, &arguments)).await, "succeeded", "{tool}");
        assert_eq!(person.asked.load(Ordering::SeqCst), is_asked, "{tool}");
    }
}

#[tokio::test]
async fn c22_arguments_are_taken_only_in_the_bytes_that_were_hashed() {
    let mut fixture = Fixture::new(Arc::new(Fixed(true))).await;
    let good = request("good", "README.md");
    for (id, arguments_json) in [
        ("spaces", r#"{ "path": "README.md" }"#),
        ("twice", r#"{"path":"x","path":"README.md"}"#),
        ("other", r#"{"path":"LICENSE"}"#),
        ("extra", r#"{"mode":"r","path":"README.md"}"#),
        ("none", ""),
    ] {
        let spoiled = CallRequest { tool_call_id: id.into(), arguments_json: arguments_json.into(), ..good.clone() };
        assert_eq!(fixture.outcome(&spoiled).await, "rejected INVALID_ARGUMENTS", "{id}");
    }
    assert_eq!(fixture.outcome(&good).await, "succeeded");
}

#[tokio::test]
async fn c01_a_repeated_call_gets_its_first_verdict_and_runs_at_most_once() {
    let mut fixture = Fixture::new(Arc::new(Fixed(true))).await;
    let missing = request("missing", "later.md");
    assert_eq!(fixture.outcome(&missing).await, "rejected PATH_NOT_FOUND");
    std::fs::write(fixture.file("later.md"), "now there").expect("file");
    let again = CallRequest { attempt_no: 2, ..missing };
    assert_eq!(fixture.outcome(&again).await, "rejected PATH_NOT_FOUND", "also when it would pass now");

    let read = request("read", "README.md");
    assert_eq!(fixture.outcome(&read).await, "succeeded");
    let first = fixture.row("read").await;
    std::fs::write(fixture.file("README.md"), "something else").expect("changed");
    for attempt_no in 2..5 {
        assert_eq!(fixture.outcome(&CallRequest { attempt_no, ..read.clone() }).await, "succeeded");
    }
    assert_eq!(fixture.row("read").await, first, "the first output");
    assert_eq!(fixture.ran(), 1);

    let expired = CallRequest { ttl_ms: 0, device_id: "device".into(), ..read.clone() };
    assert_eq!(fixture.outcome(&expired).await, "succeeded", "the row is looked at before the age");
    let conflict = with_arguments("read", "workspace.read_file", &json!({ "path": "LICENSE" }));
    assert_eq!(fixture.outcome(&conflict).await, "refused IDEMPOTENCY_CONFLICT");
    assert_eq!(fixture.row("read").await, first);
}

#[tokio::test]
async fn after_a_restart_a_call_is_remembered_and_does_not_run_again() {
    let mut fixture = Fixture::new(Arc::new(Fixed(true))).await;
    let read = request("read", "README.md");
    assert_eq!(fixture.outcome(&read).await, "succeeded");
    let Fixture { folder, calls, peer, frames, ran, progress } = fixture;
    calls.stop().await;
    drop(calls);
    let calls = open_calls(folder.path(), Arc::new(Fixed(true)), Counted { ran: ran.clone(), panics: false }).await;
    let mut fixture = Fixture { folder, calls, peer, frames, ran, progress };
    assert_eq!(fixture.outcome(&CallRequest { attempt_no: 2, ..read }).await, "succeeded");
    assert_eq!(fixture.ran(), 1);
}

#[tokio::test]
async fn c11_only_the_persons_yes_lets_a_call_run_and_their_no_is_told_as_such() {
    for (answer, expected, ran) in [
        (Answer::Allow, "succeeded", 1),
        (Answer::Deny, "rejected CONFIRMATION_REJECTED", 0),
        (Answer::NoAnswer, "rejected CONFIRMATION_EXPIRED", 0),
    ] {
        let (person, answers) = person();
        let mut fixture = Fixture::new(person).await;
        answers.send(answer).expect("person listens");
        assert_eq!(fixture.outcome(&request("call", "README.md")).await, expected);
        assert_eq!(fixture.ran(), ran, "{expected}");
    }
}

#[tokio::test]
async fn c12_a_question_that_outlives_the_request_ends_as_expired() {
    let (person, _answers) = person();
    let mut fixture = Fixture::new(person).await;
    let short = CallRequest { ttl_ms: 300, ..request("call", "README.md") };
    assert_eq!(fixture.outcome(&short).await, "rejected REQUEST_EXPIRED");
    assert_eq!(fixture.ran(), 0);
}

#[tokio::test]
async fn c16_a_file_that_changed_while_the_question_was_open_is_not_read() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 3] = [
        ("written", |file| std::fs::write(file, "other text").expect("written")),
        ("replaced", |file| {
            std::fs::write(file.with_extension("new"), "hello\n").expect("written");
            std::fs::rename(file.with_extension("new"), file).expect("replaced");
        }),
        ("removed", |file| std::fs::remove_file(file).expect("removed")),
    ];
    for (name, change) in changes {
        let (person, answers) = person();
        let mut fixture = Fixture::new(person).await;
        let mut settled = fixture.calls.settled();
        fixture.send(&request("call", "README.md"));
        fixture.reaches(Phase::Confirming).await;
        change(&fixture.file("README.md"));
        answers.send(Answer::Allow).expect("person listens");
        settled.changed().await.expect("settled");
        assert_eq!(fixture.settled("call").await, "rejected FILE_CHANGED", "{name}");
        assert_eq!(fixture.ran(), 0, "{name}");
    }
}

#[tokio::test]
async fn a_tool_that_breaks_down_fails_its_call_and_the_device_goes_on() {
    let mut fixture = Fixture::with(Arc::new(Fixed(true)), 1 << 20, true).await;
    for n in 0..DEVICE_SLOTS * 2 {
        assert_eq!(fixture.outcome(&request(&format!("call {n}"), "README.md")).await, "failed EXECUTION_FAILED");
    }
    let listing = with_arguments("list", "workspace.list_files", &json!({}));
    assert_eq!(fixture.outcome(&listing).await, "succeeded");
}

#[tokio::test]
async fn a_result_that_no_frame_could_carry_is_a_failure_that_a_frame_can() {
    let mut fixture = Fixture::with(Arc::new(Fixed(true)), 2_000, false).await;
    // Control characters grow sixfold in JSON: it is the encoded size that counts.
    std::fs::write(fixture.file("control"), "\u{1}".repeat(400)).expect("file");
    std::fs::write(fixture.file("plain"), "x".repeat(400)).expect("file");
    assert_eq!(fixture.outcome(&request("control", "control")).await, "failed RESULT_TOO_LARGE");
    assert_eq!(fixture.outcome(&request("plain", "plain")).await, "succeeded");
}

#[tokio::test]
async fn a_call_from_before_the_journals_memory_and_one_for_a_full_house_are_refused_unsettled() {
    let (person, _answers) = person();
    let mut fixture = Fixture::new(person).await;
    let old =
        CallRequest { call_created_at: devmind_domain::Timestamp::from_micros(-1), ..request("old", "README.md") };
    assert_eq!(fixture.outcome(&old).await, "refused CALL_TOO_OLD");
    for n in 0..MAX_OPEN_CALLS {
        fixture.send(&request(&format!("call {n}"), "README.md"));
        fixture.reaches(Phase::Confirming).await;
    }
    assert_eq!(fixture.outcome(&request("one more", "README.md")).await, "refused DEVICE_BUSY");
    assert!(fixture.calls.journal.find(&"one more".into()).expect("readable").is_none());
    fixture.calls.stop().await;
}

#[tokio::test]
async fn c15_an_execution_ends_in_its_time() {
    let mut fixture = Fixture::new(Arc::new(Fixed(true))).await;
    let hurried = CallRequest { execution_timeout_ms: 0, ..request("call", "README.md") };
    assert_eq!(fixture.outcome(&hurried).await, "failed EXECUTION_TIMEOUT");
    assert_eq!(fixture.row("call").await.outcome.expect("settled").status, ResultStatus::Failed);
}

#[tokio::test]
async fn another_user_or_server_never_learns_the_result_of_a_call() {
    let mut fixture = Fixture::new(Arc::new(Fixed(true))).await;
    let read = request("call", "README.md");
    assert_eq!(fixture.outcome(&read).await, "succeeded");
    let own = fixture.peer.clone();
    for (server_id, user_hash) in [("server", "bob"), ("elsewhere", "ada")] {
        let owner = Owner { server_id: server_id.into(), user_hash: user_hash.into() };
        fixture.peer = Arc::new(FakePeer { owner, max_message_bytes: 1 << 20, frames: own.frames.clone() });
        assert_eq!(fixture.outcome(&read).await, "refused IDEMPOTENCY_CONFLICT", "{server_id} {user_hash}");
    }
    fixture.peer = own;
    assert_eq!(fixture.outcome(&read).await, "succeeded");
}
