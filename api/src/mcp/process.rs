//! A server that is a program of ours to start: its environment, its output, and that nothing of it is left.

use super::secrets::Secrets;
use super::{MAX_MESSAGE_BYTES, words};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::process::Stdio;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader, ReadBuf};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, sleep};

/// A program whose input was closed may take this long to end, and again after SIGTERM.
const END_WITHIN: Duration = Duration::from_secs(2);
/// Between looks at whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Bytes of a line of its log, at most.
const MAX_LOG_LINE_BYTES: u64 = 4 << 10;

/// What a program is told of the environment of this one, which holds the keys of other things.
const PASSED_ON: [&str; 9] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "TZ", "TMPDIR"];

/// A running program, the leader of its own process group: what it starts ends with it.
pub(super) struct Process {
    child: Child,
    group: Pid,
}

impl Process {
    pub fn start(
        command: &str,
        args: &[String],
        env: &[(String, String)],
        folder: Option<&Path>,
    ) -> io::Result<(Self, ChildStdout, ChildStdin, ChildStderr)> {
        let mut program = Command::new(command);
        program
            .args(args)
            .env_clear()
            .envs(PASSED_ON.iter().filter_map(|name| Some((*name, std::env::var_os(name)?))))
            .envs(env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        if let Some(folder) = folder {
            program.current_dir(folder);
        }
        let mut child = program.spawn()?;
        let parts = (child.stdout.take(), child.stdin.take(), child.stderr.take());
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let ((Some(output), Some(input), Some(log)), Some(group)) = (parts, group) else {
            return Err(io::Error::other("the program has no pipes"));
        };
        Ok((Self { child, group }, output, input, log))
    }

    /// Ends the program, whose input is closed already: it may end by itself, then it is told to, then killed, with
    /// everything it started. Whoever leads a group is looked at without being reaped, so that its number cannot
    /// be another's when the group is killed.
    pub async fn end(mut self) {
        if !self.has_ended(END_WITHIN).await {
            self.tell(Signal::TERM);
            self.has_ended(END_WITHIN).await;
        }
        self.tell(Signal::KILL);
        if let Err(error) = self.child.wait().await {
            tracing::warn!(cause = %error, "a server's program was not reaped");
        }
    }

    async fn has_ended(&self, within: Duration) -> bool {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let until = Instant::now() + within;
        // An error is that there is no such child: it has ended, too.
        while matches!(waitid(WaitId::Pid(self.group), look), Ok(None)) {
            if Instant::now() >= until {
                return false;
            }
            sleep(LOOK_EVERY).await;
        }
        true
    }

    fn tell(&self, signal: Signal) {
        // That nobody is left is what was wanted.
        kill_process_group(self.group, signal).ok();
    }
}

/// Passes what a program writes for people to this one's log.
pub(super) async fn log(server: String, secrets: Secrets, output: ChildStderr) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut output).take(MAX_LOG_LINE_BYTES).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let text = words(&secrets.without(String::from_utf8_lossy(&line).trim_end()));
                tracing::debug!(mcp.server = server, "{text:?}");
            }
        }
    }
}

/// What a program writes, broken off with an error where a line is longer than a message may be.
pub(super) struct Lines<R> {
    inner: R,
    /// Bytes since the last end of a line.
    open: usize,
}

impl<R> Lines<R> {
    pub fn of(inner: R) -> Self {
        Self { inner, open: 0 }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Lines<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.open > MAX_MESSAGE_BYTES {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too large")));
        }
        let before = buffer.filled().len();
        std::task::ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        let new = &buffer.filled()[before..];
        self.open = match new.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => new.len() - end - 1,
            None => self.open + new.len(),
        };
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_message_that_never_ends_breaks_off_and_many_short_ones_do_not() {
        let read = async |text: Vec<u8>| Lines::of(text.as_slice()).read_to_end(&mut Vec::new()).await.is_ok();
        assert!(read([vec![b'x'; MAX_MESSAGE_BYTES], b"\n".to_vec()].concat().repeat(2)).await);
        assert!(!read(vec![b'x'; MAX_MESSAGE_BYTES + 1]).await);
    }

    #[tokio::test]
    async fn nothing_of_a_program_is_left_also_where_it_ignores_its_input_and_signals() {
        let script = "trap '' TERM HUP; sleep 1000 & echo $! $$; while :; do sleep 1000; done".to_owned();
        let args = ["-c".to_owned(), script];
        let (process, output, input, _log) = Process::start("sh", &args, &[], None).expect("a shell");
        let line = BufReader::new(output).lines().next_line().await.expect("readable").expect("a line");
        drop(input);
        process.end().await;
        for id in line.split_whitespace() {
            let pid = Pid::from_raw(id.parse().expect("a number")).expect("a process");
            // It was killed, and dies in its own time; an orphan is a corpse until somebody reaps it.
            let gone = async || {
                let is_corpse =
                    || std::fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|it| it.contains(") Z "));
                while rustix::process::test_kill_process(pid).is_ok() && !is_corpse() {
                    sleep(LOOK_EVERY).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(30), gone())
                .await
                .unwrap_or_else(|_| panic!("{id} of {line} lives"));
        }
    }

    #[tokio::test]
    async fn a_program_does_not_see_the_keys_of_this_one() {
        // Cargo gives a test's process variables of its own.
        assert!(std::env::var("CARGO_PKG_NAME").is_ok());
        let own = [("OWN".to_owned(), "1".to_owned())];
        let (process, mut output, input, _log) = Process::start("env", &[], &own, None).expect("env");
        let mut told = String::new();
        output.read_to_string(&mut told).await.expect("readable");
        assert!(told.contains("PATH=") && told.contains("OWN=1") && !told.contains("CARGO"), "{told}");
        drop(input);
        process.end().await;
    }
}
