//! Requests that cannot be answered: each gets a status, a stable code and what to do, and leaves
//! nothing behind.

use devmind_domain::limits::{MAX_BODY_BYTES, MAX_CONTENT_CHARS, MAX_QUESTION_BODY_BYTES};
use devmind_tests::{Question, TestServer};
use serde_json::json;

#[tokio::test]
async fn somebody_elses_conversation_is_403_an_unknown_one_404_and_nobody_is_401() {
    let server = TestServer::start().await;
    let (ann, bob) = (server.client("ann"), server.client("bob"));
    let (asked, _) = ann.converse(&Question::new("add 1 and 2")).await;
    let call = ann.tool_call(&asked).await;
    let call_id = call["tool_call_id"].as_str().unwrap();
    let of_ann = [
        format!("/api/turns?conversation_id={}", asked.conversation_id),
        format!("/api/tool-calls?conversation_id={}", asked.conversation_id),
        format!("/api/tool-calls?run_id={}", asked.run_id),
        format!("/api/tool-calls?tool_call_id={call_id}"),
        format!("/api/ledger/events?conversation_id={}", asked.conversation_id),
        format!("/api/ledger/events?run_id={}", asked.run_id),
    ];
    for path in &of_ann {
        assert_eq!(ann.get(path).await.status, 200, "{path}");
        assert_eq!(bob.get(path).await.refused(), (403, "FORBIDDEN"), "{path}");
        assert_eq!(bob.anonymous().get(path).await.refused(), (401, "UNAUTHENTICATED"), "{path}");
    }
    for (path, code) in [
        ("/api/turns?conversation_id=none", "CONVERSATION_NOT_FOUND"),
        ("/api/tool-calls?conversation_id=none", "CONVERSATION_NOT_FOUND"),
        ("/api/tool-calls?run_id=none", "RUN_NOT_FOUND"),
        ("/api/tool-calls?tool_call_id=none", "NOT_FOUND"),
        ("/api/ledger/events?run_id=none", "RUN_NOT_FOUND"),
        ("/api/no/such/path", "NOT_FOUND"),
    ] {
        assert_eq!(ann.get(path).await.refused(), (404, code), "{path}");
    }
    let into_anns = Question::new("let me in").within(&asked.conversation_id);
    assert_eq!(bob.post("/api/turns", into_anns.body()).await.refused(), (403, "FORBIDDEN"));
    let into_none = Question::new("let me in").within("none");
    assert_eq!(bob.post("/api/turns", into_none.body()).await.refused(), (404, "CONVERSATION_NOT_FOUND"));
    for (path, body) in [("/api/turns", Question::new("x").body().clone()), ("/api/agent", asked.input())] {
        assert_eq!(bob.anonymous().post(path, &body).await.refused(), (401, "UNAUTHENTICATED"), "{path}");
    }
    assert_eq!(bob.get("/api/conversations").await.ok(), json!([]));
    let of_bob = bob.get("/api/ledger/events").await.ok();
    assert_eq!(of_bob["events"], json!([]), "somebody else's events were shown");
    assert_eq!(ann.get("/api/turns/").await.status, 404);
    assert_eq!(ann.get("/api/agent").await.refused(), (405, "METHOD_NOT_ALLOWED"));
    server.finish().await;
}

#[tokio::test]
async fn a_run_is_claimed_only_with_its_own_conversation_question_and_user() {
    let server = TestServer::start().await;
    let (ann, bob) = (server.client("ann"), server.client("bob"));
    let other = ann.ask(&Question::new("another conversation")).await;
    let asked = ann.ask(&Question::new("hello")).await;
    let with = |field: &str, value: serde_json::Value| {
        let mut input = asked.input();
        input[field] = value;
        input
    };
    let message = |id: &str, role: &str| json!([{ "id": id, "role": role, "content": "hello" }]);
    for (input, refusal) in [
        (with("runId", "none".into()), (404, "RUN_NOT_FOUND")),
        (with("threadId", other.conversation_id.as_str().into()), (400, "RUN_MISMATCH")),
        (with("threadId", "none".into()), (400, "RUN_MISMATCH")),
        (with("messages", json!([])), (400, "MESSAGE_MISMATCH")),
        (with("messages", message(&other.user_message_id, "user")), (400, "MESSAGE_MISMATCH")),
        (with("messages", message(&asked.user_message_id, "assistant")), (400, "MESSAGE_MISMATCH")),
        (with("runId", "".into()), (422, "VALIDATION_FAILED")),
        (with("runId", json!(7)), (422, "VALIDATION_FAILED")),
        (with("messages", json!("hello")), (422, "VALIDATION_FAILED")),
    ] {
        assert_eq!(ann.post("/api/agent", &input).await.refused(), refusal, "{input}");
    }
    assert_eq!(bob.post("/api/agent", &asked.input()).await.refused(), (403, "FORBIDDEN"));
    assert!(server.log().of("RunClaimed").await.is_empty(), "a refused claim must claim nothing");
    ann.run(&asked).await;
    server.finish().await;
}

