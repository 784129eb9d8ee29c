//! A ledger in a folder of its own with the story of one run, and the binary run over it.

use devmind_domain::canonical::{call_hash, hash_json};
use devmind_domain::event::{Actor, DomainEvent, Metadata, NewEvent, StreamId};
use devmind_ledger::{Append, Ledger, StreamAppend};
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};
use std::path::PathBuf;
use std::process::Stdio;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

/// One event: its stream's kind and id, its type, its payload.
pub type Fact = (&'static str, &'static str, &'static str, Value);

/// A ledger's folder.
pub struct Data {
    folder: TempDir,
}

/// How a run of the binary ended.
#[derive(Debug)]
pub struct Ran {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

/// The code of `error[CODE]: …`.
pub fn code_of(ran: &Ran) -> &str {
    let after = ran.stderr.split_once("error[").map_or("", |(_, after)| after);
    after.split_once(']').map_or("", |(code, _)| code)
}

pub fn node_stopped(epoch: u64) -> Fact {
    ("node", "n", "NodeStopped", json!({ "node_id": "n", "epoch": epoch }))
}

/// A fact of 16 KiB.
pub fn long_answer() -> Fact {
    ("thread", "long", "AnswerProgressed", json!({ "run_id": "r0", "message_id": "m", "text": "x".repeat(16 << 10) }))
}

fn story() -> Vec<Fact> {
    let arguments = json!({ "path": "README.md" });
    let output = json!({ "content": "hello" });
    let conversation = |event_type, payload| ("conversation", "c", event_type, payload);
    let thread = |event_type, payload| ("thread", "g", event_type, payload);
    let call = |event_type, payload| ("tool_call", "g:call", event_type, payload);
    vec![
        ("node", "n", "NodeStarted", json!({ "node_id": "n", "epoch": 1, "version": "1" })),
        conversation("ConversationStarted", json!({ "user_id": "ann", "title": "read README.md" })),
        conversation(
            "TurnPrepared",
            json!({ "turn_id": "t", "sequence_no": 1, "message_id": "q", "content": "read README.md" }),
        ),
        conversation(
            "RunPrepared",
            json!({
                "run_id": "r", "turn_id": "t", "kind": "normal", "trigger": "ask", "run_seq": 1, "graph_thread_id": "g",
            }),
        ),
        conversation("RunClaimed", json!({ "run_id": "r", "node_id": "n", "epoch": 1, "context_hash": "h" })),
        thread(
            "ModelRequested",
            json!({
                "run_id": "r", "round": 1, "provider": "p", "model": "m", "parameters": {}, "request_hash": "h",
                "tools_hash": "h",
            }),
        ),
        thread(
            "ModelResponded",
            json!({
                "run_id": "r", "round": 1, "message_id": "m", "content": "", "finish_reason": "tool_calls",
                "tool_calls": [{ "id": "call", "name": "workspace.read_file", "arguments": "{}" }], "usage": {},
                "served_model": "m", "latency_ms": 1,
            }),
        ),
        call(
            "ToolCallRequested",
            json!({
                "conversation_id": "c", "turn_id": "t", "run_id": "r", "user_id": "ann", "graph_thread_id": "g",
                "model_call_id": "call", "tool": "workspace.read_file", "tool_version": "1", "target": "server",
                "call_hash": call_hash("workspace.read_file", "1", &arguments), "arguments": arguments, "risk": "MEDIUM",
            }),
        ),
        call(
            "ToolDispatched",
            json!({ "attempt_no": 1, "run_id": "r", "node_id": "n", "epoch": 1, "wait_ms": 1, "ttl_ms": 1 }),
        ),
        call(
            "ToolResultRecorded",
            json!({
                "executed_attempt_no": 1, "status": "succeeded", "output_sha256": hash_json(&output), "output": output,
                "origin": "live",
            }),
        ),
        thread("ToolResultObserved", json!({ "tool_call_id": "g:call", "ok": true, "content": "hello" })),
        conversation("RunSucceeded", json!({ "run_id": "r", "message_id": "m", "answer": "It says hello." })),
    ]
}

impl Data {
    pub fn empty() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    /// A closed ledger in which one run has happened.
    pub async fn with_story() -> Self {
        let data = Self::empty();
        let ledger = data.open().await;
        for fact in story() {
            data.append(&ledger, &fact).await;
        }
        ledger.close().await;
        data
    }

    /// The same ledger, with its key, in another folder. No program may have it open.
    pub fn copy(&self) -> Self {
        let copy = Self::empty();
        for name in self.files() {
            std::fs::copy(self.folder.path().join(&name), copy.folder.path().join(&name)).expect("copied");
        }
        copy
    }

    pub fn path(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// How many events the story has.
    pub fn events(&self) -> usize {
        story().len()
    }

    fn ledger_file(&self) -> PathBuf {
        self.folder.path().join("ledger.sqlite")
    }

    pub async fn open(&self) -> Ledger {
        Ledger::open(&self.ledger_file()).await.expect("a ledger")
    }

    pub async fn append(&self, ledger: &Ledger, (kind, id, event_type, payload): &Fact) {
        let stream = StreamId { aggregate_type: (*kind).to_owned(), aggregate_id: (*id).to_owned() };
        let expected_version = ledger.reader().read_stream(&stream, 0).await.expect("read").len() as u64;
        let mut metadata = Metadata::new(Actor::user("ann"), "n".into());
        if *kind != "node" {
            let run = payload["run_id"].as_str().unwrap_or("r");
            metadata = metadata.run(&run.into()).conversation(&"c".into());
        }
        let event = DomainEvent::decode(kind, event_type, 1, &payload.to_string()).expect("a known event").remove(0);
        let event = NewEvent { event_id: uuid::Uuid::now_v7().to_string(), event, metadata };
        let append = StreamAppend { stream, expected_version, events: vec![event] };
        ledger.append(Append { streams: vec![append], idempotency: None }).await.expect("appended");
    }

    /// Adds so many events to the ledger, a hundred at a time.
    pub async fn fill(&self, events: usize) {
        let ledger = self.open().await;
        for (stream, first) in (0..events).step_by(100).enumerate() {
            let of = |n: usize| {
                let (kind, _, event_type, payload) = node_stopped(n as u64 + 1);
                let decoded = DomainEvent::decode(kind, event_type, 1, &payload.to_string()).expect("a known event");
                let metadata = Metadata::new(Actor::user("ann"), "n".into());
                let event = decoded.into_iter().next().expect("an event");
                NewEvent { event_id: uuid::Uuid::now_v7().to_string(), event, metadata }
            };
            let stream = StreamId { aggregate_type: "node".to_owned(), aggregate_id: format!("n{stream}") };
            let events = (first..events.min(first + 100)).map(of).collect();
            let append = StreamAppend { stream, expected_version: 0, events };
            ledger.append(Append { streams: vec![append], idempotency: None }).await.expect("appended");
        }
        ledger.close().await;
    }

    /// Runs a statement on the log with the triggers that refuse it out of the way.
    pub async fn tamper(&self, statement: &str) {
        let options = SqliteConnectOptions::new().filename(self.ledger_file());
        let mut sql = options.connect().await.expect("connected");
        let trigger: String = sqlx::query_scalar("SELECT sql FROM sqlite_schema WHERE name = 'events_no_update'")
            .fetch_one(&mut sql)
            .await
            .expect("the trigger");
        sqlx::raw_sql(&format!("DROP TRIGGER events_no_update; {statement}; {trigger}"))
            .execute(&mut sql)
            .await
            .expect("tampered");
        sql.close().await.expect("closed");
    }

    /// Runs a statement on the views.
    pub async fn change_views(&self, statement: &str) {
        let options = SqliteConnectOptions::new().filename(self.folder.path().join("views.sqlite"));
        let mut sql = options.connect().await.expect("connected");
        let changed = sqlx::query(statement).execute(&mut sql).await.expect("changed");
        assert!(changed.rows_affected() > 0, "{statement}");
        sql.close().await.expect("closed");
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).expect("written");
    }

    pub fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).expect("read");
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_devmind-replay"));
        command.args(arguments).env("DEVMIND_DATA", self.folder.path()).current_dir(self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// Runs the binary to its end.
    pub async fn run(&self, arguments: &[&str]) -> Ran {
        let output = self.command(arguments).output().await.expect("it runs");
        Ran {
            status: output.status.code().expect("it was not killed"),
            stdout: String::from_utf8(output.stdout).expect("UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }

    /// Runs the binary with an environment; whether a signal ended it.
    pub async fn run_until_killed(&self, arguments: &[&str], environment: &[(&str, &str)]) -> bool {
        let output = self.command(arguments).envs(environment.iter().copied()).output().await.expect("it runs");
        output.status.code().is_none()
    }

    /// Starts the binary.
    pub fn start(&self, arguments: &[&str]) -> Running {
        let mut child = self.command(arguments).spawn().expect("it starts");
        let stdout = BufReader::new(child.stdout.take().expect("its output"));
        Running { child, stdout }
    }
}

/// A running binary.
pub struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    /// The next line of its output.
    pub async fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).await.expect("a line");
        line
    }

    pub async fn kill(mut self) {
        self.child.kill().await.expect("killed");
    }

    /// Stops reading its output, and waits for its end.
    pub async fn close_and_wait(self) -> Ran {
        let Self { mut child, stdout } = self;
        drop(stdout);
        let mut stderr = String::new();
        child.stderr.take().expect("its messages").read_to_string(&mut stderr).await.expect("UTF-8");
        let status = child.wait().await.expect("it ends").code().expect("it was not killed");
        Ran { status, stdout: String::new(), stderr }
    }
}
