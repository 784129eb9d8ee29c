//! An OpenAI-compatible endpoint on the loopback address that does what a test tells it: streams,
//! refuses, hangs, breaks off. It records what it was asked and whether its client went away.

use crate::wait::within_deadline;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use devmind_api::config::ModelConfig;
use futures::stream::{self, StreamExt};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The key that the endpoint is called with; no log and no event may ever show it.
pub const API_KEY: &str = "sk-the-secret-key-of-the-tests";

/// A step of a streamed answer.
#[derive(Clone, Debug)]
enum Step {
    Send(String),
    /// Nothing more, ever, with the connection open.
    Hold,
    /// The connection is lost.
    Cut,
    /// Nothing more until the token is cancelled.
    Until(CancellationToken),
}

/// What the endpoint does with one request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Answers with this status and body.
    Status(u16, String),
    /// Never answers.
    Silence,
    /// Streams.
    Stream(StreamReply),
}

/// A streamed answer, built piece by piece.
#[derive(Clone, Debug, Default)]
pub struct StreamReply(Vec<Step>);

impl StreamReply {
    fn chunk(mut self, delta: &Value, finish: Option<&str>) -> Self {
        let chunk = json!({
            "id": "c", "object": "chat.completion.chunk", "created": 0, "model": "scripted-1",
            "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }],
        });
        self.0.push(Step::Send(format!("data: {chunk}\n\n")));
        self
    }

    /// Says something.
    pub fn text(self, text: &str) -> Self {
        self.chunk(&json!({ "role": "assistant", "content": text }), None)
    }

    /// Calls a tool, as verbatim argument text.
    pub fn call(self, index: usize, id: &str, name: &str, arguments: &str) -> Self {
        let call = json!({
            "index": index, "id": id, "type": "function",
            "function": { "name": name, "arguments": arguments },
        });
        self.chunk(&json!({ "tool_calls": [call] }), None)
    }

    /// Sends bytes as they are.
    pub fn raw(mut self, text: &str) -> Self {
        self.0.push(Step::Send(text.to_owned()));
        self
    }

    /// Waits for the token before going on.
    pub fn until(mut self, token: &CancellationToken) -> Self {
        self.0.push(Step::Until(token.clone()));
        self
    }

    /// Says nothing more, with the connection open.
    pub fn hold(mut self) -> Reply {
        self.0.push(Step::Hold);
        Reply::Stream(self)
    }

    /// Loses the connection.
    pub fn cut(mut self) -> Reply {
        self.0.push(Step::Cut);
        Reply::Stream(self)
    }

    /// Ends the body in order, but without saying that the answer is complete.
    pub fn end(self) -> Reply {
        Reply::Stream(self)
    }

    /// Completes the answer.
    pub fn done(self) -> Reply {
        self.finish("stop")
    }

    /// Completes the answer, which calls tools.
    pub fn calls(self) -> Reply {
        self.finish("tool_calls")
    }

    fn finish(self, reason: &str) -> Reply {
        let usage =
            json!({ "model": "scripted-1", "choices": [], "usage": { "prompt_tokens": 7, "completion_tokens": 3 } });
        let mut done = self.chunk(&json!({}), Some(reason));
        done.0.push(Step::Send(format!("data: {usage}\n\n")));
        done.0.push(Step::Send("data: [DONE]\n\n".to_owned()));
        Reply::Stream(done)
    }
}

impl Reply {
    /// A streamed answer to be built.
    pub fn stream() -> StreamReply {
        StreamReply::default()
    }

    /// A complete answer of one piece.
    pub fn say(text: &str) -> Self {
        Self::stream().text(text).done()
    }

    /// One call.
    pub fn call(id: &str, name: &str, arguments: &Value) -> Self {
        Self::stream().call(0, id, name, &arguments.to_string()).calls()
    }
}

#[derive(Default)]
struct Script {
    replies: Mutex<VecDeque<Reply>>,
    requests: Mutex<Vec<Value>>,
    keys: Mutex<Vec<String>>,
}

#[derive(Clone)]
struct Shared {
    script: Arc<Script>,
    asked: Arc<watch::Sender<usize>>,
    gone: Arc<watch::Sender<usize>>,
}

/// The endpoint; ends when dropped.
pub struct ModelEndpoint {
    address: SocketAddr,
    shared: Shared,
    stop: CancellationToken,
}

