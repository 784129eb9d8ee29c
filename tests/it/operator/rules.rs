//! What every command of `devmind-replay` keeps to, in one table whose rows are clap's own list of commands: a
//! command without a row fails.
//!
//! Beside a server that runs, on the store of the test: it names the position it read at; with `--json` every
//! line is JSON and says it, too; it takes `--at`, or the row says why not; what changes something does so only
//! with `--yes`. From a bundle, with no store at all, it says the same, or the row says why it cannot. What cannot be
//! read is told by the exit status, after everything that can.

use super::replay;
use clap::CommandFactory;
use devmind_replay_tools::Cli;
use devmind_tests::{Data, Finished, Process, Question, ServerProcess};
use serde_json::Value;
use sqlx::{Connection, PgConnection};
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
    /// Whether it prints what it can of a log with an event that cannot be understood.
    reads_events: bool,
    /// Why it cannot do with a bundle; nothing where it can.
    needs_ledger: Option<&'static str>,
}

impl Row {
    fn new(command: &'static str, arguments: &[&str], at: At) -> Self {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Self { command, arguments, status: 0, at, names: "position ", reads_events: true, needs_ledger: None }
    }

    fn ends(self, status: i32) -> Self {
        Self { status, ..self }
    }

    fn names(self, names: &'static str) -> Self {
        Self { names, ..self }
    }

    fn reads_no_events(self) -> Self {
        Self { reads_events: false, ..self }
    }

    fn needs_ledger(self, why: &'static str) -> Self {
        Self { needs_ledger: Some(why), ..self }
    }

    async fn run(&self, data: &Data, more: &[&str]) -> Finished {
        let words: Vec<&str> = self.command.split(' ').collect();
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        replay(data, &[words.as_slice(), &arguments, more].concat()).await
    }
}

