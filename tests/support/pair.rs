//! One server and one device in processes of their own, either of which can be killed and started again, and what
//! a person does with them. What must hold afterwards is left to the tests.

use crate::{Client, Data, Process, Question, Traces, eventually, new_id, own_address, workspace};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `devmind`.
    Server,
    /// The device whose reads leave a trace.
    Device,
}

/// One server, one device and what they leave.
pub struct Pair {
    /// What the server keeps.
    pub data: Data,
    /// Where it listens, whenever it is started.
    pub address: SocketAddr,
    folder: TempDir,
    state: TempDir,
    /// What was really read.
    pub traces: Traces,
    /// The server, while it lives.
    pub server: Option<Process>,
    /// The device, while it lives.
    pub device: Option<Process>,
    /// The key that the question is asked with.
    pub key: String,
    /// What is asked.
    pub wants: Wants,
}

/// A question that leads to one call of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// To read a file, which a person is asked about.
    Contents,
    /// To list a folder, which nobody is asked about.
    Names,
}

impl Wants {
    /// In words that the demo model understands.
    const fn question(self) -> &'static str {
        match self {
            Self::Contents => "read README.md",
            Self::Names => "list the files",
        }
    }

    /// The call: tool and arguments.
    fn call(self) -> (&'static str, Value) {
        match self {
            Self::Contents => ("workspace.read_file", json!({ "path": "README.md" })),
            Self::Names => ("workspace.list_files", json!({ "path": "." })),
        }
    }
}

impl Pair {
    /// Nothing started yet.
    pub fn new(wants: Wants) -> Self {
        let traces = Traces::new();
        traces.go();
        Self {
            data: Data::new(),
            address: own_address(),
            folder: workspace(),
            state: tempfile::tempdir().unwrap(),
            traces,
            server: None,
            device: None,
            key: new_id(),
            wants,
        }
    }

    /// The device's user.
    pub fn client(&self) -> Client {
        Client::new(self.address, "ann")
    }

    /// Starts the server.
    pub fn start_server(&mut self, environment: &[(&str, &str)]) {
        let (address, data) = (self.address.to_string(), self.data.path().to_str().unwrap().to_owned());
        let process = Process::start("devmind", &["--listen", &address, "--data", &data], environment);
        self.server = Some(process);
    }

    /// Starts the device.
    pub fn start_device(&mut self, environment: &[(&str, &str)]) {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let (url, workspace, state) =
            (format!("http://{}", self.address), text(self.folder.path()), self.journal_folder());
        let arguments =
            ["--server", &url, "--user", "ann", "--workspace", &workspace, "--state", &text(&state), "--yes"];
        let own = self.traces.environment();
        let own = own.iter().map(|(name, value)| (*name, value.as_str()));
        let all: Vec<_> = own.chain(environment.iter().copied()).collect();
        self.device = Some(Process::start("slow_read_device", &arguments, &all));
    }

    fn journal_folder(&self) -> PathBuf {
        self.state.path().join("device")
    }

    /// The device's journal.
    pub fn journal(&self) -> PathBuf {
        self.journal_folder().join("journal.sqlite")
    }

    /// Starts both sides, with this in the environment of one.
    pub fn start(&mut self, side: Side, environment: &[(&str, &str)]) {
        let of = |own: Side| if own == side { environment } else { &[] };
        self.start_server(of(Side::Server));
        self.start_device(of(Side::Device));
    }

    /// The side to be killed.
    pub fn victim(&mut self, side: Side) -> &mut Option<Process> {
        match side {
            Side::Server => &mut self.server,
            Side::Device => &mut self.device,
        }
    }

    /// The run's calls, once all are settled. A call whose end nobody knows may never have left: it is sent again,
    /// under its id.
    pub async fn settled(&self, run_id: &str) -> Value {
        let (client, (tool, arguments)) = (self.client(), self.wants.call());
        eventually("every call is settled", || async {
            let calls = get(&client, &format!("/api/tool-calls?run_id={run_id}")).await?;
            let open = calls.as_array().unwrap().iter().find(|call| call["settled"] != true);
            let Some(open) = open else { return Ok(calls) };
            let again = json!({
                "run_id": run_id, "tool_name": tool, "arguments": arguments, "tool_call_id": open["tool_call_id"],
            });
            let answer = client.try_post("/api/desktop/dev/tool-calls", &again).await;
            Err(format!("{open} {answer:?}"))
        })
        .await
    }

    /// Waits until every result in the device's journal has been acknowledged.
    pub async fn nothing_left_to_send(&self) {
        let journal = self.journal();
        eventually("nothing is left to be sent", || async {
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&journal).read_only(true);
            let mut journal = <sqlx::SqliteConnection as sqlx::Connection>::connect_with(&options)
                .await
                .map_err(|error| error.to_string())?;
            let open = "SELECT count(*) FROM calls WHERE delivery = 'pending' OR phase <> 'settled'";
            let open: i64 =
                sqlx::query_scalar(open).fetch_one(&mut journal).await.map_err(|error| error.to_string())?;
            if open == 0 { Ok(()) } else { Err(format!("{open} in the journal")) }
        })
        .await;
    }
}

/// An answer, as long as there is a server.
///
/// # Errors
/// What came instead.
pub async fn get(client: &Client, path: &str) -> Result<Value, String> {
    let answer = client.try_get(path).await.ok_or_else(|| format!("{path}: no answer"))?;
    if answer.status == 200 { Ok(answer.body) } else { Err(format!("{path}: {answer:?}")) }
}

/// The device's id, once it is online.
pub async fn online_device(client: &Client) -> String {
    eventually("the device is online", || async {
        let devices = get(client, "/api/devices").await?;
        let online = devices.as_array().unwrap().iter().find(|device| device["online"] == true);
        online.map(|device| device["device_id"].as_str().unwrap().to_owned()).ok_or(devices.to_string())
    })
    .await
}

/// Asks the question, however often it takes; what was asked before is not asked again.
pub async fn ask(client: &Client, wants: Wants, key: &str, device_id: &str) -> Value {
    let question = Question::new(wants.question()).on(device_id).key(key);
    eventually("the question is asked", || async { client.try_ask(&question).await.ok_or("no answer".to_owned()) })
        .await
}

/// The run's turn, once nothing of it is under way; claims the run where nobody has.
pub async fn run(client: &Client, wants: Wants, asked: &Value) -> Value {
    let input = json!({
        "threadId": asked["conversation_id"], "runId": asked["run_id"],
        "messages": [{ "id": asked["user_message_id"], "role": "user", "content": wants.question() }],
    });
    let turns = format!("/api/turns?conversation_id={}", asked["conversation_id"].as_str().unwrap());
    eventually("the run has ended", || async {
        let turn = get(client, &turns).await?[0].clone();
        match turn["status"].as_str() {
            Some("pending") => {
                // Read to its end, or to the server's.
                client.try_post("/api/agent", &input).await;
                Err(turn.to_string())
            }
            Some("running") => Err(turn.to_string()),
            _ => Ok(turn),
        }
    })
    .await
}
