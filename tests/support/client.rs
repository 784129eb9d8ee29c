//! A user's client: the two steps over real HTTP, and plain requests.

use crate::agui;
use crate::contract;
use crate::new_id;
use crate::wait::within_deadline;
use eventsource_stream::Eventsource;
use futures::StreamExt;
use futures::stream::BoxStream;
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use std::net::SocketAddr;

/// A client of one user.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    user: Option<String>,
    role: Option<String>,
}

/// An answer: status and JSON body.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body; a string where it was no JSON.
    pub body: Value,
}

impl Answer {
    /// The body of a success.
    #[track_caller]
    pub fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.body
    }

    /// Status and code of a refusal, which also must say what to do and have no success in it.
    #[track_caller]
    pub fn refused(&self) -> (u16, &str) {
        let error = &self.body["error"];
        assert!(self.status >= 400, "not refused: {self:?}");
        assert!(error["message"].is_string() && error["retriable"].is_boolean(), "{self:?}");
        (self.status, error["code"].as_str().expect("a refusal has a code"))
    }
}

/// A question before it is asked.
#[derive(Clone, Debug)]
pub struct Question(Value);

impl Question {
    /// A question with a key of its own.
    pub fn new(content: &str) -> Self {
        Self(json!({ "content": content, "idempotency_key": new_id() }))
    }

    /// For a device's tools.
    pub fn on(mut self, device_id: &str) -> Self {
        self.0["device_id"] = device_id.into();
        self
    }

    /// In an existing conversation.
    pub fn within(mut self, conversation_id: &str) -> Self {
        self.0["conversation_id"] = conversation_id.into();
        self
    }

    /// Under this key.
    pub fn key(mut self, key: &str) -> Self {
        self.0["idempotency_key"] = key.into();
        self
    }

    /// The body.
    pub fn body(&self) -> &Value {
        &self.0
    }
}

/// What the first step answered.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The conversation.
    pub conversation_id: String,
    /// The turn.
    pub turn_id: String,
    /// The run to claim.
    pub run_id: String,
    /// The question's message.
    pub user_message_id: String,
    content: String,
}

impl Asked {
    /// From a first step's reply.
    pub fn prepared(reply: &Value, content: &str) -> Self {
        let id = |name: &str| reply[name].as_str().unwrap_or_else(|| panic!("no {name} in {reply}")).to_owned();
        Self {
            conversation_id: id("conversation_id"),
            turn_id: id("turn_id"),
            run_id: id("run_id"),
            user_message_id: id("user_message_id"),
            content: content.to_owned(),
        }
    }

    /// The second step's body.
    pub fn input(&self) -> Value {
        json!({
            "threadId": self.conversation_id,
            "runId": self.run_id,
            "protocolVersion": "1.0",
            "messages": [{ "id": self.user_message_id, "role": "user", "content": self.content }],
            "tools": [], "context": [], "state": {}, "forwardedProps": {},
        })
    }
}

impl Client {
    /// A client of the development user `user`.
    pub fn new(address: SocketAddr, user: &str) -> Self {
        // Idempotent: the first provider of the process stays.
        drop(rustls::crypto::ring::default_provider().install_default());
        // A proxy of the environment does not lead back to this machine.
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        Self { http, base: format!("http://{address}"), user: Some(user.to_owned()), role: None }
    }

    /// The same client without an identity.
    pub fn anonymous(&self) -> Self {
        Self { user: None, ..self.clone() }
    }

    /// The same client in another role.
    pub fn role(&self, role: &str) -> Self {
        Self { role: Some(role.to_owned()), ..self.clone() }
    }

