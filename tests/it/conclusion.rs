//! What tools leave for the model after the results of a message, and turns that tools end.

use devmind_api::tools::{BodyEnd, ServerTool, ToolContext};
use devmind_domain::ErrorCode;
use devmind_domain::tools::{Approval, ToolDefinition, ToolOutcome, always_beside_others};
use devmind_tests::sse::events;
use devmind_tests::{Question, Script, ScriptedModel, TestServer, agui};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use std::sync::Arc;

/// Does what its arguments say: `{"leaves": text, "ends": bool, "fails": bool, "gives": value}`.
struct Obedient;

impl ServerTool for Obedient {
    fn call(&self, arguments: Value, context: ToolContext) -> BoxFuture<'_, BodyEnd> {
        async move {
            if let Some(message) = arguments["leaves"].as_str() {
                context.defer_context(message).expect("there is room");
            }
            if arguments["ends"] == true {
                context.conclude_turn();
            }
            if arguments["fails"] == true {
                return ToolOutcome::failure(ErrorCode::ExecutionFailed, "as it was told").into();
            }
            ToolOutcome::success(arguments["gives"].clone()).into()
        }
        .boxed()
    }
}

/// A server with the tool `obey`, which no catalogue has.
pub(super) async fn server(model: Arc<ScriptedModel>) -> TestServer {
    let server = TestServer::with_scripted(model).await;
    let (approval, concurrency_safe) = (Approval::Never, always_beside_others());
    let schemas = (json!({ "type": "object" }), json!({}));
    let definition =
        ToolDefinition { approval, concurrency_safe, ..ToolDefinition::new("obey", "", schemas.0, schemas.1) };
    server.app().tools.change(|tools| tools.register(definition, Arc::new(Obedient))).expect("a whole tool");
    server
}

/// A page, as ann sees it.
async fn page(server: &TestServer, path: &str) -> String {
    let request = reqwest::Client::new().get(format!("{}{path}", server.url())).header("x-dev-user", "ann");
    request.send().await.expect("an answer").text().await.expect("text")
}

#[tokio::test]
async fn what_a_success_leaves_reaches_the_model_after_all_results_and_what_a_failure_leaves_does_not() {
    let calls = [
        ("a", "obey", r#"{"leaves":"left by a","gives":"A"}"#),
        ("b", "add", r#"{"a":1,"b":2}"#),
        ("c", "obey", r#"{"leaves":"left by c","ends":true,"fails":true}"#),
        ("d", "obey", r#"{"leaves":"left by d","gives":null}"#),
    ];
    let model = ScriptedModel::new([Script::calls(&calls), Script::say("the end")]);
    let server = server(model.clone()).await;
    let (_, events) = server.client("ann").converse(&Question::new("go")).await;
    agui::assert_success(&events);
    assert_eq!(agui::spoken(&events), "the end", "a failure ends no turn, and contexts are not shown as text");
    let said = model.said(1);
    let roles: Vec<_> = said.iter().map(|(role, _)| role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "tool", "tool", "user", "user"]);
    assert_eq!([&said[6].1, &said[7].1], ["left by a", "left by d"]);
    let log = server.log();
    assert_eq!(log.of("ContextDeferred").await.len(), 2);
    assert!(log.of("TurnConcluded").await.is_empty());
    server.finish().await;
}

#[tokio::test]
async fn a_turn_that_a_tool_ends_is_answered_with_what_it_gave_in_the_stream_its_replay_the_views_and_the_next_prompt()
{
    let ends = [
        ("a", "obey", r#"{"leaves":"too late","ends":true,"gives":"forty-two"}"#),
        ("b", "obey", r#"{"leaves":"unread","gives":"B"}"#),
    ];
    let silent = [("a", "obey", r#"{"ends":true,"gives":null}"#)];
    let with_words = ends.iter().enumerate().fold(Script::new().text("I will end it."), |script, (index, call)| {
        script.piece(index, Some(call.0), Some(call.1), call.2)
    });
    let quiet = silent.iter().enumerate().fold(Script::new().text("That was it."), |script, (index, call)| {
        script.piece(index, Some(call.0), Some(call.1), call.2)
    });
    let model = ScriptedModel::new([with_words.finish("tool_calls"), quiet.finish("tool_calls"), Script::say("end")]);
    let server = server(model.clone()).await;
    let ann = server.client("ann");
    for (answer, spoken) in [("forty-two", "I will end it.forty-two"), ("That was it.", "That was it.")] {
        let (asked, live) = ann.converse(&Question::new("go")).await;
        agui::assert_success(&live);
        assert_eq!(agui::spoken(&live), spoken);
        let replayed = events(&ann.replayed(&asked.run_id).await);
        assert_eq!((agui::spoken(&replayed), agui::outline(&replayed)), (spoken.to_owned(), agui::outline(&live)));
        let turn = ann.turn(&asked).await;
        assert_eq!((&turn["status"], &turn["answer"]), (&json!("completed"), &json!(answer)));
        let page = page(&server, &format!("/conversations/{}", asked.conversation_id)).await;
        assert!(page.contains(answer), "{page}");
        if answer == "forty-two" {
            assert_eq!(model.times_asked(), 1, "the model is not asked again");
            let ended = server.log().one("RunSucceeded").await;
            let message_id = ended.payload["message_id"].as_str().expect("an id").to_owned();
            assert!(
                live.iter().any(|event| event["type"] == "TEXT_MESSAGE_START" && event["messageId"] == *message_id)
            );
            let story = self::page(&server, &format!("/runs/{}", asked.run_id)).await;
            assert!(story.contains("the turn ends with these results"), "{story}");
        }
    }
    let asked = server.log().of("TurnPrepared").await.remove(0).stream_id;
    ann.converse(&Question::new("and?").within(&asked)).await;
    let said = model.said(2);
    let said: Vec<_> = said.iter().map(|(role, text)| (role.as_str(), text.as_str())).collect();
    assert_eq!(said, [("user", "go"), ("assistant", "forty-two"), ("user", "and?")]);
    server.finish().await;
}
