//! Approvals: asked once for one call with one set of arguments, answered once, carried out once.

use devmind_tests::sse::{interrupts, resume_input};
use devmind_tests::{Asked, Client, Fact, Question, Script, ScriptedModel, TestServer, agui, eventually, new_id};
use serde_json::{Value, json};
use std::sync::Arc;

const DEMO: (&str, &str, &str) = ("c1", "demo_text", "{}");

/// A run that waits for the answer to one call of `demo_text`, and that answer's interrupt.
async fn waiting(client: &Client) -> (Asked, String) {
    let (asked, events) = client.converse(&Question::new("the demo text, please")).await;
    let mut ids = interrupts(&events);
    assert_eq!(ids.len(), 1);
    (asked, ids.remove(0))
}

async fn server() -> (TestServer, Arc<ScriptedModel>) {
    let model = ScriptedModel::new([Script::calls(&[DEMO]), Script::say("the end")]);
    (TestServer::with_scripted(model.clone()).await, model)
}

fn run_id(reply: &Value) -> String {
    reply["run_id"].as_str().unwrap_or_else(|| panic!("no run in {reply}")).to_owned()
}

/// How often facts of a kind are about a call.
fn count(facts: &[Fact], kind: &str, tool_call_id: &str) -> usize {
    facts.iter().filter(|fact| fact.is(kind) && fact.stream_id == tool_call_id).count()
}

#[tokio::test]
async fn an_approved_call_runs_once_and_the_model_is_not_asked_for_it_again() {
    let (server, model) = server().await;
    let ann = server.client("ann");
    let (asked, interrupt) = waiting(&ann).await;
    let turn = ann.turn(&asked).await;
    assert_eq!((&turn["status"], &turn["active_run"]["status"]), (&json!("interrupted"), &json!("interrupted")));
    let shown = &turn["pending_approvals"][0];
    assert_eq!((&shown["interrupt_id"], &shown["tool"]), (&json!(interrupt), &json!("demo_text")));
    assert_eq!(shown["arguments"], json!({}));
    assert!(shown["message"].is_string() && shown["expires_at"].is_string(), "{shown}");
    let call = ann.tool_call(&asked).await;
    assert_eq!(server.log().of("ToolDispatched").await.len(), 0, "nothing runs before the answer");

    let reply = ann.answer(&interrupt, true).await.ok();
    assert_eq!((&reply["kind"], &reply["turn_id"]), (&json!("resume"), &json!(asked.turn_id)));
    assert_eq!(reply["user_message_id"], asked.user_message_id.as_str());
    assert_ne!(reply["run_id"], asked.run_id.as_str());
    assert_eq!(ann.turn(&asked).await["status"], "pending");
    assert_eq!(model.times_asked(), 1, "an answer is only recorded");

    let events = ann.resume(&asked, &run_id(&reply), &[interrupt]).await;
    agui::assert_success(&events);
    assert_eq!(agui::spoken(&events), "the end");
    assert_eq!(agui::results(&events)[0]["ok"], true);
    assert!(events.iter().all(|event| event["type"] != "TOOL_CALL_START"), "the client knows the call already");
    assert_eq!(model.times_asked(), 2, "once for the call, once with its result");
    let facts = server.log().all().await;
    let id = agui::text(&call, "tool_call_id");
    for kind in ["ToolCallRequested", "ToolDispatched", "ToolResultRecorded"] {
        assert_eq!(count(&facts, kind, id), 1, "{kind}");
    }
    let decided: Vec<_> = facts.iter().filter(|fact| fact.is("ToolCallDecided")).map(|fact| &fact.payload).collect();
    assert_eq!((&decided[0]["decision"], &decided[1]["decision"]), (&json!("ask"), &json!("allow")));
    assert_eq!(decided[1]["by"], "user:ann");
    let thread = facts.iter().filter(|fact| fact.is("ThreadStarted")).count();
    assert_eq!(thread, 1, "the resumed run goes on in the thread of the interrupted one");
    let turn = ann.turn(&asked).await;
    assert_eq!((&turn["status"], &turn["answer"]), (&json!("completed"), &json!("the end")));
    assert_eq!(turn["pending_approvals"], json!([]));
    server.finish().await;
}

#[tokio::test]
async fn a_refused_call_never_runs_and_the_model_is_told_that_a_person_said_no() {
    let (server, model) = server().await;
    let ann = server.client("ann");
    let (asked, interrupt) = waiting(&ann).await;
    let reply = ann.answer(&interrupt, false).await.ok();
    let events = ann.resume(&asked, &run_id(&reply), &[interrupt]).await;
    agui::assert_success(&events);
    assert_eq!(agui::results(&events)[0]["error"]["code"], "APPROVAL_REJECTED");
    assert!(model.said(1).last().unwrap().1.contains("APPROVAL_REJECTED"));
    let log = server.log();
    assert!(log.of("ToolDispatched").await.is_empty());
    let call = ann.get(&format!("/api/tool-calls?conversation_id={}", asked.conversation_id)).await.ok();
    assert_eq!((&call[0]["status"], &call[0]["error_code"]), (&json!("rejected"), &json!("APPROVAL_REJECTED")));
    server.finish().await;
}

