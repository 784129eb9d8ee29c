//! Asking on the terminal the program was started from.
//!
//! One question at a time; the others wait, and their 60 s begin when they are shown. What was typed
//! before a question was on the screen does not answer it. Lines are read by a thread of their own: a
//! read that blocks for ever holds up neither the program nor its end.

use super::{Answer, Confirm, ConfirmationRequest, render};
use async_trait::async_trait;
use devmind_domain::limits::CONFIRMATION_MS;
use rustix::process::getpgrp;
use rustix::termios::{QueueSelector, tcflush, tcgetpgrp};
use std::io::{self, BufRead as _, IsTerminal as _, Write};
use std::sync::Mutex as StdMutex;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

/// An answer sooner than this was given before the question was read.
pub(super) const TOO_QUICK: Duration = Duration::from_millis(500);
/// Lines that wait to be looked at; more are typed in vain.
const LINES: usize = 16;

/// A line and when it was complete.
struct Line {
    text: String,
    at: Instant,
}

/// The terminal of this process: questions on stderr, answers from stdin.
pub struct Terminal {
    /// Held while a question is open; `None` until there is something to ask.
    lines: Mutex<Option<mpsc::Receiver<Line>>>,
    /// Begins to read; `None` where nobody can be asked.
    start: fn() -> Option<mpsc::Receiver<Line>>,
    /// Whether somebody can be asked now.
    is_there: fn() -> bool,
    output: StdMutex<Box<dyn Write + Send>>,
    /// Forgets what was typed and not yet read.
    discard: fn(),
    /// How long a question stays open.
    patience: Duration,
}

impl Terminal {
    /// The terminal that stdin is; without one, every question stays unanswered.
    pub fn new() -> Self {
        Self {
            lines: Mutex::new(None),
            start: read_lines,
            is_there: is_in_foreground,
            output: StdMutex::new(Box::new(io::stderr())),
            discard: || {
                // Refused when stdin is no terminal any more; then there is nothing to forget.
                let _ = tcflush(io::stdin(), QueueSelector::IFlush);
            },
            patience: Duration::from_millis(CONFIRMATION_MS),
        }
    }

    /// Whether somebody can be asked now.
    pub(super) fn is_there(&self) -> bool {
        (self.is_there)()
    }

    fn show(&self, text: &str) {
        if let Ok(mut output) = self.output.lock() {
            // A terminal that cannot be written to will not answer either.
            let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
        }
    }
}

/// Says that a question is gone, when its future is dropped before an answer: nobody must believe
/// that they still decide something.
struct Withdrawn<'a>(Option<&'a Terminal>);

impl Drop for Withdrawn<'_> {
    fn drop(&mut self) {
        if let Some(terminal) = self.0 {
            terminal.show("\nclosed: it was answered on the page, or is no longer wanted\n");
        }
    }
}

impl Default for Terminal {
    fn default() -> Self {
        Self::new()
    }
}

/// A program in the background that reads the terminal is suspended by the system: it must not try.
fn is_in_foreground() -> bool {
    io::stdin().is_terminal() && tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp())
}

