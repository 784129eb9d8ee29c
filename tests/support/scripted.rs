//! A model in this process that says what a test tells it to, records every prompt, waits at gates,
//! and notices when its answer is dropped. For what a provider does on the wire there is
//! [`crate::ModelEndpoint`].

use crate::wait::{eventually, within_deadline};
use async_trait::async_trait;
use devmind_api::model::{Model, ModelChunk, ModelFailure, ModelRequest, ModelStream};
use devmind_domain::ErrorCode;
use devmind_domain::agent::Message;
use futures::StreamExt;
use futures::stream;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A step of an answer.
#[derive(Clone, Debug)]
enum Step {
    Chunk(ModelChunk),
    Fail(ErrorCode),
    /// Nothing more until the token is cancelled.
    Gate(CancellationToken),
    /// Nothing more, ever.
    Hold,
}

/// One answer, built piece by piece.
#[derive(Clone, Debug, Default)]
pub struct Script(Vec<Step>);

impl Script {
    /// Nothing said yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A complete answer of one piece.
    pub fn say(text: &str) -> Self {
        Self::new().text(text).done()
    }

    /// A complete answer that makes these calls: the model's id, the tool, the arguments' text.
    pub fn calls(calls: &[(&str, &str, &str)]) -> Self {
        let add = |script: Self, (index, (id, name, arguments)): (usize, &(&str, &str, &str))| {
            script.piece(index, Some(id), Some(name), arguments)
        };
        calls.iter().enumerate().fold(Self::new(), add).finish("tool_calls")
    }

    fn step(mut self, step: Step) -> Self {
        self.0.push(step);
        self
    }

    /// Says something.
    pub fn text(self, text: &str) -> Self {
        self.step(Step::Chunk(ModelChunk::Text(text.to_owned())))
    }

    /// A piece of a call, in whatever order.
    pub fn piece(self, index: usize, id: Option<&str>, name: Option<&str>, arguments: &str) -> Self {
        let (id, name, arguments) = (id.map(str::to_owned), name.map(str::to_owned), arguments.to_owned());
        self.step(Step::Chunk(ModelChunk::ToolCall { index, id, name, arguments }))
    }

    /// Waits for the token before going on.
    pub fn gate(self, token: &CancellationToken) -> Self {
        self.step(Step::Gate(token.clone()))
    }

    /// Says nothing more, and does not end.
    pub fn hold(self) -> Self {
        self.step(Step::Hold)
    }

    /// Fails with this code.
    pub fn fail(self, code: ErrorCode) -> Self {
        self.step(Step::Fail(code))
    }

    /// Completes the answer.
    pub fn done(self) -> Self {
        self.finish("stop")
    }

    /// Completes the answer for this reason.
    pub fn finish(self, reason: &str) -> Self {
        self.step(Step::Chunk(ModelChunk::Finished(reason.to_owned())))
    }
}

/// The model. Scripts are used up in order; after the last one it says "done".
pub struct ScriptedModel {
    scripts: Mutex<VecDeque<Script>>,
    prompts: Mutex<Vec<Vec<Message>>>,
    asked: watch::Sender<usize>,
    dropped: watch::Sender<usize>,
    taken: Arc<AtomicUsize>,
}

impl ScriptedModel {
    /// A model with these answers.
    pub fn new(scripts: impl IntoIterator<Item = Script>) -> Arc<Self> {
        Arc::new(Self {
            scripts: Mutex::new(scripts.into_iter().collect()),
            prompts: Mutex::default(),
            asked: watch::channel(0).0,
            dropped: watch::channel(0).0,
            taken: Arc::default(),
        })
    }

    /// More answers, after those that are left.
    pub fn then(&self, scripts: impl IntoIterator<Item = Script>) {
        self.scripts.lock().expect("not poisoned").extend(scripts);
    }

    /// The prompts it was given, in order.
    pub fn prompts(&self) -> Vec<Vec<Message>> {
        self.prompts.lock().expect("not poisoned").clone()
    }

    /// How often it was asked.
    pub fn times_asked(&self) -> usize {
        *self.asked.borrow()
    }

