//! The program's commands: check, status, history and policy, and the page of a running device.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use serde_json::{Value, json};
use support::process::{Folders, program};
use support::{Connection, FakeServer, read_request};
use tokio::process::Child;

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A device that runs, and its connection.
async fn running(folders: &Folders, arguments: &[&str]) -> (Child, FakeServer, Connection) {
    let mut server = FakeServer::start().await;
    let mut command = program();
    command.args(arguments);
    let device = folders.start(command, &server.url);
    let connection = server.registered().await;
    (device, server, connection)
}

/// Asks for a file and answers how it ended.
async fn read(connection: &mut Connection, folders: &Folders, id: &str, path: &str) -> String {
    connection.send(read_request(&folders.device_id(), id, 1, path)).await;
    let result = connection.next_of("tool.call.result").await;
    connection.ack(id).await;
    let code = result["error"]["code"].as_str().unwrap_or_default();
    format!("{} {code}", result["status"].as_str().unwrap()).trim_end().to_owned()
}

#[tokio::test]
async fn check_answers_every_question_in_order_and_reports_the_lines_that_are_none() {
    let folders = Folders::new();
    std::fs::write(folders.path("ws/.env"), "secret").unwrap();
    let questions = [
        json!({ "id": 1, "tool": "workspace.read_file", "path": "README.md" }),
        json!({ "id": "b", "tool": "workspace.read_file", "path": ".env" }),
        json!({ "id": "c", "tool": "workspace.list_files", "path": "README.md" }),
        json!({ "id": "d", "tool": "workspace.search_text", "path": "../x" }),
        json!({ "id": "e", "tool": "workspace.write_file", "path": "README.md" }),
        json!({ "id": "f", "tool": "workspace.read_file", "path": "" }),
    ];
    let input: String = questions.iter().map(|question| format!("{question}\n")).collect();
    let (code, stdout, stderr) = folders.command_with(&["check"], &input).await;
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let expected = [
        json!({ "id": 1, "code": "OK" }),
        json!({ "id": "b", "code": "SENSITIVE_PATH_DENIED" }),
        json!({ "id": "c", "code": "NOT_A_FILE" }),
        json!({ "id": "d", "code": "PATH_OUT_OF_SCOPE" }),
        json!({ "id": "e", "code": "TOOL_NOT_AVAILABLE" }),
        json!({ "id": "f", "code": "INVALID_ARGUMENTS" }),
    ];
    assert_eq!(lines(&stdout), expected);
    assert!(!folders.path("state").exists(), "a check leaves nothing behind");

    let bad = format!("{}\nnonsense\n\n{{\"id\": 1}}\n{}\n{}", questions[0], "x".repeat(100_000), questions[1]);
    let (code, stdout, stderr) = folders.command_with(&["check", "--explain"], &bad).await;
    assert_eq!(code, Some(1));
    let answers = lines(&stdout);
    assert_eq!((answers.len(), &answers[1]["code"]), (2, &expected[1]["code"]));
    assert!(answers[1]["why"].as_str().unwrap().contains("secrets"));
    for number in ["line 2:", "line 4:", "line 5:"] {
        assert!(stderr.contains(number), "{stderr}");
    }
}