/// Commands that a test of their own starts, with where it is.
const ELSEWHERE: [(&str, &str); 3] = [
    ("witness serve", "`witness`, below: it reads no ledger, and runs until it is stopped"),
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

fn rows(run: &str, call: &str, conversation: &str, folder: &str, (witness, key): (&str, &str)) -> Vec<Row> {
    let file = |name: &str| format!("{folder}/{name}");
    let (bundle, imported) = (file("bundle.jsonl"), file("whole.jsonl"));
    vec![
        Row::new("log", &[], At::Taken),
        Row::new("show", &["--conversation", conversation], At::Taken),
        Row::new("reconcile", &[], At::Taken),
        Row::new("replay", &["--run", run], At::Taken),
        Row::new("timeline", &["--run", run], At::Taken),
        Row::new("verify", &[], At::Not("what comes later proves what was before: the whole is checked")),
        Row::new("export", &[&bundle, "--conversation", conversation], At::Taken)
            .names("the checkpoint of ")
            .reads_no_events()
            .needs_ledger("it is a bundle already"),
        Row::new("import", &[&imported], At::Not("a bundle is taken as a whole"))
            .ends(1)
            .reads_no_events()
            .needs_ledger("it names its bundle itself"),
        Row::new("prove-once", &["--tool-call", call], At::Taken),
        Row::new("attest", &[], At::Taken).names(" at ").reads_no_events().needs_ledger("a bundle has no live views"),
        Row::new(
            "redact",
            &["--position", "3", "--reason", "r", "--operator", "o"],
            At::Not("it erases events that it is told"),
        )
        .ends(1)
        .names("#")
        .reads_no_events()
        .needs_ledger("what is erased in a copy is not erased"),
        Row::new("rebuild", &[], At::Not("the live views stand where they stand"))
            .ends(1)
            .names(" at ")
            .reads_no_events()
            .needs_ledger("a bundle has no live views"),
        Row::new("stats", &[], At::Taken),
        Row::new("schema check", &[], At::Taken),
        Row::new("status", &[], At::Not("it tells where the views stand"))
            .names(" at ")
            .reads_no_events()
            .needs_ledger("a bundle has no live views"),
        Row::new("witness ask", &[witness, "--key", key], At::Not("the newest signed head is the one to be seen"))
            .reads_no_events()
            .needs_ledger("what a witness signed is kept beside the ledger"),
    ]
}

/// A witness of the log, in JSON: where it listens, and its key.
async fn witness(data: &Data, folder: &str) -> (Process, String, String) {
    let log = std::fs::read_to_string(data.path().join("checkpoint.pub")).expect("the log's key");
    let state = format!("{folder}/witness");
    let order = ["--json", "witness", "serve", "--listen", "127.0.0.1:0", "--state", &state, "--log", log.trim()];
    let mut process = Process::start("devmind-replay", &order, &[]);
    let told: Value = serde_json::from_str(&process.line("listening").await).expect("JSON");
    assert_eq!(told["logs"][0]["position"], 0, "{told}");
    let text = |field: &str| told[field].as_str().expect("a text").to_owned();
    (process, text("listening"), text("key"))
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
    replay(&data, &["rebuild", "--yes"]).await.assert_success();
    let whole = format!("{path}/whole.jsonl");
    replay(&data, &["export", &whole]).await.assert_success();
    let (witness, url, key) = witness(&data, path).await;
    let rows = rows(&asked.run_id, &call, &asked.conversation_id, path, (&url, &key));
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

        // With nothing but the bundle, in an empty folder that stays so.
        let nowhere = Data::sqlite();
        let alone = row.run(&nowhere, &["--bundle", &whole]).await;
        match row.needs_ledger {
            Some(why) => {
                assert!(alone.code == Some(1) && !why.is_empty(), "{}: {alone:#?}", row.command);
                alone.assert_refused("VALIDATION_FAILED");
            }
            // The ledger is compared with its checkpoints, a bundle with the one it has.
            None if row.command == "verify" => alone.assert_success(),
            None => assert_eq!((alone.code, &alone.stdout), (told.code, &told.stdout), "{}: {alone:#?}", row.command),
        }
        assert_eq!(std::fs::read_dir(nowhere.path()).unwrap().count(), 0, "{} made files", row.command);
    }
    // A part of the log says what is in it.
    let part = format!("{path}/part.jsonl");
    replay(&data, &["export", &part, "--conversation", &asked.conversation_id]).await.assert_success();
    for row in rows.iter().filter(|row| ["show", "timeline", "replay"].contains(&row.command)) {
        let (of_all, of_part) = (row.run(&data, &[]).await, row.run(&Data::sqlite(), &["--bundle", &part]).await);
        assert_eq!((of_part.code, &of_part.stdout), (Some(0), &of_all.stdout), "{}: {of_part:#?}", row.command);
    }
    // Spans are the same from either.
    let spans = async |name: &str, data: &Data, more: &[&str]| {
        let file = format!("{path}/{name}");
        let told = replay(data, &[&["export", &file, "--format", "otlp"], more].concat()).await;
        assert!(told.code == Some(0) && told.stderr.contains(&format!("read at position {head}")), "{told:#?}");
        std::fs::read_to_string(file).unwrap()
    };
    let of_ledger = spans("ledger.otlp", &data, &[]).await;
    assert!(of_ledger.contains(&asked.run_id), "{of_ledger}");
    assert_eq!(spans("whole.otlp", &Data::sqlite(), &["--bundle", &whole]).await, of_ledger);
    let proved = replay(&Data::sqlite(), &["prove-once", "--tool-call", &call, "--bundle", &part]).await;
    assert!(proved.code == Some(0) && proved.stdout.starts_with("executed once"), "{proved:#?}");
    let attested = replay(&Data::sqlite(), &["attest", "--at", "3", "--bundle", &part]).await;
    attested.assert_refused("VALIDATION_FAILED");
    let forged = std::fs::read_to_string(&part).unwrap().replacen("add 1 and 2", "add 1 and 3", 1);
    std::fs::write(&part, forged).unwrap();
    replay(&Data::sqlite(), &["log", "--bundle", &part]).await.assert_refused("LEDGER_CORRUPT");

    witness.terminate();
    witness.ended().await.assert_success();
    assert_eq!(server.log().await.head().await, head, "something was written");
    server.finish().await;
}

