//! A model that limits or fails for the moment is asked again, up to three times, before anything of
//! its answer came and never after; the log has one request and one end of it.

use devmind_api::config::Provider::{Anthropic, Openai};
use devmind_tests::{ModelEndpoint, Question, Reply, TestServer, agui};
use serde_json::json;
use std::time::{Duration, Instant};

#[tokio::test]
async fn a_busy_model_is_asked_again_and_the_log_has_one_request_and_one_answer() {
    for provider in [Openai, Anthropic] {
        let endpoint = ModelEndpoint::start([Reply::Busy(429, "0"), Reply::Busy(503, "0"), Reply::say("hello")]).await;
        let server = TestServer::start_with(|config| config.model = Some(endpoint.speaking(provider))).await;
        let (_, events) = server.client("ann").converse(&Question::new("say hello")).await;
        agui::assert_success(&events);
        assert_eq!(agui::spoken(&events), "hello");
        let bodies = endpoint.bodies();
        assert_eq!(bodies, vec![bodies[0].clone(); 3], "the same question each time");
        let log = server.log();
        log.one("ModelRequested").await;
        log.one("ModelResponded").await;
        assert!(log.of("ModelFailed").await.is_empty(), "a failure that was mended is no failure of the round");
        server.finish().await;
    }
}

#[tokio::test]
async fn a_failure_at_the_head_of_the_stream_is_asked_again_and_one_after_text_is_not() {
    for provider in [Openai, Anthropic] {
        let endpoint = ModelEndpoint::start([
            Reply::stream().failure().end(),
            Reply::say("hello"),
            Reply::stream().text("half").failure().end(),
            Reply::stream().call(0, "c1", "add", "{").failure().end(),
        ])
        .await;
        let server = TestServer::start_with(|config| config.model = Some(endpoint.speaking(provider))).await;
        let ann = server.client("ann");
        let (_, events) = ann.converse(&Question::new("one")).await;
        assert_eq!(agui::spoken(&events), "hello");
        assert_eq!(endpoint.requests().len(), 2);

        for (question, partial) in [("two", "half"), ("three", "")] {
            let (_, events) = ann.converse(&Question::new(question)).await;
            assert_eq!((agui::error_code(&events), agui::spoken(&events).as_str()), ("MODEL_UNAVAILABLE", partial));
        }
        assert_eq!(endpoint.requests().len(), 4, "nothing is asked again once the answer has begun");
        server.finish().await;
    }
}

#[tokio::test]
async fn the_third_failure_is_the_last_and_says_how_often_the_model_was_asked() {
    let endpoint = ModelEndpoint::start([(); 4].map(|()| Reply::Busy(500, "0"))).await;
    let server = TestServer::with_model(&endpoint).await;
    let (_, events) = server.client("ann").converse(&Question::new("say hello")).await;
    assert_eq!(agui::error_code(&events), "MODEL_UNAVAILABLE");
    assert_eq!(endpoint.requests().len(), 3);
    let failed = server.log().one("ModelFailed").await;
    assert_eq!(failed.payload["message"], "the model's endpoint answered 500: busy (asked 3 times)");
    assert_eq!(failed.payload["retriable"], true);
    server.finish().await;
}

#[tokio::test]
async fn a_model_that_wants_to_be_left_alone_for_too_long_is_not_asked_again() {
    let endpoint = ModelEndpoint::start([Reply::Busy(429, "31"), Reply::Busy(429, "20")]).await;
    let server = TestServer::start_with(|config| {
        config.model = Some(endpoint.config());
        config.model_first_byte_ms = 20_000;
    })
    .await;
    let ann = server.client("ann");
    for n in 1..=2 {
        let (_, events) = ann.converse(&Question::new("say hello")).await;
        assert_eq!(agui::error_code(&events), "MODEL_RATE_LIMITED");
        assert_eq!(endpoint.requests().len(), n, "beyond what anybody waits, or beyond the wait for the first byte");
    }
    server.finish().await;
}

#[tokio::test]
async fn all_tries_together_have_the_time_of_one_first_byte() {
    let endpoint = ModelEndpoint::start([Reply::Busy(429, "0"), Reply::Silence]).await;
    let server = TestServer::start_with(|config| {
        config.model = Some(endpoint.config());
        config.model_first_byte_ms = 2_000;
    })
    .await;
    let (_, events) = server.client("ann").converse(&Question::new("say hello")).await;
    assert_eq!(agui::error_code(&events), "MODEL_TIMEOUT");
    assert_eq!(endpoint.requests().len(), 2, "the model that is silent is not asked again");
    endpoint.aborted(1).await;
    server.finish().await;
}

#[tokio::test]
async fn a_run_that_is_stopped_while_it_waits_to_ask_again_stops_at_once() {
    let endpoint = ModelEndpoint::start([Reply::Busy(429, "29"), Reply::Busy(429, "29")]).await;
    let server = TestServer::with_model(&endpoint).await;
    let (ann, begun) = (server.client("ann"), Instant::now());

    let asked = ann.ask(&Question::new("say hello")).await;
    let stream = ann.stream(&asked).await;
    endpoint.asked(1).await;
    ann.post("/api/runs/stop", &json!({ "run_id": asked.run_id })).await.ok();
    assert_eq!(agui::last(&stream.rest().await)["outcome"]["type"], "cancelled");

    let asked = ann.ask(&Question::new("say hello").within(&asked.conversation_id)).await;
    let stream = ann.stream(&asked).await;
    endpoint.asked(2).await;
    drop(stream);
    server
        .log()
        .wait("the client's leaving", |fact| fact.is("RunCancelled") && fact.payload["run_id"] == asked.run_id)
        .await;
    assert_eq!(endpoint.requests().len(), 2);
    assert!(begun.elapsed() < Duration::from_secs(29), "the wait was not broken off");
    server.finish().await;
}
