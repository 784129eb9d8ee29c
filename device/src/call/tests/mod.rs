//! Calls on a real journal and real files: a peer that keeps what it is sent, a person who answers
//! when told to, a tool that counts how often it ran.

mod cancelling;
mod order;

use super::*;
use crate::confirm::{Answer, ConfirmationRequest, Fixed};
use crate::state_dir::StateDir;
use crate::tools::{Execution, ListFiles, Prepared, ReadFile, SearchFiles, SearchText, ToolFailure};
use devmind_domain::canonical::{call_hash, canonical_json};
use devmind_domain::device_channel::device_call::MAX_OPEN_CALLS;
use devmind_domain::protocol::CallResult;
use devmind_domain::tool_call::{Phase, ResultStatus};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

/// A peer that keeps what it is sent.
struct FakePeer {
    owner: Owner,
    max_message_bytes: usize,
    frames: mpsc::UnboundedSender<DeviceFrame>,
}

#[async_trait]
impl Peer for FakePeer {
    fn owner(&self) -> &Owner {
        &self.owner
    }
    fn max_message_bytes(&self) -> usize {
        self.max_message_bytes
    }
    async fn send(&self, frame: DeviceFrame) {
        let _ = self.frames.send(frame);
    }
}

/// A person who answers when told to, and can do something to the disk first.
struct Person {
    asked: AtomicUsize,
    answers: tokio::sync::Mutex<mpsc::UnboundedReceiver<Answer>>,
    shown: Notify,
}

#[async_trait]
impl Confirm for Person {
    async fn ask(&self, _request: &ConfirmationRequest, _cancel: &CancellationToken) -> Answer {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.shown.notify_one();
        self.answers.lock().await.recv().await.unwrap_or(Answer::NoAnswer)
    }
}

/// Reads like the real tool, and counts how often it really ran.
struct Counted {
    ran: Arc<AtomicUsize>,
    panics: bool,
}

impl LocalTool for Counted {
    fn name(&self) -> &'static str {
        ReadFile.name()
    }
    fn prepare(&self, workspace: &Arc<Workspace>, arguments: &Value) -> Result<Box<dyn Prepared>, ToolFailure> {
        let inner = ReadFile.prepare(workspace, arguments)?;
        Ok(Box::new(CountedRun { inner, ran: self.ran.clone(), panics: self.panics }))
    }
}

struct CountedRun {
    inner: Box<dyn Prepared>,
    ran: Arc<AtomicUsize>,
    panics: bool,
}

impl Prepared for CountedRun {
    fn is_unchanged(&self) -> bool {
        self.inner.is_unchanged()
    }
    fn run(self: Box<Self>, execution: &Execution) -> Result<Value, ToolFailure> {
        self.ran.fetch_add(1, Ordering::SeqCst);
        if self.panics {
            // Like a panic, without its message in the test's output.
            std::panic::resume_unwind(Box::new("a tool that breaks down"));
        }
        self.inner.run(execution)
    }
}

/// Lists like the real tool, once it may go on: when the other end of this is used, or gone.
struct Held(Arc<std::sync::Mutex<std::sync::mpsc::Receiver<()>>>);

impl LocalTool for Held {
    fn name(&self) -> &'static str {
        ListFiles.name()
    }
    fn prepare(&self, workspace: &Arc<Workspace>, arguments: &Value) -> Result<Box<dyn Prepared>, ToolFailure> {
        Ok(Box::new(HeldRun { inner: ListFiles.prepare(workspace, arguments)?, may_go_on: self.0.clone() }))
    }
}

struct HeldRun {
    inner: Box<dyn Prepared>,
    may_go_on: Arc<std::sync::Mutex<std::sync::mpsc::Receiver<()>>>,
}

impl Prepared for HeldRun {
    fn run(self: Box<Self>, execution: &Execution) -> Result<Value, ToolFailure> {
        let _ = lock(&self.may_go_on).recv();
        self.inner.run(execution)
    }
}

/// What has not come by then never will.
const AT_LAST: Duration = Duration::from_secs(60);

struct Fixture {
    folder: tempfile::TempDir,
    calls: Arc<Calls>,
    peer: Arc<FakePeer>,
    frames: mpsc::UnboundedReceiver<DeviceFrame>,
    ran: Arc<AtomicUsize>,
    /// How often a call was said to have got further.
    progress: usize,
}

impl Fixture {
    async fn new(confirm: Arc<dyn Confirm>) -> Self {
        Self::with(confirm, 1 << 20, false).await
    }

