//! Asking on the terminal and on the page at the same time: the first answer counts.

use super::page::{GiveUp, Page};
use super::{Answer, Confirm, ConfirmationRequest, Terminal};
use async_trait::async_trait;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// A terminal and a page.
pub struct Both {
    terminal: Arc<Terminal>,
    page: Arc<Page>,
}

impl Both {
    /// The terminal that stdin is, and a page.
    pub fn new(page: Arc<Page>) -> Self {
        Self { terminal: Arc::new(Terminal::new()), page }
    }
}

#[async_trait]
impl Confirm for Both {
    async fn ask(&self, request: &ConfirmationRequest, cancel: &CancellationToken) -> Answer {
        self.decide(request, cancel).await.0
    }

    async fn decide(&self, request: &ConfirmationRequest, cancel: &CancellationToken) -> (Answer, &'static str) {
        if !self.terminal.is_there() {
            return self.page.decide(request, cancel).await;
        }
        // While the terminal asks, the page may still be opened.
        let on_page = self.page.question(request, cancel, GiveUp::Never);
        let on_terminal = self.terminal.decide(request, cancel);
        tokio::pin!(on_page, on_terminal);
        tokio::select! {
            answer = &mut on_page => match answer {
                Answer::NoAnswer => on_terminal.await,
                answer => (answer, Page::NAME),
            },
            answer = &mut on_terminal => match answer.0 {
                // Shown later there, it stays open as long as somebody looks at it.
                Answer::NoAnswer if self.page.is_open() => (on_page.await, Page::NAME),
                _ => answer,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::terminal::TOO_QUICK;
    use super::super::terminal::tests::{LONG, Typed, question};
    use super::*;
    use std::time::Instant;
    use tokio::task::JoinHandle;

    /// A question that is open on both.
    async fn asked() -> (Typed, Arc<Page>, u64, JoinHandle<(Answer, &'static str)>) {
        let (typing, page) = (Typed::new(LONG), Arc::new(Page::new(None)));
        let both = Both { terminal: typing.terminal.clone(), page: page.clone() };
        let asked = tokio::spawn(async move { both.decide(&question("tool"), &CancellationToken::new()).await });
        typing.shows("[y/N]").await;
        let shown = page.news().question.expect("it is on the page, too").id;
        (typing, page, shown, asked)
    }

    #[tokio::test]
    async fn an_answer_on_the_page_closes_the_question_on_the_terminal() {
        let (typing, page, shown, asked) = asked().await;
        while page.answer(shown, true).is_err() {
            tokio::task::yield_now().await;
        }
        assert_eq!(asked.await.expect("answered"), (Answer::Allow, "the local page"));
        typing.shows("closed: it was answered on the page").await;
    }

    #[tokio::test]
    async fn an_answer_on_the_terminal_closes_the_question_on_the_page() {
        let (typing, page, shown, asked) = asked().await;
        typing.types("n", Instant::now() + TOO_QUICK).await;
        assert_eq!(asked.await.expect("answered"), (Answer::Deny, "the terminal"));
        assert!(page.news().question.is_none());
        assert!(page.answer(shown, true).is_err(), "too late");
    }
}
