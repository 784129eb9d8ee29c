//! The real device, in this process, over a real socket; and a person at it who answers as told.

use crate::client::Client;
use crate::server::TestServer;
use crate::wait::{eventually, within_deadline};
use async_trait::async_trait;
use devmind_device::tools::{Execution, LocalTool, Prepared, Subject, ToolFailure};
use devmind_device::workspace::Workspace;
use devmind_device::{
    Answer, Backoff, Confirm, ConfirmationRequest, ConnectionStatus, Device, DeviceError, DeviceOptions, Identity,
};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A running device.
pub struct TestDevice {
    /// Its id.
    pub id: String,
    /// How often each of its tools was really run.
    pub runs: Arc<AtomicUsize>,
    state: Arc<TempDir>,
    workspace: PathBuf,
    user: String,
    status: watch::Receiver<ConnectionStatus>,
    stop: CancellationToken,
    running: JoinHandle<Result<(), DeviceError>>,
}

impl TestDevice {
    /// A device of `user` on a workspace, online.
    pub async fn start(server: &TestServer, user: &str, workspace: &Path, confirm: Arc<dyn Confirm>) -> Self {
        Self::start_at(&server.url(), server, user, workspace, confirm).await
    }

    /// The same where the server is reached by another address.
    pub async fn start_at(
        url: &str,
        server: &TestServer,
        user: &str,
        workspace: &Path,
        confirm: Arc<dyn Confirm>,
    ) -> Self {
        let state = Arc::new(tempfile::tempdir().expect("a temporary folder"));
        let runs = Arc::new(AtomicUsize::new(0));
        let device = Self::open(url, user, workspace, state, runs, confirm).await;
        device.online(&server.client(user)).await;
        device
    }

    async fn open(
        url: &str,
        user: &str,
        workspace: &Path,
        state: Arc<TempDir>,
        runs: Arc<AtomicUsize>,
        confirm: Arc<dyn Confirm>,
    ) -> Self {
        let identity = Identity::DevUser(user.to_owned());
        let mut options =
            DeviceOptions::new(url.to_owned(), workspace.to_owned(), state.path().join("device"), identity);
        options.backoff = Backoff { base: Duration::from_millis(20), cap: Duration::from_millis(200) };
        options.tools = options.tools.into_iter().map(|tool| Counted::wrap(tool, &runs)).collect();
        let device = Device::open(options, confirm).await.expect("the device opens");
        let (id, status, stop) = (device.device_id().to_string(), device.status(), CancellationToken::new());
        let running = tokio::spawn(device.run(stop.clone()));
        Self { id, runs, state, workspace: workspace.to_owned(), user: user.to_owned(), status, stop, running }
    }

    /// Stops it and starts its program again on the same state.
    pub async fn restart(self, server: &TestServer, confirm: Arc<dyn Confirm>) -> Self {
        let (state, runs) = (self.state.clone(), self.runs.clone());
        let (user, workspace) = (self.user.clone(), self.workspace.clone());
        self.stop().await;
        let device = Self::open(&server.url(), &user, &workspace, state, runs, confirm).await;
        device.online(&server.client(&user)).await;
        device
    }

    /// Waits until the server's view shows it online on the connection that it believes in.
    pub async fn online(&self, client: &Client) {
        eventually("the device is online", || async {
            let status = self.status.borrow().clone();
            let ConnectionStatus::Online { connection_id } = &status else { return Err(format!("{status:?}")) };
            let devices = client.devices().await;
            let own = devices.iter().find(|device| device["device_id"] == *self.id);
            match own {
                Some(own) if own["online"] == true && own["connection_id"] == *connection_id.as_str() => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// How often a tool was run.
    pub fn executions(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    /// Waits until it stops by itself, and says why.
    pub async fn ended(self) -> DeviceError {
        let ended = within_deadline("the end of the device", self.running).await.expect("no panic");
        ended.expect_err("nobody stopped it")
    }

    /// Stops it in order.
    pub async fn stop(self) {
        self.stop.cancel();
        let ended = within_deadline("the end of the device", self.running).await.expect("no panic");
        ended.expect("it stops in order");
    }
}

/// A tool that counts how often it was really run.
struct Counted {
    tool: Arc<dyn LocalTool>,
    runs: Arc<AtomicUsize>,
}

impl Counted {
    fn wrap(tool: Arc<dyn LocalTool>, runs: &Arc<AtomicUsize>) -> Arc<dyn LocalTool> {
        Arc::new(Self { tool, runs: runs.clone() })
    }
}

impl LocalTool for Counted {
    fn name(&self) -> &'static str {
        self.tool.name()
    }

    fn prepare(&self, workspace: &Arc<Workspace>, arguments: &Value) -> Result<Box<dyn Prepared>, ToolFailure> {
        let prepared = self.tool.prepare(workspace, arguments)?;
        Ok(Box::new(CountedCall { prepared, runs: self.runs.clone() }))
    }
}

struct CountedCall {
    prepared: Box<dyn Prepared>,
    runs: Arc<AtomicUsize>,
}

impl Prepared for CountedCall {
    fn subject(&self) -> Option<Subject> {
        self.prepared.subject()
    }

    fn is_unchanged(&self) -> bool {
        self.prepared.is_unchanged()
    }

    fn run(self: Box<Self>, execution: &Execution) -> Result<Value, ToolFailure> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        self.prepared.run(execution)
    }
}

/// A person who is asked through a [`Turnstile`].
pub struct ScriptedConfirm {
    shown: mpsc::UnboundedSender<ConfirmationRequest>,
    answers: Mutex<mpsc::UnboundedReceiver<Answer>>,
}

/// The test's side of a [`ScriptedConfirm`]: what was shown, and what is answered.
pub struct Turnstile {
    shown: mpsc::UnboundedReceiver<ConfirmationRequest>,
    answers: mpsc::UnboundedSender<Answer>,
}

impl Turnstile {
    /// A person, and the hand that moves them.
    pub fn new() -> (Arc<ScriptedConfirm>, Self) {
        let (show, shown) = mpsc::unbounded_channel();
        let (answer, answers) = mpsc::unbounded_channel();
        (Arc::new(ScriptedConfirm { shown: show, answers: Mutex::new(answers) }), Self { shown, answers: answer })
    }

    /// Waits until something is shown.
    pub async fn shown(&mut self) -> ConfirmationRequest {
        within_deadline("a confirmation", self.shown.recv()).await.expect("the device lives")
    }

    /// Answers what is shown, or what will be shown next.
    pub fn answer(&self, answer: Answer) {
        self.answers.send(answer).expect("the device lives");
    }

    /// Whether anything was shown that was not taken yet.
    pub fn was_asked(&mut self) -> bool {
        self.shown.try_recv().is_ok()
    }
}

#[async_trait]
impl Confirm for ScriptedConfirm {
    async fn ask(&self, request: &ConfirmationRequest, cancel: &CancellationToken) -> Answer {
        self.shown.send(request.clone()).expect("the test lives");
        let mut answers = self.answers.lock().await;
        tokio::select! {
            () = cancel.cancelled() => Answer::NoAnswer,
            answer = answers.recv() => answer.unwrap_or(Answer::NoAnswer),
        }
    }
}