    async fn with(confirm: Arc<dyn Confirm>, max_message_bytes: usize, panics: bool) -> Self {
        let folder = tempfile::tempdir().expect("folder");
        std::fs::create_dir(folder.path().join("ws")).expect("workspace");
        std::fs::write(folder.path().join("ws/README.md"), "hello\n").expect("file");
        let ran = Arc::new(AtomicUsize::new(0));
        let calls = open_calls(folder.path(), confirm, Counted { ran: ran.clone(), panics }).await;
        let (sender, frames) = mpsc::unbounded_channel();
        let owner = Owner { server_id: "server".into(), user_hash: "ada".into() };
        let peer = Arc::new(FakePeer { owner, max_message_bytes, frames: sender });
        Self { folder, calls, peer, frames, ran, progress: 0 }
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join("ws").join(name)
    }

    fn send(&self, request: &CallRequest) {
        self.calls.request(self.peer.clone(), request.clone());
    }

    async fn next(&mut self) -> DeviceFrame {
        let next = tokio::time::timeout(AT_LAST, self.frames.recv()).await;
        next.expect("the device says something of the call").expect("a frame")
    }

    async fn reaches(&mut self, phase: Phase) {
        while !matches!(self.next().await, DeviceFrame::Received { phase: reached, .. } if reached == phase) {}
    }

    /// Sends a request and waits for what it comes to: a settled row, or a refusal.
    async fn outcome(&mut self, request: &CallRequest) -> String {
        let mut settled = self.calls.settled();
        settled.mark_unchanged();
        self.send(request);
        let at_last = tokio::time::Instant::now() + AT_LAST;
        loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(at_last) => panic!("the call comes to nothing"),
                frame = self.frames.recv() => match frame.expect("a frame") {
                    DeviceFrame::Refused { code, .. } => return format!("refused {code}"),
                    DeviceFrame::Result(result) => return told(&result),
                    DeviceFrame::Received { .. } => self.progress += 1,
                    _ => {}
                },
                changed = settled.changed() => {
                    changed.expect("calls live");
                    return self.settled(request.tool_call_id.as_str()).await;
                }
            }
        }
    }

    /// How the journal says that the call ended.
    async fn settled(&self, id: &str) -> String {
        told(&self.row(id).await.outcome.expect("settled"))
    }

    async fn row(&self, id: &str) -> crate::journal::Row {
        self.calls.journal.find(&id.into()).expect("readable").expect("row")
    }

    fn ran(&self) -> usize {
        self.ran.load(Ordering::SeqCst)
    }
}

async fn open_calls(folder: &Path, confirm: Arc<dyn Confirm>, tool: Counted) -> Arc<Calls> {
    let workspace = Arc::new(Workspace::open(&folder.join("ws")).expect("workspace"));
    let state = StateDir::open(&folder.join("state")).expect("state");
    let journal = Arc::new(Journal::open(state, "instance").await.expect("journal"));
    let tools: Vec<Arc<dyn LocalTool>> =
        vec![Arc::new(tool), Arc::new(ListFiles), Arc::new(SearchFiles), Arc::new(SearchText)];
    Calls::new("device".into(), tools, workspace, journal, confirm)
}

fn told(result: &CallResult) -> String {
    let code = result.error.as_ref().map(|error| error.code.as_str()).unwrap_or_default();
    format!("{} {code}", result.status.as_str()).trim_end().to_owned()
}

fn person() -> (Arc<Person>, mpsc::UnboundedSender<Answer>) {
    let (sender, answers) = mpsc::unbounded_channel();
    let person = Person { asked: AtomicUsize::new(0), answers: tokio::sync::Mutex::new(answers), shown: Notify::new() };
    (Arc::new(person), sender)
}

fn request(id: &str, path: &str) -> CallRequest {
    with_arguments(id, "workspace.read_file", &json!({ "path": path }))
}

fn with_arguments(id: &str, tool: &str, arguments: &Value) -> CallRequest {
    CallRequest {
        tool_call_id: id.into(),
        run_id: "run".into(),
        attempt_no: 1,
        tool_name: tool.into(),
        tool_version: "1".into(),
        arguments_json: canonical_json(arguments),
        call_hash: call_hash(tool, "1", arguments),
        requires_confirmation: false,
        execution_timeout_ms: 10_000,
        ttl_ms: 60_000,
        expires_at: None,
        call_created_at: crate::clock::now(),
        device_id: "device".into(),
        conversation_title: "title".into(),
    }
}