/// Starts the reading thread. It lives as long as the process: a blocked read cannot be ended.
fn read_lines() -> Option<mpsc::Receiver<Line>> {
    let (sender, lines) = mpsc::channel(LINES);
    let read = move || {
        for text in io::stdin().lock().lines() {
            let Ok(text) = text else { return };
            if sender.try_send(Line { text, at: Instant::now() }).is_err() && sender.is_closed() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("terminal".to_owned()).spawn(read).ok().map(|_| lines)
}

#[async_trait]
impl Confirm for Terminal {
    async fn ask(&self, request: &ConfirmationRequest, cancel: &CancellationToken) -> Answer {
        let mut lines = tokio::select! {
            lines = self.lines.lock() => lines,
            () = cancel.cancelled() => return Answer::NoAnswer,
        };
        if lines.is_none() && (self.is_there)() {
            *lines = (self.start)();
        }
        let Some(lines) = lines.as_mut().filter(|_| (self.is_there)()) else {
            self.show("A tool call needs a person's answer, and there is no terminal to ask on: it is denied.\n");
            return Answer::NoAnswer;
        };
        (self.discard)();
        while lines.try_recv().is_ok() {}
        let left = self.patience.min(request.deadline.remaining());
        self.show(&render(request, left));
        let shown_at = Instant::now();
        let mut withdrawn = Withdrawn(Some(self));
        let answer = tokio::select! {
            answer = self.answer(lines, shown_at) => answer,
            () = tokio::time::sleep(left) => Answer::NoAnswer,
            () = cancel.cancelled() => Answer::NoAnswer,
        };
        withdrawn.0 = None;
        self.show(match answer {
            Answer::Allow => "allowed\n",
            Answer::Deny => "denied\n",
            Answer::NoAnswer => "\nclosed without an answer: denied\n",
        });
        answer
    }

    async fn decide(&self, request: &ConfirmationRequest, cancel: &CancellationToken) -> (Answer, &'static str) {
        (self.ask(request, cancel).await, "the terminal")
    }
}

impl Terminal {
    /// The first line that was typed after the question could be read.
    async fn answer(&self, lines: &mut mpsc::Receiver<Line>, shown_at: Instant) -> Answer {
        loop {
            let Some(line) = lines.recv().await else { return Answer::NoAnswer };
            if line.at < shown_at + TOO_QUICK {
                self.show("that was typed before the question could be read; please answer again [y/N] ");
                continue;
            }
            return match line.text.trim().to_ascii_lowercase().as_str() {
                "y" | "yes" => Answer::Allow,
                _ => Answer::Deny,
            };
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::clock::Deadline;
    use serde_json::json;
    use std::sync::Arc;

    /// A terminal that a test types on and looks at.
    pub(in crate::confirm) struct Typed {
        pub(in crate::confirm) terminal: Arc<Terminal>,
        keys: mpsc::Sender<Line>,
        screen: Screen,
    }

    #[derive(Clone, Default)]
    struct Screen(Arc<StdMutex<Vec<u8>>>);

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("screen").extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Typed {
        pub(in crate::confirm) fn new(patience: Duration) -> Self {
            let (keys, lines) = mpsc::channel(LINES);
            let screen = Screen::default();
            let output = StdMutex::new(Box::new(screen.clone()) as Box<dyn Write + Send>);
            let lines = Mutex::new(Some(lines));
            let terminal = Terminal { lines, start: || None, is_there: || true, output, discard: || {}, patience };
            Self { terminal: Arc::new(terminal), keys, screen }
        }

        fn ask(&self, tool: &str, cancel: &CancellationToken) -> tokio::task::JoinHandle<Answer> {
            let (terminal, request, cancel) = (self.terminal.clone(), question(tool), cancel.clone());
            tokio::spawn(async move { terminal.ask(&request, &cancel).await })
        }

        pub(in crate::confirm) async fn shows(&self, text: &str) {
            let shown = async {
                while !self.seen().contains(text) {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(10), shown).await.expect(text);
        }

        fn seen(&self) -> String {
            String::from_utf8_lossy(&self.screen.0.lock().expect("screen")).into_owned()
        }

        pub(in crate::confirm) async fn types(&self, text: &str, at: Instant) {
            self.keys.send(Line { text: text.to_owned(), at }).await.expect("terminal reads");
        }
    }

    pub(in crate::confirm) fn question(tool: &str) -> ConfirmationRequest {
        ConfirmationRequest {
            tool_call_id: "call".into(),
            tool: tool.into(),
            arguments: json!({}),
            subject: None,
            conversation_title: String::new(),
            deadline: Deadline::after(Duration::from_secs(100)),
        }
    }

    pub(in crate::confirm) const LONG: Duration = Duration::from_secs(3_600);

    #[tokio::test]
    async fn only_an_explicit_yes_allows() {
        for (typed, expected) in [
            ("y", Answer::Allow),
            (" YES ", Answer::Allow),
            ("", Answer::Deny),
            ("yy", Answer::Deny),
            ("no", Answer::Deny),
        ] {
            let typing = Typed::new(LONG);
            let asked = typing.ask("tool", &CancellationToken::new());
            typing.shows("[y/N]").await;
            typing.types(typed, Instant::now() + TOO_QUICK).await;
            assert_eq!(asked.await.expect("answered"), expected, "{typed:?}");
        }
    }

    #[tokio::test]
    async fn what_was_typed_before_the_question_was_read_does_not_answer_it() {
        let typing = Typed::new(LONG);
        typing.types("y", Instant::now() + LONG).await;
        let asked = typing.ask("tool", &CancellationToken::new());
        typing.shows("[y/N]").await;
        typing.types("y", Instant::now()).await;
        typing.shows("answer again").await;
        typing.types("n", Instant::now() + TOO_QUICK).await;
        assert_eq!(asked.await.expect("answered"), Answer::Deny);
    }

    #[tokio::test]
    async fn questions_queue_up_and_each_gets_its_own_answer() {
        let typing = Typed::new(LONG);
        let first = typing.ask("first", &CancellationToken::new());
        typing.shows("first").await;
        let second = typing.ask("second", &CancellationToken::new());
        typing.types("y", Instant::now() + TOO_QUICK).await;
        assert_eq!(first.await.expect("answered"), Answer::Allow);
        typing.shows("second").await;
        typing.types("n", Instant::now() + TOO_QUICK).await;
        assert_eq!(second.await.expect("answered"), Answer::Deny);
    }

    #[tokio::test]
    async fn a_question_closes_when_it_is_taken_back_or_nobody_answers() {
        let typing = Typed::new(LONG);
        let cancel = CancellationToken::new();
        let asked = typing.ask("tool", &cancel);
        typing.shows("[y/N]").await;
        cancel.cancel();
        assert_eq!(asked.await.expect("closed"), Answer::NoAnswer);
        let impatient = Typed::new(Duration::ZERO);
        assert_eq!(impatient.ask("tool", &CancellationToken::new()).await.expect("closed"), Answer::NoAnswer);
        assert!(impatient.seen().contains("denied"));
    }

    #[tokio::test]
    async fn without_a_terminal_nobody_answers() {
        let typing = Typed::new(LONG);
        *typing.terminal.lines.lock().await = None;
        assert_eq!(typing.ask("tool", &CancellationToken::new()).await.expect("closed"), Answer::NoAnswer);
    }
}
