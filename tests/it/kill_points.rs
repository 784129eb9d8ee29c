//! `kill -9` at every named point of server and device, before and after each step that is durable or
//! leaves the process. After the restart every call is settled, was executed at most once, and log, views
//! and the device's journal agree.
//!
//! The witness of an execution is a line that the tool itself appends to a file and flushes
//! (`device/examples/slow_read_device.rs`); it does not trust what the programs say of themselves.

use devmind_tests::{Client, Data, Process, Question, Traces, eventually, new_id, workspace};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Scenarios side by side: they wait for each other's processes more than they compute.
const AT_ONCE: usize = 6;
/// A point that is passed often is killed at this often, at most.
const PASSINGS: usize = 3;

/// Everything that the server appends, sends and receives while a device's tool is called, from its start to
/// its end.
const SERVER: &[&str] = &[
    "append ConversationStarted",
    "append DeviceConnected",
    "append DeviceDisconnected",
    "append DeviceTicketConsumed",
    "append DeviceTicketIssued",
    "append ModelRequested",
    "append ModelResponded",
    "append NodeStarted",
    "append NodeStopped",
    "append RunClaimed",
    "append RunPrepared",
    "append RunSucceeded",
    "append ThreadStarted",
    "append ToolCallRequested",
    "append ToolDispatched",
    "append ToolReceived",
    "append ToolRegistrySynced",
    "append ToolResultAcked",
    "append ToolResultObserved",
    "append ToolResultRecorded",
    "append TurnPrepared",
    "apply conversation",
    "apply device",
    "apply search",
    "apply tool_call",
    "apply usage",
    "receive device.register",
    "receive tool.call.received",
    "receive tool.call.result",
    "receive tool.registry.sync",
    "send device.registered",
    "send tool.call.ack",
    "send tool.call.request",
];

/// The same of the device.
const DEVICE: &[&str] = &[
    "fetch ticket",
    "note acknowledgement",
    "open journal",
    "open socket",
    "perform admit",
    "perform announce",
    "perform ask",
    "perform begin",
    "perform examine",
    "perform execute",
    "perform look again",
    "perform look up",
    "perform reserve",
    "perform say",
    "perform settle",
    "receive device.registered",
    "receive tool.call.ack",
    "receive tool.call.request",
    "send device.register",
    "send tool.call.received",
    "send tool.call.result",
    "send tool.registry.sync",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Server,
    Device,
}

/// One server, one device and what they leave.
struct World {
    data: Data,
    address: SocketAddr,
    folder: TempDir,
    state: TempDir,
    traces: Traces,
    server: Option<Process>,
    device: Option<Process>,
    key: String,
}

