//! What changes while a chat is looked at: an SSE stream of its parts.
//!
//! A frame is a part as it is now, never what was added to it, so a frame that is seen twice changes nothing and
//! one that is missed is made up for by the next. Its id is the position of the log that it is shown as of: who
//! connects again with it gets every part anew if anything happened since, and nothing if not.

use super::view::Chat;
use super::{Viewer, parts};
use crate::error::{ApiError, ApiResult};
use crate::http::access::read_conversation;
use crate::http::agent::sse;
use crate::http::{ClientId, MAX_OPEN_STREAMS};
use crate::state::App;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::response::sse::Event;
use devmind_domain::ErrorCode;
use devmind_domain::canonical::sha256_hex;
use devmind_domain::event::{AggregateType, RecordedEvent};
use devmind_domain::ids::ConversationId;
use futures::stream;
use serde::Deserialize;
use serde_json::json;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// What comes within this time after a change is shown with it.
const TOGETHER: Duration = Duration::from_millis(60);

/// What is looked at.
#[derive(Deserialize)]
pub(super) struct Look {
    /// The open conversation; absent: a new one.
    c: Option<ClientId>,
    /// The position that the page is shown as of; `Last-Event-ID` counts before it.
    #[serde(default)]
    at: u64,
}

pub(super) async fn stream(
    State(app): State<Arc<App>>,
    viewer: Viewer,
    Query(look): Query<Look>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()).and_then(|id| id.parse().ok());
    let id = look.c.map(ClientId::id);
    app.caught_up(&["conversation"]).await?;
    let holder = Some(viewer.caller.user_id.clone());
    let place = app.open_streams.take(holder).ok_or_else(|| {
        let message = format!("{MAX_OPEN_STREAMS} windows follow already: close one, and this one goes on");
        ApiError::new(ErrorCode::RateLimited, message)
    })?;
    if let Some(id) = &id {
        read_conversation(&app, &viewer.caller, id, "page_stream").await?;
    }
    let head = app.ledger.reader().head().await?.position;
    let follower = Follower {
        // Of a log that was replaced since, everything is news.
        after: last.unwrap_or(look.at).min(head),
        app,
        viewer,
        id,
        listed: BTreeSet::new(),
        sent: HashMap::new(),
        waiting: VecDeque::new(),
        ended: false,
    };
    Ok(sse(stream::unfold((follower, place), |(mut follower, place)| async move {
        follower.next().await.map(|frame| (Ok::<_, Infallible>(frame), (follower, place)))
    })))
}

struct Follower {
    app: Arc<App>,
    viewer: Viewer,
    id: Option<ConversationId>,
    after: u64,
    /// The conversations beside it, as they were last sent.
    listed: BTreeSet<String>,
    /// The hash of each part as it was last sent.
    sent: HashMap<String, String>,
    waiting: VecDeque<Event>,
    ended: bool,
}

impl Follower {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(frame) = self.waiting.pop_front() {
                return Some(frame);
            }
            if self.ended || !self.something_happened().await {
                return None;
            }
            if let Err(error) = self.look().await {
                // The page is told why, asks again, and sees what it may.
                self.ended = true;
                return Some(Event::default().event("gone").data(error.body().to_string()));
            }
        }
    }

    /// Waits for an event that may change what is shown; `false` where none will come.
    async fn something_happened(&mut self) -> bool {
        let mut log = self.app.ledger.reader().follow(self.after);
        loop {
            let events = tokio::select! {
                events = log.next() => events,
                () = self.app.stopping.cancelled() => return false,
            };
            let Ok(events) = events else { return false };
            if events.iter().any(|event| self.concerns(event)) {
                tokio::time::sleep(TOGETHER).await;
                return true;
            }
            self.after = log.position();
        }
    }

    fn concerns(&self, event: &RecordedEvent) -> bool {
        let stream = &event.stream;
        if self.id.as_ref().is_some_and(|id| event.metadata.contains(id.as_str())) {
            return true;
        }
        let kind = AggregateType::ALL.into_iter().find(|kind| kind.as_str() == stream.aggregate_type);
        match kind {
            Some(AggregateType::Conversation) => {
                self.listed.is_empty()
                    || self.listed.contains(stream.aggregate_id.as_str())
                    || event.event_type == "ConversationStarted"
            }
            Some(AggregateType::Device) => stream
                .aggregate_id
                .as_str()
                .split_once('/')
                .is_some_and(|(user, _)| user == self.viewer.caller.user_id.as_str()),
            // What was sent by a process that ended is unknown.
            Some(AggregateType::Node | AggregateType::Redaction) => true,
            _ => false,
        }
    }

    /// Reads everything again and queues the parts that changed.
    async fn look(&mut self) -> ApiResult<()> {
        let mut chat = Chat::read(&self.app, &self.viewer, self.id.as_ref(), None).await?;
        self.after = chat.position;
        // Scripts make their own keys: with one in them every part would change each time.
        chat.key.clear();
        self.listed = chat.conversations.iter().map(|row| row.id.to_string()).collect();
        let mut changed = VecDeque::new();
        for (part, markup) in parts::all(&chat) {
            let html = markup.into_string();
            let hash = sha256_hex(html.as_bytes());
            if self.sent.get(&part) != Some(&hash) {
                changed
                    .push_back(Event::default().event("part").data(json!({ "part": part, "html": html }).to_string()));
                self.sent.insert(part, hash);
            }
        }
        // Only with the last is everything there.
        changed.push_back(Event::default().event("shown").id(chat.position.to_string()).data("{}"));
        self.waiting = changed;
        Ok(())
    }
}
