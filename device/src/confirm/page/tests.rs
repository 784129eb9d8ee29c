//! The page's questions and its guard, over real HTTP.

use super::*;
use crate::path_policy::FileFacts;
use crate::tools::Subject;
use devmind_domain::Timestamp;
use reqwest::header::{AUTHORIZATION, HOST, ORIGIN};
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use std::sync::Arc;

const LONG: Duration = Duration::from_secs(3_600);

fn request(path: &str) -> ConfirmationRequest {
    let facts = FileFacts { device: 1, inode: 2, size: 42, modified: Timestamp::from_micros(0), links: 1 };
    ConfirmationRequest {
        tool_call_id: "call".into(),
        tool: "workspace.read_file".into(),
        arguments: json!({ "path": path }),
        subject: Some(Subject { resolved_path: path.to_owned(), facts: Some(facts) }),
        conversation_title: "a <b>title</b>".into(),
        deadline: Deadline::after(LONG),
    }
}

/// A served page, and what a browser would send to it.
struct Served {
    page: Arc<Page>,
    origin: String,
    token: String,
    client: Client,
}

impl Served {
    async fn start(patience: Duration) -> Self {
        Self::of(Page { patience, ..Page::new(None) }).await
    }

    async fn of(page: Page) -> Self {
        let page = Arc::new(page);
        let server = PageServer::bind(page.clone()).await.expect("a port");
        let (origin, token) = (format!("http://{}", server.address()), server.link());
        let token = token.split_once('#').expect("a fragment").1.to_owned();
        tokio::spawn(server.serve());
        let builder = Client::builder().no_proxy().tls_certs_only([]);
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self { page, origin, token, client: builder.build().expect("a client") }
    }

    fn ask(&self, path: &str) -> tokio::task::JoinHandle<(Answer, CancellationToken)> {
        self.ask_until(path, CancellationToken::new())
    }

    fn ask_until(&self, path: &str, cancel: CancellationToken) -> tokio::task::JoinHandle<(Answer, CancellationToken)> {
        let (page, request) = (self.page.clone(), request(path));
        tokio::spawn(async move { (page.ask(&request, &cancel).await, cancel) })
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.client.get(format!("{}{path}", self.origin)).bearer_auth(&self.token)
    }

    fn post(&self, body: &Value) -> RequestBuilder {
        let url = format!("{}/api/answer", self.origin);
        self.client.post(url).bearer_auth(&self.token).header(ORIGIN, &self.origin).json(body)
    }

    async fn news(&self, after: u64) -> Value {
        let reply = self.get(&format!("/api/questions?after={after}")).send().await.expect("served");
        assert_eq!(reply.status(), 200);
        reply.json().await.expect("JSON")
    }

    /// The news once a question about this path is shown.
    async fn shown(&self, path: &str) -> Value {
        let mut news = self.news(0).await;
        while !news["question"]["rows"].to_string().contains(path) {
            news = self.news(news["version"].as_u64().expect("a version")).await;
        }
        news["question"].clone()
    }

    /// Answers as soon as it counts.
    async fn answer(&self, id: &Value, allow: bool) {
        loop {
            let reply = self.post(&json!({ "id": id, "allow": allow })).send().await.expect("served");
            if reply.status() == 200 {
                return;
            }
            assert_eq!(reply.json::<Value>().await.expect("JSON")["error"]["code"], "ANSWERED_TOO_SOON");
        }
    }
}

#[tokio::test]
async fn a_question_shows_everything_and_its_answer_is_the_persons() {
    let served = Served::start(LONG).await;
    served.news(0).await;
    for (allow, expected) in [(true, Answer::Allow), (false, Answer::Deny)] {
        let path = format!("a\u{202e}{allow}.txt");
        let asked = served.ask(&path);
        let question = served.shown(&format!("{allow}.txt")).await;
        assert_eq!(question["tool"], "workspace.read_file");
        let rows = json!([
            ["conversation", "a <b>title</b>"],
            ["path", format!("\"a\\u{{202e}}{allow}.txt\"")],
            ["file", format!("a\\u{{202e}}{allow}.txt")],
            ["size", "42 bytes"],
            ["changed", "1970-01-01T00:00:00.000000Z"],
        ]);
        assert_eq!(question["rows"], rows);
        served.answer(&question["id"], allow).await;
        assert_eq!(asked.await.expect("asked").0, expected);
    }
}

