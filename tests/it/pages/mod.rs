//! The pages as documents, over HTTP and without a script: what they show, to whom, and what a browser may do with
//! them. What scripts add is tested in a browser.

mod bundles;
mod chat;
mod documents;
mod past;
mod people;

use devmind_domain::event::{Actor, AggregateType, Metadata, NewEvent, StreamId};
use devmind_domain::thread::{AnswerProgressed, ThreadEvent};
use devmind_ledger::{Append, StreamAppend};
use devmind_tests::sse::interrupts;
use devmind_tests::{Asked, Question, TestServer, new_id};
use reqwest::header::HeaderMap;

/// A browser without scripts.
#[derive(Clone)]
struct Browser {
    http: reqwest::Client,
    base: String,
    headers: Vec<(&'static str, String)>,
}

struct Document {
    status: u16,
    headers: HeaderMap,
    text: String,
}

impl Document {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.status, 200, "{}", self.text);
        self.text
    }

    /// The addresses of what it loads.
    fn loads(&self) -> Vec<String> {
        let tags =
            self.text.split('<').filter(|tag| ["link ", "script ", "img "].iter().any(|name| tag.starts_with(name)));
        let address = |tag: &str| {
            let (_, rest) = tag.split_once("href=\"").or_else(|| tag.split_once("src=\""))?;
            Some(rest.split_once('"')?.0.to_owned())
        };
        tags.filter_map(address).collect()
    }
}

impl Browser {
    /// Of somebody with a name and a role, as their cookie says.
    fn of(server: &TestServer, name: &str) -> Self {
        Self::nobody(server).with("cookie", &format!("devmind-user={name}"))
    }

    fn nobody(server: &TestServer) -> Self {
        drop(server.client("ann"));
        let policy = reqwest::redirect::Policy::none();
        let http = reqwest::Client::builder().no_proxy().redirect(policy).build().unwrap();
        Self { http, base: server.url(), headers: vec![("accept", "text/html".to_owned())] }
    }

    fn with(&self, name: &'static str, value: &str) -> Self {
        let mut headers: Vec<_> = self.headers.iter().filter(|(known, _)| *known != name).cloned().collect();
        headers.push((name, value.to_owned()));
        Self { headers, ..self.clone() }
    }

    async fn send(&self, mut request: reqwest::RequestBuilder) -> Document {
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let answer = request.send().await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        Document { status, headers, text: answer.text().await.unwrap() }
    }

    async fn get(&self, path: &str) -> Document {
        self.send(self.http.get(format!("{}{path}", self.base))).await
    }

    /// A form of our own page.
    async fn post(&self, path: &str, form: &str) -> Document {
        let request = self.http.post(format!("{}{path}", self.base)).header("origin", &self.base);
        self.send(request.header("content-type", "application/x-www-form-urlencoded").body(form.to_owned())).await
    }

    async fn upload(&self, bundle: &str) -> Document {
        let body = format!(
            "--b\r\ncontent-disposition: form-data; name=\"bundle\"; filename=\"x.jsonl\"\r\n\r\n{bundle}\r\n--b--\r\n"
        );
        let request = self.http.post(format!("{}/bundles", self.base)).header("origin", &self.base);
        let shown = self.send(request.header("content-type", "multipart/form-data; boundary=b").body(body)).await;
        // A sound bundle has pages of its own.
        if shown.status == 303 { self.get(shown.header("location")).await } else { shown }
    }
}

const HOSTILE: &str = "add 1 and 2 <script>alert(1)</script> \u{202e}txt.exe\" onload=\"x";

/// Ann's conversation, and one that waits for her approval.
struct Story {
    server: TestServer,
    asked: Asked,
    waiting: Asked,
    interrupt: String,
}

impl Story {
    async fn tell() -> Self {
        let server = TestServer::start().await;
        let ann = server.client("ann");
        let (asked, _) = ann.converse(&Question::new(HOSTILE)).await;
        let (waiting, events) = ann.converse(&Question::new("the demo text, please")).await;
        Self { interrupt: interrupts(&events).remove(0), server, asked, waiting }
    }

    async fn position(&self, kind: &str) -> u64 {
        self.server.log().of(kind).await[0].position
    }

    /// Every page of ann's.
    async fn pages(&self) -> Vec<String> {
        let (conversation, run) = (&self.asked.conversation_id, &self.asked.run_id);
        let position = self.position("TurnPrepared").await;
        vec![
            "/".to_owned(),
            "/sign-in".to_owned(),
            "/shortcuts".to_owned(),
            "/approvals".to_owned(),
            "/bundles".to_owned(),
            "/operations".to_owned(),
            "/verify".to_owned(),
            "/log".to_owned(),
            format!("/log?conversation_id={conversation}&type=TurnPrepared&actor=&run_id="),
            format!("/log/{position}"),
            format!("/log/{position}?proof=1"),
            format!("/runs/{run}"),
            format!("/runs/{run}?view=events&at={position}"),
            format!("/runs/{run}?view=json"),
            format!("/history/{conversation}"),
            format!("/history/{conversation}?at={position}"),
            format!("/history/{conversation}/changes?from=1"),
        ]
    }
}

/// Adds so many facts to the run's thread.
async fn lengthen(server: &TestServer, asked: &Asked, events: usize) {
    let app = server.app();
    let reader = app.ledger.reader();
    let thread = server.log().of("ThreadStarted").await[0].stream_id.clone();
    let stream = StreamId::new(AggregateType::Thread, thread);
    let version = reader.read_stream(&stream, 0).await.unwrap().len() as u64;
    let metadata = Metadata::new(Actor::server(&"test".into()), "test".into())
        .run(&asked.run_id.as_str().into())
        .conversation(&asked.conversation_id.as_str().into());
    let events = (0..events).map(|number| {
        let text = format!("{number} of many words that were streamed before this one, <b>and more</b> of them");
        let event = ThreadEvent::AnswerProgressed(AnswerProgressed {
            run_id: asked.run_id.as_str().into(),
            message_id: "m".into(),
            text,
        });
        NewEvent { event_id: new_id(), event: event.into(), metadata: metadata.clone() }
    });
    let append = StreamAppend { stream, expected_version: version, events: events.collect() };
    app.ledger.append(Append { streams: vec![append], idempotency: None }).await.unwrap();
}
