//! The chat's routes without a browser: whose they are, and that a form sent twice is one request. What people see
//! is tested in a browser.

use devmind_tests::scripted::{Script, ScriptedModel};
use devmind_tests::{Log, Question, TestServer, new_id};
use reqwest::RequestBuilder;

/// Somebody's browser, without scripts.
struct Browser {
    http: reqwest::Client,
    url: String,
    cookie: String,
}

impl Browser {
    fn of(server: &TestServer, who: &str) -> Self {
        drop(server.client("ann"));
        let policy = reqwest::redirect::Policy::none();
        let http = reqwest::Client::builder().no_proxy().redirect(policy).build().expect("a client");
        Self { http, url: server.url(), cookie: format!("devmind-user={who}") }
    }

    /// The status, where it leads, and the text.
    async fn send(&self, request: RequestBuilder) -> (u16, String, String) {
        let answer = request.header("cookie", &self.cookie).send().await.expect("an answer");
        let place = answer.headers().get("location").map_or("", |to| to.to_str().expect("text")).to_owned();
        (answer.status().as_u16(), place, answer.text().await.expect("text"))
    }

    async fn get(&self, path: &str) -> u16 {
        let request = self.http.get(format!("{}{path}", self.url)).header("accept", "text/html");
        let answer = request.header("cookie", &self.cookie).send().await.expect("an answer");
        answer.status().as_u16()
    }

    async fn post(&self, path: &str, fields: &[(&str, &str)]) -> (u16, String, String) {
        let form = url_encoded(fields);
        let request = self.http.post(format!("{}{path}", self.url)).header("sec-fetch-site", "same-origin");
        self.send(request.header("content-type", "application/x-www-form-urlencoded").body(form)).await
    }
}

fn url_encoded(fields: &[(&str, &str)]) -> String {
    let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
    fields.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect::<Vec<_>>().join("&")
}

async fn count(log: &Log, kind: &str) -> usize {
    log.all().await.iter().filter(|fact| fact.is(kind)).count()
}

#[tokio::test]
async fn a_chat_is_its_owners_alone_and_an_auditor_reads_it_on_record_and_changes_nothing() {
    let server = TestServer::start().await;
    let asked = server.client("ann").ask(&Question::new("show me the demo text")).await;
    server.client("ann").run(&asked).await;
    let interrupt =
        server.log().wait_kind("InterruptRaised").await.payload["interrupt_id"].as_str().unwrap().to_owned();
    let (conversation, run, turn) = (asked.conversation_id.as_str(), asked.run_id.as_str(), asked.turn_id.as_str());
    let calls = server.client("ann").get(&format!("/api/tool-calls?run_id={run}")).await.ok();
    let call = calls[0]["tool_call_id"].as_str().unwrap().to_owned();
    let pages = [
        format!("/conversations/{conversation}"),
        format!("/chat/stream?c={conversation}"),
        format!("/chat/call?id={call}"),
        format!("/chat/answer?c={conversation}&turn=1"),
    ];
    let key = new_id();
    let buttons: [(&str, &[(&str, &str)]); 7] = [
        ("/chat/ask", &[("conversation_id", conversation), ("content", "x"), ("key", &key)]),
        ("/chat/rerun", &[("turn_id", turn), ("key", &key)]),
        ("/chat/start", &[("run_id", run)]),
        ("/chat/decide", &[("interrupt_id", &interrupt), ("approved", "true")]),
        ("/chat/stop", &[("run_id", run)]),
        ("/chat/rename", &[("conversation_id", conversation), ("title", "x")]),
        ("/chat/delete", &[("conversation_id", conversation)]),
    ];
    let (stranger, auditor) = (Browser::of(&server, "eve"), Browser::of(&server, "max:auditor"));
    for page in &pages {
        assert_eq!(stranger.get(page).await, 403, "{page}");
    }
    assert_eq!(count(&server.log(), "ConversationRead").await, 0);
    for (at, page) in pages[..3].iter().enumerate() {
        assert_eq!(auditor.get(page).await, 200, "{page}");
        assert_eq!(count(&server.log(), "ConversationRead").await, at + 1, "{page}");
    }
    let before = server.log().all().await.len();
    for (path, fields) in buttons {
        for browser in [&stranger, &auditor] {
            let (status, _, text) = browser.post(path, fields).await;
            assert_eq!(status, 403, "{path}: {text}");
        }
        let foreign = Browser::of(&server, "ann");
        let request = foreign.http.post(format!("{}{path}", foreign.url)).header("sec-fetch-site", "cross-site");
        let request = request.header("content-type", "application/x-www-form-urlencoded").body(url_encoded(fields));
        assert_eq!(foreign.send(request).await.0, 403, "{path}: a form of another site");
    }
    assert_eq!(server.log().all().await.len(), before, "nothing was changed");
    server.finish().await;
}

#[tokio::test]
async fn a_question_that_a_form_sends_twice_is_asked_once_and_its_run_is_nobodys_connection() {
    let server = TestServer::start().await;
    let (browser, key) = (Browser::of(&server, "ann"), new_id());
    let fields = [("content", "add 1 and 2\r\nplease"), ("key", key.as_str()), ("device_id", "")];
    let (status, place, text) = browser.post("/chat/ask", &fields).await;
    assert_eq!((status, place.starts_with("/conversations/")), (303, true), "{text}");
    assert_eq!(browser.post("/chat/ask", &fields).await.1, place);
    let log = server.log();
    log.wait_kind("RunSucceeded").await;
    assert_eq!((count(&log, "TurnPrepared").await, count(&log, "RunClaimed").await), (1, 1));
    let prepared = log.wait_kind("TurnPrepared").await;
    assert_eq!(prepared.payload["content"], "add 1 and 2\nplease");
    let (status, _, text) = browser.post("/chat/ask", &[("content", "  "), ("key", key.as_str())]).await;
    assert_eq!(status, 422, "{text}");
    server.finish().await;
}

#[tokio::test]
async fn of_questions_that_come_at_the_same_moment_four_run_and_the_others_are_told_to_wait() {
    let model = ScriptedModel::new((0..8).map(|_| Script::new().hold()));
    let server = TestServer::with_scripted(model).await;
    let browser = Browser::of(&server, "ann");
    let ask = async |number: usize| {
        let (content, key) = (format!("question {number}"), new_id());
        browser.post("/chat/ask", &[("content", content.as_str()), ("key", key.as_str())]).await
    };
    let answers = futures::future::join_all((0..8).map(ask)).await;
    let told: Vec<u16> = answers.iter().map(|(status, ..)| *status).collect();
    let of = |wanted: u16| told.iter().filter(|status| **status == wanted).count();
    assert_eq!((of(303), of(429)), (4, 4), "{told:?}");
    let wait = answers.iter().find(|(status, ..)| *status == 429).map(|(.., text)| text.contains("RATE_LIMITED"));
    assert_eq!(wait, Some(true));
    let log = server.log();
    assert_eq!((count(&log, "TurnPrepared").await, count(&log, "RunClaimed").await), (4, 4));
    // One that is stopped makes room.
    let run = log.of("RunClaimed").await[0].payload["run_id"].as_str().unwrap().to_owned();
    assert_eq!(browser.post("/chat/stop", &[("run_id", run.as_str())]).await.0, 303);
    log.wait_kind("RunCancelled").await;
    assert_eq!(ask(8).await.0, 303);
    server.finish().await;
}
