//! Edit and retry of the latest turn, and what the model is told of turns that were replaced, stopped
//! or went well.

use devmind_tests::{Asked, Client, Question, Script, ScriptedModel, TestServer, agui, new_id};
use serde_json::{Value, json};
use std::sync::Arc;

async fn with(scripts: impl IntoIterator<Item = Script>) -> (TestServer, Arc<ScriptedModel>) {
    let model = ScriptedModel::new(scripts);
    (TestServer::with_scripted(model.clone()).await, model)
}

fn pair(role: &str, text: &str) -> (String, String) {
    (role.to_owned(), text.to_owned())
}

async fn rerun(client: &Client, turn_id: &str, content: Option<&str>) -> devmind_tests::Answer {
    let body = json!({ "turn_id": turn_id, "content": content, "idempotency_key": new_id() });
    client.post("/api/turns/rerun", &body).await
}

async fn title(client: &Client, asked: &Asked) -> Value {
    let all = client.get("/api/conversations").await.ok();
    let own = all.as_array().unwrap().iter().find(|one| one["id"] == asked.conversation_id.as_str());
    own.unwrap()["title"].clone()
}

#[tokio::test]
async fn an_edit_replaces_question_answer_and_title_and_keeps_all_of_them_in_the_log() {
    let (server, model) = with([Script::say("red, then"), Script::say("blue, then")]).await;
    let ann = server.client("ann");
    let (asked, _) = ann.converse(&Question::new("the colour is red")).await;
    let edited = ann.rerun(&asked, Some("the colour is blue")).await;
    assert_eq!((&edited.turn_id, &edited.conversation_id), (&asked.turn_id, &asked.conversation_id));
    assert!(edited.user_message_id != asked.user_message_id && edited.run_id != asked.run_id);
    let turn = ann.turn(&edited).await;
    assert_eq!((&turn["status"], &turn["answer"]), (&json!("pending"), &json!(null)), "the old answer is gone at once");
    agui::assert_success(&ann.run(&edited).await);
    assert_eq!(model.said(1), [pair("user", "the colour is blue")]);
    assert_eq!(title(&ann, &asked).await, "the colour is blue");
    let turns = ann.turns(&asked.conversation_id).await;
    assert_eq!(turns.len(), 1);
    assert_eq!((&turns[0]["question"], &turns[0]["answer"]), (&json!("the colour is blue"), &json!("blue, then")));

    let log = server.log();
    let rerun = log.one("TurnRerunPrepared").await.payload;
    let answered = log.of("RunSucceeded").await[0].payload["message_id"].clone();
    assert_eq!(rerun["replaced_message_ids"], json!([asked.user_message_id, answered]));
    assert_eq!((&rerun["edited"], &rerun["previous_message_id"]), (&json!(true), &json!(asked.user_message_id)));
    let run = &log.of("RunPrepared").await[1].payload;
    assert_eq!((&run["kind"], &run["trigger"], &run["run_seq"]), (&json!("retry"), &json!("edit"), &json!(2)));
    assert_eq!(run["parent_run_id"], asked.run_id.as_str());
    assert_ne!(run["graph_thread_id"], log.of("RunPrepared").await[0].payload["graph_thread_id"]);
    assert_eq!(log.of("TurnPrepared").await[0].payload["content"], "the colour is red", "replaced, never deleted");
    server.finish().await;
}

#[tokio::test]
async fn a_retry_asks_the_same_question_again_and_replaces_the_answer_alone() {
    let (server, model) = with([Script::say("one"), Script::say("two"), Script::say("three")]).await;
    let ann = server.client("ann");
    let (first, _) = ann.converse(&Question::new("a question")).await;
    let (second, _) = ann.converse(&Question::new("another").within(&first.conversation_id)).await;
    let again = ann.rerun(&second, None).await;
    assert_eq!(again.user_message_id, second.user_message_id);
    agui::assert_success(&ann.run(&again).await);
    assert_eq!(model.said(2), model.said(1), "what was replaced is not told");
    let turns = ann.turns(&first.conversation_id).await;
    assert_eq!((&turns[1]["question"], &turns[1]["answer"]), (&json!("another"), &json!("three")));
    assert_eq!(title(&ann, &first).await, "a question", "only the first turn names the conversation");
    let rerun = server.log().one("TurnRerunPrepared").await.payload;
    let answered = server.log().of("RunSucceeded").await[1].payload["message_id"].clone();
    assert_eq!(rerun["replaced_message_ids"], json!([answered]));
    assert!(server.log().of("ConversationRenamed").await.is_empty());
    server.finish().await;
}

