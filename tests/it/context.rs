//! What the model is told of earlier turns.

use devmind_tests::{ModelEndpoint, Question, Reply, TestServer, agui};
use serde_json::{Value, json};

fn said(messages: &[Value]) -> Vec<(&str, &str)> {
    messages.iter().map(|message| (agui::text(message, "role"), agui::text(message, "content"))).collect()
}

#[tokio::test]
async fn a_name_told_in_the_first_turn_is_recalled_in_the_second_and_by_nobody_else() {
    let server = TestServer::start().await;
    let ann = server.client("ann");
    let (asked, _) = ann.converse(&Question::new("My name is Ann")).await;
    let (_, events) = ann.converse(&Question::new("What is my name?").within(&asked.conversation_id)).await;
    assert_eq!(agui::spoken(&events), "Your name is Ann.");
    let (_, events) = ann.converse(&Question::new("What is my name?")).await;
    assert_eq!(agui::spoken(&events), "You have not told me your name.", "conversations know nothing of each other");
    server.finish().await;
}

#[tokio::test]
async fn earlier_turns_are_told_in_order_with_a_note_where_an_answer_was_cut_off() {
    let endpoint = ModelEndpoint::start([
        Reply::say("first answer"),
        Reply::stream().text("half of the ").cut(),
        Reply::Status(400, "{}".to_owned()),
        Reply::say("the rest"),
    ])
    .await;
    let server = TestServer::with_model(&endpoint).await;
    let ann = server.client("ann");
    let (asked, _) = ann.converse(&Question::new("one")).await;
    for question in ["two", "three", "continue"] {
        ann.converse(&Question::new(question).within(&asked.conversation_id)).await;
    }
    let messages = endpoint.messages(3);
    let said = said(&messages);
    assert_eq!(said[0].0, "system");
    assert_eq!(said[1..4], [("user", "one"), ("assistant", "first answer"), ("user", "two")]);
    assert!(said[4].0 == "assistant" && said[4].1.starts_with("half of the \n\n(") && said[4].1.contains("cut off"));
    assert_eq!(said[5], ("user", "three"));
    assert!(said[6].0 == "assistant" && said[6].1.starts_with('('), "a turn without an answer gets a note of its own");
    assert_eq!(said[7..], [("user", "continue")]);
    // Notes are for the model alone.
    let answers: Vec<_> = ann.turns(&asked.conversation_id).await.iter().map(|turn| turn["answer"].clone()).collect();
    assert_eq!(answers, [json!("first answer"), json!("half of the "), json!(null), json!("the rest")]);
    server.finish().await;
}

#[tokio::test]
async fn the_recorded_hash_is_that_of_the_messages_the_model_saw() {
    let endpoint = ModelEndpoint::start([Reply::say("hello")]).await;
    let server = TestServer::with_model(&endpoint).await;
    server.client("ann").converse(&Question::new("hi")).await;
    let seen: Vec<devmind_domain::agent::Message> = serde_json::from_value(json!(endpoint.messages(0))).unwrap();
    let log = server.log();
    let hash = devmind_domain::agent::context_hash(&seen);
    assert_eq!(log.one("ModelRequested").await.payload["request_hash"], hash);
    assert_eq!(log.one("RunClaimed").await.payload["context_hash"], hash);
    server.finish().await;
}
