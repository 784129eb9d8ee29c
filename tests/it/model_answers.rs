//! What a model says is recorded as it was said, and goes back to it as it was said; the same in both
//! dialects.

use devmind_api::config::Provider::{self, Anthropic, Openai};
use devmind_tests::{ModelEndpoint, Question, Reply, TestServer, agui};
use serde_json::{Value, json};

async fn in_dialect(provider: Provider, endpoint: &ModelEndpoint) -> TestServer {
    TestServer::start_with(|config| config.model = Some(endpoint.speaking(provider))).await
}

/// The results that a request carries: the call's id and the error's code, `null` for a success.
fn results(provider: Provider, request: &Value) -> Vec<(String, Value)> {
    let messages = request["messages"].as_array().expect("messages").iter();
    let of = |id: &Value, content: &Value| {
        let result: Value = serde_json::from_str(content.as_str().expect("text")).expect("a result is JSON");
        (id.as_str().expect("an id").to_owned(), result["error"]["code"].clone())
    };
    match provider {
        Openai => {
            let results = messages.filter(|message| message["role"] == "tool");
            results.map(|message| of(&message["tool_call_id"], &message["content"])).collect()
        }
        Anthropic => {
            let blocks = messages.flat_map(|message| message["content"].as_array().expect("blocks"));
            let results = blocks.filter(|block| block["type"] == "tool_result");
            results.map(|block| of(&block["tool_use_id"], &block["content"])).collect()
        }
    }
}

#[tokio::test]
async fn arguments_are_recorded_and_sent_back_as_the_text_that_the_model_wrote() {
    let spaced = "{ \"b\" :\t2 ,\n  \"a\":1e0 }";
    let repeated = "{\"a\":1,\"a\":2,\"b\":3}";
    let unicode = "{\"a\":1,\"b\":2,\"\\u00fc ü\":\"🦀\"}";
    let broken = "{\"a\": 1, ";
    for provider in [Openai, Anthropic] {
        let endpoint = ModelEndpoint::start([
            Reply::stream()
                .text("I add.")
                .call(0, "c1", "add", &spaced[..9])
                .arguments(0, &spaced[9..])
                .call(1, "c2", "add", repeated)
                .call(2, "c3", "add", unicode)
                .call(3, "c4", "add", broken)
                .calls(),
            Reply::say("Three."),
        ])
        .await;
        let server = in_dialect(provider, &endpoint).await;
        let (_, events) = server.client("ann").converse(&Question::new("add")).await;
        agui::assert_success(&events);
        assert_eq!(agui::spoken(&events), "I add.Three.");

        let recorded = server.log().of("ModelResponded").await.remove(0);
        let calls = recorded.payload["tool_calls"].as_array().unwrap().clone();
        let texts: Vec<_> = calls.iter().map(|call| call["arguments"].as_str().unwrap()).collect();
        assert_eq!(texts, [spaced, repeated, unicode, broken]);

        let requests = endpoint.requests();
        let invalid = || json!("INVALID_ARGUMENTS");
        let codes = results(provider, &requests[1]);
        let expected = [("c1", json!(null)), ("c2", invalid()), ("c3", invalid()), ("c4", invalid())];
        assert_eq!(codes, expected.map(|(id, code)| (id.to_owned(), code)));
        let body = &endpoint.bodies()[1];
        for text in [spaced, repeated, unicode, broken] {
            let back = match provider {
                Openai => json!(text).to_string(),
                Anthropic if text == broken => json!({ "INVALID_JSON": text }).to_string(),
                Anthropic => format!("\"input\":{text}"),
            };
            assert!(body.contains(&back), "{back} is not in {body}");
        }
        server.finish().await;
    }
}

#[tokio::test]
async fn two_calls_in_one_answer_are_both_made_also_when_their_pieces_alternate() {
    let alternating = Reply::stream()
        .call(0, "c1", "add", "{\"a\":1,")
        .call(1, "c2", "add", "{\"a\":3,")
        .arguments(0, "\"b\":2}")
        .arguments(1, "\"b\":4}")
        .calls();
    let in_turn =
        Reply::stream().call(0, "c1", "add", "{\"a\":1,\"b\":2}").call(1, "c2", "add", "{\"a\":3,\"b\":4}").calls();
    for (provider, reply) in [(Openai, alternating), (Openai, in_turn.clone()), (Anthropic, in_turn)] {
        let endpoint = ModelEndpoint::start([reply, Reply::say("3 and 7")]).await;
        let server = in_dialect(provider, &endpoint).await;
        let ann = server.client("ann");
        let (asked, events) = ann.converse(&Question::new("add 1 and 2, and 3 and 4")).await;
        agui::assert_success(&events);
        let told: Vec<_> = results(provider, &endpoint.requests()[1]).into_iter().map(|(id, _)| id).collect();
        assert_eq!(told, ["c1", "c2"]);
        let arguments: Vec<_> = ann.tool_calls(&asked).await.iter().map(|call| call["arguments"].clone()).collect();
        assert_eq!(arguments, [json!({ "a": 1, "b": 2 }), json!({ "a": 3, "b": 4 })]);
        server.finish().await;
    }
}