#[tokio::test]
async fn only_the_latest_turn_is_rerun_and_only_when_nothing_runs() {
    let (server, _) = with([Script::say("one"), Script::new().text("two").hold()]).await;
    let ann = server.client("ann");
    let (first, _) = ann.converse(&Question::new("a question")).await;
    let second = ann.ask(&Question::new("another").within(&first.conversation_id)).await;
    let head = server.log().head().await;
    assert_eq!(rerun(&ann, &first.turn_id, Some("x")).await.refused(), (409, "TURN_NOT_LATEST"));
    assert_eq!(rerun(&ann, &new_id(), None).await.refused(), (404, "TURN_NOT_FOUND"));
    assert_eq!(rerun(&ann, &first.turn_id, Some(" ")).await.refused(), (422, "VALIDATION_FAILED"));
    assert_eq!(server.log().head().await, head);
    let stream = ann.stream(&second).await;
    server.log().wait_kind("RunClaimed").await;
    assert_eq!(rerun(&ann, &second.turn_id, None).await.refused(), (409, "RUN_IN_PROGRESS"));
    assert_eq!(rerun(&ann, &first.turn_id, None).await.refused(), (409, "TURN_NOT_LATEST"));
    let rows = ann.turns(&first.conversation_id).await;
    assert_eq!([&rows[0]["can_rerun"], &rows[1]["can_rerun"]], [&json!(false), &json!(false)]);
    ann.stop(&second.run_id).await;
    drop(stream);
    assert_eq!(ann.turn(&second).await["can_rerun"], true);
    let again = ann.rerun(&second, None).await;
    agui::assert_success(&ann.run(&again).await);
    let turn = ann.turn(&again).await;
    assert_eq!((&turn["answer"], &turn["partial"], &turn["error_code"]), (&json!("done"), &json!(false), &json!(null)));
    server.finish().await;
}

#[tokio::test]
async fn a_run_that_was_prepared_and_not_claimed_gives_way_to_a_rerun_or_a_new_question() {
    let (server, model) = with([Script::say("one"), Script::say("two")]).await;
    let ann = server.client("ann");
    let queued = ann.ask(&Question::new("first try")).await;
    let rerun = ann.rerun(&queued, Some("second try")).await;
    let cancelled = server.log().one("RunCancelled").await.payload;
    assert_eq!((&cancelled["run_id"], &cancelled["error_code"]), (&json!(queued.run_id), &json!("REPLACED_BY_RERUN")));
    let refused = ann.post_stream("/api/agent", &queued.input()).await.err().unwrap();
    assert_eq!(refused.refused(), (409, "RUN_ALREADY_CLAIMED"));

    let (asked, _) = ann.converse(&Question::new("another").within(&queued.conversation_id)).await;
    let abandoned = &server.log().of("RunCancelled").await[1].payload;
    assert_eq!((&abandoned["run_id"], &abandoned["error_code"]), (&json!(rerun.run_id), &json!("ABANDONED")));
    let turn = ann.turn(&queued).await;
    assert_eq!((&turn["status"], &turn["error_code"]), (&json!("cancelled"), &json!("ABANDONED")));
    let refused = ann.post_stream("/api/agent", &rerun.input()).await.err().unwrap();
    assert_eq!(refused.refused(), (409, "RUN_ALREADY_CLAIMED"));
    assert_eq!(ann.turn(&asked).await["status"], "completed");
    assert_eq!(model.times_asked(), 1);
    let said = model.said(0);
    assert_eq!((&said[0], &said[2]), (&pair("user", "second try"), &pair("user", "another")));
    server.finish().await;
}

