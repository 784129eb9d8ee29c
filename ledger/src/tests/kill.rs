//! `kill -9` at any moment loses nothing that was acknowledged.

use super::support::*;
use crate::*;
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// Where the child process appends; unset in the parent.
const CHILD_FOLDER: &str = "DEVMIND_LEDGER_TEST_CHILD";

/// Acknowledged events before the child is killed.
const ACKNOWLEDGED: usize = 200;

/// The child: appends from eight callers for ever, and prints every id once it is acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn child_that_appends_until_it_is_killed() {
    let Ok(folder) = std::env::var(CHILD_FOLDER) else { return };
    let ledger = Ledger::open(&std::path::Path::new(&folder).join("ledger.sqlite")).await.expect("opened");
    let callers = (0..8).map(|caller| {
        let ledger = ledger.clone();
        tokio::spawn(async move {
            for version in 0.. {
                let appended = ledger.append(append(&format!("s{caller}"), version, "x")).await.expect("appended");
                let mut out = std::io::stdout().lock();
                writeln!(out, "acknowledged {}", appended.events[0].event_id).expect("printed");
            }
        })
    });
    futures::future::join_all(callers).await;
}

#[tokio::test]
async fn a_killed_process_loses_no_acknowledged_event() {
    let folder = Folder::new();
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "tests::kill::child_that_appends_until_it_is_killed", "--nocapture"])
        .env(CHILD_FOLDER, folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let ids = |line: std::io::Result<String>| line.ok()?.split_once("acknowledged ").map(|(_, id)| id.to_owned());
    let mut lines = lines.filter_map(ids);
    let mut acknowledged: Vec<String> = lines.by_ref().take(ACKNOWLEDGED).collect();
    child.kill().expect("killed");
    child.wait().expect("gone");
    // What it printed before it died counts, too; the last line may be cut.
    acknowledged.extend(lines.filter(|id| id.len() == 36));
    assert!(acknowledged.len() >= ACKNOWLEDGED, "the child ended early");

    let before = folder.reader().await;
    let stored: HashSet<String> = all(&before).await.iter().map(|event| event.event_id.clone()).collect();
    assert!(acknowledged.iter().all(|id| stored.contains(id)), "an acknowledged event is gone");
    drop(before);
    let ledger = folder.open().await;
    let events = all(ledger.reader()).await;
    assert_gapless(&events);
    assert_eq!(events.len(), stored.len());
    assert!(folder.verify().await.is_sound());
    ledger.append(append("after", 0, "x")).await.expect("it goes on");
}
