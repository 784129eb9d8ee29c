//! Runs as OpenTelemetry spans, read by OpenTelemetry's own messages (`tests/peers/otlp`, python).

use devmind_device::Fixed;
use devmind_tests::wait::within_deadline;
use devmind_tests::{ModelEndpoint, Process, Question, Reply, TestDevice, TestServer, peers, workspace};
use serde_json::{Value, json};
use std::process::Stdio;
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Command;

fn spans(stdout: &str) -> Vec<Value> {
    stdout.lines().map(|line| serde_json::from_str(line).expect("a span a line")).collect()
}

#[tokio::test]
async fn spans_of_runs_are_what_opentelemetry_reads_and_the_same_in_every_export() {
    let Some(peer) = peers::python("otlp").await else { return };
    let endpoint = ModelEndpoint::start([
        Reply::stream()
            .call(0, "c1", "workspace_read_file", "{\"path\":\"README.md\"}")
            .call(1, "c2", "no_such_tool", "{}")
            .calls(),
        Reply::say("It is a project."),
        Reply::say("Yes."),
    ])
    .await;
    let (server, files) = (TestServer::with_model(&endpoint).await, workspace());
    let device = TestDevice::start(&server, "ann", files.path(), Arc::new(Fixed(true))).await;
    let ann = server.client("ann");
    let (asked, _) = ann.converse(&Question::new("what is it?").on(&device.id)).await;
    ann.converse(&Question::new("sure?").within(&asked.conversation_id)).await;
    device.stop().await;
    let stopped = server.stop().await;

    let out = tempfile::tempdir().expect("a folder");
    let file = |name: &str| out.path().join(name).to_string_lossy().into_owned();
    let export = async |to: &str, more: &[&str]| {
        let arguments = [&["export", to, "--format", "otlp", "--json"], more].concat();
        let done = Process::replay(&stopped.data, &arguments).await;
        done.assert_success();
        serde_json::from_str::<Value>(&done.stdout).expect("JSON")
    };
    let read = async |name: &str| {
        let mut command = Command::new(peer.program("python"));
        command.arg(peer.folder.join("otlp.py")).arg(file(name)).kill_on_drop(true);
        let output = within_deadline("the peer", command.output()).await.expect("python runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        spans(&String::from_utf8_lossy(&output.stdout))
    };

    let told = export(&file("all"), &[]).await;
    assert_eq!((&told["runs"], &told["spans"]), (&json!(2), &json!(7)));
    let all = read("all").await;
    let names: Vec<_> = all.iter().map(|span| span["name"].as_str().expect("a name")).collect();
    let model = all[0]["attributes"]["gen_ai.request.model"].as_str().expect("a model");
    let chat = format!("chat {model}");
    let expected = [
        "invoke_agent devmind",
        &chat,
        "execute_tool workspace.read_file",
        "execute_tool no_such_tool",
        &chat,
        "invoke_agent devmind",
        &chat,
    ];
    assert_eq!(names, expected);
    assert_eq!(all[0]["attributes"]["gen_ai.conversation.id"], asked.conversation_id);
    let (ran, refused) = (&all[2], &all[3]);
    assert_eq!((&ran["status"], &ran["attributes"]["gen_ai.tool.call.id"]), (&json!(0), &json!("c1")));
    for phase in ["devmind.tool.dispatched", "devmind.tool.executing"] {
        assert!(ran["events"].as_array().expect("events").contains(&json!(phase)), "{phase}: {ran}");
    }
    assert_eq!((&refused["status"], &refused["attributes"]["error.type"]), (&json!(2), &json!("UNKNOWN_TOOL")));
    assert_eq!(refused["attributes"]["devmind.tool.dispatched"], false);

    // Nothing that anybody said is in it, unless it is asked for.
    let without = std::fs::read_to_string(file("all")).expect("read");
    for said in ["what is it?", "It is a project.", "README.md"] {
        assert!(!without.contains(said), "{said}");
    }
    export(&file("content"), &["--content", "--run", &asked.run_id]).await;
    let with = read("content").await;
    assert_eq!(with[2]["attributes"]["gen_ai.tool.call.arguments"], "{\"path\":\"README.md\"}");
    assert!(with[0]["attributes"]["gen_ai.output.messages"].as_str().is_some_and(|said| said.contains("a project")));

    // Again, and to a collector that is busy at first: the same spans.
    export(&file("again"), &[]).await;
    assert_eq!(std::fs::read_to_string(file("again")).expect("read"), without);
    let mut command = Command::new(peer.program("python"));
    command.arg(peer.folder.join("otlp.py")).args(["--receive", "2"]).stdout(Stdio::piped()).kill_on_drop(true);
    let mut collector = command.spawn().expect("python runs");
    let mut stdout = BufReader::new(collector.stdout.take().expect("its output"));
    let mut address = String::new();
    within_deadline("its address", stdout.read_line(&mut address)).await.expect("a line");
    export(address.trim(), &["--header", "x-key=secret"]).await;
    let mut received = String::new();
    within_deadline("the collector ends", stdout.read_to_string(&mut received)).await.expect("text");
    assert_eq!(spans(&received), all);

    let taken = Process::replay(&stopped.data, &["export", &file("all"), "--format", "otlp"]).await;
    assert!(taken.stderr.contains("error[IO_ERROR]"), "a file is never written over: {}", taken.stderr);
    let nobody =
        Process::replay(&stopped.data, &["export", "http://127.0.0.1:9/", "--format", "otlp", "--run", "x"]).await;
    assert!(nobody.stderr.contains("error[RUN_NOT_FOUND]"), "{}", nobody.stderr);
}
