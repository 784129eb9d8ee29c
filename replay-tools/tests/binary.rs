//! The real binary over real files.

#[allow(dead_code, reason = "shared with another test program")]
mod support;

use serde_json::{Value, json};
use support::{Data, Ran, code_of};

#[tokio::test]
async fn log_prints_events_in_order_and_says_at_which_position_it_read() {
    let data = Data::with_story().await;
    let ran = data.run(&["log"]).await;
    assert_eq!(ran.status, 0, "{ran:?}");
    let lines: Vec<_> = ran.stdout.lines().collect();
    assert_eq!(lines.len(), data.events());
    assert!(lines[0].starts_with("#1 ") && lines[0].contains("node/n NodeStarted v1 by user:ann {"), "{}", lines[0]);
    assert!(ran.stderr.contains(&format!("read at position {}", data.events())), "{}", ran.stderr);
}

#[tokio::test]
async fn log_filters_limits_and_prints_json_lines_with_the_hashed_texts() {
    let data = Data::with_story().await;
    let types = |ran: &Ran| -> Vec<String> {
        let event_type = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["event_type"].clone();
        ran.stdout.lines().map(|line| event_type(line).as_str().expect("text").to_owned()).collect()
    };
    for (arguments, expected) in [
        (vec!["--type", "RunClaimed"], vec!["RunClaimed"]),
        (vec!["--run", "r", "--after", "3", "--limit", "2"], vec!["RunPrepared", "RunClaimed"]),
        (vec!["--stream", "node/n"], vec!["NodeStarted"]),
        (vec!["--tool-call", "g:call", "--limit", "2"], vec!["ModelResponded", "ToolCallRequested"]),
        (vec!["--conversation", "nobody's"], vec![]),
        (vec!["--actor", "user:ann", "--limit", "1"], vec!["NodeStarted"]),
    ] {
        let ran = data.run(&[&["--json", "log"], arguments.as_slice()].concat()).await;
        assert_eq!((ran.status, types(&ran)), (0, expected.iter().map(ToString::to_string).collect()), "{arguments:?}");
    }
    let none = data.run(&["log", "--type", "runclaimed"]).await;
    assert!(none.status == 0 && none.stderr.contains("no event is of all that was asked for"), "{none:?}");
    let ran = data.run(&["--json", "log", "--limit", "1"]).await;
    assert!(!ran.stderr.contains("no event is of"), "{ran:?}");
    let event: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(event["payload"], json!({ "epoch": 1, "node_id": "n", "version": "1" }));
    assert_eq!(event["leaf_hash"].as_str().map(str::len), Some(64));
}

#[tokio::test]
async fn log_follows_a_live_ledger() {
    let data = Data::with_story().await;
    let ledger = data.open().await;
    let mut following = data.start(&["--json", "log", "--follow", "--type", "NodeStopped"]);
    for epoch in 1..=3 {
        data.append(&ledger, &support::node_stopped(epoch)).await;
        let line = following.line().await;
        let event: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(event["payload"]["epoch"], epoch, "{line}");
    }
    following.kill().await;
}

#[tokio::test]
async fn log_prints_an_event_it_cannot_decode_as_it_is_goes_on_and_fails_at_the_end() {
    let data = Data::with_story().await;
    data.tamper("UPDATE events SET event_type = 'NodeUpgraded' WHERE position = 1").await;
    let ran = data.run(&["log"]).await;
    assert_eq!(ran.status, 1);
    assert_eq!(ran.stdout.lines().count(), data.events(), "all were printed");
    assert!(ran.stdout.contains("NodeUpgraded v1 by user:ann {\"epoch\":1"), "{}", ran.stdout);
    assert!(ran.stderr.contains("1 events could not be decoded"), "{}", ran.stderr);
}

#[tokio::test]
async fn a_reader_that_has_had_enough_is_no_error() {
    let data = Data::with_story().await;
    // More than a pipe holds, so that the program must notice that nobody reads on.
    let ledger = data.open().await;
    for _ in 0..40 {
        data.append(&ledger, &support::long_answer()).await;
    }
    ledger.close().await;
    let mut running = data.start(&["log"]);
    running.line().await;
    let ran = running.close_and_wait().await;
    assert_eq!((ran.status, ran.stderr.contains("error")), (0, false), "{ran:?}");
}

#[tokio::test]
async fn timeline_tells_a_run_one_line_a_fact() {
    let data = Data::with_story().await;
    let ran = data.run(&["timeline", "--run", "r"]).await;
    assert_eq!(ran.status, 0, "{ran:?}");
    for words in ["asked question 1", "claimed by server process n", "call: succeeded", "run answered"] {
        let words = words.replace("call: succeeded", "call: attempt 1 succeeded");
        assert!(ran.stdout.contains(&words), "{words}: {}", ran.stdout);
    }
    let ran = data.run(&["timeline", "--run", "r", "--json"]).await;
    let told: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(told["position"], data.events());
    assert_eq!(told["lines"][0]["event_type"], "ConversationStarted");
    assert_eq!(told["lines"][0]["offset_ms"], 0);
}