    /// A GET.
    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.http.get(format!("{}{path}", self.base))).await
    }

    /// A GET with `Last-Event-ID`.
    pub async fn get_after(&self, path: &str, last_event_id: &str) -> Answer {
        self.send(self.http.get(format!("{}{path}", self.base)).header("last-event-id", last_event_id)).await
    }

    /// A POST of JSON.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_text(path, body.to_string()).await
    }

    /// A POST of any text as JSON.
    pub async fn post_text(&self, path: &str, body: String) -> Answer {
        let request = self.http.post(format!("{}{path}", self.base)).header("content-type", "application/json");
        self.send(request.body(body)).await
    }

    /// The first step.
    pub async fn ask(&self, question: &Question) -> Asked {
        let body = self.post("/api/turns", question.body()).await.ok();
        let id = |name: &str| body[name].as_str().unwrap_or_else(|| panic!("no {name} in {body}")).to_owned();
        Asked {
            conversation_id: id("conversation_id"),
            turn_id: id("turn_id"),
            run_id: id("run_id"),
            user_message_id: id("user_message_id"),
            content: question.body()["content"].as_str().unwrap_or_default().to_owned(),
        }
    }

    /// The first step at a server that may die: its reply, or `None` where none came.
    pub async fn try_ask(&self, question: &Question) -> Option<Value> {
        let request = self.http.post(format!("{}/api/turns", self.base)).json(question.body());
        let answer = within_deadline("an answer or none", self.identified(request).send()).await.ok()?;
        answer.error_for_status().ok()?.json().await.ok()
    }

    /// A GET at a server that may not be there: its answer, or `None` where none came.
    pub async fn try_get(&self, path: &str) -> Option<Answer> {
        self.try_send(self.http.get(format!("{}{path}", self.base))).await
    }

    /// A POST of JSON at a server that may not be there; a stream is read to its end.
    pub async fn try_post(&self, path: &str, body: &Value) -> Option<Answer> {
        self.try_send(self.http.post(format!("{}{path}", self.base)).json(body)).await
    }

    async fn try_send(&self, request: RequestBuilder) -> Option<Answer> {
        let answer = within_deadline("an answer or none", self.identified(request).send()).await.ok()?;
        let status = answer.status().as_u16();
        let text = within_deadline("a body or its end", answer.text()).await.ok()?;
        Some(Answer { status, body: serde_json::from_str(&text).unwrap_or(Value::String(text)) })
    }

    /// The second step: the whole stream, whose order is checked.
    pub async fn run(&self, asked: &Asked) -> Vec<Value> {
        self.stream(asked).await.rest().await
    }

    /// Both steps.
    pub async fn converse(&self, question: &Question) -> (Asked, Vec<Value>) {
        let asked = self.ask(question).await;
        let events = self.run(&asked).await;
        (asked, events)
    }

    /// The second step, to be read piece by piece.
    pub async fn stream(&self, asked: &Asked) -> RunStream {
        let path = format!("{}/api/agent", self.base);
        let request = self.identified(self.http.post(path).json(&asked.input()));
        let answer = within_deadline("POST /api/agent", request.send()).await.expect("an answer");
        let status = answer.status();
        assert!(status.is_success(), "POST /api/agent: {status} {}", answer.text().await.unwrap_or_default());
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let events = answer.bytes_stream().eventsource().map(|event| {
            let event = event.map_err(|error| error.to_string())?;
            serde_json::from_str(&event.data).map_err(|error| format!("{error}: {}", event.data))
        });
        RunStream { asked: asked.clone(), seen: Vec::new(), events: events.boxed() }
    }

    /// The turns of a conversation.
    pub async fn turns(&self, conversation_id: &str) -> Vec<Value> {
        list(self.get(&format!("/api/turns?conversation_id={conversation_id}")).await.ok())
    }

    /// The turn that was asked.
    pub async fn turn(&self, asked: &Asked) -> Value {
        let turns = self.turns(&asked.conversation_id).await;
        turns.into_iter().find(|turn| turn["id"] == asked.turn_id).expect("the turn is in its conversation")
    }

    /// The tool calls of a run.
    pub async fn tool_calls(&self, asked: &Asked) -> Vec<Value> {
        list(self.get(&format!("/api/tool-calls?run_id={}", asked.run_id)).await.ok())
    }

    /// The only tool call of a run.
    pub async fn tool_call(&self, asked: &Asked) -> Value {
        let mut calls = self.tool_calls(asked).await;
        assert_eq!(calls.len(), 1, "{calls:#?}");
        calls.remove(0)
    }

    /// The user's devices.
    pub async fn devices(&self) -> Vec<Value> {
        list(self.get("/api/devices").await.ok())
    }

    /// Everything that the views say to this user.
    pub async fn everything(&self) -> Value {
        let conversations = self.get("/api/conversations").await.ok();
        let mut inside = Vec::new();
        for conversation in list(conversations.clone()) {
            let id = conversation["id"].as_str().expect("an id");
            let calls = self.get(&format!("/api/tool-calls?conversation_id={id}")).await.ok();
            inside.push(json!({ "turns": self.turns(id).await, "tool_calls": calls }));
        }
        json!({ "conversations": conversations, "inside": inside, "devices": self.devices().await })
    }

    /// A rerun of a turn: with content an edit, without a retry.
    pub async fn rerun(&self, asked: &Asked, content: Option<&str>) -> Asked {
        let mut body = json!({ "turn_id": asked.turn_id, "idempotency_key": new_id() });
        if let Some(content) = content {
            body["content"] = content.into();
        }
        let prepared = self.post("/api/turns/rerun", &body).await.ok();
        Asked::prepared(&prepared, content.unwrap_or(&asked.content))
    }

    /// A request of this user.
    pub(crate) fn request(&self, method: reqwest::Method, path: &str) -> RequestBuilder {
        self.identified(self.http.request(method, format!("{}{path}", self.base)))
    }

    fn identified(&self, request: RequestBuilder) -> RequestBuilder {
        let request = match &self.user {
            Some(user) => request.header("x-dev-user", user),
            None => request,
        };
        match &self.role {
            Some(role) => request.header("x-dev-role", role),
            None => request,
        }
    }

    async fn send(&self, request: RequestBuilder) -> Answer {
        let request = self.identified(request).build().expect("a request");
        let (method, path) = (request.method().clone(), request.url().path().to_owned());
        let answer = within_deadline("a request", self.http.execute(request)).await.expect("an answer");
        let status = answer.status().as_u16();
        let text = within_deadline("a body", answer.text()).await.expect("a body");
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        contract::assert_declared(method.as_str(), &path, status, &body);
        Answer { status, body }
    }
}

fn list(value: Value) -> Vec<Value> {
    match value {
        Value::Array(list) => list,
        other => panic!("not a list: {other}"),
    }
}

/// A run's stream. Dropping it is a client that goes away.
pub struct RunStream {
    asked: Asked,
    seen: Vec<Value>,
    events: BoxStream<'static, Result<Value, String>>,
}

impl RunStream {
    /// The next event; `None` at the end of a body that was closed in order.
    pub async fn next(&mut self) -> Option<Value> {
        let event = within_deadline("an event of the stream", self.events.next()).await;
        let event = event.map(|event| event.unwrap_or_else(|error| panic!("{error}, after {:#?}", self.seen)));
        self.seen.extend(event.clone());
        event
    }

    /// Reads up to the first event that is wanted, and answers it.
    pub async fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        while let Some(event) = self.next().await {
            if wanted(&event) {
                return event;
            }
        }
        panic!("{what} never came: {:#?}", self.seen)
    }

    /// Reads to the end: everything from the beginning, with its order checked.
    pub async fn rest(mut self) -> Vec<Value> {
        while self.next().await.is_some() {}
        agui::assert_in_order(&self.asked.conversation_id, &self.asked.run_id, &self.seen);
        self.seen
    }
}
