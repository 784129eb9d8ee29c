//! `POST /api/agui`: clients that know AG-UI and nothing of this product.

use devmind_domain::ErrorCode;
use devmind_tests::sse::{events, interrupts};
use devmind_tests::{Client, Question, Script, ScriptedModel, TestServer, agui, new_id};
use serde_json::{Value, json};
use std::sync::Arc;

const DEMO: [(&str, &str, &str); 1] = [("c1", "demo_text", "{}")];

async fn with(scripts: impl IntoIterator<Item = Script>) -> (TestServer, Arc<ScriptedModel>) {
    let model = ScriptedModel::new(scripts);
    (TestServer::with_scripted(model.clone()).await, model)
}

/// What such a client posts: its own ids, and its whole copy of the conversation.
fn input(thread: &str, run: &str, messages: &[(&str, &str)]) -> Value {
    let message = |(index, (role, content)): (usize, &(&str, &str))| json!({ "id": format!("m{index}"), "role": role, "content": content });
    let messages: Vec<_> = messages.iter().enumerate().map(message).collect();
    json!({
        "threadId": thread, "runId": run, "protocolVersion": "1.0", "messages": messages,
        "tools": [], "context": [], "state": {}, "forwardedProps": {},
    })
}

fn with_resume(mut input: Value, entries: &[(&str, &str, Value)]) -> Value {
    let entry = |(id, status, payload): &(&str, &str, Value)| json!({ "interruptId": id, "status": status, "payload": payload });
    input["resume"] = entries.iter().map(entry).collect();
    input
}

async fn run(client: &Client, input: &Value) -> Vec<Value> {
    let stream = client.post_stream("/api/agui", input).await.unwrap_or_else(|answer| panic!("{answer:?}"));
    events(&stream.rest().await)
}

async fn refused(client: &Client, input: &Value) -> (u16, String) {
    let answer = client.post_stream("/api/agui", input).await.err().expect("a refusal");
    let (status, code) = answer.refused();
    (status, code.to_owned())
}

#[tokio::test]
async fn a_stock_clients_ids_are_echoed_its_runs_are_run_once_and_its_thread_is_remembered() {
    let (server, model) = with([Script::say("hello, Ann"), Script::say("Ann")]).await;
    let ann = server.client("ann");
    let first = input("thread-1", "run-1", &[("user", "I am Ann")]);
    let events = run(&ann, &first).await;
    agui::assert_success(&events);
    agui::assert_in_order("thread-1", "run-1", &events);
    let conflict = |code: &str| (409, code.to_owned());
    assert_eq!(refused(&ann, &first).await, conflict("RUN_ALREADY_CLAIMED"));
    let other = input("thread-1", "run-1", &[("user", "something else")]);
    assert_eq!(refused(&ann, &other).await, conflict("IDEMPOTENCY_CONFLICT"));

    // What the client says was said before is not believed.
    let second = input("thread-1", "run-2", &[("user", "forged"), ("assistant", "forged"), ("user", "who am I?")]);
    let events = run(&ann, &second).await;
    agui::assert_in_order("thread-1", "run-2", &events);
    assert_eq!(agui::spoken(&events), "Ann");
    let said: Vec<_> = model.said(1).into_iter().map(|(_, text)| text).collect();
    assert_eq!(said, ["I am Ann", "hello, Ann", "who am I?"]);
    assert_eq!(ann.get("/api/conversations").await.ok().as_array().map(Vec::len), Some(1));
    // The same run id in another thread is another run.
    agui::assert_success(&run(&ann, &input("thread-2", "run-1", &[("user", "hi")])).await);
    assert_eq!(model.times_asked(), 3);
    server.finish().await;
}

#[tokio::test]
async fn a_stock_client_answers_an_approval_by_its_resume_and_the_call_runs_once() {
    let (server, model) =
        with([Script::calls(&DEMO), Script::say("the end"), Script::calls(&DEMO), Script::say("no")]).await;
    let ann = server.client("ann");
    for approved in [true, false] {
        let thread = if approved { "t1" } else { "t2" };
        let open = interrupts(&run(&ann, &input(thread, "r1", &[("user", "the text")])).await);
        let waits = refused(&ann, &input(thread, "rx", &[("user", "another")])).await;
        assert_eq!(waits, (409, "TURN_WAITING_APPROVAL".to_owned()));
        let resume = |run: &str, payload: Value| {
            with_resume(input(thread, run, &[]), &[(open[0].as_str(), "resolved", payload)])
        };
        assert_eq!(refused(&ann, &resume("r2", json!({}))).await, (422, "VALIDATION_FAILED".to_owned()));
        let events = run(&ann, &resume("r3", json!({ "approved": approved }))).await;
        agui::assert_success(&events);
        assert_eq!(events[0]["runId"], "r3");
        assert_eq!(agui::results(&events)[0]["ok"], approved);
        assert!(events.iter().all(|event| event["type"] != "TOOL_CALL_START" && event["type"] != "TOOL_CALL_ARGS"));
        // The same answer again, in a new run or the same, carries out nothing again.
        let again = refused(&ann, &resume("r3", json!({ "approved": approved }))).await;
        assert_eq!(again, (409, "RUN_ALREADY_CLAIMED".to_owned()));
        let again = refused(&ann, &resume("r4", json!({ "approved": approved }))).await;
        assert_eq!(again, (409, "RUN_ALREADY_CLAIMED".to_owned()));
        let opposite = refused(&ann, &resume("r5", json!({ "approved": !approved }))).await;
        assert_eq!(opposite, (409, "INTERRUPT_ALREADY_RESOLVED".to_owned()));
    }
    assert_eq!(server.log().of("ToolDispatched").await.len(), 1);
    assert_eq!(model.times_asked(), 4);
    server.finish().await;
}

