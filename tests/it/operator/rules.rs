//! What every command of `devmind-replay` keeps to, in one table whose rows are clap's own list of commands: a
//! command without a row fails.
//!
//! Beside a server that runs, on the store of the test: it names the position it read at; with `--json` every
//! line is JSON and says it, too; it takes `--at`, or the row says why not; what changes something does so only
//! with `--yes`.

use super::replay;
use clap::CommandFactory;
use devmind_replay_tools::Cli;
use devmind_tests::{Data, Finished, Question, ServerProcess};
use serde_json::Value;
use std::collections::BTreeMap;

/// How a command takes a position.
enum At {
    /// As `--at`.
    Taken,
    /// Not at all, for a reason.
    Not(&'static str),
}

struct Row {
    command: &'static str,
    arguments: Vec<String>,
    /// The exit status on a sound ledger.
    status: i32,
    at: At,
    /// How it names the position.
    names: &'static str,
}

impl Row {
    fn new(command: &'static str, arguments: &[&str], at: At) -> Self {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Self { command, arguments, status: 0, at, names: "position " }
    }

    fn ends(self, status: i32) -> Self {
        Self { status, ..self }
    }

    fn names(self, names: &'static str) -> Self {
        Self { names, ..self }
    }

    async fn run(&self, data: &Data, more: &[&str]) -> Finished {
        let words: Vec<&str> = self.command.split(' ').collect();
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        replay(data, &[words.as_slice(), &arguments, more].concat()).await
    }
}

/// Commands that a test of their own starts, with where it is.
const ELSEWHERE: [(&str, &str); 4] = [
    ("witness serve", "replay-tools/tests/proofs/witness.rs: it reads no ledger"),
    ("witness ask", "replay-tools/tests/proofs/witness.rs"),
    ("projection resume", "tests/it/poison.rs: it takes a view that stopped"),
    ("projection skip", "tests/it/poison.rs: it takes a view that stopped"),
];

/// Every command with a body, with the options that matter here.
fn commands() -> BTreeMap<String, (bool, bool)> {
    fn walk(command: &clap::Command, path: &str, found: &mut BTreeMap<String, (bool, bool)>) {
        for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
            let path = format!("{path} {}", inner.get_name()).trim().to_owned();
            if inner.has_subcommands() {
                walk(inner, &path, found);
            } else {
                let has = |name: &str| inner.get_arguments().any(|argument| argument.get_id() == name);
                found.insert(path, (has("at"), has("yes")));
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(&Cli::command(), "", &mut found);
    found
}

fn rows(run: &str, call: &str, conversation: &str, folder: &str) -> Vec<Row> {
    let file = |name: &str| format!("{folder}/{name}");
    let (bundle, imported) = (file("bundle.jsonl"), file("whole.jsonl"));
    vec![
        Row::new("log", &[], At::Taken),
        Row::new("show", &["--conversation", conversation], At::Taken),
        Row::new("reconcile", &[], At::Taken),
        Row::new("replay", &["--run", run], At::Taken),
        Row::new("timeline", &["--run", run], At::Taken),
        Row::new("verify", &[], At::Not("what comes later proves what was before: the whole is checked")),
        Row::new("export", &[&bundle, "--conversation", conversation], At::Taken).names("the checkpoint of "),
        Row::new("import", &[&imported], At::Not("a bundle is taken as a whole")).ends(1),
        Row::new("prove-once", &["--tool-call", call], At::Taken),
        Row::new("attest", &[], At::Taken).names(" at "),
        Row::new(
            "redact",
            &["--position", "3", "--reason", "r", "--operator", "o"],
            At::Not("it erases events that it is told"),
        )
        .ends(1)
        .names("#"),
        Row::new("rebuild", &["--check"], At::Not("the live views stand where they stand")).names(" at "),
        Row::new("stats", &[], At::Taken),
        Row::new("schema check", &[], At::Taken),
        Row::new("status", &[], At::Not("it tells where the views stand")).names(" at "),
    ]
}

#[tokio::test]
async fn every_command_names_its_position_speaks_json_takes_a_past_one_and_changes_nothing_unasked() {
    let commands = commands();
    let server = ServerProcess::start(&[]).await;
    let ann = server.client("ann");
    let (asked, _) = ann.converse(&Question::new("add 1 and 2")).await;
    let call = ann.tool_call(&asked).await["tool_call_id"].as_str().unwrap().to_owned();
    ann.get("/api/ledger/checkpoint").await.ok();
    let head = server.log().await.head().await;
    let (data, folder) = (server.data.clone(), tempfile::tempdir().unwrap());
    let path = folder.path().to_str().unwrap();
    // The views follow at their pace: what is asked of them is asked once they are there.
    replay(&data, &["rebuild"]).await.assert_success();
    let whole = format!("{path}/whole.jsonl");
    replay(&data, &["export", &whole]).await.assert_success();
    let rows = rows(&asked.run_id, &call, &asked.conversation_id, path);
    let told: Vec<&str> = rows.iter().map(|row| row.command).chain(ELSEWHERE.map(|(command, _)| command)).collect();
    for command in commands.keys() {
        assert_eq!(told.iter().filter(|told| *told == command).count(), 1, "{command} has no row, or two");
    }
    assert_eq!(told.len(), commands.len(), "a row is of no command");

    for row in &rows {
        let (takes_at, takes_yes) = commands[row.command];
        let is_at = |finished: &Finished| {
            let all = format!("{}{}", finished.stdout, finished.stderr);
            let position = if row.command == "redact" { 3 } else { head };
            assert!(
                all.contains(&format!("{}{position}", row.names)),
                "{} names no position: {finished:#?}",
                row.command
            );
        };
        let told = row.run(&data, &[]).await;
        assert_eq!(told.code, Some(row.status), "{}: {told:#?}", row.command);
        is_at(&told);
        drop(std::fs::remove_file(format!("{path}/bundle.jsonl")));
        let json = row.run(&data, &["--json"]).await;
        assert_eq!(json.code, Some(row.status), "{}: {json:#?}", row.command);
        let lines: Vec<Value> =
            json.stdout.lines().map(|line| serde_json::from_str(line).expect(row.command)).collect();
        let says = |line: &Value| {
            let projections =
                line["projections"].as_array().is_some_and(|all| all.iter().all(|one| one["position"].is_u64()));
            line["position"].is_u64() || projections
        };
        assert!(!lines.is_empty() && lines.iter().all(says), "{}: {json:#?}", row.command);
        drop(std::fs::remove_file(format!("{path}/bundle.jsonl")));
        match row.at {
            At::Taken => {
                assert!(takes_at, "{} takes no --at", row.command);
                let was = row.run(&data, &["--at", &head.to_string()]).await;
                assert_eq!(was.code, Some(row.status), "{}: {was:#?}", row.command);
                is_at(&was);
                drop(std::fs::remove_file(format!("{path}/bundle.jsonl")));
                row.run(&data, &["--at", &(head + 1_000).to_string()]).await.assert_refused("NOT_FOUND");
            }
            At::Not(why) => assert!(!takes_at && !why.is_empty(), "{} takes --at", row.command),
        }
        assert!(!takes_yes || row.status != 0, "{} without --yes is no success", row.command);
    }
    assert_eq!(server.log().await.head().await, head, "something was written");
    server.finish().await;
}