#[tokio::test]
async fn an_answer_that_comes_as_soon_as_the_question_does_not_count() {
    let served = Served::of(Page { too_soon: LONG, ..Page::new(None) }).await;
    served.news(0).await;
    let _asked = served.ask("a.txt");
    let shown = served.shown("a.txt").await;
    assert_eq!(served.page.answer(shown["id"].as_u64().expect("an id"), true), Err(ErrorCode::AnsweredTooSoon));
    assert_eq!(served.news(0).await["question"]["id"], shown["id"], "it is still open");
}

#[tokio::test]
async fn an_answer_counts_only_for_the_question_that_is_shown() {
    let served = Served::start(LONG).await;
    served.news(0).await;
    let first = served.ask("first.txt");
    let shown = served.shown("first.txt").await;
    let second = served.ask("second.txt");
    let first_id = shown["id"].as_u64().expect("an id");
    assert_eq!(served.page.answer(first_id + 1, true), Err(ErrorCode::QuestionClosed), "it waits");
    served.answer(&shown["id"], false).await;
    assert_eq!(served.page.answer(first_id, true), Err(ErrorCode::QuestionClosed), "it is answered");
    assert_eq!(served.page.answer(first_id + 1, true), Err(ErrorCode::QuestionClosed), "no page has got it");
    let shown = served.shown("second.txt").await;
    served.answer(&shown["id"], true).await;
    assert_eq!(first.await.expect("asked").0, Answer::Deny);
    assert_eq!(second.await.expect("asked").0, Answer::Allow);
}

#[tokio::test]
async fn a_question_that_is_taken_back_or_nobody_answers_goes_away() {
    let served = Served::start(LONG).await;
    served.news(0).await;
    let cancel = CancellationToken::new();
    let asked = served.ask_until("a.txt", cancel.clone());
    served.shown("a.txt").await;
    cancel.cancel();
    assert_eq!(asked.await.expect("asked").0, Answer::NoAnswer);
    assert_eq!(served.news(0).await["question"], Value::Null);

    let served = Served::start(Duration::from_millis(50)).await;
    served.news(0).await;
    let asked = served.ask("b.txt");
    served.shown("b.txt").await;
    assert_eq!(asked.await.expect("asked").0, Answer::NoAnswer);
    assert_eq!(served.news(0).await["question"], Value::Null);
}

#[tokio::test]
async fn without_an_open_page_nobody_can_answer() {
    let served = Served::start(LONG).await;
    assert_eq!(served.ask("a.txt").await.expect("asked").0, Answer::NoAnswer);
    // Closed while the question is open.
    served.news(0).await;
    let asked = served.ask("b.txt");
    served.shown("b.txt").await;
    assert_eq!(asked.await.expect("asked").0, Answer::NoAnswer);
}

