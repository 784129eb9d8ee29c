//! A desktop notification that a question is open. It only calls attention: it carries no link and
//! cannot be answered.
//!
//! It is shown by the desktop's own `notify-send` where there is one, because the crates that speak the
//! notification protocol themselves bring a D-Bus implementation with some sixty crates. A child process
//! started before the sandbox closes runs it, so that the device itself needs the right to start
//! nothing.

use super::ConfirmationRequest;
use crate::text::{visible, whole_characters};
use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;

/// The hidden subcommand that the child runs.
pub const SUBCOMMAND: &str = "notifier";
/// The desktop's program.
const NOTIFY_SEND: &str = "notify-send";
/// Bytes of a notification's text, at most.
const MAX_TEXT_BYTES: usize = 200;

/// The child, as the device sees it.
pub struct Notifier {
    lines: Mutex<ChildStdin>,
    _child: Child,
}

impl Notifier {
    /// Starts the child; `None` where there is no desktop or no `notify-send`.
    pub fn start() -> Option<Self> {
        let has_desktop = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
        let program = std::env::current_exe().ok().filter(|_| has_desktop && notify_send().is_some())?;
        let mut command = Command::new(program);
        command.arg(SUBCOMMAND).env_remove("DEVMIND_TOKEN");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().ok()?;
        Some(Self { lines: Mutex::new(child.stdin.take()?), _child: child })
    }

    /// Shows that a question is open.
    pub fn tell(&self, request: &ConfirmationRequest) {
        let path = request.subject.as_ref().map(|subject| visible(&subject.resolved_path)).unwrap_or_default();
        let text = format!("{} {path}", visible(&request.tool));
        if let Ok(mut lines) = self.lines.lock() {
            // A child that has gone shows nothing; the question itself is open all the same.
            let _ = writeln!(lines, "{}", whole_characters(&text, MAX_TEXT_BYTES));
        }
    }
}

fn notify_send() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(NOTIFY_SEND)).find(|file| file.is_file())
}

/// What the child does: one notification a line, until the device ends.
pub fn notifier_loop() {
    let Some(program) = notify_send() else { return };
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        // The notification's body is markup to some desktops.
        let body = line.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let mut command = Command::new(&program);
        command.args(["--app-name=DevMind device", "--", "A model asks you", &body]);
        // Waited for, so that questions cannot pile up processes.
        let _ = command.stdin(Stdio::null()).status();
    }
}
