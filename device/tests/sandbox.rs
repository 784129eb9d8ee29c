//! The kernel as a second wall (Landlock): the real program with a tool that tries to leave the workspace.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use serde_json::{Value, json};
use support::process::{Folders, clean, example};
use support::{FakeServer, read_request};
use tokio::process::Command;

/// What a broken tool achieves in a device whose sandbox is as the setting says, and what the status says.
async fn escape(sandbox: &str) -> (Value, String) {
    let folders = Folders::new();
    std::fs::create_dir(folders.path("outside")).unwrap();
    std::fs::write(folders.path("outside/secret"), "secret").unwrap();
    let mut server = FakeServer::start().await;
    let mut command = clean(Command::new(example("escaping_device")));
    command.args(["--yes", "--sandbox", sandbox]).env("DEVMIND_TEST_OUTSIDE", folders.path("outside/secret"));
    let _device = folders.start(command, &server.url);
    let mut connection = server.registered().await;
    connection.send(read_request(&folders.device_id(), "call", 1, "README.md")).await;
    let result = connection.next_of("tool.call.result").await;
    assert_eq!(result["status"], "succeeded", "{result}");
    let (_, status, _) = folders.command(&["status"]).await;
    (result["output"].clone(), status)
}

#[tokio::test]
async fn a_tool_that_leaves_the_workspace_is_stopped_by_the_kernel_and_the_device_works_on() {
    let (output, status) = escape("auto").await;
    let no = "permission denied";
    assert_eq!(
        output,
        json!({ "read": no, "list": no, "write": no, "write_in_workspace": no, "start": no, "inside": "hello\n" })
    );
    assert!(status.contains("Landlock holds"), "{status}");
}

/// Shows that the other test can fail: without the sandbox nothing stops the tool.
#[tokio::test]
async fn without_the_sandbox_nothing_stops_such_a_tool_and_the_status_says_so() {
    let (output, status) = escape("off").await;
    for way in ["read", "list", "write", "write_in_workspace", "start"] {
        assert_eq!(output[way], "done", "{way}");
    }
    assert!(status.contains("off: the kernel forbids this program nothing"), "{status}");
}