#[tokio::test]
async fn usage_served_model_and_what_was_really_sent_are_recorded() {
    for provider in [Openai, Anthropic] {
        let endpoint = ModelEndpoint::start([Reply::say("hello")]).await;
        let server = in_dialect(provider, &endpoint).await;
        agui::assert_success(&server.client("ann").converse(&Question::new("say hello")).await.1);
        let log = server.log();
        let (asked, answered) = (log.one("ModelRequested").await.payload, log.one("ModelResponded").await.payload);
        assert_eq!(answered["usage"], json!({ "input": 7, "output": 3, "cached": 5, "reasoning": 2 }));
        let (name, reason) = match provider {
            Openai => ("openai-compatible", "stop"),
            Anthropic => ("anthropic", "end_turn"),
        };
        assert_eq!((&answered["served_model"], &answered["finish_reason"]), (&json!("scripted-1"), &json!(reason)));
        assert_eq!((&asked["provider"], &asked["model"]), (&json!(name), &json!("scripted")));
        let mut sent = endpoint.requests().remove(0);
        let own = ["model", "messages", "system", "tools"];
        sent.as_object_mut().unwrap().retain(|name, _| !own.contains(&name.as_str()));
        assert_eq!(asked["parameters"], sent, "the log tells what was sent");
        server.finish().await;
    }
}

#[tokio::test]
async fn several_calls_at_once_are_not_asked_for_unless_the_settings_say_so() {
    for (provider, parallel) in [(Openai, false), (Openai, true), (Anthropic, false), (Anthropic, true)] {
        let endpoint = ModelEndpoint::start([]).await;
        let server = TestServer::start_with(|config| {
            let mut model = endpoint.speaking(provider);
            model.parallel_tool_calls = parallel;
            model.max_tokens = Some(77);
            config.model = Some(model);
        })
        .await;
        server.client("ann").converse(&Question::new("say hello")).await;
        let sent = endpoint.requests().remove(0);
        // Nor is the model told otherwise; `finish` replays what it was told.
        assert_eq!(sent.to_string().contains("one call at a time"), !parallel);
        match provider {
            Openai => {
                assert_eq!(sent["parallel_tool_calls"], parallel);
                assert_eq!(sent["max_completion_tokens"], 77);
            }
            Anthropic => {
                assert_eq!(sent["tool_choice"], json!({ "type": "auto", "disable_parallel_tool_use": !parallel }));
                assert_eq!(sent["max_tokens"], 77);
            }
        }
        server.finish().await;
    }
}

#[tokio::test]
async fn an_answer_that_said_that_it_is_complete_counts_also_when_the_connection_is_lost_behind_it() {
    let end = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    let endpoint = ModelEndpoint::start([Reply::stream().text("all of it").raw(end).cut()]).await;
    let server = TestServer::with_model(&endpoint).await;
    let (_, events) = server.client("ann").converse(&Question::new("say it")).await;
    agui::assert_success(&events);
    assert_eq!(server.log().one("ModelResponded").await.payload["usage"], json!({}), "unknown is not 0");
    server.finish().await;
}

#[tokio::test]
async fn the_models_request_is_given_up_when_the_run_is_stopped_or_its_client_leaves() {
    for provider in [Openai, Anthropic] {
        let half = || Reply::stream().text("half").hold();
        let endpoint = ModelEndpoint::start([half(), Reply::Silence, half()]).await;
        let server = in_dialect(provider, &endpoint).await;
        let ann = server.client("ann");
        let stop = async |run_id: &str| ann.post("/api/runs/stop", &json!({ "run_id": run_id })).await.ok();

        let asked = ann.ask(&Question::new("one")).await;
        let mut stream = ann.stream(&asked).await;
        stream.until("some text", |event| event["delta"] == "half").await;
        stop(&asked.run_id).await;
        endpoint.aborted(1).await;
        assert_eq!(agui::last(&stream.rest().await)["outcome"]["type"], "cancelled");

        let asked = ann.ask(&Question::new("two")).await;
        let stream = ann.stream(&asked).await;
        endpoint.asked(2).await;
        stop(&asked.run_id).await;
        endpoint.aborted(2).await;
        drop(stream);

        let asked = ann.ask(&Question::new("three")).await;
        let mut stream = ann.stream(&asked).await;
        stream.until("some text", |event| event["delta"] == "half").await;
        drop(stream);
        endpoint.aborted(3).await;
        server
            .log()
            .wait("the last run's end", |fact| fact.is("RunCancelled") && fact.payload["run_id"] == asked.run_id)
            .await;
        server.finish().await;
    }
}