#[tokio::test]
async fn timeline_of_an_unknown_run_says_what_to_do() {
    let data = Data::with_story().await;
    let ran = data.run(&["timeline", "--run", "nobody's"]).await;
    assert_eq!((ran.status, code_of(&ran)), (1, "RUN_NOT_FOUND"));
    assert!(ran.stderr.contains("hint: ") && ran.stdout.is_empty(), "{ran:?}");
}

#[tokio::test]
async fn verify_names_its_checks_and_exits_zero_when_all_hold() {
    let data = Data::with_story().await;
    let ran = data.run(&["verify"]).await;
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(ran.stdout.contains("ok      one terminal event a run"), "{}", ran.stdout);
    assert!(ran.stdout.contains(&format!("position {}, root ", data.events())), "{}", ran.stdout);
    let ran = data.run(&["verify", "--json"]).await;
    let report: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!((&report["sound"], &report["position"]), (&json!(true), &json!(data.events())));
}

#[tokio::test]
async fn verify_exits_three_with_position_and_reason_when_something_was_changed() {
    let data = Data::with_story().await;
    data.tamper("UPDATE events SET metadata = replace(metadata, 'ann', 'bob') WHERE position = 4").await;
    let ran = data.run(&["verify"]).await;
    assert_eq!(ran.status, 3);
    assert!(ran.stdout.contains("BROKEN  every event has the hash recorded for it"), "{}", ran.stdout);
    assert!(ran.stdout.contains("finding: event 4: every event has the hash"), "{}", ran.stdout);
    let ran = data.run(&["--json", "verify"]).await;
    let report: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!((ran.status, &report["sound"], &report["findings"][0]["position"]), (3, &json!(false), &json!(4)));
}

#[tokio::test]
async fn rebuild_makes_the_views_and_check_says_that_they_are_equal() {
    let data = Data::with_story().await;
    let ran = data.run(&["rebuild", "--check"]).await;
    assert_eq!((ran.status, code_of(&ran)), (1, "NOT_READY"), "there are no views yet");
    let ran = data.run(&["rebuild", "--yes"]).await;
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(ran.stdout.contains(&format!("conversation rebuilt at position {}", data.events())), "{}", ran.stdout);
    let ran = data.run(&["rebuild", "--check"]).await;
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(ran.stdout.contains("equal"), "{}", ran.stdout);
    let ran = data.run(&["rebuild", "--check", "--projection", "conversation", "--json"]).await;
    let report: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(report["projections"].as_array().map(Vec::len), Some(1));
    assert_eq!(report["projections"][0]["position"], data.events());
}

#[tokio::test]
async fn rebuild_check_exits_three_and_names_the_row_that_differs_and_rebuild_mends_it() {
    let data = Data::with_story().await;
    assert_eq!(data.run(&["rebuild", "--yes"]).await.status, 0);
    data.change_views("UPDATE conversations SET title = 'not what the log says'").await;
    let ran = data.run(&["rebuild", "--check"]).await;
    assert_eq!(ran.status, 3, "{ran:?}");
    assert!(ran.stdout.contains("DIFFERENT") && ran.stdout.contains("not what the log says"), "{}", ran.stdout);
    assert_eq!(data.run(&["rebuild", "--projection", "conversation", "--yes"]).await.status, 0);
    assert_eq!(data.run(&["rebuild", "--check"]).await.status, 0);
}

#[tokio::test]
async fn an_unknown_projection_is_refused_with_the_names_there_are() {
    let data = Data::with_story().await;
    let ran = data.run(&["rebuild", "--projection", "weather", "--yes"]).await;
    assert_eq!((ran.status, code_of(&ran)), (1, "NOT_FOUND"));
    assert!(ran.stderr.contains("conversation"), "{}", ran.stderr);
}

#[tokio::test]
async fn every_command_works_while_a_server_writes_the_ledger() {
    let data = Data::with_story().await;
    let ledger = data.open().await;
    for arguments in [
        vec!["log"],
        vec!["timeline", "--run", "r"],
        vec!["verify"],
        vec!["rebuild", "--yes"],
        vec!["rebuild", "--check"],
    ] {
        data.append(&ledger, &support::long_answer()).await;
        let ran = data.run(&arguments).await;
        assert_eq!(ran.status, 0, "{arguments:?}: {ran:?}");
    }
    ledger.close().await;
}

