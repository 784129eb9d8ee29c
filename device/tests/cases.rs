//! Cases from other programs' public bug reports, on the real device: paths (B27), kinds of files (B29),
//! text limits (B30).

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use devmind_device::tools::{Execution, ListFiles, LocalTool, Prepared, ReadFile, ToolFailure, all};
use devmind_device::workspace::Workspace;
use devmind_device::{Device, DeviceOptions, Fixed, Identity};
use devmind_domain::canonical::{call_hash, canonical_json};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Connection, FakeServer, read_request};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A device in this process, and its connection.
struct Running {
    id: String,
    connection: Connection,
    _server: FakeServer,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    async fn start(folder: &Path, tools: Vec<Arc<dyn LocalTool>>) -> Self {
        let mut server = FakeServer::start().await;
        let identity = Identity::DevUser("ada".to_owned());
        let options = DeviceOptions::new(&server.url, folder.join("ws"), folder.join("state"), identity);
        let device = Device::open(DeviceOptions { tools, ..options }, Arc::new(Fixed(true))).await.unwrap();
        let (id, cancel) = (device.device_id().to_string(), CancellationToken::new());
        let task = tokio::spawn({
            let cancel = cancel.clone();
            async move { device.run(cancel).await.unwrap() }
        });
        let connection = server.registered().await;
        Self { id, connection, _server: server, cancel, task }
    }

    async fn ask(&mut self, call: &str, tool: &str, arguments: &Value) {
        let mut request = read_request(&self.id, call, 1, "");
        request["tool_name"] = json!(tool);
        request["arguments_json"] = json!(canonical_json(arguments));
        request["call_hash"] = json!(call_hash(tool, "1", arguments));
        self.connection.send(request).await;
    }

    /// How a call ended, acknowledged.
    async fn result(&mut self) -> Value {
        let result = self.connection.next_of("tool.call.result").await;
        self.connection.ack(result["tool_call_id"].as_str().unwrap()).await;
        result
    }

    /// The output of a call, or its code.
    async fn call(&mut self, call: &str, tool: &str, arguments: Value) -> Result<Value, String> {
        self.ask(call, tool, &arguments).await;
        let result = self.result().await;
        match result["error"]["code"].as_str() {
            None => Ok(result["output"].clone()),
            Some(code) => Err(code.to_owned()),
        }
    }

    async fn stop(self) {
        drop(self.connection);
        self.cancel.cancel();
        self.task.await.unwrap();
    }
}

/// <https://github.com/modelcontextprotocol/servers/security/advisories/GHSA-hc55-p739-j48w>: a neighbour whose name
/// begins like the root's, and links that lead out.
#[test]
fn b27_only_whole_components_beneath_the_root_are_opened_however_the_root_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("srv/data");
    fs::create_dir_all(root.join("sub")).unwrap();
    fs::create_dir_all(folder.path().join("srv/data_secret")).unwrap();
    fs::write(root.join("sub/x"), "inside").unwrap();
    fs::write(folder.path().join("srv/data_secret/k.txt"), "x".repeat(12_345)).unwrap();
    symlink("../data_secret/k.txt", root.join("out")).unwrap();
    symlink("../data_secret/missing.txt", root.join("out_to_nothing")).unwrap();
    symlink("sub", root.join("in")).unwrap();
    symlink(&root, folder.path().join("root_link")).unwrap();
    let absolute = folder.path().join("srv/data_secret/k.txt");
    for named in [root.clone(), root.join(""), folder.path().join("root_link")] {
        let workspace = Arc::new(Workspace::open(&named).unwrap());
        let read =
            |path: &str| workspace.open_file(path).map(|file| file.resolved).map_err(|denied| denied.code.as_str());
        let list = |path: &str| workspace.open_folder(path).map(|_| ()).map_err(|denied| denied.code.as_str());
        for path in ["../data_secret/k.txt", "../data_secret/missing.txt", "out", "out_to_nothing"] {
            assert_eq!(read(path), Err("PATH_OUT_OF_SCOPE"), "{path}");
        }
        for path in ["../data_secret", "../missing", ".."] {
            assert_eq!(list(path), Err("PATH_OUT_OF_SCOPE"), "{path}");
        }
        assert_eq!(read(absolute.to_str().unwrap()), Err("ABSOLUTE_PATH_DENIED"));
        for path in ["in/x", "sub//./x", "sub/x", "./sub/../sub/x"] {
            assert_eq!(read(path), Ok("sub/x".to_owned()), "{path}");
        }
        for path in [".", "in", "sub/.."] {
            assert_eq!(list(path), Ok(()), "{path}");
        }
        assert_eq!((list(""), read("a\0b")), (Err("INVALID_ARGUMENTS"), Err("INVALID_ARGUMENTS")));
        assert_eq!(read("%2e%2e/data_secret/k.txt"), Err("PATH_NOT_FOUND"), "percent signs are letters");
        let execution = Execution {
            tool_call_id: "call".into(),
            ends_at: Instant::now() + Duration::from_secs(60),
            cancel: CancellationToken::new(),
        };
        let listing = ListFiles.prepare(&workspace, &json!({})).unwrap().run(&execution).unwrap();
        let out = json!({ "name": "out", "kind": "symlink" });
        assert!(listing["entries"].as_array().unwrap().contains(&out), "a link without what it leads to: {listing}");
        assert!(!listing.to_string().contains("12345"));
    }
}

