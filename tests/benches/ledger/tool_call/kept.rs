//! A program of a peer, kept for as long as the bench runs and not longer, however that ends.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Lines of what a program said that are shown when it does not answer.
const SHOWN: usize = 20;

/// A program under way in a temporary folder, and what it says in the file `log` there.
pub struct Kept {
    keeper: Child,
    folder: TempDir,
}

impl Kept {
    /// Starts a program. A shell ends it as soon as this process, and with it the other end of the pipe, is gone.
    pub fn start(program: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        const KEEP: &str = r#""$0" "$@" >log 2>&1 & read -r line; kill -9 $!; wait $!; rm -rf "$PWD""#;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut keeper = Command::new("sh");
        keeper.arg("-c").arg(KEEP).arg(program).args(arguments).envs(environment.iter().copied());
        keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // A signal to the bench's group must not end the shell before the program.
        let keeper = keeper.process_group(0).current_dir(folder.path()).spawn().expect("sh runs");
        Self { keeper, folder }
    }

    /// The end of what it has said.
    pub fn said(&self) -> String {
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(SHOWN)..].join("\n")
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        drop(self.keeper.wait());
    }
}

/// An address of this machine that nobody listens at.
pub fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port")
}