#[tokio::test]
async fn the_clients_payload_decides_nothing_the_recorded_answer_does() {
    let (server, _) = server().await;
    let ann = server.client("ann");
    let (asked, interrupt) = waiting(&ann).await;
    let reply = ann.answer(&interrupt, false).await.ok();
    // The input of `resume` says "approved".
    let events = ann.resume(&asked, &run_id(&reply), &[interrupt]).await;
    assert_eq!(agui::results(&events)[0]["error"]["code"], "APPROVAL_REJECTED");
    server.finish().await;
}

#[tokio::test]
async fn an_answer_sent_again_is_the_same_answer_whatever_its_key_and_however_late() {
    let (server, model) = server().await;
    let ann = server.client("ann");
    let (asked, interrupt) = waiting(&ann).await;
    let first = ann.answer(&interrupt, true).await.ok();
    let other_key = json!({ "interrupt_id": interrupt, "approved": true, "idempotency_key": new_id() });
    let in_a_list =
        json!({ "decisions": [{ "interrupt_id": interrupt, "approved": true }], "idempotency_key": new_id() });
    assert_eq!(ann.answer(&interrupt, true).await.ok(), first);
    assert_eq!(ann.post("/api/runs/resume", &other_key).await.ok(), first);
    assert_eq!(ann.post("/api/runs/resume", &in_a_list).await.ok(), first);
    ann.resume(&asked, &run_id(&first), std::slice::from_ref(&interrupt)).await;
    assert_eq!(ann.answer(&interrupt, true).await.ok(), first);

    // Also when the conversation has moved on, and after a restart.
    ann.converse(&Question::new("another question").within(&asked.conversation_id)).await;
    assert_eq!(ann.answer(&interrupt, true).await.ok(), first);
    let server = server.restart().await;
    assert_eq!(server.client("ann").answer(&interrupt, true).await.ok(), first);
    server.log().one("InterruptResolved").await;
    assert_eq!(server.log().of("ToolDispatched").await.len(), 1);
    assert_eq!(model.times_asked(), 3);
    server.finish().await;
}

#[tokio::test]
async fn the_opposite_answer_is_refused_under_the_same_and_under_another_key() {
    for first in [true, false] {
        let (server, _) = server().await;
        let ann = server.client("ann");
        let (asked, interrupt) = waiting(&ann).await;
        let reply = ann.answer(&interrupt, first).await.ok();
        let head = server.log().head().await;
        assert_eq!(ann.answer(&interrupt, !first).await.refused(), (409, "INTERRUPT_ALREADY_RESOLVED"));
        let other = json!({ "interrupt_id": interrupt, "approved": !first, "idempotency_key": new_id() });
        assert_eq!(ann.post("/api/runs/resume", &other).await.refused(), (409, "INTERRUPT_ALREADY_RESOLVED"));
        assert_eq!(server.log().head().await, head, "a refusal leaves no trace");
        let events = ann.resume(&asked, &run_id(&reply), &[interrupt]).await;
        assert_eq!(agui::results(&events)[0]["ok"], first);
        server.finish().await;
    }
}

#[tokio::test]
async fn twenty_answers_at_once_prepare_one_run_and_the_two_opposites_have_one_winner() {
    let (server, model) = server().await;
    let ann = server.client("ann");
    let (asked, interrupt) = waiting(&ann).await;
    let answers = futures::future::join_all((0..20).map(|n| {
        let (ann, interrupt) = (ann.clone(), interrupt.clone());
        async move {
            let body = json!({ "interrupt_id": interrupt, "approved": n % 2 == 0, "idempotency_key": format!("k{n}") });
            (n % 2 == 0, ann.post("/api/runs/resume", &body).await)
        }
    }))
    .await;
    let won = server.log().one("InterruptResolved").await.payload["approved"] == true;
    let mut runs = std::collections::BTreeSet::new();
    for (approved, answer) in answers {
        if approved == won {
            runs.insert(run_id(&answer.ok()));
        } else {
            assert_eq!(answer.refused(), (409, "INTERRUPT_ALREADY_RESOLVED"));
        }
    }
    assert_eq!(runs.len(), 1, "{runs:?}");
    ann.resume(&asked, &runs.pop_first().unwrap(), &[interrupt]).await;
    assert_eq!(model.times_asked(), 2);
    server.finish().await;
}

