//! A model's endpoint on the loopback address that does what a test tells it: streams, refuses,
//! hangs, breaks off. It records what it was asked and whether its client went away.
//!
//! It speaks the dialect that it is asked in, OpenAI's or Anthropic's; how each of them says things
//! is left to [`crate::dialect`].

use crate::dialect::Speaker;
use crate::wait::within_deadline;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use devmind_api::config::{ModelConfig, Provider};
use futures::stream::{self, StreamExt};
use serde_json::Value;
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
    Say(Said),
    Raw(String),
    /// Nothing more, ever, with the connection open.
    Hold,
    /// The connection is lost.
    Cut,
    /// Nothing more until the token is cancelled.
    Until(CancellationToken),
}

/// Something that a dialect says in its own way.
#[derive(Clone, Debug)]
pub enum Said {
    /// Text.
    Text(String),
    /// A call, as far as it is written: index, id, name, verbatim argument text.
    Call(usize, String, String, String),
    /// Argument text of the call with this index that follows what came before.
    Arguments(usize, String),
    /// A failure of the endpoint, in the midst of the stream.
    Failure,
    /// The end of the answer, which calls tools or does not.
    End {
        /// Whether it calls tools.
        calls: bool,
    },
}

/// What the endpoint does with one request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Answers with this status and body.
    Status(u16, String),
    /// Answers with this status, and wants to be left alone for so many seconds.
    Busy(u16, &'static str),
    /// Sends the client to this address.
    Elsewhere(String),
    /// Never answers.
    Silence,
    /// Streams.
    Stream(StreamReply),
}

/// A streamed answer, built piece by piece.
#[derive(Clone, Debug, Default)]
pub struct StreamReply(Vec<Step>);

impl StreamReply {
    fn step(mut self, step: Step) -> Self {
        self.0.push(step);
        self
    }

    /// Says something.
    pub fn text(self, text: &str) -> Self {
        self.step(Step::Say(Said::Text(text.to_owned())))
    }

    /// Calls a tool, as verbatim argument text.
    pub fn call(self, index: usize, id: &str, name: &str, arguments: &str) -> Self {
        self.step(Step::Say(Said::Call(index, id.to_owned(), name.to_owned(), arguments.to_owned())))
    }

    /// Writes on at the arguments of a call.
    pub fn arguments(self, index: usize, text: &str) -> Self {
        self.step(Step::Say(Said::Arguments(index, text.to_owned())))
    }

    /// Reports a failure.
    pub fn failure(self) -> Self {
        self.step(Step::Say(Said::Failure))
    }

    /// Sends bytes as they are.
    pub fn raw(self, text: &str) -> Self {
        self.step(Step::Raw(text.to_owned()))
    }

    /// Waits for the token before going on.
    pub fn until(self, token: &CancellationToken) -> Self {
        self.step(Step::Until(token.clone()))
    }

    /// Says nothing more, with the connection open.
    pub fn hold(self) -> Reply {
        Reply::Stream(self.step(Step::Hold))
    }

    /// Loses the connection.
    pub fn cut(self) -> Reply {
        Reply::Stream(self.step(Step::Cut))
    }

    /// Ends the body in order, but without saying that the answer is complete.
    pub fn end(self) -> Reply {
        Reply::Stream(self)
    }

    /// Completes the answer.
    pub fn done(self) -> Reply {
        Reply::Stream(self.step(Step::Say(Said::End { calls: false })))
    }

    /// Completes the answer, which calls tools.
    pub fn calls(self) -> Reply {
        Reply::Stream(self.step(Step::Say(Said::End { calls: true })))
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
    requests: Mutex<Vec<String>>,
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

    /// As a server's setting, in OpenAI's dialect.
    pub fn config(&self) -> ModelConfig {
        self.speaking(Provider::Openai)
    }

    /// As a server's setting, in a dialect.
    pub fn speaking(&self, provider: Provider) -> ModelConfig {
        let (base_url, api_key) = (Some(self.url()), API_KEY.to_owned());
        ModelConfig { provider, base_url, name: "scripted".to_owned(), api_key, ..ModelConfig::default() }
    }

    /// What it was asked, in order, as it was written.
    pub fn bodies(&self) -> Vec<String> {
        self.shared.script.requests.lock().expect("not poisoned").clone()
    }

    /// What it was asked, in order.
    pub fn requests(&self) -> Vec<Value> {
        self.bodies().iter().map(|body| serde_json::from_str(body).expect("a request is JSON")).collect()
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

async fn answer(State(shared): State<Shared>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let key = headers.get("authorization").or_else(|| headers.get("x-api-key"));
    let key = key.and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    shared.script.keys.lock().expect("not poisoned").push(key);
    let request = String::from_utf8_lossy(&body).into_owned();
    shared.script.requests.lock().expect("not poisoned").push(request);
    let reply = shared.script.replies.lock().expect("not poisoned").pop_front();
    let mut watch = Watch { gone: shared.gone.clone(), complete: false };
    shared.asked.send_modify(|count| *count += 1);
    let json = ("content-type", "application/json");
    match reply.unwrap_or_else(|| Reply::say("done")) {
        Reply::Silence => {
            let _watch = watch;
            std::future::pending().await
        }
        Reply::Status(status, body) => {
            watch.complete = true;
            let status = StatusCode::from_u16(status).expect("a status");
            (status, [json], body).into_response()
        }
        Reply::Elsewhere(address) => {
            watch.complete = true;
            (StatusCode::TEMPORARY_REDIRECT, [("location", address)]).into_response()
        }
        Reply::Busy(status, seconds) => {
            watch.complete = true;
            let status = StatusCode::from_u16(status).expect("a status");
            (status, [json, ("retry-after", seconds)], r#"{"error":{"message":"busy"}}"#).into_response()
        }
        Reply::Stream(StreamReply(steps)) => {
            watch.complete = steps.is_empty();
            let state = (VecDeque::from(steps), Speaker::of_path(uri.path()), watch);
            let body = stream::unfold(state, |(mut steps, mut speaker, mut watch)| async move {
                loop {
                    match steps.pop_front() {
                        Some(Step::Say(said)) => steps.push_front(Step::Raw(speaker.say(&said))),
                        Some(Step::Raw(text)) => {
                            // A client may leave with the last piece: then it has everything.
                            watch.complete = steps.is_empty();
                            return Some((Ok(Bytes::from(text)), (steps, speaker, watch)));
                        }
                        Some(Step::Until(token)) => token.cancelled().await,
                        Some(Step::Hold) => std::future::pending().await,
                        Some(Step::Cut) => {
                            // What was sent leaves the buffer when there is nothing to send.
                            tokio::task::yield_now().await;
                            watch.complete = true;
                            return Some((Err(std::io::Error::other("cut")), (steps, speaker, watch)));
                        }
                        None => return None,
                    }
                }
            });
            ([("content-type", "text/event-stream")], Body::from_stream(body.boxed())).into_response()
        }
    }
}
