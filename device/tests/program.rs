//! The program as a process: killed while executing, started twice, started wrongly.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use serde_json::json;
use std::process::Output;
use support::process::{Folders, program};
use support::{FakeServer, read_request};
use tokio::process::Command;

async fn told(mut command: Command) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command.output().await.unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

#[tokio::test]
async fn c09_a_device_killed_while_executing_reports_that_it_cannot_know_and_never_reads_again() {
    let folders = Folders::new();
    let mut server = FakeServer::start().await;
    let mut device = folders.start(folders.slow_reader(), &server.url);
    let mut connection = server.registered().await;
    connection.send(read_request(&folders.device_id(), "call", 1, "README.md")).await;
    while connection.next_of("tool.call.received").await["phase"] != "executing" {}
    while !folders.path("executing").exists() {
        tokio::task::yield_now().await;
    }
    device.kill().await.unwrap();

    std::fs::write(folders.path("go-on"), "").unwrap();
    let _device = folders.start(folders.slow_reader(), &server.url);
    let mut connection = server.registered().await;
    let result = connection.next_of("tool.call.result").await;
    assert_eq!((&result["status"], &result["error"]["code"]), (&json!("indeterminate"), &json!("DEVICE_RESTARTED")));
    connection.ack("call").await;
    connection.send(read_request(&folders.device_id(), "call", 2, "README.md")).await;
    let again = connection.next().await;
    assert_eq!((&again["type"], &again["status"]), (&json!("tool.call.result"), &json!("indeterminate")));
    // Another call runs: the first one did not for want of a second chance.
    connection.send(read_request(&folders.device_id(), "other", 1, "README.md")).await;
    assert_eq!(connection.next_of("tool.call.result").await["status"], "succeeded");
    assert_eq!(std::fs::read_to_string(folders.path("witness")).unwrap(), "call\nother\n");
}

#[tokio::test]
async fn c06_a_result_that_was_sent_is_on_disk_and_comes_again_from_the_next_start() {
    let folders = Folders::new();
    let mut server = FakeServer::start().await;
    let allowed = || {
        let mut command = program();
        command.arg("--yes");
        command
    };
    let mut device = folders.start(allowed(), &server.url);
    let mut connection = server.registered().await;
    connection.send(read_request(&folders.device_id(), "call", 1, "README.md")).await;
    let first = connection.next_of("tool.call.result").await;
    device.kill().await.unwrap();
    std::fs::remove_file(folders.path("ws/README.md")).unwrap();
    let _device = folders.start(allowed(), &server.url);
    let again = server.registered().await.next_of("tool.call.result").await;
    for field in ["tool_call_id", "status", "output", "output_sha256", "executed_attempt_no", "finished_at"] {
        assert_eq!(again[field], first[field], "{field}");
    }
}

#[tokio::test]
async fn a_second_program_on_the_same_state_folder_is_told_so_and_changes_nothing() {
    let folders = Folders::new();
    let mut server = FakeServer::start().await;
    let mut first = folders.start(program(), &server.url);
    let _connection = server.registered().await;
    let second = folders.start(program(), &server.url).wait_with_output().await.unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains("error[STATE_LOCKED]"));
    assert!(first.try_wait().unwrap().is_none(), "the first goes on");
}

#[tokio::test]
async fn sigterm_stops_the_program_in_order() {
    let folders = Folders::new();
    let mut server = FakeServer::start().await;
    let device = folders.start(program(), &server.url);
    let mut connection = server.registered().await;
    let pid = device.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().await.unwrap().success());
    assert_eq!(connection.next_or_close().await, Err(1001));
    drop(connection);
    let ended = device.wait_with_output().await.unwrap();
    assert_eq!(ended.status.code(), Some(0));
    let told = String::from_utf8(ended.stderr).unwrap();
    assert!(told.contains("connected as") && told.contains("stopping"), "{told}");
    assert!(!told.contains("ticket-1"), "a ticket was printed");
}

#[tokio::test]
async fn without_a_terminal_nothing_is_read_unless_a_flag_allows_it() {
    let folders = Folders::new();
    let mut server = FakeServer::start().await;
    let _device = folders.start(program(), &server.url);
    let mut connection = server.registered().await;
    connection.send(read_request(&folders.device_id(), "call", 1, "README.md")).await;
    let result = connection.next_of("tool.call.result").await;
    assert_eq!((&result["status"], &result["error"]["code"]), (&json!("rejected"), &json!("CONFIRMATION_EXPIRED")));
}

#[tokio::test]
async fn c23_bad_settings_are_refused_with_a_code_and_a_hint_before_the_network() {
    let folders = Folders::new();
    let state = folders.path("state").display().to_string();
    let ws = folders.path("ws").display().to_string();
    let missing = folders.path("missing").display().to_string();
    for (arguments, expected, status) in [
        (vec!["--workspace", "/"], "error[WORKSPACE_REFUSED]", 1),
        (vec!["--workspace", &missing], "error[WORKSPACE_NOT_FOUND]", 1),
        (vec!["--workspace", &ws, "--server", "http://example.org"], "error[CONFIG_INVALID]", 1),
        (vec!["--workspace", &ws, "--server", "nonsense"], "error[CONFIG_INVALID]", 1),
        (vec!["--workspace", &ws, "--user", "a b"], "error[CONFIG_INVALID]", 1),
        (vec!["--yes", "--no"], "cannot be used with", 2),
        (vec!["--unknown"], "unexpected argument", 2),
    ] {
        let mut command = program();
        command.current_dir(folders.folder.path()).args(["--state", &state]).args(&arguments);
        let (code, text) = told(command).await;
        assert_eq!(code, Some(status), "{arguments:?}: {text}");
        assert!(text.contains(expected) && (status == 2 || text.contains("hint: ")), "{arguments:?}: {text}");
        assert!(!folders.path("state").exists(), "{arguments:?} wrote something");
    }
    std::fs::create_dir(folders.path("state")).unwrap();
    std::fs::write(folders.path("state/lock"), "").unwrap();
    std::fs::write(folders.path("state/journal.sqlite"), "not a database".repeat(100)).unwrap();
    let mut command = program();
    command.current_dir(folders.folder.path()).args(["--state", &state, "--workspace", &ws]);
    let (code, text) = told(command).await;
    assert_eq!(code, Some(1));
    assert!(text.contains("error[DEVICE_JOURNAL_FAILED]") && text.contains("keep the file"), "{text}");
}