#[tokio::test]
async fn an_approval_belongs_to_the_conversations_owner_and_an_unknown_one_to_nobody() {
    let (server, _) = server().await;
    let (ann, bob) = (server.client("ann"), server.client("bob"));
    let (asked, interrupt) = waiting(&ann).await;
    let head = server.log().head().await;
    assert_eq!(bob.answer(&interrupt, true).await.refused(), (403, "FORBIDDEN"));
    assert_eq!(ann.anonymous().answer(&interrupt, true).await.refused(), (401, "UNAUTHENTICATED"));
    assert_eq!(ann.answer(&new_id(), true).await.refused(), (404, "INTERRUPT_NOT_FOUND"));
    let stop = json!({ "run_id": asked.run_id });
    assert_eq!(bob.post("/api/runs/stop", &stop).await.refused(), (403, "FORBIDDEN"));
    let rerun = json!({ "turn_id": asked.turn_id, "idempotency_key": new_id() });
    assert_eq!(bob.post("/api/turns/rerun", &rerun).await.refused(), (403, "FORBIDDEN"));
    assert_eq!(server.log().head().await, head);

    // A prepared run is claimed by its owner alone.
    let reply = ann.answer(&interrupt, true).await.ok();
    let input = resume_input(&asked, &run_id(&reply), std::slice::from_ref(&interrupt));
    let refused = bob.post_stream("/api/agent", &input).await.err().unwrap();
    assert_eq!(refused.refused(), (403, "FORBIDDEN"));
    agui::assert_success(&ann.resume(&asked, &run_id(&reply), &[interrupt]).await);
    server.finish().await;
}

#[tokio::test]
async fn a_resumed_run_is_claimed_once_and_only_by_a_client_that_names_the_answered_approval() {
    let (server, model) = server().await;
    let ann = server.client("ann");
    let (asked, interrupt) = waiting(&ann).await;
    let reply = ann.answer(&interrupt, true).await.ok();
    let run = run_id(&reply);
    for named in [vec![], vec![new_id()], vec![interrupt.clone(), new_id()]] {
        let refused = ann.post_stream("/api/agent", &resume_input(&asked, &run, &named)).await.err().unwrap();
        assert_eq!(refused.refused(), (400, "INTERRUPT_MISMATCH"), "{named:?}");
    }
    let input = resume_input(&asked, &run, std::slice::from_ref(&interrupt));
    // The interrupted run was claimed, too.
    let refused = ann.post_stream("/api/agent", &asked.input()).await.err().unwrap();
    assert_eq!(refused.refused(), (409, "RUN_ALREADY_CLAIMED"));
    agui::assert_success(&ann.resume(&asked, &run, &[interrupt]).await);
    let refused = ann.post_stream("/api/agent", &input).await.err().unwrap();
    assert_eq!(refused.refused(), (409, "RUN_ALREADY_CLAIMED"));
    assert_eq!(server.log().of("ToolDispatched").await.len(), 1);
    assert_eq!(model.times_asked(), 2);
    server.finish().await;
}

#[tokio::test]
async fn while_an_approval_waits_a_new_question_is_refused_and_other_conversations_go_on() {
    let (server, _) = server().await;
    let ann = server.client("ann");
    let (asked, interrupt) = waiting(&ann).await;
    let next = Question::new("and now?").within(&asked.conversation_id);
    let head = server.log().head().await;
    assert_eq!(ann.post("/api/turns", next.body()).await.refused(), (409, "TURN_WAITING_APPROVAL"));
    assert_eq!(server.log().head().await, head);
    agui::assert_success(&ann.converse(&Question::new("elsewhere")).await.1);
    // Answered but not claimed: the run is queued, and a new question abandons it.
    let reply = ann.answer(&interrupt, true).await.ok();
    let (_, events) = ann.converse(&next).await;
    agui::assert_success(&events);
    let turn = ann.turn(&asked).await;
    assert_eq!((&turn["status"], &turn["error_code"]), (&json!("cancelled"), &json!("ABANDONED")));
    let refused = ann.post_stream("/api/agent", &resume_input(&asked, &run_id(&reply), &[interrupt])).await;
    assert_eq!(refused.err().unwrap().refused(), (409, "RUN_ALREADY_CLAIMED"));
    assert!(server.log().of("ToolDispatched").await.is_empty(), "an abandoned approval lets nothing run");
    server.finish().await;
}