#[tokio::test]
async fn history_and_status_tell_of_a_running_device_what_was_asked_who_decided_and_what_came_of_it() {
    let folders = Folders::new();
    let (code, stdout, _) = folders.command(&["status"]).await;
    assert_eq!(code, Some(1), "{stdout}");
    assert_eq!(folders.command(&["history"]).await.0, Some(1), "there is no journal yet");

    let (device, _server, mut connection) = running(&folders, &["--yes", "--user", "ann"]).await;
    assert_eq!(read(&mut connection, &folders, "one", "README.md").await, "succeeded");
    assert_eq!(read(&mut connection, &folders, "two", "../\u{1b}x").await, "rejected PATH_OUT_OF_SCOPE");
    let (code, stdout, _) = folders.command(&["history", "--json"]).await;
    assert_eq!(code, Some(0));
    let calls = lines(&stdout);
    assert_eq!((&calls[0]["tool_call_id"], &calls[1]["tool_call_id"]), (&json!("two"), &json!("one")));
    assert_eq!((&calls[0]["decided_by"], &calls[0]["error_code"]), (&Value::Null, &json!("PATH_OUT_OF_SCOPE")));
    assert_eq!((&calls[1]["decided_by"], &calls[1]["status"]), (&json!("the setting confirm"), &json!("succeeded")));
    assert_eq!(
        (&calls[1]["arguments"], &calls[1]["conversation_title"]),
        (&json!(r#"{"path":"README.md"}"#), &json!("title"))
    );
    assert!(calls[1]["output_bytes"].as_u64().unwrap() > 0);
    let (_, stdout, _) = folders.command(&["history", "--limit", "1"]).await;
    assert!(stdout.contains("PATH_OUT_OF_SCOPE") && !stdout.contains("README.md"), "{stdout}");
    assert!(!stdout.contains('\u{1b}'), "what others wrote is escaped");

    let (code, stdout, _) = folders.command(&["status", "--json"]).await;
    assert_eq!(code, Some(0));
    let status = &lines(&stdout)[0];
    assert_eq!((&status["running"], &status["device"]["user"]), (&json!(true), &json!("ann")));
    assert_eq!(status["device"]["device_id"], folders.device_id());
    assert!(status["device"]["connection"].as_str().unwrap().starts_with("connected as ann"));
    assert_eq!((&status["journal"]["calls"], &status["journal"]["purged_before"]), (&json!(2), &Value::Null));
    drop(device);
}

#[tokio::test]
async fn a_rule_allows_exactly_what_it_names_from_its_writing_to_its_removal() {
    let folders = Folders::new();
    std::fs::create_dir(folders.path("ws/docs")).unwrap();
    std::fs::write(folders.path("ws/docs/a.md"), "a").unwrap();
    std::os::unix::fs::symlink("../README.md", folders.path("ws/docs/link.md")).unwrap();
    // Nobody can be asked.
    let (_device, _server, mut connection) = running(&folders, &["--confirm", "page"]).await;
    let denied = "rejected CONFIRMATION_EXPIRED";
    assert_eq!(read(&mut connection, &folders, "1", "docs/a.md").await, denied, "without a rule");
    for (tool, path) in [("workspace.list_files", "**"), ("workspace.write_file", "**"), ("workspace.read_file", "[")] {
        assert_eq!(folders.command(&["policy", "add", tool, path]).await.0, Some(1), "{tool} {path}");
    }
    assert_eq!(folders.command(&["policy", "add", "workspace.read_file", "docs/*.md"]).await.0, Some(0));
    assert_eq!(read(&mut connection, &folders, "2", "docs/a.md").await, "succeeded");
    assert_eq!(read(&mut connection, &folders, "3", "README.md").await, denied, "another path");
    assert_eq!(read(&mut connection, &folders, "4", "docs/link.md").await, denied, "the file it leads to counts");
    let (_, stdout, _) = folders.command(&["policy", "list", "--json"]).await;
    assert_eq!((&lines(&stdout)[0]["number"], &lines(&stdout)[0]["path"]), (&json!(1), &json!("docs/*.md")));
    assert_eq!(folders.command(&["policy", "remove", "1"]).await.0, Some(0));
    assert_eq!(read(&mut connection, &folders, "5", "docs/a.md").await, denied, "the rule is gone");
    let (_, stdout, _) = folders.command(&["history", "--json"]).await;
    let by: Vec<_> = lines(&stdout).iter().map(|call| call["decided_by"].clone()).collect();
    let rule = json!("the rule workspace.read_file docs/*.md");
    assert_eq!(by, [Value::Null, Value::Null, Value::Null, rule, Value::Null]);
}

#[tokio::test]
async fn a_question_is_answered_on_the_page_of_the_running_program() {
    let folders = Folders::new();
    let (device, _server, mut connection) = running(&folders, &[]).await;
    let link = folders.file("state/page-link").await;
    let (origin, token) = link.split_once("/#").unwrap();
    let client = reqwest_client();
    let news = async |after: u64| -> Value {
        let url = format!("{origin}/api/questions?after={after}");
        client.get(url).bearer_auth(token).send().await.unwrap().json().await.unwrap()
    };
    let mut told = news(0).await;
    connection.send(read_request(&folders.device_id(), "call", 1, "README.md")).await;
    while told["question"].is_null() {
        told = news(told["version"].as_u64().unwrap()).await;
    }
    let answer = json!({ "id": told["question"]["id"], "allow": true });
    loop {
        let post = client.post(format!("{origin}/api/answer")).bearer_auth(token).header("origin", origin);
        if post.json(&answer).send().await.unwrap().status() == 200 {
            break;
        }
    }
    assert_eq!(connection.next_of("tool.call.result").await["status"], "succeeded");
    let (_, stdout, _) = folders.command(&["history", "--json"]).await;
    assert_eq!(lines(&stdout)[0]["decided_by"], "the local page");
    // Where stderr is no terminal it is a log: the token is not in it.
    let pid = device.id().unwrap().to_string();
    assert!(tokio::process::Command::new("kill").args(["-TERM", &pid]).status().await.unwrap().success());
    drop(connection);
    let ended = device.wait_with_output().await.unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.contains("page-link") && !said.contains(token), "{said}");
}

fn reqwest_client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().tls_certs_only([]).build().unwrap()
}

#[tokio::test]
async fn a_workspace_that_is_moved_away_is_told_and_its_calls_are_refused_until_it_is_back() {
    let folders = Folders::new();
    let (_device, _server, mut connection) = running(&folders, &["--yes"]).await;
    assert_eq!(read(&mut connection, &folders, "1", "README.md").await, "succeeded");
    std::fs::rename(folders.path("ws"), folders.path("away")).unwrap();
    std::fs::create_dir(folders.path("ws")).unwrap();
    std::fs::write(folders.path("ws/README.md"), "another's").unwrap();
    assert_eq!(read(&mut connection, &folders, "2", "README.md").await, "rejected WORKSPACE_REPLACED");
    while !folders.command(&["status"]).await.1.contains("REPLACED") {}
    std::fs::remove_dir_all(folders.path("ws")).unwrap();
    std::fs::rename(folders.path("away"), folders.path("ws")).unwrap();
    assert_eq!(read(&mut connection, &folders, "3", "README.md").await, "succeeded");
}