#[tokio::test]
async fn what_cannot_be_understood_is_told_after_everything_that_can_and_by_the_exit_status() {
    let server = ServerProcess::on_sqlite(&[]).await;
    let ann = server.client("ann");
    let (asked, _) = ann.converse(&Question::new("add 1 and 2")).await;
    let call = ann.tool_call(&asked).await["tool_call_id"].as_str().unwrap().to_owned();
    let data = server.data.clone();
    server.finish().await;
    data.change_ledger(
        "DROP TRIGGER events_no_update; UPDATE events SET payload = '{}' WHERE event_type = 'ToolResultRecorded'",
    )
    .await;
    let facts = data.log().await.all().await;
    let at = facts.iter().find(|fact| fact.kind == "ToolResultRecorded").unwrap().position;
    let rows = rows(&asked.run_id, &call, &asked.conversation_id, "unused", ("http://unused", "unused"));
    for row in rows.iter().filter(|row| row.reads_events) {
        let told = row.run(&data, &[]).await;
        assert!(matches!(told.code, Some(1 | 3)), "{}: {told:#?}", row.command);
        assert!(!told.stdout.is_empty(), "{} prints nothing of what it can: {told:#?}", row.command);
        let all = format!("{}{}", told.stdout, told.stderr);
        assert!(all.contains(&format!("event {at}")) || all.contains(&format!("#{at} ")), "{}: {told:#?}", row.command);
        let json = row.run(&data, &["--json"]).await;
        assert_eq!(json.code, told.code, "{}: {json:#?}", row.command);
        for line in json.stdout.lines() {
            serde_json::from_str::<Value>(line).expect(row.command);
        }
    }
    // Views that cannot be built do not keep the others from it.
    let built = replay(&data, &["rebuild", "--yes"]).await;
    assert!(built.code == Some(1) && built.stdout.contains("conversation rebuilt at"), "{built:#?}");
    assert!(built.stderr.contains(&format!("tool_call cannot be built: event {at}")), "{built:#?}");
    let checked = replay(&data, &["rebuild", "--check"]).await;
    assert!(checked.code == Some(1) && checked.stdout.contains("equal"), "{checked:#?}");
}

/// The columns of an event, and values that they cannot have.
const DAMAGE: &str = include_str!("../../fixtures/damaged_columns.txt");

/// A run that called a tool, and the event that says that it was sent.
struct Called {
    run: String,
    call: String,
    at: u64,
}

/// The data of a server that has ended: one conversation with so many runs, each with one call.
async fn left_by(server: ServerProcess, runs: usize) -> (Data, String, Vec<Called>) {
    let ann = server.client("ann");
    let mut asked = vec![ann.converse(&Question::new("add 1 and 2")).await.0];
    let conversation = asked[0].conversation_id.clone();
    for _ in 1..runs {
        asked.push(ann.converse(&Question::new("add 1 and 2").within(&conversation)).await.0);
    }
    ann.get("/api/ledger/checkpoint").await.ok();
    let data = server.data.clone();
    server.finish().await;
    let facts = data.log().await.all().await;
    let called = facts.iter().filter(|fact| fact.kind == "ToolDispatched").zip(&asked).map(|(fact, asked)| Called {
        run: asked.run_id.clone(),
        call: fact.stream_id.clone(),
        at: fact.position,
    });
    let called: Vec<_> = called.collect();
    assert_eq!(called.len(), runs);
    (data, conversation, called)
}