/// B12.
#[tokio::test]
async fn after_an_edit_no_prompt_holds_anything_of_what_was_replaced_also_after_a_rebuild_of_the_views() {
    let red = Script::new().text("it is re").hold();
    let scripts = [red, Script::say("blue, noted"), Script::say("blue"), Script::say("still blue")];
    let (server, model) = with(scripts).await;
    let ann = server.client("ann");
    let first = ann.ask(&Question::new("the colour is red")).await;
    let mut stream = ann.stream(&first).await;
    stream.until("text", |event| event["delta"] == "it is re").await;
    // While it is being answered nothing can be edited; stopped, it can.
    assert_eq!(rerun(&ann, &first.turn_id, Some("the colour is blue")).await.refused(), (409, "RUN_IN_PROGRESS"));
    ann.stop(&first.run_id).await;
    assert_eq!(agui::last(&stream.rest().await)["outcome"]["type"], "cancelled");
    let edited = ann.rerun(&first, Some("the colour is blue")).await;
    agui::assert_success(&ann.run(&edited).await);
    let (third, _) = ann.converse(&Question::new("which colour?").within(&first.conversation_id)).await;
    let told = [pair("user", "the colour is blue"), pair("assistant", "blue, noted"), pair("user", "which colour?")];
    assert_eq!(model.said(2), told);

    let before = ann.everything().await;
    let stopped = server.stop().await;
    stopped.data.delete_views().await;
    let server = stopped.start().await;
    let ann = server.client("ann");
    assert_eq!(ann.everything().await, before);
    let again = ann.rerun(&third, None).await;
    agui::assert_success(&ann.run(&again).await);
    assert_eq!(model.said(3), told);
    // The end of the stopped run is where it was, under its own run.
    let cancelled = server.log().one("RunCancelled").await.payload;
    assert_eq!((&cancelled["run_id"], &cancelled["partial_text"]), (&json!(first.run_id), &json!("it is re")));
    server.finish().await;
}

#[tokio::test]
async fn a_continue_after_a_stop_is_told_where_the_answer_was_cut_off_and_the_note_is_in_no_message() {
    let scripts = [Script::new().text("1 2 3").hold(), Script::new().hold(), Script::say("4 5")];
    let (server, model) = with(scripts).await;
    let ann = server.client("ann");
    let first = ann.ask(&Question::new("count to five")).await;
    let mut stream = ann.stream(&first).await;
    stream.until("text", |event| event["delta"] == "1 2 3").await;
    ann.stop(&first.run_id).await;
    drop(stream);
    let second = ann.ask(&Question::new("well?").within(&first.conversation_id)).await;
    let stream = ann.stream(&second).await;
    model.asked(2).await;
    ann.stop(&second.run_id).await;
    drop(stream);
    let (third, _) = ann.converse(&Question::new("continue").within(&first.conversation_id)).await;
    let said = model.said(2);
    assert_eq!(
        (&said[0], &said[2], &said[4]),
        (&pair("user", "count to five"), &pair("user", "well?"), &pair("user", "continue"))
    );
    let (cut, none) = (&said[1].1, &said[3].1);
    assert!(cut.starts_with("1 2 3\n\n(") && cut.contains("cut off") && cut.contains("without repeating"), "{cut}");
    assert!(none.starts_with('(') && said[3].0 == "assistant", "{none}");
    for fact in server.log().all().await {
        assert!(!fact.text.contains("cut off"), "a note is for the prompt alone: {fact}");
    }
    let answers: Vec<_> = ann.turns(&first.conversation_id).await.iter().map(|turn| turn["answer"].clone()).collect();
    assert_eq!(answers, [json!("1 2 3"), json!(null), json!("4 5")]);
    let earlier = ann.turn(&first).await;
    assert_eq!((&earlier["status"], &earlier["can_rerun"]), (&json!("cancelled"), &json!(false)));
    assert_eq!(ann.turn(&third).await["can_rerun"], true);
    server.finish().await;
}

#[tokio::test]
async fn the_model_is_told_the_last_twenty_turns_and_no_more() {
    let (server, model) = with((0..23).map(|n| Script::say(&format!("a{n}")))).await;
    let ann = server.client("ann");
    let (first, _) = ann.converse(&Question::new("q0")).await;
    for n in 1..22 {
        ann.converse(&Question::new(&format!("q{n}")).within(&first.conversation_id)).await;
    }
    // A replaced turn counts once.
    let latest = ann.ask(&Question::new("q22").within(&first.conversation_id)).await;
    let latest = ann.rerun(&latest, Some("q22, edited")).await;
    agui::assert_success(&ann.run(&latest).await);
    let told = (2..22).flat_map(|n| [pair("user", &format!("q{n}")), pair("assistant", &format!("a{n}"))]);
    let expected: Vec<_> = told.chain([pair("user", "q22, edited")]).collect();
    assert_eq!(model.said(22), expected);
    server.finish().await;
}
