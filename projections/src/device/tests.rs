//! When a device is online, and what ends it.

use crate::testing::*;
use devmind_domain::device::DeviceDescribed;
use devmind_domain::protocol::Names;
use serde_json::json;

/// Online, connection and reason of the one device after a history.
async fn device_after(facts: &[Fact]) -> String {
    let mut bench = Bench::new().await;
    bench.append(facts.to_vec()).await;
    let devices = bench.views().await.devices(&"ann".into()).await.expect("devices");
    match devices.as_slice() {
        [] => "none".to_owned(),
        [device] => {
            let online = if device.online { "online" } else { "offline" };
            let connection = device.connection_id.as_ref().map_or("-", |id| id.as_str());
            format!("{online} {connection} {}", device.close_reason.as_deref().unwrap_or("-"))
        }
        more => panic!("{} devices", more.len()),
    }
}

#[tokio::test]
async fn a_device_is_online_while_a_socket_counts_for_it_and_its_tools_are_known() {
    const D: &str = "ann/d1";
    let online = vec![node_started(1), connected(D, "x1", 1), synced(D, "x1")];
    let then = |facts: &[Fact]| [online.clone(), facts.to_vec()].concat();
    for (facts, expected) in [
        (vec![node_started(1), connected(D, "x1", 1)], "offline x1 -"),
        (online.clone(), "online x1 -"),
        (then(&[disconnected(D, "x1")]), "offline - gone"),
        // Its tools are known: the same set is not appended again.
        (then(&[disconnected(D, "x1"), connected(D, "x2", 2)]), "online x2 -"),
        (then(&[replaced(D, "x1", "x2"), connected(D, "x2", 2)]), "online x2 -"),
        (then(&[replaced(D, "x1", "x2"), connected(D, "x2", 2), disconnected(D, "x1")]), "online x2 -"),
        (then(&[disconnected(D, "x1"), synced(D, "x1")]), "offline - gone"),
        (then(&[node_stopped(1)]), "offline - SHUTTING_DOWN"),
        (then(&[node_lost(1)]), "offline - SERVER_RESTARTED"),
        (then(&[node_started(2)]), "offline - SERVER_RESTARTED"),
        (then(&[node_started(2), connected(D, "x2", 2)]), "online x2 -"),
        // A late report about an older start ends no newer socket.
        (then(&[node_started(2), connected(D, "x2", 2), node_lost(1)]), "online x2 -"),
    ] {
        assert_eq!(device_after(&facts).await, expected, "{facts:?}");
    }
}

#[tokio::test]
async fn devices_are_a_users_own_and_show_what_the_socket_said() {
    let mut bench = Bench::new().await;
    bench.append([connected("ann/d1", "x1", 1), connected("bob/d2", "x2", 1), synced("ann/d1", "x1")]).await;
    let devices = bench.views().await.devices(&"ann".into()).await.expect("devices");
    let mut seen = serde_json::to_value(&devices).expect("JSON");
    for moment in ["last_seen", "connected_at"] {
        assert!(seen[0][moment].take().is_string());
    }
    assert_eq!(
        seen,
        json!([{
            "device_id": "d1", "user_id": "ann", "online": true, "connection_id": "x1", "connection_epoch": 1,
            "node_id": "n1", "version": "0.1.0", "remote": "127.0.0.1:5", "computer": null, "workspace": null,
            "tools": [], "last_seen": null,
            "connected_at": null, "disconnected_at": null, "close_code": null, "close_reason": null
        }])
    );
}

#[tokio::test]
async fn a_device_is_called_what_it_said_last_and_nothing_where_it_says_nothing_any_more() {
    const D: &str = "ann/d1";
    let said = |computer: Option<&str>, workspace: Option<&str>| {
        let names = Names::new(computer.map(str::to_owned), workspace.map(str::to_owned));
        device(D, DeviceDescribed { connection_id: "x1".into(), names })
    };
    let mut bench = Bench::new().await;
    bench.append(vec![node_started(1), connected(D, "x1", 1), said(Some("laptop"), Some("project"))]).await;
    let names = async |bench: &Bench| {
        let devices = bench.views().await.devices(&"ann".into()).await.expect("devices");
        devices.iter().map(|device| (device.computer.clone(), device.workspace.clone())).collect::<Vec<_>>()
    };
    assert_eq!(names(&bench).await, [(Some("laptop".to_owned()), Some("project".to_owned()))]);
    bench.append(vec![said(None, Some("other"))]).await;
    assert_eq!(names(&bench).await, [(None, Some("other".to_owned()))]);
}
