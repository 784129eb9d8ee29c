//! Asking on the terminal and on the page at the same time: the first answer counts.

use super::page::{GiveUp, Page};
use super::{Answer, Confirm, ConfirmationRequest, Terminal};
use async_trait::async_trait;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// A terminal and a page.
pub struct Both {
    terminal: Terminal,
    page: Arc<Page>,
}

impl Both {
    /// The terminal that stdin is, and a page.
    pub fn new(page: Arc<Page>) -> Self {
        Self { terminal: Terminal::new(), page }
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
