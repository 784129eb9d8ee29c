//! A device that is not ours (`tests/peers/device`, python with a stock WebSocket library) against the
//! server: what the device channel promises to any implementation of it.

use devmind_tests::{TestServer, peers};
use std::process::Stdio;
use tokio::process::Command;

#[tokio::test]
async fn a_device_of_another_hand_is_served_and_refused_as_the_protocol_says() {
    let Some(peer) = peers::python("device").await else { return };
    let server = TestServer::start().await;
    let mut command = Command::new(peer.program("python"));
    command.arg(peer.folder.join("device.py")).arg(server.url()).stdin(Stdio::null()).kill_on_drop(true);
    let output = devmind_tests::wait::within_deadline("the device ends", command.output()).await.unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{errors}");
    // A script that checked nothing is no success.
    for part in [
        "registers, syncs",
        "is called",
        "comes twice",
        "unknown call",
        ": 4409",
        "another device's id: 4403",
        "a foreign origin: 4403",
        "no ticket: 4401",
        "a gap in the sequence: 4400",
        "another first frame: 4400",
        ": 1009",
        ": 1003",
        "a ticket that was used: 4401",
    ] {
        assert!(said.lines().any(|line| line.starts_with("ok ") && line.contains(part)), "no {part:?} in {said}");
    }
    let recorded = server.log().one("ToolResultRecorded").await;
    assert_eq!(recorded.payload["output"]["content"], "read in python");
    // The newest socket of each device ends when the script does.
    devmind_tests::eventually("nobody is connected", || async {
        let open = server.app().gateway.connections.len();
        if open == 0 { Ok(()) } else { Err(open.to_string()) }
    })
    .await;
    server.finish().await;
}