/// <https://github.com/NousResearch/hermes-agent/pull/82075>: a pipe without a writer holds up the reader for ever.
#[tokio::test]
async fn b29_what_is_no_regular_file_is_refused_at_once_and_holds_up_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let ws = folder.path().join("ws");
    fs::create_dir_all(ws.join("folder")).unwrap();
    fs::write(ws.join("normal.txt"), "normal").unwrap();
    fs::write(ws.join("growing.txt"), "x".repeat(1_000)).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(ws.join("pipe")).status().unwrap().success());
    let _listener = std::os::unix::net::UnixListener::bind(ws.join("socket")).unwrap();
    let mut device = Running::start(folder.path(), all()).await;
    // More reads of the pipe than there are threads for them, then one of a file.
    for n in 0..8 {
        device.ask(&format!("pipe {n}"), "workspace.read_file", &json!({ "path": "pipe" })).await;
        let result = device.result().await;
        assert_eq!(result["error"]["code"], "NOT_A_FILE");
    }
    for (n, path) in ["folder", "socket"].into_iter().enumerate() {
        let read = device.call(&format!("other {n}"), "workspace.read_file", json!({ "path": path })).await;
        assert_eq!(read, Err("NOT_A_FILE".to_owned()), "{path}");
    }
    let read = device.call("normal", "workspace.read_file", json!({ "path": "normal.txt" })).await.unwrap();
    assert_eq!(read["content"], "normal");
    // Another process keeps writing: the answer ends at the limit all the same.
    let stop = CancellationToken::new();
    let writing = std::thread::spawn({
        let (file, stop) = (ws.join("growing.txt"), stop.clone());
        move || {
            let mut file = fs::OpenOptions::new().append(true).open(file).unwrap();
            while !stop.is_cancelled() {
                std::io::Write::write_all(&mut file, &[b'x'; 64]).unwrap();
            }
        }
    });
    let read = device.call("growing", "workspace.read_file", json!({ "path": "growing.txt", "max_bytes": 500 })).await;
    stop.cancel();
    writing.join().unwrap();
    match read {
        Ok(read) => assert_eq!((read["content"].as_str().unwrap().len(), &read["truncated"]), (500, &json!(true))),
        Err(code) => assert_eq!(code, "FILE_CHANGED", "it is not the file that was shown"),
    }
    let listing = device.call("list", "workspace.list_files", json!({})).await.unwrap();
    let kinds: Vec<_> =
        listing["entries"].as_array().unwrap().iter().map(|e| format!("{} {}", e["name"], e["kind"])).collect();
    let expected = [
        "\"folder\" \"dir\"",
        "\"growing.txt\" \"file\"",
        "\"normal.txt\" \"file\"",
        "\"pipe\" \"other\"",
        "\"socket\" \"other\"",
    ];
    assert_eq!(kinds, expected);
    device.stop().await;
}

/// A tool that panics where it cuts text.
struct Panics;

impl LocalTool for Panics {
    fn name(&self) -> &'static str {
        ListFiles.name()
    }
    fn prepare(&self, _workspace: &Arc<Workspace>, _arguments: &Value) -> Result<Box<dyn Prepared>, ToolFailure> {
        Ok(Box::new(Panicking))
    }
}

struct Panicking;

impl Prepared for Panicking {
    fn run(self: Box<Self>, _execution: &Execution) -> Result<Value, ToolFailure> {
        // Like a slice at a byte within a character, without its message in the test's output.
        std::panic::resume_unwind(Box::new("a cut within a character"));
    }
}

/// <https://github.com/contextbridge/aether/issues/500>: a cut within a character panics, and nobody is told.
#[tokio::test]
async fn b30_text_is_cut_between_characters_and_a_tool_that_panics_is_an_answer() {
    const LIMIT: usize = 1_000;
    let folder = tempfile::tempdir().unwrap();
    let ws = folder.path().join("ws");
    fs::create_dir_all(&ws).unwrap();
    let ascii = "a".repeat(LIMIT - 1);
    let files = [
        ("three", format!("{ascii}日tail")),
        ("four", format!("{ascii}😀tail")),
        ("crlf", format!("{ascii}\r\ntail")),
        ("long", "日本".repeat(500_000)),
        ("empty", String::new()),
    ];
    for (name, content) in &files {
        fs::write(ws.join(name), content).unwrap();
    }
    let mut device = Running::start(folder.path(), vec![Arc::new(ReadFile), Arc::new(Panics)]).await;
    let mut calls = 0;
    for (name, content) in &files {
        let (mut joined, mut offset) = (String::new(), Some(0));
        while let Some(from) = offset {
            // The whole of the longest would take thousands of calls: its pages are as large as may be.
            let limit = if content.len() > 100_000 { 262_144 } else { LIMIT };
            calls += 1;
            let arguments = json!({ "path": name, "offset": from, "max_bytes": limit });
            let page = device.call(&format!("call {calls}"), "workspace.read_file", arguments).await.unwrap();
            let text = page["content"].as_str().unwrap();
            assert!(text.len() <= limit && page["size"] == content.len(), "{name}");
            joined.push_str(text);
            offset = page["next_offset"].as_u64();
            assert_eq!(page["truncated"], offset.is_some(), "{name}");
        }
        assert!(joined == *content, "{name}: the pages are the file");
    }
    // One byte is too little for any of these characters: one of them is answered all the same.
    let tiny = json!({ "path": "long", "offset": 1, "max_bytes": 1 });
    let page = device.call("tiny", "workspace.read_file", tiny).await.unwrap();
    assert_eq!((&page["content"], &page["offset"], &page["next_offset"]), (&json!("日"), &json!(0), &json!(3)));
    let panicked = device.call("panics", "workspace.list_files", json!({})).await;
    assert_eq!(panicked, Err("EXECUTION_FAILED".to_owned()));
    let after = device.call("after", "workspace.read_file", json!({ "path": "crlf", "max_bytes": 10 })).await.unwrap();
    assert_eq!(after["content"], "a".repeat(10));
    device.stop().await;
}