    /// Role and text of every message of the `n`th prompt (from 0), without the instructions.
    pub fn said(&self, n: usize) -> Vec<(String, String)> {
        let prompts = self.prompts();
        let prompt = prompts.get(n).unwrap_or_else(|| panic!("{} prompts came, not {}", prompts.len(), n + 1));
        let role = |message: &Message| match message {
            Message::System { .. } => "system",
            Message::User { .. } => "user",
            Message::Assistant { .. } => "assistant",
            Message::Tool { .. } => "tool",
        };
        let told = prompt.iter().filter(|message| role(message) != "system");
        told.map(|message| (role(message).to_owned(), message.content().to_owned())).collect()
    }

    /// Waits until the server takes no more of what the model says.
    pub async fn stalled(&self) {
        let (mut last, mut same) = (0, 0);
        eventually("nothing more is taken from the model", || {
            let taken = self.taken.load(Ordering::SeqCst);
            same = if taken == last { same + 1 } else { 0 };
            last = taken;
            let stalled = taken > 0 && same > 30;
            async move { if stalled { Ok(()) } else { Err(format!("{taken} pieces were taken")) } }
        })
        .await;
    }

    /// Waits until it was asked `n` times.
    pub async fn asked(&self, n: usize) {
        let mut asked = self.asked.subscribe();
        within_deadline("a question to the model", asked.wait_for(|count| *count >= n)).await.expect("it lives");
    }

    /// Waits until `n` answers were dropped before they were complete.
    pub async fn dropped(&self, n: usize) {
        let mut dropped = self.dropped.subscribe();
        within_deadline("the end of an answer", dropped.wait_for(|count| *count >= n)).await.expect("it lives");
    }
}

/// Counts an answer that is dropped before it is complete.
struct Open {
    dropped: watch::Sender<usize>,
    complete: bool,
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.complete {
            self.dropped.send_modify(|count| *count += 1);
        }
    }
}

#[async_trait]
impl Model for ScriptedModel {
    fn provider(&self) -> &str {
        "scripted"
    }

    fn name(&self) -> &str {
        "scripted-1"
    }

    fn parameters(&self) -> Value {
        json!({})
    }

    async fn ask(&self, request: ModelRequest) -> Result<ModelStream, ModelFailure> {
        assert_every_call_has_its_result(&request.messages);
        self.prompts.lock().expect("not poisoned").push(request.messages);
        let script = self.scripts.lock().expect("not poisoned").pop_front().unwrap_or_else(|| Script::say("done"));
        self.asked.send_modify(|count| *count += 1);
        let open = Open { dropped: self.dropped.clone(), complete: false };
        let state = (VecDeque::from(script.0), open, self.taken.clone());
        let answer = stream::unfold(state, |(mut steps, mut open, taken)| async move {
            loop {
                let step = steps.pop_front();
                taken.fetch_add(1, Ordering::SeqCst);
                open.complete = steps.is_empty();
                match step {
                    Some(Step::Chunk(chunk)) => return Some((Ok(chunk), (steps, open, taken))),
                    Some(Step::Fail(code)) => {
                        let failure = ModelFailure::new(code, "said by the scripted model");
                        return Some((Err(failure), (steps, open, taken)));
                    }
                    Some(Step::Gate(token)) => {
                        open.complete = false;
                        token.cancelled().await;
                    }
                    Some(Step::Hold) => {
                        open.complete = false;
                        std::future::pending::<()>().await;
                    }
                    None => return None,
                }
            }
        });
        Ok(answer.boxed())
    }
}

/// Every call of a prompt is answered once, directly after the message that makes it; nothing else is
/// answered.
#[track_caller]
pub fn assert_every_call_has_its_result(prompt: &[Message]) {
    let mut expected: VecDeque<String> = VecDeque::new();
    for message in prompt {
        match message {
            Message::Tool { tool_call_id, .. } => {
                assert_eq!(expected.pop_front().as_ref(), Some(tool_call_id), "{prompt:#?}");
            }
            other => {
                assert!(expected.is_empty(), "calls without results: {expected:?} in {prompt:#?}");
                if let Message::Assistant { tool_calls, .. } = other {
                    expected = tool_calls.iter().map(|call| call.id.clone()).collect();
                }
            }
        }
    }
    assert!(expected.is_empty(), "calls without results: {expected:?} in {prompt:#?}");
}