#[tokio::test]
async fn a_body_that_is_no_sound_json_is_refused_before_anything_is_read_from_it() {
    let server = TestServer::start().await;
    let ann = server.client("ann");
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    for body in [
        "",
        "{",
        "hello",
        r#"{"content":"a","idempotency_key":"k"} trailing"#,
        r#"{"content":"a","content":"b","idempotency_key":"k"}"#,
        r#"{"content":"a","idempotency_key":"k","device_id":null,"device_id":"d"}"#,
        "{\"content\":\"\u{0}\",\"idempotency_key\":\"k\"}",
        &format!(r#"{{"content":{deep},"idempotency_key":"k"}}"#),
    ] {
        let answer = ann.post_text("/api/turns", body.to_owned()).await;
        assert_eq!(answer.refused(), (400, "MALFORMED_JSON"), "{body:?}");
    }
    assert_eq!(server.log().all().await.len(), 1, "only the start of the server is in the log");
    server.finish().await;
}

#[tokio::test]
async fn a_field_that_cannot_be_used_is_named() {
    let server = TestServer::start().await;
    let ann = server.client("ann");
    let long = |count: usize| "x".repeat(count);
    for (body, field) in [
        (json!({}), "content"),
        (json!({ "content": "a" }), "idempotency_key"),
        (json!({ "content": 7, "idempotency_key": "k" }), "content"),
        (json!({ "content": "", "idempotency_key": "k" }), "content"),
        (json!({ "content": " \n\t ", "idempotency_key": "k" }), "content"),
        (json!({ "content": long(MAX_CONTENT_CHARS + 1), "idempotency_key": "k" }), "content"),
        (json!({ "content": "a", "idempotency_key": "" }), "idempotency_key"),
        (json!({ "content": "a", "idempotency_key": long(201) }), "idempotency_key"),
        (json!({ "content": "a", "idempotency_key": "k", "conversation_id": "" }), "conversation_id"),
        (json!({ "content": "a", "idempotency_key": "k", "device_id": long(201) }), "device_id"),
        (json!({ "content": "a", "idempotency_key": "k", "user_id": "bob" }), "user_id"),
        (json!(["a"]), "body"),
    ] {
        let answer = ann.post("/api/turns", &body).await;
        assert_eq!(answer.refused(), (422, "VALIDATION_FAILED"), "{body:.100}");
        assert_eq!(answer.body["error"]["details"]["field"], field, "{}", answer.body);
    }
    for path in
        ["/api/turns", "/api/tool-calls", "/api/tool-calls?run_id=a&conversation_id=b", "/api/ledger/events?limit=0"]
    {
        assert_eq!(ann.get(path).await.refused(), (422, "VALIDATION_FAILED"), "{path}");
    }
    let ticket = ann.post("/api/desktop/connection-ticket", &json!({ "device_id": "" })).await;
    assert_eq!(ticket.refused(), (422, "VALIDATION_FAILED"));
    assert_eq!(server.log().all().await.len(), 1, "only the start of the server is in the log");
    server.finish().await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_413_and_one_of_many_bytes_below_it_is_asked() {
    let server = TestServer::start().await;
    let ann = server.client("ann");
    let body = json!({ "content": "x".repeat(MAX_QUESTION_BODY_BYTES), "idempotency_key": "k" });
    assert_eq!(ann.post("/api/turns", &body).await.refused(), (413, "BODY_TOO_LARGE"));
    let body = json!({ "run_id": "x".repeat(MAX_BODY_BYTES) });
    assert_eq!(ann.post("/api/runs/stop", &body).await.refused(), (413, "BODY_TOO_LARGE"));
    // Characters are counted, not bytes.
    let (asked, _) = ann.converse(&Question::new(&"汉".repeat(MAX_CONTENT_CHARS))).await;
    let title = ann.get("/api/conversations").await.ok()[0]["title"].as_str().unwrap().to_owned();
    assert_eq!(title.chars().count(), 50);
    assert_eq!(ann.turn(&asked).await["status"], "completed");
    server.finish().await;
}

#[tokio::test]
async fn a_wrong_bearer_token_is_nobody_even_with_a_development_header_beside_it() {
    let token = "the-token-of-the-test";
    let hash = devmind_domain::canonical::sha256_hex(token.as_bytes());
    let server = TestServer::start_with(|config| {
        config.users.push(devmind_api::config::TokenUser {
            name: "ann".to_owned(),
            token_sha256: hash,
            ..Default::default()
        });
    })
    .await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("{}/api/conversations", server.url());
    let status = async |token: &str| {
        let request = http.get(&url).header("x-dev-user", "bob").bearer_auth(token);
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(status(token).await, 200);
    assert_eq!(status("wrong").await, 401);
    // A page of another site that rebinds its name to this machine still sends that name.
    let rebound = http.get(&url).header("x-dev-user", "bob").header("host", "evil.example").send().await.unwrap();
    assert_eq!(rebound.status().as_u16(), 401);
    server.finish().await;
}

#[tokio::test]
async fn health_tells_that_the_server_lives_and_readiness_how_far_the_views_are() {
    let server = TestServer::start().await;
    let nobody = server.client("ann").anonymous();
    assert_eq!(nobody.get("/healthz").await.ok()["status"], "ok");
    server.client("ann").converse(&Question::new("hello")).await;
    let ready = nobody.get("/readyz").await.ok();
    assert_eq!(ready["status"], "ready");
    assert_eq!(ready["position"], server.log().head().await);
    for projection in ready["projections"].as_array().unwrap() {
        assert_eq!((&projection["lag"], &projection["failed"]), (&json!(0), &json!(null)), "{projection}");
    }
    server.finish().await;
}