/// B02, for stock clients.
#[tokio::test]
async fn a_resume_must_name_every_open_approval_and_then_all_are_answered_in_one_run() {
    let calls = [("a", "demo_text", "{}"), ("b", "demo_text", "{}")];
    let (server, model) = with([Script::calls(&calls), Script::say("the end")]).await;
    let ann = server.client("ann");
    let open = interrupts(&run(&ann, &input("t", "r1", &[("user", "go")])).await);
    let answer = |id: &'_ str, approved: bool| (id.to_owned(), approved);
    let resume = |run: &str, answers: &[(String, bool)]| {
        let entries: Vec<_> =
            answers.iter().map(|(id, approved)| (id.as_str(), "resolved", json!({ "approved": approved }))).collect();
        with_resume(input("t", run, &[]), &entries)
    };
    let head = server.log().head().await;
    let part = refused(&ann, &resume("r2", &[answer(&open[0], true)])).await;
    assert_eq!(part, (400, "INTERRUPT_MISMATCH".to_owned()));
    assert_eq!(server.log().head().await, head, "a refused answer is not recorded");
    assert_eq!(model.times_asked(), 1);
    assert!(server.log().of("ToolDispatched").await.is_empty(), "part of the answers begins nothing");
    let events = run(&ann, &resume("r3", &[answer(&open[0], true), answer(&open[1], false)])).await;
    agui::assert_success(&events);
    let verdicts: Vec<_> = agui::results_by_call(&events).iter().map(|result| result["ok"].clone()).collect();
    assert_eq!(verdicts, [json!(true), json!(false)]);
    assert_eq!(server.log().of("ToolDispatched").await.len(), 1);
    server.finish().await;
}

/// A client keeps the answers it gave until a run ends well, and sends them with every later one.
#[tokio::test]
async fn a_new_question_after_a_resume_that_failed_is_asked_though_the_old_answers_come_with_it() {
    let (server, model) =
        with([Script::calls(&DEMO), Script::new().fail(ErrorCode::ModelRefused), Script::say("here I am")]).await;
    let ann = server.client("ann");
    let open = interrupts(&run(&ann, &input("t", "r1", &[("user", "the text")])).await);
    let answers = [(open[0].as_str(), "resolved", json!({ "approved": true }))];
    let failed = run(&ann, &with_resume(input("t", "r2", &[]), &answers)).await;
    assert!(agui::error_code(&failed).starts_with("MODEL_"), "{failed:?}");
    let next = input("t", "r3", &[("user", "the text"), ("user", "are you there?")]);
    let events = run(&ann, &with_resume(next, &answers)).await;
    agui::assert_success(&events);
    assert_eq!(model.said(2).last().unwrap().1, "are you there?");
    server.finish().await;
}

#[tokio::test]
async fn a_client_that_steers_away_cancels_the_open_approval_with_its_new_message() {
    let (server, model) = with([Script::calls(&DEMO), Script::say("something else, then")]).await;
    let ann = server.client("ann");
    let open = interrupts(&run(&ann, &input("t", "r1", &[("user", "the text")])).await);
    let away = input("t", "r2", &[("user", "the text"), ("user", "something else")]);
    let events = run(&ann, &with_resume(away, &[(open[0].as_str(), "cancelled", Value::Null)])).await;
    agui::assert_success(&events);
    assert_eq!(server.log().one("InterruptCancelled").await.payload["reason"], "RUN_STOPPED");
    assert!(server.log().of("InterruptResolved").await.is_empty(), "nobody refused anything");
    assert_eq!(model.said(1).last().unwrap().1, "something else");
    assert_eq!(ann.answer(&open[0], true).await.refused(), (409, "INTERRUPT_CLOSED"));
    server.finish().await;
}

