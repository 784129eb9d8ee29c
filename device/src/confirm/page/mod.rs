//! Asking on a page of this computer's browser.
//!
//! One question is shown at a time, the others wait; a question's 60 s begin when a page has got it. An
//! answer counts only for the question that is shown, and not before it has been shown for 500 ms. Here
//! are the questions and their order; [`http`] has the page and who may see it.

mod http;

pub use http::PageServer;

use super::render::rows;
use super::{Answer, Confirm, ConfirmationRequest, Notifier};
use crate::clock::Deadline;
use crate::text::visible;
use async_trait::async_trait;
use devmind_domain::ErrorCode;
use devmind_domain::limits::CONFIRMATION_MS;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

/// An answer sooner than this was meant for something else.
const TOO_SOON: Duration = Duration::from_millis(500);
/// A page that has not asked for news for so long is closed.
const OPEN_FOR: Duration = Duration::from_secs(5);
/// How often a question without a page looks whether one was opened or closed.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Whether a question waits for a page that is not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GiveUp {
    /// It ends without an answer when no page is open.
    UnlessOpen,
    /// Somebody else is being asked, too: a page may be opened any time.
    Never,
}

/// The questions of the page.
pub struct Page {
    now: Mutex<Now>,
    /// Changes with every change of what is shown.
    version: watch::Sender<u64>,
    notifier: Option<Notifier>,
    /// How long a question stays open once it is shown.
    patience: Duration,
    /// How long its buttons do nothing.
    too_soon: Duration,
}

#[derive(Default)]
struct Now {
    questions: VecDeque<Question>,
    asked: u64,
    /// Pages that wait for news.
    looking: usize,
    looked_at: Option<Instant>,
    device: Told,
}

/// How the device stands, for the line above everything else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Told {
    /// Whether the server can use its tools.
    pub connected: bool,
    /// The same in words, with the reason where it cannot.
    pub words: String,
    /// Its workspace.
    pub workspace: String,
    /// Where the server's pages are on this computer, where they are served.
    pub pages: Option<String>,
}

struct Question {
    id: u64,
    tool: String,
    rows: Vec<(String, String)>,
    deadline: Deadline,
    shown_at: Option<Instant>,
    answer: oneshot::Sender<Answer>,
}

/// A question as the page gets it. All text is escaped for people, not for markup.
#[derive(Debug, Serialize)]
pub(super) struct Shown {
    pub(super) id: u64,
    tool: String,
    rows: Vec<(String, String)>,
    ms_left: u64,
}

/// What the page gets: the question that is shown, and how many wait behind it.
#[derive(Debug, Serialize)]
pub(super) struct News {
    version: u64,
    pub(super) question: Option<Shown>,
    waiting: usize,
    device: Told,
    /// How long buttons do nothing after a question has come up (milliseconds).
    too_soon_ms: u64,
}

impl Page {
    pub(super) const NAME: &str = "the local page";

    /// No questions yet. With a notifier, each question is told on the desktop, too.
    pub fn new(notifier: Option<Notifier>) -> Self {
        let patience = Duration::from_millis(CONFIRMATION_MS);
        Self { now: Mutex::default(), version: watch::Sender::new(1), notifier, patience, too_soon: TOO_SOON }
    }

    /// Whether a page is being looked at, as far as can be known.
    pub fn is_open(&self) -> bool {
        let now = self.now();
        now.looking > 0 || now.looked_at.is_some_and(|at| at.elapsed() < OPEN_FOR)
    }

    /// Puts a question to the page and waits for its end.
    pub(super) async fn question(
        &self,
        request: &ConfirmationRequest,
        cancel: &CancellationToken,
        give_up: GiveUp,
    ) -> Answer {
        if give_up == GiveUp::UnlessOpen && !self.is_open() {
            return Answer::NoAnswer;
        }
        let (answer, mut answered) = oneshot::channel();
        let asked = Asked { page: self, id: self.add(request, answer) };
        if let Some(notifier) = &self.notifier {
            notifier.tell(request);
        }
        let ended = async {
            loop {
                if request.deadline.has_passed() || asked.left().is_some_and(|left| left.is_zero()) {
                    return;
                }
                if give_up == GiveUp::UnlessOpen && !self.is_open() {
                    return;
                }
                tokio::time::sleep(LOOK_AGAIN.min(asked.left().unwrap_or(LOOK_AGAIN))).await;
            }
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => Answer::NoAnswer,
            answer = &mut answered => answer.unwrap_or(Answer::NoAnswer),
            () = ended => Answer::NoAnswer,
        }
    }