#[tokio::test]
async fn a_missing_ledger_and_a_wrong_command_line_are_told_apart() {
    let data = Data::empty();
    for arguments in [vec!["log"], vec!["verify"], vec!["rebuild", "--yes"], vec!["timeline", "--run", "r"]] {
        let ran = data.run(&arguments).await;
        assert_eq!((ran.status, code_of(&ran)), (1, "LEDGER_UNAVAILABLE"), "{arguments:?}");
        assert!(ran.stderr.contains("hint: name the ledger's folder with --data"), "{}", ran.stderr);
    }
    assert_eq!(data.files(), Vec::<String>::new(), "nothing was created");
    let streams = ["node", "node/", "/n"].map(|stream| vec!["log", "--stream", stream]);
    let actors = ["ann", "user:", ":ann"].map(|actor| vec!["log", "--actor", actor]);
    for arguments in [vec!["weep"], vec!["timeline"], vec![]].into_iter().chain(streams).chain(actors) {
        assert_eq!(data.run(&arguments).await.status, 2, "{arguments:?}");
    }
}

#[tokio::test]
async fn a_damaged_ledger_is_named_and_left_alone() {
    let data = Data::empty();
    data.write("ledger.sqlite", "not a ledger");
    let ran = data.run(&["verify"]).await;
    assert_eq!((ran.status, code_of(&ran)), (1, "LEDGER_CORRUPT"));
    assert_eq!(data.files(), ["ledger.sqlite"]);
}

#[tokio::test]
async fn completions_are_printed_for_a_shell() {
    let ran = Data::empty().run(&["--completions", "bash"]).await;
    assert_eq!(ran.status, 0);
    assert!(ran.stdout.contains("devmind-replay") && ran.stdout.contains("timeline"), "{}", ran.stdout);
}

/// `script` of util-linux (bsdutils) runs a command at a terminal of its own, and prints what that shows.
#[tokio::test]
async fn at_a_terminal_a_bar_shows_how_much_how_fast_and_how_long_and_what_is_printed_stays_clean() {
    let data = Data::with_story().await;
    data.fill(2_000).await;
    let program = env!("CARGO_BIN_EXE_devmind-replay");
    let command = format!("{program} --data {} verify > printed", data.path().display());
    let mut script = tokio::process::Command::new("script");
    script.args(["--quiet", "--return", "--command", &command, "/dev/null"]).env("TERM", "xterm");
    let shown = script.current_dir(data.path()).stdin(std::process::Stdio::null()).output().await.expect("script runs");
    let shown = (shown.status.code(), String::from_utf8(shown.stdout).expect("UTF-8"));
    let total = data.events() + 2_000;
    let total = format!("{},{:03} events, ", total / 1_000, total % 1_000);
    for part in ["verifying ", &total, "/s, ", " left", "\u{1b}[2K"] {
        assert!(shown.0 == Some(0) && shown.1.contains(part), "{part:?}: {shown:?}");
    }
    // No line about a progress that a person sees, no bar of nothing, no fractions of an event.
    assert!(!shown.1.contains("verifying:") && !shown.1.contains(" 0/0 "), "{shown:?}");
    let rate = shown.1.rsplit_once("/s, ").and_then(|(before, _)| before.rsplit_once(' ')).map(|(_, rate)| rate);
    assert!(rate.is_some_and(|rate| rate.parse::<u64>().is_ok()), "{rate:?}");
    let printed = std::fs::read_to_string(data.path().join("printed")).expect("printed");
    assert!(printed.starts_with("ok") && !printed.contains('\u{1b}'), "{printed}");
}

/// As a disk that was taken from its machine: mounted so that nothing can be written, in a namespace of its own.
#[tokio::test]
async fn a_ledger_on_a_disk_that_only_reads_can_be_looked_at() {
    let data = Data::with_story().await;
    assert_eq!(data.run(&["rebuild", "--yes"]).await.status, 0);
    let before = data.files();
    let (folder, program) = (data.path().display(), env!("CARGO_BIN_EXE_devmind-replay"));
    for command in [
        "log",
        "verify",
        "timeline --run r",
        "export other/bundle",
        "status",
        "rebuild --check",
        "attest --at 3",
        "attest",
    ] {
        let inside = format!(
            "mount --bind {folder} {folder} && mount -o remount,bind,ro {folder} && ! touch {folder}/x 2>/dev/null \
             && exec {program} --data {folder} {command}"
        );
        let arguments = ["--user", "--map-root-user", "--mount", "sh", "-c", &inside];
        let ran = tokio::process::Command::new("unshare").args(arguments).output().await.expect("unshare runs");
        let (stdout, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        // There is nothing to export with, and that is what is said.
        let export = command.starts_with("export");
        assert_eq!(ran.status.code(), Some(i32::from(export)), "{command}: {stdout} {stderr}");
        assert!(!export || stderr.contains("error[NOT_READY]"), "{stderr}");
    }
    assert_eq!(data.files(), before, "nothing was made");
}