/// Every command that reads events names the rows that it lacks, on a log whose row at each `at` is damaged; those that
/// must not lack one name the first.
async fn all_name_the_rows(data: &Data, conversation: &str, damaged: &[Called]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let (bundle, spans) = (format!("{path}/refused.jsonl"), format!("{path}/spans.jsonl"));
    let all: Vec<u64> = damaged.iter().map(|called| called.at).collect();
    let last = all.last().unwrap().to_string();
    let unused = ("http://unused", "unused");
    let mut commands: Vec<(Row, Vec<u64>)> = Vec::new();
    for called in damaged {
        for row in
            rows(&called.run, &called.call, conversation, "unused", unused).into_iter().filter(|row| row.reads_events)
        {
            let of_one = row.arguments.iter().any(|argument| [&called.run, &called.call].contains(&argument));
            // What is about everything is asked once.
            if of_one || called.at == all[0] {
                commands.push((row, if of_one { vec![called.at] } else { all.clone() }));
            }
        }
    }
    // Who gets a bundle cannot know what it lacks, nor can who has a view's hash.
    for (row, named) in [
        (Row::new("export", &[&bundle], At::Taken), vec![all[0]]),
        (Row::new("export", &[&spans, "--format", "otlp"], At::Taken), all.clone()),
        (Row::new("attest", &["--at", &last], At::Taken), vec![all[0]]),
        (Row::new("rebuild", &["--check"], At::Taken), vec![all[0]]),
    ] {
        commands.push((row, named));
    }
    let told = commands.iter().map(async |(row, named)| (row, named, row.run(data, &["--json"]).await));
    for (row, named, told) in futures::future::join_all(told).await {
        let text = format!("{}{}", told.stdout, told.stderr);
        assert!(matches!(told.code, Some(1 | 3)), "{}: {told:#?}", row.command);
        for at in named {
            let names = [format!("event {at}"), format!("\"position\":{at},")].iter().any(|name| text.contains(name));
            assert!(names, "{} does not name event {at}: {told:#?}", row.command);
        }
        told.stdout.lines().for_each(|line| drop(serde_json::from_str::<Value>(line).expect(row.command)));
        let refuses = row.arguments.first() == Some(&bundle) || row.command == "attest";
        assert_eq!(told.stdout.is_empty(), refuses, "{} tells what it can: {told:#?}", row.command);
        // What differs where something is missing is no finding about decisions.
        assert_eq!(told.code == Some(3), row.command == "verify", "{}: {told:#?}", row.command);
    }
    let left: Vec<_> = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["spans.jsonl"], "no bundle, and no half of one");
}

#[tokio::test]
async fn rows_that_cannot_be_read_are_named_by_every_command_whichever_column_it_is_and_the_rest_is_shown() {
    let columns: Vec<_> = DAMAGE.lines().filter_map(|line| line.split_once('|')).collect();
    let (data, conversation, called) = left_by(ServerProcess::on_sqlite(&[]).await, columns.len()).await;
    let mut damage = "DROP TRIGGER events_no_update; PRAGMA ignore_check_constraints = 1; \
         CREATE TABLE kept AS SELECT rowid AS row, position AS at FROM events;"
        .to_owned();
    for ((column, value), Called { at, .. }) in columns.iter().zip(&called) {
        damage +=
            &format!("UPDATE events SET {column} = {value} WHERE rowid = (SELECT row FROM kept WHERE at = {at});");
    }
    data.change_ledger(&damage).await;
    all_name_the_rows(&data, &conversation, &called).await;
}

#[tokio::test]
async fn the_same_holds_for_a_row_in_postgres() {
    let (data, conversation, called) = left_by(ServerProcess::on_postgres(&[]).await, 1).await;
    let mut sql = PgConnection::connect(data.database_url().unwrap()).await.unwrap();
    let damage = format!(
        "SET session_replication_role = replica; UPDATE ledger.events SET recorded_at = 'yesterday' WHERE position = {}",
        called[0].at
    );
    sqlx::raw_sql(&damage).execute(&mut sql).await.unwrap();
    all_name_the_rows(&data, &conversation, &called).await;
}
