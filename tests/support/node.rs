//! Programs from npm that tests run beside the server: their packages are fetched on first use, and
//! a machine without node skips them, loudly.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::Command;

/// The folder `tests/peers/<name>` with its packages; `None`, said to whoever runs the tests, where
/// node or npm is missing. Of several tests that ask for the same folder, one fetches.
#[allow(clippy::explicit_write, reason = "a macro's output would be captured with the test's")]
pub async fn peer(name: &str) -> Option<PathBuf> {
    static FETCHING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name);
    if !runs("node").await || !runs("npm").await {
        // Past the capture of the test's output.
        writeln!(std::io::stderr(), "SKIPPED: peers/{name} needs node and npm, which are not installed")
            .expect("stderr");
        return None;
    }
    let _fetching = FETCHING.lock().await;
    if !folder.join("node_modules").is_dir() {
        let install = Command::new("npm").args(["ci", "--no-audit", "--no-fund"]).current_dir(&folder).output();
        let installed = install.await.expect("npm runs");
        assert!(installed.status.success(), "npm ci: {}", String::from_utf8_lossy(&installed.stderr));
    }
    Some(folder)
}

async fn runs(program: &str) -> bool {
    let run = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().await;
    run.is_ok_and(|status| status.success())
}