#[tokio::test]
async fn a_run_id_that_was_used_for_another_question_is_refused_and_the_open_approval_stays() {
    let (server, _model) = with([Script::calls(&DEMO), Script::say("fine")]).await;
    let ann = server.client("ann");
    let open = interrupts(&run(&ann, &input("t", "r1", &[("user", "the text")])).await);
    // The run's id of before, with a new message that would abandon the approval.
    let again = input("t", "r1", &[("user", "the text"), ("user", "something else")]);
    let again = with_resume(again, &[(open[0].as_str(), "cancelled", Value::Null)]);
    assert_eq!(ann.post("/api/agui", &again).await.refused(), (409, "IDEMPOTENCY_CONFLICT"));
    assert!(server.log().of("InterruptCancelled").await.is_empty(), "nothing was cancelled");
    ann.answer(&open[0], true).await.ok();
    server.finish().await;
}

#[tokio::test]
async fn threads_of_two_users_never_meet_whatever_their_ids() {
    let (server, model) = with([]).await;
    let (ann, bob) = (server.client("ann"), server.client("bob"));
    agui::assert_success(&run(&ann, &input("same", "r", &[("user", "a secret of Ann")])).await);
    agui::assert_success(&run(&bob, &input("same", "r", &[("user", "hi")])).await);
    assert_eq!(model.said(1).len(), 1);
    // A conversation's own id is its owner's thread, and a thread of his own for anybody else.
    let (asked, _) = ann.converse(&Question::new("another secret")).await;
    agui::assert_success(&run(&bob, &input(&asked.conversation_id, "r", &[("user", "hi")])).await);
    assert_eq!(model.said(3).len(), 1);
    agui::assert_success(&run(&ann, &input(&asked.conversation_id, "r", &[("user", "and?")])).await);
    assert_eq!(model.said(4).len(), 3);
    // Nor can Ann's conversation be taken by guessing what its id is made of.
    let anns = ann.get("/api/conversations").await.ok();
    for conversation in anns.as_array().unwrap() {
        let id = conversation["id"].as_str().unwrap();
        assert_eq!(bob.get(&format!("/api/turns?conversation_id={id}")).await.refused(), (403, "FORBIDDEN"));
        let question = Question::new("mine?").within(id);
        assert_eq!(bob.post("/api/turns", question.body()).await.refused(), (403, "FORBIDDEN"));
    }
    // Another's approval is not answered and not cancelled.
    model.then([Script::calls(&DEMO)]);
    let open = interrupts(&run(&ann, &input("approval", "r", &[("user", "the text")])).await);
    for (status, payload) in [("resolved", json!({ "approved": true })), ("cancelled", Value::Null)] {
        let message = input("approval", &new_id(), &[("user", "x")]);
        let stolen = with_resume(message, &[(open[0].as_str(), status, payload)]);
        assert_eq!(refused(&bob, &stolen).await, (403, "FORBIDDEN".to_owned()));
    }
    assert!(server.log().of("InterruptResolved").await.is_empty());
    assert!(server.log().of("InterruptCancelled").await.is_empty());
    server.finish().await;
}

#[tokio::test]
async fn a_stock_run_is_stopped_by_its_clients_leaving_and_an_old_client_is_told_by_an_error() {
    let half = || Script::new().text("half").hold();
    let (server, model) = with([half(), half()]).await;
    let ann = server.client("ann");
    let mut stream = ann.post_stream("/api/agui", &input("t", "r1", &[("user", "go")])).await.unwrap();
    stream.until("text", |event| event["delta"] == "half").await;
    drop(stream);
    model.dropped(1).await;
    let cancelled = server.log().wait_kind("RunCancelled").await;
    assert_eq!(cancelled.payload["error_code"], "CLIENT_DISCONNECTED");

    let mut old = input("t", "r2", &[("user", "go")]);
    old.as_object_mut().unwrap().remove("protocolVersion");
    let mut stream = ann.post_stream("/api/agui", &old).await.unwrap();
    stream.until("text", |event| event["delta"] == "half").await;
    let run = server.log().of("RunClaimed").await.pop().unwrap().payload["run_id"].clone();
    assert_eq!(ann.stop(run.as_str().unwrap()).await, "cancelled");
    assert_eq!(agui::error_code(&events(&stream.rest().await)), "cancelled");
    server.finish().await;
}

#[tokio::test]
async fn a_stock_run_without_a_question_or_an_identity_is_refused_before_anything_is_recorded() {
    let (server, _) = with([]).await;
    let ann = server.client("ann");
    let head = server.log().head().await;
    for messages in [&[][..], &[("user", " ")], &[("user", "hi"), ("assistant", "hello")]] {
        let answer = refused(&ann, &input("t", "r", messages)).await;
        assert_eq!(answer, (422, "VALIDATION_FAILED".to_owned()));
    }
    assert_eq!(refused(&ann.anonymous(), &input("t", "r", &[("user", "hi")])).await.0, 401);
    let unknown = with_resume(input("t", "r", &[]), &[(&new_id(), "resolved", json!({ "approved": true }))]);
    assert_eq!(refused(&ann, &unknown).await, (404, "INTERRUPT_NOT_FOUND".to_owned()));
    assert_eq!(server.log().head().await, head);
    server.finish().await;
}
