//! The pages in Debian's Chromium (`tests/browser`): each file there is a program of `node --test` that starts
//! the built server and device, drives the browser, and has its own tests, each a sentence. Needs node, npm and
//! Chromium; says so when it is skipped. One after the other: a browser takes a whole processor. Of what fails the
//! files' own reporter (`lib/failures.mjs`) tells, and of nothing else.

use devmind_tests::{Data, peers, program};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::Mutex;

/// One browser at a time.
static TURN: Mutex<()> = Mutex::const_new(());
/// A file that is not through by then hangs: many times what the longest takes on a machine with nothing else to do.
const FILE_WITHIN: Duration = Duration::from_secs(600);
/// Node ends what hangs, and says in which test; it has so much more time for that.
const TO_SAY_SO: Duration = Duration::from_secs(30);

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
        .args(["--test", "--test-force-exit", "--test-reporter=./lib/failures.mjs"])
        .arg(format!("--test-timeout={}", FILE_WITHIN.as_millis()))
        .arg(file)
        .current_dir(folder)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    tests.env("DEVMIND_PROGRAMS", programs).env("DEVMIND_SCREENSHOTS", pictures);
    if let Some(url) = data.database_url() {
        tests.env("DEVMIND_BROWSER_DATABASE", url);
    }
    let ended = tokio::time::timeout(FILE_WITHIN + TO_SAY_SO, tests.output()).await;
    let output = ended.expect("it ends").expect("node runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{file}\n{said}{}", String::from_utf8_lossy(&output.stderr));
    // A file without a test passes, too.
    let passed = said.lines().find_map(|line| line.strip_prefix("passed: ")?.parse::<u32>().ok());
    assert!(passed.is_some_and(|passed| passed > 0), "no test of {file} has run: {said}");
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
