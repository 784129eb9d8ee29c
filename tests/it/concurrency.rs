//! Many at once: one claim wins, one conversation has one run, conversations do not meet.

use devmind_tests::{Question, Script, ScriptedModel, TestServer, agui, sse};
use futures::future::{join, join_all};
use serde_json::json;

#[tokio::test]
async fn of_two_claims_of_one_run_at_once_one_streams_and_the_other_is_refused() {
    const RUNS: usize = 30;
    let model = ScriptedModel::new([]);
    let server = TestServer::with_scripted(model.clone()).await;
    let ann = server.client("ann");
    for _ in 0..RUNS {
        let asked = ann.ask(&Question::new("hello")).await;
        let input = asked.input();
        let (one, other) = join(ann.post_stream("/api/agent", &input), ann.post_stream("/api/agent", &input)).await;
        let (stream, refused) = match (one, other) {
            (Ok(stream), Err(refused)) | (Err(refused), Ok(stream)) => (stream, refused),
            (one, other) => panic!("{} streams", one.is_ok() as u8 + other.is_ok() as u8),
        };
        assert_eq!(refused.refused(), (409, "RUN_ALREADY_CLAIMED"));
        agui::assert_success(&sse::events(&stream.rest().await));
    }
    assert_eq!(model.times_asked(), RUNS);
    assert_eq!(server.log().of("RunClaimed").await.len(), RUNS);
    server.finish().await;
}

/// B13.
#[tokio::test]
async fn of_two_questions_at_once_in_one_conversation_one_is_answered_and_the_log_is_clean() {
    const ROUNDS: usize = 20;
    let model = ScriptedModel::new(vec![Script::new().text("x").hold(); ROUNDS]);
    let server = TestServer::with_scripted(model.clone()).await;
    let ann = server.client("ann");
    let first = ann.ask(&Question::new("q0")).await;
    ann.stop(&first.run_id).await;
    for round in 0..ROUNDS {
        // Each asks and claims; who comes second is refused, or finds its own run abandoned.
        let go = async |name: &str| {
            let question = Question::new(name).within(&first.conversation_id);
            let reply = ann.post("/api/turns", question.body()).await;
            if reply.status != 200 {
                assert_eq!(reply.refused(), (409, "RUN_IN_PROGRESS"));
                return None;
            }
            let asked = devmind_tests::Asked::prepared(&reply.body, name);
            match ann.post_stream("/api/agent", &asked.input()).await {
                Ok(stream) => Some((asked, stream)),
                Err(refused) => {
                    assert_eq!(refused.refused(), (409, "RUN_ALREADY_CLAIMED"));
                    None
                }
            }
        };
        let (one, other) = join(go("one"), go("other")).await;
        let mut won: Vec<_> = one.into_iter().chain(other).collect();
        assert_eq!(won.len(), 1, "round {round}");
        let (asked, mut stream) = won.remove(0);
        stream.until("text", |event| event["delta"] == "x").await;
        // A refused question disturbs nothing.
        let late = Question::new("late").within(&first.conversation_id);
        assert_eq!(ann.post("/api/turns", late.body()).await.refused(), (409, "RUN_IN_PROGRESS"));
        assert_eq!(ann.stop(&asked.run_id).await, "cancelled");
        stream.rest().await;
    }
    // Never two questions in a row without what became of the first between them.
    for prompt in 0..ROUNDS {
        let said = model.said(prompt);
        for (index, (role, _)) in said.iter().enumerate() {
            assert_eq!(role, if index % 2 == 0 { "user" } else { "assistant" }, "{said:?}");
        }
    }
    let turns = ann.turns(&first.conversation_id).await;
    let numbers: Vec<_> = turns.iter().map(|turn| turn["sequence_no"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=turns.len() as u64).collect::<Vec<_>>());
    assert!(turns.len() >= ROUNDS, "{} turns", turns.len());
    assert!(turns.iter().all(|turn| turn["status"] == "cancelled"));
    server.finish().await;
}

#[tokio::test]
async fn fifty_conversations_at_once_are_answered_and_know_nothing_of_each_other() {
    let server = TestServer::start().await;
    let clients = ["ann", "bob"].map(|name| server.client(name));
    let letters = |n: usize| format!("N{}{}", (b'a' + (n / 10) as u8) as char, (b'a' + (n % 10) as u8) as char);
    join_all((0..50).map(|n| {
        let client = clients[n % 2].clone();
        async move {
            let name = letters(n);
            let (asked, events) = client.converse(&Question::new(&format!("My name is {name}"))).await;
            agui::assert_success(&events);
            let more = Question::new("What is my name? And add 1 and 2").within(&asked.conversation_id);
            let (_, events) = client.converse(&more).await;
            assert_eq!(agui::spoken(&events), format!("1 + 2 = 3.\n\nYour name is {name}."));
            let turns = client.turns(&asked.conversation_id).await;
            assert!(turns.len() == 2 && turns.iter().all(|turn| turn["status"] == "completed"), "{turns:#?}");
        }
    }))
    .await;
    for client in &clients {
        assert_eq!(client.get("/api/conversations").await.ok().as_array().map(Vec::len), Some(25));
    }
    assert_eq!(server.log().of("RunSucceeded").await.len(), 100);
    let turns = server.log().of("TurnPrepared").await;
    assert_eq!(turns.iter().filter(|fact| fact.payload["sequence_no"] == json!(2)).count(), 50);
    server.finish().await;
}
