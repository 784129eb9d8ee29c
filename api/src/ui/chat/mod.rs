//! The chat: a person's conversations beside the one that is open, its turns, what is said next.
//!
//! [`view`] reads everything that is shown, as of one position of the log; `parts` makes it markup, each part the
//! same for a page and for the stream; `follow` sends the parts that changed; `act` is what buttons do. The page
//! works without scripts (a reload shows what is new); with them it follows by itself. A run is the server's own:
//! closing a page stops nothing.

mod act;
mod follow;
mod markdown;
mod parts;
mod view;

pub(super) use act::go_on;

use super::audit::parts::chat_link;
use super::components::{facts, status, time};
use super::layout::{Page, Section};
use super::session::Viewer;
use super::{PageResult, text};
use crate::error::ApiError;
use crate::http::ClientId;
use crate::http::access::read_conversation;
use crate::state::App;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::routing::{get, post};
use devmind_domain::ErrorCode;
use devmind_domain::ids::{ConversationId, ToolCallId};
use devmind_domain::limits::MAX_QUESTION_BODY_BYTES;
use devmind_domain::tools::Registry;
use devmind_projections::{ToolCallQuery, ToolCallRow};
use maud::{Markup, html};
use serde::Deserialize;
use std::sync::Arc;
use view::Chat;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(start))
        .route("/conversations/{id}", get(conversation))
        .route("/chat/stream", get(follow::stream))
        .route("/chat/call", get(call))
        .route("/chat/answer", get(answer))
        .route("/chat/ask", post(act::ask).layer(DefaultBodyLimit::max(MAX_QUESTION_BODY_BYTES)))
        .route("/chat/rerun", post(act::rerun).layer(DefaultBodyLimit::max(MAX_QUESTION_BODY_BYTES)))
        .route("/chat/start", post(act::start))
        .route("/chat/decide", post(act::decide))
        .route("/chat/stop", post(act::stop))
        .route("/chat/rename", post(act::rename))
        .route("/chat/delete", post(act::delete))
}

/// A new conversation beside the others.
async fn start(State(app): State<Arc<App>>, viewer: Viewer) -> PageResult {
    let chat = Chat::read(&app, &viewer, None, None).await?;
    Ok(page(&viewer, "New conversation", &chat))
}

/// Which turns.
#[derive(Deserialize)]
struct Turns {
    /// Those before the one with this number; absent: the newest.
    before: Option<u32>,
}

async fn conversation(
    State(app): State<Arc<App>>,
    viewer: Viewer,
    Path(id): Path<String>,
    Query(query): Query<Turns>,
) -> PageResult {
    let id: ConversationId = id.as_str().into();
    app.caught_up(&["conversation"]).await?;
    read_conversation(&app, &viewer.caller, &id, "page").await?;
    let chat = Chat::read(&app, &viewer, Some(&id), query.before).await?;
    Ok(page(&viewer, chat.title(), &chat))
}

fn page(viewer: &Viewer, title: &str, chat: &Chat) -> Markup {
    let page = Page::new(title, Section::Chat).style("chat.css").script("chat.js").wide().class("chat");
    page.show(viewer, parts::whole(chat))
}

#[derive(Deserialize)]
struct Which {
    id: ClientId,
}

/// One call: what it was asked, what it gave, each time it was sent.
async fn call(State(app): State<Arc<App>>, viewer: Viewer, Query(which): Query<Which>) -> PageResult {
    let id: ToolCallId = which.id.id();
    app.caught_up(&["conversation", "tool_call"]).await?;
    let rows = app.views.tool_calls(ToolCallQuery::Call(id)).await?;
    let call = rows.first().ok_or_else(|| ApiError::of(ErrorCode::NotFound))?;
    read_conversation(&app, &viewer.caller, &call.conversation_id, "tool_call").await?;
    let json = |value: &serde_json::Value| serde_json::to_string_pretty(value).unwrap_or_default();
    let whole = format!("/api/tool-calls?tool_call_id={}", super::utf8_percent(call.tool_call_id.as_str()));
    let mut rows = vec![
        ("Tool", html! { code { (call.tool) } " version " (call.tool_version) }),
        ("Status", status(&call.status)),
        ("Runs", html! { @if call.target == "device" { "on the device" } @else { "in the server" } }),
        ("Asked", time(call.requested_at)),
    ];
    if let Some(message) = &call.error_message {
        let code = call.error_code.as_deref().unwrap_or_default();
        rows.push(("Why", html! { (text::inline(message)) " " code { (code) } }));
    }
    if let Some(at) = call.settled_at {
        rows.push(("Settled", time(at)));
    }
    let content = html! {
        p { a href=(chat_link(call.conversation_id.as_str())) { "Back to the conversation" } }
        h1 { "Tool call " code { (call.tool) } }
        div #call-details {
            (facts(&rows))
            h4 { "Arguments" }
            (text::code(&json(&call.arguments), &whole))
            @if let Some(view) = presented(&app, call) {
                h4 { "What came of it" }
                @match &view {
                    serde_json::Value::String(shown) => (text::code(shown, &whole)),
                    shown => (text::code(&json(shown), &whole)),
                }
            }
            @if let Some(output) = &call.output {
                h4 { "What it gave" }
                (text::code(&json(output), &whole))
            }
            @if !call.attempts.is_empty() {
                h4 { "Sent" }
                ol.attempts {
                    @for attempt in &call.attempts {
                        li { (time(attempt.dispatched_at)) " " (status(&attempt.status))
                            @if let Some(reason) = &attempt.reason { " " code { (reason) } } }
                    }
                }
            }
        }
    };
    Ok(Page::new("Tool call", Section::Chat).style("chat.css").show(&viewer, content))
}

/// What a person sees of what a call gave, where its tool, in the version of the call, has a word about that: a pure
/// function of what is recorded.
fn presented(app: &App, call: &ToolCallRow) -> Option<serde_json::Value> {
    let (tools, output) = (app.tools.current(), call.output.as_ref()?);
    let has_a_word = |tools: &&Registry| {
        let known = tools.get(&call.tool).filter(|known| known.version == call.tool_version);
        known.is_some_and(|known| known.presentation.is_some())
    };
    // In code mode what a program called is none of the model's own tools.
    let registry = [tools.registry(), tools.callable()].into_iter().find(has_a_word)?;
    registry.presentation(&call.tool, &call.arguments, output).ok()
}

/// Which turn of which conversation.
#[derive(Deserialize)]
struct Whole {
    c: ClientId,
    turn: u32,
}

/// A whole answer as plain text, where the page shows only its beginning.
async fn answer(
    State(app): State<Arc<App>>,
    viewer: Viewer,
    Query(which): Query<Whole>,
) -> PageResult<impl axum::response::IntoResponse> {
    let id: ConversationId = which.c.id();
    app.caught_up(&["conversation"]).await?;
    read_conversation(&app, &viewer.caller, &id, "answer").await?;
    let turns = app.views.turns_before(&id, which.turn.checked_add(1), 1).await?;
    let turn = turns.into_iter().find(|turn| turn.sequence_no == which.turn);
    let whole = turn.and_then(|turn| turn.answer).ok_or_else(|| ApiError::of(ErrorCode::NotFound))?;
    Ok(([("content-type", "text/plain; charset=utf-8")], whole))
}
