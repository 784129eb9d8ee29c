//! Asking and claiming: once for each key, once for each run, whatever is repeated or raced.

use devmind_tests::{ModelEndpoint, Question, Reply, TestServer, agui, new_id};
use futures::future::join_all;
use serde_json::json;

#[tokio::test]
async fn an_answer_streams_and_the_views_show_it_at_once() {
    let server = TestServer::start().await;
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("add 2 and 3.5")).await;
    agui::assert_success(&events);
    assert_eq!(
        agui::outline(&events),
        [
            "RUN_STARTED",
            "TOOL_CALL_START",
            "TOOL_CALL_ARGS",
            "TOOL_CALL_END",
            "TOOL_CALL_RESULT",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_CONTENT",
            "TEXT_MESSAGE_END",
            "RUN_FINISHED",
        ]
    );
    assert_eq!(agui::spoken(&events), "2 + 3.5 = 5.5.");
    let turn = ann.turn(&asked).await;
    assert_eq!(turn["status"], "completed");
    assert_eq!((&turn["question"], &turn["answer"]), (&json!("add 2 and 3.5"), &json!("2 + 3.5 = 5.5.")));
    assert_eq!(
        (&turn["partial"], &turn["is_latest"], &turn["error_code"]),
        (&json!(false), &json!(true), &json!(null))
    );
    assert_eq!(turn["active_run"], json!({ "run_id": asked.run_id, "kind": "normal", "status": "succeeded" }));
    let call = ann.tool_call(&asked).await;
    assert_eq!(
        (&call["tool"], &call["status"], &call["target"]),
        (&json!("add"), &json!("succeeded"), &json!("server"))
    );
    assert_eq!(call["output"], json!({ "sum": 5.5 }));
    assert_eq!(turn["tool_calls"][0]["tool_call_id"], call["tool_call_id"]);
    let conversations = ann.get("/api/conversations").await.ok();
    assert_eq!(conversations[0]["title"], "add 2 and 3.5");
    assert_eq!(conversations[0]["latest_turn_status"], "completed");
    server.finish().await;
}

#[tokio::test]
async fn one_key_asked_twenty_times_at_once_makes_one_turn_and_one_reply_also_after_a_restart() {
    let server = TestServer::start().await;
    let ann = server.client("ann");
    let question = Question::new("hello").key("once");
    let replies = join_all((0..20).map(|_| ann.post("/api/turns", question.body()))).await;
    let first = replies[0].clone().ok();
    for reply in replies {
        assert_eq!(reply.ok(), first);
    }
    let log = server.log();
    log.one("TurnPrepared").await;
    log.one("RunPrepared").await;
    log.one("ConversationStarted").await;

    // Also when the run of the first reply has ended, which a new question could not ask of it.
    let asked = ann.ask(&question).await;
    agui::assert_success(&ann.run(&asked).await);
    assert_eq!(ann.post("/api/turns", question.body()).await.ok(), first);

    let server = server.restart().await;
    let ann = server.client("ann");
    assert_eq!(ann.post("/api/turns", question.body()).await.ok(), first);
    server.log().one("TurnPrepared").await;
    server.finish().await;
}

#[tokio::test]
async fn a_key_belongs_to_one_request_of_one_user() {
    let server = TestServer::start().await;
    let (ann, bob) = (server.client("ann"), server.client("bob"));
    let asked = ann.ask(&Question::new("hello").key("k")).await;
    for other in [
        Question::new("hello, other").key("k"),
        Question::new("hello").key("k").on("some-device"),
        Question::new("hello").key("k").within(&asked.conversation_id),
    ] {
        let answer = ann.post("/api/turns", other.body()).await;
        assert_eq!(answer.refused(), (409, "IDEMPOTENCY_CONFLICT"), "{other:?}");
    }
    let of_bob = bob.ask(&Question::new("hello, other").key("k")).await;
    assert_ne!(of_bob.conversation_id, asked.conversation_id);
    assert_eq!(server.log().of("TurnPrepared").await.len(), 2);
    server.finish().await;
}

#[tokio::test]
async fn a_run_claimed_many_times_at_once_streams_once_and_is_refused_to_the_others() {
    let server = TestServer::start().await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("hello")).await;
    let input = asked.input();
    let answers = join_all((0..8).map(|_| ann.post("/api/agent", &input))).await;
    let (streams, refusals): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status == 200);
    assert_eq!(streams.len(), 1, "{streams:#?}");
    for refusal in &refusals {
        assert_eq!(refusal.refused(), (409, "RUN_ALREADY_CLAIMED"));
    }
    let log = server.log();
    log.one("RunClaimed").await;
    log.one("ThreadStarted").await;
    log.one("RunSucceeded").await;
    // And for ever: when it has ended, and when a newer turn has taken its place.
    assert_eq!(ann.post("/api/agent", &input).await.refused(), (409, "RUN_ALREADY_CLAIMED"));
    ann.converse(&Question::new("again").within(&asked.conversation_id)).await;
    assert_eq!(ann.post("/api/agent", &input).await.refused(), (409, "RUN_ALREADY_CLAIMED"));
    server.finish().await;
}