impl ModelEndpoint {
    /// Starts it. Replies are used up in order; after the last one it says "done".
    pub async fn start(replies: impl IntoIterator<Item = Reply>) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let script = Script { replies: Mutex::new(replies.into_iter().collect()), ..Script::default() };
        let shared = Shared {
            script: Arc::new(script),
            asked: Arc::new(watch::channel(0).0),
            gone: Arc::new(watch::channel(0).0),
        };
        let router = Router::new().fallback(answer).with_state(shared.clone());
        let stop = CancellationToken::new();
        let serve = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = serve.cancelled() => {}
                served = axum::serve(listener, router).into_future() => served.expect("the endpoint serves"),
            }
        });
        Self { address, shared, stop }
    }

    /// More replies, after those that are left.
    pub fn then(&self, replies: impl IntoIterator<Item = Reply>) {
        self.shared.script.replies.lock().expect("not poisoned").extend(replies);
    }

    /// Its base URL.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// As a server's setting.
    pub fn config(&self) -> ModelConfig {
        ModelConfig { base_url: self.url(), name: "scripted".to_owned(), api_key: API_KEY.to_owned() }
    }

    /// What it was asked, in order.
    pub fn requests(&self) -> Vec<Value> {
        self.shared.script.requests.lock().expect("not poisoned").clone()
    }

    /// The messages of its `n`th request.
    pub fn messages(&self, n: usize) -> Vec<Value> {
        let requests = self.requests();
        let request = requests.get(n).unwrap_or_else(|| panic!("{} requests came, not {}", requests.len(), n + 1));
        request["messages"].as_array().expect("messages").clone()
    }

    /// The keys it was called with.
    pub fn keys(&self) -> Vec<String> {
        self.shared.script.keys.lock().expect("not poisoned").clone()
    }

    /// Waits until it was asked `n` times.
    pub async fn asked(&self, n: usize) {
        let mut asked = self.shared.asked.subscribe();
        within_deadline("a request to the model", asked.wait_for(|count| *count >= n)).await.expect("it lives");
    }

    /// Waits until `n` requests were given up by their client before they were answered in full.
    pub async fn aborted(&self, n: usize) {
        let mut gone = self.shared.gone.subscribe();
        within_deadline("the end of the request to the model", gone.wait_for(|count| *count >= n))
            .await
            .expect("it lives");
    }
}

impl Drop for ModelEndpoint {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Counts a request whose client went away: dropped before it was told that all is said.
struct Watch {
    gone: Arc<watch::Sender<usize>>,
    complete: bool,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.complete {
            self.gone.send_modify(|count| *count += 1);
        }
    }
}

async fn answer(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Response {
    let key = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    shared.script.keys.lock().expect("not poisoned").push(key);
    let request = serde_json::from_slice(&body).unwrap_or_default();
    shared.script.requests.lock().expect("not poisoned").push(request);
    let reply = shared.script.replies.lock().expect("not poisoned").pop_front();
    let mut watch = Watch { gone: shared.gone.clone(), complete: false };
    shared.asked.send_modify(|count| *count += 1);
    match reply.unwrap_or_else(|| Reply::say("done")) {
        Reply::Silence => {
            let _watch = watch;
            std::future::pending().await
        }
        Reply::Status(status, body) => {
            watch.complete = true;
            let status = StatusCode::from_u16(status).expect("a status");
            (status, [("content-type", "application/json")], body).into_response()
        }
        Reply::Stream(StreamReply(steps)) => {
            watch.complete = steps.is_empty();
            let state = (VecDeque::from(steps), watch);
            let body = stream::unfold(state, |(mut steps, mut watch)| async move {
                loop {
                    match steps.pop_front() {
                        Some(Step::Send(text)) => {
                            // A client may leave with the last piece: then it has everything.
                            watch.complete = steps.is_empty();
                            return Some((Ok(Bytes::from(text)), (steps, watch)));
                        }
                        Some(Step::Until(token)) => token.cancelled().await,
                        Some(Step::Hold) => std::future::pending().await,
                        Some(Step::Cut) => {
                            // What was sent leaves the buffer when there is nothing to send.
                            tokio::task::yield_now().await;
                            watch.complete = true;
                            return Some((Err(std::io::Error::other("cut")), (steps, watch)));
                        }
                        None => return None,
                    }
                }
            });
            ([("content-type", "text/event-stream")], Body::from_stream(body.boxed())).into_response()
        }
    }
}
