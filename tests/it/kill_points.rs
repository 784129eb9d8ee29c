//! `kill -9` at every named point of server and device, before and after each step that is durable or
//! leaves the process. After the restart every call is settled, was executed at most once, and log, views
//! and the device's journal agree.
//!
//! The witness of an execution is a line that the tool itself appends to a file and flushes
//! (`device/examples/slow_read_device.rs`); it does not trust what the programs say of themselves.

use devmind_tests::pair::{self, Pair, Side, Wants};
use devmind_tests::{Client, Process, eventually};
use futures::{StreamExt, stream};
use std::collections::{BTreeMap, BTreeSet};

/// Scenarios side by side: they wait for each other's processes more than they compute.
const AT_ONCE: usize = 6;
/// A point that is passed often is killed at this often, at most.
const PASSINGS: usize = 3;

/// Everything that the server appends, sends and receives while a device's tool is called, from its start to
/// its end.
const SERVER: &[&str] = &[
    "append ConversationStarted",
    "append DeviceConnected",
    "append DeviceDescribed",
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

/// Where the device is killed while it runs what nobody is asked about: the journal knows such a call for the first time
/// when it begins.
const WITHOUT_ASKING: &[&str] = &["perform begin at once", "perform execute"];

/// What a server and a device do together, from their start to their end in order.
async fn whole_life(client: &Client, wants: Wants, key: &str, terminate: impl AsyncFn(Side)) {
    let asked = pair::ask(client, wants, key, &pair::online_device(client).await).await;
    pair::run(client, wants, &asked).await;
    // The last acknowledgement is on its way.
    let calls = format!("/api/ledger/events?type=ToolResultAcked&run_id={}", asked["run_id"].as_str().unwrap());
    eventually("the result is acknowledged", || async {
        let page = pair::get(client, &calls).await?;
        if page.to_string().contains("ToolResultAcked") { Ok(()) } else { Err(page.to_string()) }
    })
    .await;
    terminate(Side::Device).await;
    terminate(Side::Server).await;
}

/// Lives the whole life with one side prepared to die; whether it was killed. The other side is left as it
/// is, unless it was told to end: then it has.
async fn live(world: &mut Pair, side: Side, environment: &[(&str, &str)]) -> bool {
    world.start(side, environment);
    let (client, key, wants) = (world.client(), world.key.clone(), world.wants);
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
    let Pair { server: own_server, device: own_device, .. } = world;
    let (victim, other) = match side {
        Side::Server => (own_server, own_device),
        Side::Device => (own_device, own_server),
    };
    let (victim, other) = (victim.as_mut().unwrap(), other.as_mut().unwrap());
    let killed = tokio::select! {
        killed = victim.killed() => killed,
        // Waited for, or its end would not be seen.
        () = async { other.killed().await; std::future::pending().await } => false,
        () = whole_life(&client, wants, &key, terminate) => false,
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
    let mut world = Pair::new(Wants::Contents);
    assert!(!live(&mut world, side, &[("DEVMIND_KILL_TRACE", trace.to_str().unwrap())]).await);
    let mut passed = BTreeMap::new();
    for line in std::fs::read_to_string(trace).unwrap().lines() {
        *passed.entry(line.to_owned()).or_default() += 1;
    }
    passed
}

/// Kills a side at a point, starts it again, and checks what must hold.
async fn kill_at(wants: Wants, side: Side, point: &str) {
    let mut world = Pair::new(wants);
    assert!(live(&mut world, side, &[("DEVMIND_KILL_POINT", point)]).await, "{side:?} was not killed at {point}");
    drop(world.victim(side).take());
    if world.server.is_none() {
        world.start_server(&[]);
    }
    if world.device.is_none() {
        world.start_device(&[]);
    }
    let client = world.client();
    let device_id = pair::online_device(&client).await;
    let asked = pair::ask(&client, wants, &world.key, &device_id).await;
    let run_id = asked["run_id"].as_str().unwrap().to_owned();
    pair::run(&client, wants, &asked).await;

    let calls = world.settled(&run_id).await;
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
    world.nothing_left_to_send().await;
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
            points
                .extend((1..=count.min(PASSINGS)).map(|passing| (Wants::Contents, side, format!("{name}#{passing}"))));
        }
    }
    points.extend(names(WITHOUT_ASKING).into_iter().map(|name| (Wants::Names, Side::Device, name)));
    assert!(points.len() >= 84, "{}", points.len());
    let killing = |(wants, side, point): (Wants, Side, String)| async move { kill_at(wants, side, &point).await };
    let mut killing = stream::iter(points).map(killing).buffer_unordered(AT_ONCE);
    while killing.next().await.is_some() {}
}