#[tokio::test]
async fn a_newer_question_takes_the_place_of_one_that_nobody_claimed() {
    let server = TestServer::start().await;
    let ann = server.client("ann");
    let first = ann.ask(&Question::new("first")).await;
    let second = ann.ask(&Question::new("second").within(&first.conversation_id)).await;
    assert_eq!(ann.turn(&first).await["status"], "cancelled");
    assert_eq!(ann.turn(&first).await["error_code"], "ABANDONED");
    assert_eq!(ann.post("/api/agent", &first.input()).await.refused(), (409, "RUN_ALREADY_CLAIMED"));
    agui::assert_success(&ann.run(&second).await);
    let turns = ann.turns(&first.conversation_id).await;
    let shown: Vec<_> = turns.iter().map(|turn| (turn["sequence_no"].clone(), turn["is_latest"].clone())).collect();
    assert_eq!(shown, [(json!(1), json!(false)), (json!(2), json!(true))]);
    server.finish().await;
}

#[tokio::test]
async fn questions_asked_at_once_in_one_conversation_leave_one_run_that_can_be_claimed() {
    let server = TestServer::start().await;
    let ann = server.client("ann");
    let first = ann.ask(&Question::new("first")).await;
    let questions: Vec<_> =
        (0..8).map(|n| Question::new(&format!("question {n}")).within(&first.conversation_id).key(&new_id())).collect();
    let asked = join_all(questions.iter().map(|question| ann.ask(question))).await;
    let latest = ann.turns(&first.conversation_id).await.pop().expect("turns");
    let winner = asked.iter().find(|asked| latest["id"] == asked.turn_id).expect("the latest is one of them");
    agui::assert_success(&ann.run(winner).await);
    let statuses: Vec<_> = ann.turns(&first.conversation_id).await.iter().map(|turn| turn["status"].clone()).collect();
    assert_eq!(statuses.iter().filter(|status| **status == "completed").count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == "cancelled").count(), 8, "{statuses:?}");
    server.finish().await;
}

#[tokio::test]
async fn a_key_is_answered_again_also_while_the_run_of_its_first_reply_is_under_way() {
    let endpoint = ModelEndpoint::start([Reply::say("one"), Reply::stream().text("two").hold()]).await;
    let server = TestServer::with_model(&endpoint).await;
    let ann = server.client("ann");
    let (first, _) = ann.converse(&Question::new("first")).await;
    let question = Question::new("second").within(&first.conversation_id).key("k");
    let reply = ann.post("/api/turns", question.body()).await.ok();
    let mut stream = ann.stream(&ann.ask(&question).await).await;
    stream.until("some text", |event| event["delta"] == "two").await;
    assert_eq!(ann.post("/api/turns", question.body()).await.ok(), reply);
    let other = Question::new("third").within(&first.conversation_id);
    assert_eq!(ann.post("/api/turns", other.body()).await.refused(), (409, "RUN_IN_PROGRESS"));
    drop(stream);
    server.log().wait_kind("RunCancelled").await;
    server.finish().await;
}

#[tokio::test]
async fn an_owner_pages_through_the_log_to_its_head_and_sees_exactly_what_is_recorded() {
    let server = TestServer::start().await;
    let (ann, bob) = (server.client("ann"), server.client("bob"));
    for n in 0..3 {
        ann.converse(&Question::new(&format!("add {n} and 1"))).await;
        bob.converse(&Question::new("hello")).await;
    }
    let (mut seen, mut after) = (Vec::new(), 0);
    loop {
        let page = ann.get(&format!("/api/ledger/events?limit=7&after={after}")).await.ok();
        let events = page["events"].as_array().unwrap().clone();
        assert!(events.len() <= 7);
        seen.extend(events);
        after = page["next_after"].as_u64().unwrap();
        if page["at_head"] == true {
            break;
        }
    }
    let conversations: Vec<_> =
        ann.get("/api/conversations").await.ok().as_array().unwrap().iter().map(|own| own["id"].clone()).collect();
    let facts = server.log().all().await;
    let own: Vec<_> = facts.iter().filter(|fact| conversations.contains(&fact.metadata["conversation_id"])).collect();
    assert_eq!(seen.len(), own.len());
    for (row, fact) in seen.iter().zip(own) {
        assert_eq!((&row["position"], &row["event_type"]), (&json!(fact.position), &json!(fact.kind)));
        assert_eq!((&row["payload"], &row["metadata"]), (&fact.payload, &fact.metadata));
        assert_eq!(row["leaf_hash"].as_str().unwrap().len(), 64);
    }
    server.finish().await;
}