#[tokio::test]
async fn another_host_origin_or_token_sees_and_answers_nothing() {
    let served = Served::start(LONG).await;
    served.news(0).await;
    let _asked = served.ask("a.txt");
    let id = served.shown("a.txt").await["id"].clone();
    let port = served.origin.rsplit(':').next().expect("a port").to_owned();
    let refusal = async |request: RequestBuilder| -> String {
        let reply = request.send().await.expect("served");
        assert!(reply.status().is_client_error(), "{}", reply.status());
        let body: Value = reply.json().await.expect("JSON");
        assert!(!body.to_string().contains("a.txt"), "{body}");
        body["error"]["code"].as_str().expect("a code").to_owned()
    };
    let news = || served.get("/api/questions");
    for host in ["evil.example", "127.0.0.1", &format!("evil.example:{port}"), &format!("127.0.0.1.evil:{port}")] {
        assert_eq!(refusal(news().header(HOST, host)).await, "ORIGIN_DENIED", "{host}");
        let index = served.client.get(format!("{}/", served.origin)).header(HOST, host);
        assert_eq!(refusal(index).await, "ORIGIN_DENIED", "{host}");
    }
    let origins = ["null", "http://evil.example", "https://127.0.0.1", "http://127.0.0.1", "http://127.0.0.1:1"];
    let longer = format!("{}.evil.example", served.origin);
    for origin in origins.into_iter().chain([longer.as_str()]) {
        assert_eq!(refusal(news().header(ORIGIN, origin)).await, "ORIGIN_DENIED", "{origin}");
        let url = format!("{}/api/answer", served.origin);
        let answer = served.client.post(url).bearer_auth(&served.token).header(ORIGIN, origin);
        assert_eq!(refusal(answer.json(&json!({ "id": id, "allow": true }))).await, "ORIGIN_DENIED", "{origin}");
    }
    let url = format!("{}/api/answer", served.origin);
    let without_origin = served.client.post(url).bearer_auth(&served.token).json(&json!({ "id": id, "allow": true }));
    assert_eq!(refusal(without_origin).await, "ORIGIN_DENIED");
    assert_eq!(refusal(news().header("sec-fetch-site", "cross-site")).await, "ORIGIN_DENIED");
    for token in ["", "wrong", &served.token[1..]] {
        let url = format!("{}/api/questions", served.origin);
        let request = served.client.get(url).header(AUTHORIZATION, format!("Bearer {token}"));
        assert_eq!(refusal(request).await, "UNAUTHENTICATED");
    }
    let url = format!("{}/api/questions?token={}", served.origin, served.token);
    assert_eq!(refusal(served.client.get(url)).await, "UNAUTHENTICATED");
    assert_eq!(served.news(0).await["question"]["id"], id, "it is still open");
}

#[tokio::test]
async fn c11_only_a_literal_true_allows() {
    let served = Served::start(LONG).await;
    served.news(0).await;
    let asked = served.ask("a.txt");
    let id = served.shown("a.txt").await["id"].clone();
    for body in [
        json!({ "id": id, "allow": "true" }),
        json!({ "id": id, "allow": 1 }),
        json!({ "id": id }),
        json!({ "id": id, "allow": true, "arguments": { "path": "b.txt" } }),
        json!("x".repeat(10_000)),
    ] {
        let reply = served.post(&body).send().await.expect("served");
        assert_eq!(reply.status(), 422, "{body}");
    }
    served.answer(&id, false).await;
    assert_eq!(asked.await.expect("asked").0, Answer::Deny);
}

#[tokio::test]
async fn every_answer_keeps_the_page_alone_and_no_file_holds_a_script_of_its_own() {
    let served = Served::start(LONG).await;
    for (path, kind) in [
        ("/", "text/html"),
        ("/page.js", "text/javascript"),
        ("/page.css", "text/css"),
        ("/nothing", "application/json"),
    ] {
        let reply = served.client.get(format!("{}{path}", served.origin)).send().await.expect("served");
        let header = |name: &str| reply.headers()[name].to_str().expect("text").to_owned();
        let policy = header("content-security-policy");
        for rule in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"] {
            assert!(policy.contains(rule) && !policy.contains("unsafe"), "{path}: {policy}");
        }
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!((header("referrer-policy"), header("cache-control")), ("no-referrer".into(), "no-store".into()));
        assert!(header("content-type").starts_with(kind), "{path}");
        let text = reply.text().await.expect("text");
        for inline in ["<script>", "onclick", "innerHTML", "style=", "eval("] {
            assert!(!text.contains(inline), "{path} holds {inline}");
        }
        assert!(!text.contains(&served.token), "{path}");
    }
}