#[tokio::test]
async fn an_edit_while_an_approval_waits_cancels_it_and_its_card_is_dead() {
    let (server, model) = server().await;
    let ann = server.client("ann");
    let (asked, interrupt) = waiting(&ann).await;
    let edited = ann.rerun(&asked, Some("say who you are")).await;
    assert_eq!(server.log().one("InterruptCancelled").await.payload["reason"], "EDITED");
    assert_eq!(ann.answer(&interrupt, true).await.refused(), (409, "INTERRUPT_CLOSED"));
    agui::assert_success(&ann.run(&edited).await);
    assert_eq!(model.said(1), [("user".to_owned(), "say who you are".to_owned())], "nothing of the replaced run");
    assert_eq!(ann.answer(&interrupt, true).await.refused(), (409, "INTERRUPT_CLOSED"), "for ever");
    let turn = ann.turn(&edited).await;
    assert_eq!((&turn["status"], &turn["question"]), (&json!("completed"), &json!("say who you are")));
    assert!(server.log().of("ToolDispatched").await.is_empty());
    server.finish().await;
}

#[tokio::test]
async fn a_stop_while_an_approval_waits_cancels_both_and_says_so_twice() {
    let (server, model) = server().await;
    let ann = server.client("ann");
    let (asked, interrupt) = waiting(&ann).await;
    assert_eq!(ann.stop(&asked.run_id).await, "cancelled");
    assert_eq!(ann.stop(&asked.run_id).await, "cancelled");
    assert_eq!(server.log().one("InterruptCancelled").await.payload["reason"], "RUN_STOPPED");
    server.log().one("RunCancelled").await;
    assert_eq!(ann.answer(&interrupt, true).await.refused(), (409, "INTERRUPT_CLOSED"));
    assert_eq!(ann.turn(&asked).await["pending_approvals"], json!([]));
    let (_, events) = ann.converse(&Question::new("go on").within(&asked.conversation_id)).await;
    agui::assert_success(&events);
    assert_eq!(model.times_asked(), 2);
    server.finish().await;
}

#[tokio::test]
async fn silence_expires_an_approval_which_is_told_to_the_model_and_is_no_refusal() {
    let model = ScriptedModel::new([Script::calls(&[DEMO]), Script::say("nobody answered")]);
    let server = TestServer::scripted_with(model.clone(), |config| config.approval_lifetime_ms = 50).await;
    let ann = server.client("ann");
    let (asked, interrupt) = waiting(&ann).await;
    let expired = server.log().wait_kind("InterruptExpired").await;
    assert_eq!(expired.payload["interrupt_id"], interrupt.as_str());
    assert_eq!(expired.metadata["actor"]["kind"], "server", "no person did this");
    assert_eq!(ann.answer(&interrupt, true).await.refused(), (409, "INTERRUPT_EXPIRED"));
    let turn = ann.turn(&asked).await;
    assert_eq!((&turn["active_run"]["kind"], &turn["status"]), (&json!("resume"), &json!("pending")));
    assert_eq!(turn["pending_approvals"], json!([]));
    let run = turn["active_run"]["run_id"].as_str().unwrap();
    let events = ann.resume(&asked, run, &[]).await;
    agui::assert_success(&events);
    assert_eq!(agui::results(&events)[0]["error"]["code"], "APPROVAL_EXPIRED");
    assert!(server.log().of("ToolDispatched").await.is_empty());
    assert!(server.log().of("InterruptResolved").await.is_empty());
    server.finish().await;
}

#[tokio::test]
async fn an_approval_whose_time_is_over_is_not_answered_any_more_even_before_it_is_recorded_as_expired() {
    let model = ScriptedModel::new([Script::calls(&[DEMO]), Script::calls(&[DEMO])]);
    let server = TestServer::scripted_with(model, |config| config.approval_lifetime_ms = 1).await;
    let ann = server.client("ann");
    let (_, interrupt) = waiting(&ann).await;
    // One millisecond: over before any answer can come.
    eventually("the answer is refused", || async {
        match ann.answer(&interrupt, true).await {
            answer if answer.refused() == (409, "INTERRUPT_EXPIRED") => Ok(()),
            answer => Err(format!("{answer:?}")),
        }
    })
    .await;
    assert!(server.log().of("InterruptResolved").await.is_empty());
    server.finish().await;
}

#[tokio::test]
async fn an_approval_stays_answerable_after_a_restart_and_the_prepared_run_stays_claimable_after_another() {
    let (server, model) = server().await;
    let (asked, interrupt) = waiting(&server.client("ann")).await;
    let server = server.restart().await;
    let ann = server.client("ann");
    assert_eq!(ann.turn(&asked).await["status"], "interrupted");
    assert_eq!(ann.pending(&asked).await[0]["interrupt_id"], interrupt.as_str(), "ids are stored, not made anew");
    let reply = ann.answer(&interrupt, true).await.ok();
    let server = server.restart().await;
    let ann = server.client("ann");
    assert_eq!(ann.answer(&interrupt, true).await.ok(), reply);
    agui::assert_success(&ann.resume(&asked, &run_id(&reply), &[interrupt]).await);
    assert_eq!(model.times_asked(), 2);
    server.finish().await;
}