    fn add(&self, request: &ConfirmationRequest, answer: oneshot::Sender<Answer>) -> u64 {
        let mut now = self.now();
        now.asked += 1;
        let id = now.asked;
        let (tool, rows) = (visible(&request.tool), rows(request));
        now.questions.push_back(Question { id, tool, rows, deadline: request.deadline, shown_at: None, answer });
        drop(now);
        self.changed();
        id
    }

    /// What there is to see, from now on shown.
    pub(super) fn news(&self) -> News {
        let version = *self.version.borrow();
        let mut now = self.now();
        now.looked_at = Some(Instant::now());
        let waiting = now.questions.len().saturating_sub(1);
        let question = now.questions.front_mut().map(|question| {
            let shown_at = *question.shown_at.get_or_insert_with(Instant::now);
            Shown {
                id: question.id,
                tool: question.tool.clone(),
                rows: question.rows.clone(),
                ms_left: millis(left(self.patience, shown_at, &question.deadline)),
            }
        });
        News { version, question, waiting, device: now.device.clone(), too_soon_ms: millis(self.too_soon) }
    }

    /// Says how the device stands.
    pub fn tell(&self, device: Told) {
        let mut now = self.now();
        if now.device != device {
            now.device = device;
            drop(now);
            self.changed();
        }
    }

    /// Takes an answer to the question that is shown.
    pub(super) fn answer(&self, id: u64, allow: bool) -> Result<(), ErrorCode> {
        let mut now = self.now();
        let shown = now.questions.front().filter(|question| question.id == id);
        let shown_at = shown.and_then(|question| question.shown_at).ok_or(ErrorCode::QuestionClosed)?;
        if shown_at.elapsed() < self.too_soon {
            return Err(ErrorCode::AnsweredTooSoon);
        }
        let question = now.questions.pop_front().ok_or(ErrorCode::QuestionClosed)?;
        drop(now);
        self.changed();
        let answer = if allow { Answer::Allow } else { Answer::Deny };
        question.answer.send(answer).map_err(|_| ErrorCode::QuestionClosed)
    }

    /// A page that waits for news counts as open.
    fn look(&self) -> Looking<'_> {
        self.now().looking += 1;
        Looking(self)
    }

    fn changed(&self) {
        self.version.send_modify(|version| *version += 1);
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        // Every change under the lock is one step: the data stays whole.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn left(patience: Duration, shown_at: Instant, deadline: &Deadline) -> Duration {
    patience.saturating_sub(shown_at.elapsed()).min(deadline.remaining())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

struct Looking<'a>(&'a Page);

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        let mut now = self.0.now();
        now.looking -= 1;
        now.looked_at = Some(Instant::now());
    }
}

/// A question that was put to the page; with it, the question goes.
struct Asked<'a> {
    page: &'a Page,
    id: u64,
}

impl Asked<'_> {
    /// How long it stays open, once it is shown.
    fn left(&self) -> Option<Duration> {
        let now = self.page.now();
        let question = now.questions.iter().find(|question| question.id == self.id)?;
        question.shown_at.map(|shown_at| left(self.page.patience, shown_at, &question.deadline))
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.page.now().questions.retain(|question| question.id != self.id);
        self.page.changed();
    }
}

#[async_trait]
impl Confirm for Page {
    async fn ask(&self, request: &ConfirmationRequest, cancel: &CancellationToken) -> Answer {
        self.question(request, cancel, GiveUp::UnlessOpen).await
    }

    async fn decide(&self, request: &ConfirmationRequest, cancel: &CancellationToken) -> (Answer, &'static str) {
        (self.ask(request, cancel).await, Self::NAME)
    }
}

#[cfg(test)]
mod tests;
