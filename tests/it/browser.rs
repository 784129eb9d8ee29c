//! The pages in Debian's Chromium (`tests/browser`): each file there is a program of `node --test` that starts
//! the built server and device, drives the browser, and has its own tests, each a sentence. Needs node, npm and
//! Chromium; says so when it is skipped. One after the other: a browser takes a whole processor.

use devmind_tests::{Data, peers, program};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::Mutex;

/// One browser at a time.
static TURN: Mutex<()> = Mutex::const_new(());
/// A file that is not through by then hangs.
const FILE_WITHIN: Duration = Duration::from_secs(180);

/// Runs the tests of a file; all must pass.
async fn passes(file: &str) {
    let Some(folder) = peers::browser().await else { return };
    let _turn = TURN.lock().await;
    // On PostgreSQL where the suite is: a database of its own for the server of each file.
    let data = Data::new();
    let programs = program("devmind").parent().expect("a folder").to_owned();
    let pictures = programs.parent().expect("target").join("screenshots");
    let mut tests = Command::new("node");
    tests
        .args(["--test", "--test-force-exit", "--test-reporter=tap", file])
        .current_dir(folder)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    tests.env("DEVMIND_PROGRAMS", programs).env("DEVMIND_SCREENSHOTS", pictures);
    if let Some(url) = data.database_url() {
        tests.env("DEVMIND_BROWSER_DATABASE", url);
    }
    let output = tokio::time::timeout(FILE_WITHIN, tests.output()).await.expect("it ends").expect("node runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    // An empty file passes, too.
    assert!(!said.contains("# tests 0"), "{file} has no tests: {said}");
}

#[tokio::test]
async fn the_question_at_the_device_holds_its_promises_in_a_browser() {
    passes("device.test.mjs").await;
}

#[tokio::test]
async fn the_chat_holds_its_promises_in_a_browser() {
    passes("chat.test.mjs").await;
}

#[tokio::test]
async fn the_audit_pages_hold_their_promises_in_a_browser() {
    passes("audit.test.mjs").await;
}
