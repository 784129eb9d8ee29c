//! One key, one effect: repeated, in parallel, after a restart, under other users and routes.

use devmind_tests::{Question, Script, ScriptedModel, TestServer, agui, new_id};
use serde_json::{Value, json};

async fn server() -> TestServer {
    TestServer::with_scripted(ScriptedModel::new([])).await
}

/// B19.
#[tokio::test]
async fn a_repeated_request_is_answered_with_its_first_reply_for_ever() {
    let server = server().await;
    let ann = server.client("ann");
    let question = Question::new("hello").key("k");
    let first = ann.post("/api/turns", question.body()).await.ok();
    let head = server.log().head().await;
    let reordered = r#"{ "idempotency_key":"k" , "content":"hello" }"#.to_owned();
    let with_nulls = json!({ "content": "hello", "idempotency_key": "k", "conversation_id": null, "device_id": null });
    assert_eq!(ann.post_text("/api/turns", reordered).await.ok(), first);
    assert_eq!(ann.post("/api/turns", &with_nulls).await.ok(), first);
    assert_eq!(server.log().head().await, head, "nothing was appended");

    // Also when the run is over, was replaced, and after a restart; within its conversation the same.
    let asked = ann.ask(&question).await;
    agui::assert_success(&ann.run(&asked).await);
    let second = Question::new("more").key("k2").within(&asked.conversation_id);
    let reply = ann.post("/api/turns", second.body()).await.ok();
    assert_eq!(ann.post("/api/turns", question.body()).await.ok(), first);
    ann.rerun(&asked_again(&reply), Some("edited")).await;
    assert_eq!(ann.post("/api/turns", second.body()).await.ok(), reply);
    let server = server.restart().await;
    let ann = server.client("ann");
    assert_eq!(ann.post("/api/turns", question.body()).await.ok(), first);
    assert_eq!(ann.post("/api/turns", second.body()).await.ok(), reply);
    assert_eq!(server.log().of("TurnPrepared").await.len(), 2);
    server.finish().await;
}

fn asked_again(reply: &Value) -> devmind_tests::Asked {
    devmind_tests::Asked::prepared(reply, "more")
}

/// B19.
#[tokio::test]
async fn a_key_of_another_request_is_refused_by_every_route_and_conversation_and_appends_nothing() {
    let server = server().await;
    let ann = server.client("ann");
    let (asked, _) = ann.converse(&Question::new("hello").key("k")).await;
    let head = server.log().head().await;
    let conflict = (409, "IDEMPOTENCY_CONFLICT");
    let other = Question::new("hello, too").key("k");
    assert_eq!(ann.post("/api/turns", other.body()).await.refused(), conflict);
    let elsewhere = Question::new("hello").key("k").within(&asked.conversation_id);
    assert_eq!(ann.post("/api/turns", elsewhere.body()).await.refused(), conflict);
    let device = Question::new("hello").key("k").on(&new_id());
    assert_eq!(ann.post("/api/turns", device.body()).await.refused(), conflict);
    let rerun = json!({ "turn_id": asked.turn_id, "idempotency_key": "k" });
    assert_eq!(ann.post("/api/turns/rerun", &rerun).await.refused(), conflict);
    assert_eq!(server.log().head().await, head);
    // Another user's keys are others.
    let bobs = server.client("bob").ask(&Question::new("hello").key("k")).await;
    assert_ne!(bobs.conversation_id, asked.conversation_id);
    // A rerun's own key is as good.
    let rerun = json!({ "turn_id": asked.turn_id, "idempotency_key": "r" });
    let first = ann.post("/api/turns/rerun", &rerun).await.ok();
    assert_eq!(ann.post("/api/turns/rerun", &rerun).await.ok(), first);
    let edit = json!({ "turn_id": asked.turn_id, "content": "x", "idempotency_key": "r" });
    assert_eq!(ann.post("/api/turns/rerun", &edit).await.refused(), conflict);
    server.log().one("TurnRerunPrepared").await;
    server.finish().await;
}

#[tokio::test]
async fn an_answer_to_an_approval_under_the_key_of_another_request_is_refused_and_appends_nothing() {
    let script = Script::calls(&[("a", "demo_text", "{}")]);
    let server = TestServer::with_scripted(ScriptedModel::new([script])).await;
    let ann = server.client("ann");
    let (asked, _) = ann.converse(&Question::new("the demo text").key("k")).await;
    let turns = ann.get(&format!("/api/turns?conversation_id={}", asked.conversation_id)).await.ok();
    let interrupt = turns[0]["pending_approvals"][0]["interrupt_id"].clone();
    let head = server.log().head().await;
    let answer = json!({ "interrupt_id": interrupt, "approved": true, "idempotency_key": "k" });
    assert_eq!(ann.post("/api/runs/resume", &answer).await.refused(), (409, "IDEMPOTENCY_CONFLICT"));
    assert_eq!(server.log().head().await, head);
    // Nothing was decided: the person may still say no.
    let no = json!({ "interrupt_id": interrupt, "approved": false, "idempotency_key": "other" });
    ann.post("/api/runs/resume", &no).await.ok();
    assert_eq!(server.log().one("InterruptResolved").await.payload["approved"], false);
    server.finish().await;
}

/// B19.
#[tokio::test]
async fn twenty_at_once_with_one_key_are_one_turn_and_twenty_equal_replies() {
    let server = server().await;
    let ann = server.client("ann");
    for round in 0..5 {
        let question = Question::new("hello").key(&format!("k{round}"));
        let replies =
            futures::future::join_all((0..20).map(|_| async { ann.post("/api/turns", question.body()).await.ok() }));
        let replies = replies.await;
        assert!(replies.iter().all(|reply| *reply == replies[0]), "{replies:#?}");
        assert_eq!(server.log().of("TurnPrepared").await.len(), round + 1);
        assert_eq!(server.log().of("ConversationStarted").await.len(), round + 1);
    }
    server.finish().await;
}

/// B19.
#[tokio::test]
async fn a_refused_attempt_does_not_use_up_its_key() {
    let model = ScriptedModel::new([Script::new().text("x").hold()]);
    let server = TestServer::with_scripted(model).await;
    let ann = server.client("ann");
    let first = ann.ask(&Question::new("tell me").key("first")).await;
    let stream = ann.stream(&first).await;
    server.log().wait_kind("RunClaimed").await;
    let next = Question::new("and now?").key("k").within(&first.conversation_id);
    assert_eq!(ann.post("/api/turns", next.body()).await.refused(), (409, "RUN_IN_PROGRESS"));
    // The first one's own repetition is answered also now, though a new question would be refused.
    assert_eq!(ann.ask(&Question::new("tell me").key("first")).await.run_id, first.run_id);
    ann.stop(&first.run_id).await;
    drop(stream);
    let asked = ann.ask(&next).await;
    agui::assert_success(&ann.run(&asked).await);
    assert_eq!(ann.ask(&next).await.run_id, asked.run_id);
    server.finish().await;
}