/// A port that nobody listens on now.
fn free_port() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl World {
    fn new() -> Self {
        let traces = Traces::new();
        traces.go();
        Self {
            data: Data::new(),
            address: free_port(),
            folder: workspace(),
            state: tempfile::tempdir().unwrap(),
            traces,
            server: None,
            device: None,
            key: new_id(),
        }
    }

    fn client(&self) -> Client {
        Client::new(self.address, "ann")
    }

    fn start_server(&mut self, environment: &[(&str, &str)]) {
        let (address, data) = (self.address.to_string(), self.data.path().to_str().unwrap().to_owned());
        let process = Process::start("devmind", &["--listen", &address, "--data", &data], environment);
        self.server = Some(process);
    }

    fn start_device(&mut self, environment: &[(&str, &str)]) {
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

    /// Starts both sides, with this in the environment of one.
    fn start(&mut self, side: Side, environment: &[(&str, &str)]) {
        let of = |own: Side| if own == side { environment } else { &[] };
        self.start_server(of(Side::Server));
        self.start_device(of(Side::Device));
    }

    fn victim(&mut self, side: Side) -> &mut Option<Process> {
        match side {
            Side::Server => &mut self.server,
            Side::Device => &mut self.device,
        }
    }
}

/// An answer, as long as there is a server.
async fn get(client: &Client, path: &str) -> Result<Value, String> {
    let answer = client.try_get(path).await.ok_or_else(|| format!("{path}: no answer"))?;
    if answer.status == 200 { Ok(answer.body) } else { Err(format!("{path}: {answer:?}")) }
}

async fn online_device(client: &Client) -> String {
    eventually("the device is online", || async {
        let devices = get(client, "/api/devices").await?;
        let online = devices.as_array().unwrap().iter().find(|device| device["online"] == true);
        online.map(|device| device["device_id"].as_str().unwrap().to_owned()).ok_or(devices.to_string())
    })
    .await
}

/// Asks the question, however often it takes; what was asked before is not asked again.
async fn ask(client: &Client, key: &str, device_id: &str) -> Value {
    let question = Question::new("read README.md").on(device_id).key(key);
    eventually("the question is asked", || async { client.try_ask(&question).await.ok_or("no answer".to_owned()) })
        .await
}

/// The run's turn, once nothing of it is under way; claims the run where nobody has.
async fn run(client: &Client, asked: &Value) -> Value {
    let input = json!({
        "threadId": asked["conversation_id"], "runId": asked["run_id"],
        "messages": [{ "id": asked["user_message_id"], "role": "user", "content": "read README.md" }],
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

/// What a server and a device do together, from their start to their end in order.
async fn whole_life(client: &Client, key: &str, terminate: impl AsyncFn(Side)) {
    let asked = ask(client, key, &online_device(client).await).await;
    run(client, &asked).await;
    // The last acknowledgement is on its way.
    let calls = format!("/api/ledger/events?type=ToolResultAcked&run_id={}", asked["run_id"].as_str().unwrap());
    eventually("the result is acknowledged", || async {
        let page = get(client, &calls).await?;
        if page.to_string().contains("ToolResultAcked") { Ok(()) } else { Err(page.to_string()) }
    })
    .await;
    terminate(Side::Device).await;
    terminate(Side::Server).await;
}

/// Lives the whole life with one side prepared to die; whether it was killed. The other side is left as it
/// is, unless it was told to end: then it has.
async fn live(world: &mut World, side: Side, environment: &[(&str, &str)]) -> bool {
    world.start(side, environment);
    let (client, key) = (world.client(), world.key.clone());
    let ids = |process: &Option<Process>| process.as_ref().unwrap().id();
    let (server, device) = (ids(&world.server), ids(&world.device));
    let told = std::cell::Cell::new(false);
    let terminate = async |one: Side| {
        told.set(told.get() || one != side);
        let id = if one == Side::Server { server } else { device };
        devmind_tests::process::terminate(id);
        let ended =
            || async move { if devmind_tests::process::is_gone(id) { Ok(()) } else { Err("still there".to_owned()) } };
        eventually("the end of a side", ended).await;
    };
    let World { server: own_server, device: own_device, .. } = world;
    let (victim, other) = match side {
        Side::Server => (own_server, own_device),
        Side::Device => (own_device, own_server),
    };
    let (victim, other) = (victim.as_mut().unwrap(), other.as_mut().unwrap());
    let killed = tokio::select! {
        killed = victim.killed() => killed,
        // Waited for, or its end would not be seen.
        () = async { other.killed().await; std::future::pending().await } => false,
        () = whole_life(&client, &key, terminate) => false,
    };
    if told.get() {
        other.killed().await;
        match side {
            Side::Server => drop(world.device.take()),
            Side::Device => drop(world.server.take()),
        }
    }
    killed
}

/// Names of the places that a side passes in one whole life, with how often.
async fn passed(side: Side) -> BTreeMap<String, usize> {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let mut world = World::new();
    assert!(!live(&mut world, side, &[("DEVMIND_KILL_TRACE", trace.to_str().unwrap())]).await);
    let mut passed = BTreeMap::new();
    for line in std::fs::read_to_string(trace).unwrap().lines() {
        *passed.entry(line.to_owned()).or_default() += 1;
    }
    passed
}

/// Kills a side at a point, starts it again, and checks what must hold.
async fn kill_at(side: Side, point: &str) {
    let mut world = World::new();
    assert!(live(&mut world, side, &[("DEVMIND_KILL_POINT", point)]).await, "{side:?} was not killed at {point}");
    drop(world.victim(side).take());
    if world.server.is_none() {
        world.start_server(&[]);
    }
    if world.device.is_none() {
        world.start_device(&[]);
    }
    let client = world.client();
    let device_id = online_device(&client).await;
    let asked = ask(&client, &world.key, &device_id).await;
    let run_id = asked["run_id"].as_str().unwrap().to_owned();
    run(&client, &asked).await;

    // A call whose end nobody knows may never have left: it is sent again, under its id.
    let calls = eventually("every call is settled", || async {
        let calls = get(&client, &format!("/api/tool-calls?run_id={run_id}")).await?;
        let open = calls.as_array().unwrap().iter().find(|call| call["settled"] != true);
        let Some(open) = open else { return Ok(calls) };
        let again = json!({
            "run_id": run_id, "tool_name": "workspace.read_file", "arguments": { "path": "README.md" },
            "tool_call_id": open["tool_call_id"],
        });
        let answer = client.try_post("/api/desktop/dev/tool-calls", &again).await;
        Err(format!("{open} {answer:?}"))
    })
    .await;
    let reads = world.traces.reads();
    for call in calls.as_array().unwrap() {
        let id = call["tool_call_id"].as_str().unwrap();
        let executed = reads.iter().filter(|read| *read == id).count();
        let expected = match call["status"].as_str().unwrap() {
            "succeeded" => executed == 1,
            "rejected" | "cancelled" => executed == 0,
            "indeterminate" | "failed" => executed <= 1,
            _ => false,
        };
        assert!(expected, "{side:?} {point}: executed {executed} times: {call}");
    }
    // Every result has reached the log and is acknowledged on both sides.
    let journal = world.journal_folder().join("journal.sqlite");
    eventually("nothing is left to be sent", || async {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&journal).read_only(true);
        let mut journal = <sqlx::SqliteConnection as sqlx::Connection>::connect_with(&options)
            .await
            .map_err(|error| error.to_string())?;
        let open = "SELECT count(*) FROM calls WHERE delivery = 'pending' OR phase <> 'settled'";
        let open: i64 = sqlx::query_scalar(open).fetch_one(&mut journal).await.map_err(|error| error.to_string())?;
        if open == 0 { Ok(()) } else { Err(format!("{open} in the journal")) }
    })
    .await;
    let facts = world.data.log().await.all().await;
    let acked: BTreeSet<_> =
        facts.iter().filter(|fact| fact.is("ToolResultAcked")).map(|fact| &fact.stream_id).collect();
    for result in facts.iter().filter(|fact| fact.is("ToolResultRecorded")) {
        assert!(acked.contains(&result.stream_id), "{side:?} {point}: {result} was not acknowledged");
    }
    for process in [world.device.take(), world.server.take()].into_iter().flatten() {
        process.terminate();
        process.ended().await.assert_success();
    }
    world.data.check().await;
}

fn names(list: &[&str]) -> BTreeSet<String> {
    list.iter().flat_map(|name| [format!("{name} before"), format!("{name} after")]).collect()
}

#[tokio::test]
async fn b24_inv_x2_inv_x3_a_kill_at_every_named_point_of_either_side_leaves_each_call_executed_at_most_once_and_settled()
 {
    let mut points = Vec::new();
    for (side, list) in [(Side::Server, SERVER), (Side::Device, DEVICE)] {
        let passed = passed(side).await;
        let found: BTreeSet<_> = passed.keys().cloned().collect();
        assert_eq!(found, names(list), "{side:?}: the places in the code are those of the list");
        for (name, count) in passed {
            points.extend((1..=count.min(PASSINGS)).map(|passing| (side, format!("{name}#{passing}"))));
        }
    }
    assert!(points.len() >= 80, "{}", points.len());
    let mut killing =
        stream::iter(points).map(|(side, point)| async move { kill_at(side, &point).await }).buffer_unordered(AT_ONCE);
    while killing.next().await.is_some() {}
}
