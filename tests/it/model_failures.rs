//! A model that refuses, is silent, breaks off or writes too much: the run fails with the code that
//! says so, what had come is kept, the next question works, and the key is nowhere. The same in both
//! dialects.

use devmind_api::config::Provider::{self, Anthropic, Openai};
use devmind_api::config::{ModelConfig, ServerConfig};
use devmind_tests::model::API_KEY;
use devmind_tests::{ModelEndpoint, Question, Reply, TestServer, agui, own_address};
use futures::future::join_all;
use serde_json::json;

/// One failure: the run ends with `code`, with `partial` kept, and the next question is answered.
/// `tries` requests were sent for the first question.
async fn fails_with(server: TestServer, endpoint: &ModelEndpoint, code: &str, partial: &str, tries: usize) {
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("first")).await;
    assert_eq!(agui::error_code(&events), code, "{events:#?}");
    assert_eq!(agui::spoken(&events), partial);
    let turn = ann.turn(&asked).await;
    assert_eq!((&turn["status"], &turn["error_code"]), (&json!("failed"), &json!(code)));
    let kept = if partial.is_empty() { json!(null) } else { json!(partial) };
    assert_eq!((&turn["answer"], &turn["partial"]), (&kept, &json!(!partial.is_empty())));
    let log = server.log();
    assert_eq!(log.one("ModelFailed").await.payload["code"], code);
    assert_eq!(log.one("RunFailed").await.payload["partial_text"], partial);

    let (_, events) = ann.converse(&Question::new("second").within(&asked.conversation_id)).await;
    agui::assert_success(&events);
    assert_eq!(agui::spoken(&events), "done");
    for fact in log.all().await {
        assert!(!fact.text.contains(API_KEY), "the key is in the log: {fact}");
    }
    assert!(!serde_json::to_string(&events).unwrap().contains(API_KEY));
    assert_eq!(endpoint.requests().len(), tries + 1);
    assert_eq!(log.of("ModelRequested").await.len(), 2, "one round is one recorded request");
    assert!(endpoint.keys().iter().all(|key| key.ends_with(API_KEY)), "the key is what authenticates");
    server.finish().await;
}

async fn in_dialect(provider: Provider, endpoint: &ModelEndpoint) -> TestServer {
    TestServer::start_with(|config| config.model = Some(endpoint.speaking(provider))).await
}

async fn first_reply_fails_with(reply: Reply, code: &str, partial: &str) {
    for provider in [Openai, Anthropic] {
        let endpoint = ModelEndpoint::start([reply.clone()]).await;
        fails_with(in_dialect(provider, &endpoint).await, &endpoint, code, partial, 1).await;
    }
}

async fn three_replies_fail_with(reply: Reply, code: &str) {
    for provider in [Openai, Anthropic] {
        let endpoint = ModelEndpoint::start([reply.clone(), reply.clone(), reply.clone()]).await;
        fails_with(in_dialect(provider, &endpoint).await, &endpoint, code, "", 3).await;
    }
}

fn refusal(status: u16) -> Reply {
    let error = json!({ "message": "no, said the endpoint", "type": "t", "param": null, "code": null });
    Reply::Status(status, json!({ "type": "error", "error": error }).to_string())
}

#[tokio::test]
async fn a_model_that_refuses_the_key_fails_the_run_as_model_auth_failed() {
    first_reply_fails_with(refusal(401), "MODEL_AUTH_FAILED", "").await;
    first_reply_fails_with(refusal(403), "MODEL_AUTH_FAILED", "").await;
}

#[tokio::test]
async fn a_model_that_refuses_the_request_fails_the_run_at_once_as_model_refused() {
    first_reply_fails_with(refusal(400), "MODEL_REFUSED", "").await;
    first_reply_fails_with(refusal(404), "MODEL_REFUSED", "").await;
}

#[tokio::test]
async fn a_model_that_sends_its_client_elsewhere_is_not_followed_there_with_the_key() {
    for (provider, path) in [(Openai, "/chat/completions"), (Anthropic, "/messages")] {
        let other = ModelEndpoint::start([]).await;
        let endpoint = ModelEndpoint::start([Reply::Elsewhere(other.url() + path)]).await;
        fails_with(in_dialect(provider, &endpoint).await, &endpoint, "MODEL_REFUSED", "", 1).await;
        assert!(other.keys().is_empty(), "nobody but the configured host is asked");
    }
}

#[tokio::test]
async fn a_model_that_limits_the_rate_three_times_fails_the_run_as_model_rate_limited() {
    three_replies_fail_with(Reply::Busy(429, "0"), "MODEL_RATE_LIMITED").await;
}

#[tokio::test]
async fn a_model_that_fails_inside_three_times_fails_the_run_as_model_unavailable() {
    three_replies_fail_with(Reply::Busy(500, "0"), "MODEL_UNAVAILABLE").await;
    three_replies_fail_with(Reply::Busy(529, "0"), "MODEL_UNAVAILABLE").await;
}

#[tokio::test]
async fn a_page_in_place_of_a_stream_fails_the_run_as_model_unavailable() {
    first_reply_fails_with(Reply::Status(200, "<html>a proxy's page</html>".to_owned()), "MODEL_UNAVAILABLE", "").await;
}

#[tokio::test]
async fn a_stream_that_is_cut_keeps_what_had_come() {
    first_reply_fails_with(Reply::stream().text("half an ").text("answer").cut(), "MODEL_STREAM_CUT", "half an answer")
        .await;
}

#[tokio::test]
async fn a_stream_that_ends_in_order_without_saying_that_it_is_complete_is_cut_too() {
    first_reply_fails_with(Reply::stream().text("half").end(), "MODEL_STREAM_CUT", "half").await;
    first_reply_fails_with(Reply::stream().end(), "MODEL_STREAM_CUT", "").await;
}

#[tokio::test]
async fn a_call_whose_answer_was_cut_is_never_made() {
    for provider in [Openai, Anthropic] {
        // Cut in the midst of the arguments, and after them but before the end.
        for arguments in ["{\"a\":1,\"b\":2}", "{\"a\":1,"] {
            let endpoint =
                ModelEndpoint::start([Reply::stream().text("I add. ").call(0, "c1", "add", arguments).cut()]).await;
            let server = in_dialect(provider, &endpoint).await;
            let data = server.data.clone();
            fails_with(server, &endpoint, "MODEL_STREAM_CUT", "I add. ", 1).await;
            assert!(data.log().await.of("ToolCallRequested").await.is_empty());
        }
    }
}

/// Longer than a busy machine keeps an endpoint that answers from being heard: the second question is answered.
const SOON_MS: u64 = 2_000;

async fn times_out(silent: Reply, partial: &str, change: fn(&mut ServerConfig)) {
    join_all([Openai, Anthropic].map(async |provider| {
        let endpoint = ModelEndpoint::start([silent.clone()]).await;
        let server = TestServer::start_with(|config| {
            config.model = Some(endpoint.speaking(provider));
            change(config);
        })
        .await;
        fails_with(server, &endpoint, "MODEL_TIMEOUT", partial, 1).await;
        endpoint.aborted(1).await;
    }))
    .await;
}

#[tokio::test]
async fn a_model_that_is_silent_before_its_first_byte_times_out_and_its_request_is_given_up() {
    times_out(Reply::Silence, "", |config| config.model_first_byte_ms = SOON_MS).await;
}

#[tokio::test]
async fn a_model_that_falls_silent_within_its_answer_times_out_and_the_text_is_kept() {
    times_out(Reply::stream().text("half").hold(), "half", |config| config.model_idle_ms = SOON_MS).await;
}

#[tokio::test]
async fn a_model_that_writes_more_than_an_answer_may_hold_is_stopped() {
    let piece = "x".repeat(256 << 10);
    for provider in [Openai, Anthropic] {
        let endless = (0..5).fold(Reply::stream(), |stream, _| stream.text(&piece));
        let endpoint = ModelEndpoint::start([endless.hold()]).await;
        let server = in_dialect(provider, &endpoint).await;
        fails_with(server, &endpoint, "MODEL_ANSWER_TOO_LARGE", &piece.repeat(5), 1).await;
        endpoint.aborted(1).await;
    }
}

#[tokio::test]
async fn arguments_without_end_are_stopped_too() {
    let piece = "x".repeat(256 << 10);
    for provider in [Openai, Anthropic] {
        let call = Reply::stream().call(0, "c1", "add", "{");
        let endless = (0..5).fold(call, |stream, _| stream.arguments(0, &piece));
        let endpoint = ModelEndpoint::start([endless.hold()]).await;
        fails_with(in_dialect(provider, &endpoint).await, &endpoint, "MODEL_ANSWER_TOO_LARGE", "", 1).await;
        endpoint.aborted(1).await;
    }
}

#[tokio::test]
async fn a_line_without_end_is_given_up() {
    let piece = "x".repeat(1 << 20);
    let endless = (0..9).fold(Reply::stream().raw("data: "), |stream, _| stream.raw(&piece));
    let endpoint = ModelEndpoint::start([endless.hold()]).await;
    fails_with(TestServer::with_model(&endpoint).await, &endpoint, "MODEL_STREAM_CUT", "", 1).await;
    endpoint.aborted(1).await;
}

#[tokio::test]
async fn a_chunk_that_is_no_json_ends_the_run_with_an_error_and_no_answer() {
    for provider in [Openai, Anthropic] {
        let endpoint =
            ModelEndpoint::start([Reply::stream().text("half").raw("data: {\"choices\": [\n\n").hold()]).await;
        fails_with(in_dialect(provider, &endpoint).await, &endpoint, "MODEL_STREAM_CUT", "half", 1).await;
        endpoint.aborted(1).await;
    }
}

#[tokio::test]
async fn a_model_that_cannot_be_reached_fails_the_run_and_works_when_it_is_back() {
    // Where nobody listens, now or later.
    let nowhere = Some(format!("http://{}/v1", own_address()));
    let config = ModelConfig { base_url: nowhere, ..ModelEndpoint::start([]).await.config() };
    let server = TestServer::start_with(|own| own.model = Some(config)).await;
    let ann = server.client("ann");
    let (asked, events) = ann.converse(&Question::new("first")).await;
    assert_eq!(agui::error_code(&events), "MODEL_UNREACHABLE");
    let message = agui::text(agui::last(&events), "message");
    assert!(!message.contains(API_KEY) && message.contains("asked 3 times"), "{message}");
    assert_eq!(ann.turn(&asked).await["status"], "failed");

    let endpoint = ModelEndpoint::start([]).await;
    let server = server.stop().await.start_with_model(endpoint.config()).await;
    let ann = server.client("ann");
    let (_, events) = ann.converse(&Question::new("second").within(&asked.conversation_id)).await;
    agui::assert_success(&events);
    server.finish().await;
}
