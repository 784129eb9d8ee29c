//! The log: filters in the address, pages of it, and a stream that adds what comes.

use super::parts::{self, follow_buttons, line, shell, take_along};
use crate::error::{ApiError, ApiResult};
use crate::http::agent::sse;
use crate::http::{ledger, ledger_stream};
use crate::state::App;
use crate::ui::components::empty;
use crate::ui::error::{self, PageError, PageResult};
use crate::ui::layout::{Page, Section};
use crate::ui::{Viewer, utf8_percent};
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::response::sse::Event;
use devmind_domain::ErrorCode;
use devmind_domain::limits::MAX_CLIENT_ID_CHARS;
use devmind_ledger::EventFilter;
use devmind_projections::timeline;
use futures::StreamExt;
use maud::{Markup, html};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;

/// Events of one page.
const PAGE: u32 = 100;

/// The filters, as the form sends them: an empty one is none.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub struct LogQuery {
    /// Events after this position; absent: the newest, or with a filter the first.
    after: Option<String>,
    conversation_id: String,
    run_id: String,
    tool_call_id: String,
    stream: String,
    r#type: String,
    actor: String,
}

impl LogQuery {
    fn fields(&self) -> [(&'static str, &str, &'static str, &'static str); 6] {
        [
            ("type", &self.r#type, "Type", "TurnPrepared"),
            ("actor", &self.actor, "Who", "user:ann"),
            ("conversation_id", &self.conversation_id, "Conversation", ""),
            ("run_id", &self.run_id, "Run", ""),
            ("tool_call_id", &self.tool_call_id, "Tool call", ""),
            ("stream", &self.stream, "Stream", "node/local"),
        ]
    }

    fn filter(&self) -> ApiResult<EventFilter> {
        let mut filled = self.fields().into_iter().filter(|(_, value, ..)| !value.trim().is_empty());
        if let Some((name, ..)) = filled.find(|(_, value, ..)| value.chars().count() > 2 * MAX_CLIENT_ID_CHARS) {
            return Err(ApiError::field(name, "is too long"));
        }
        let text = |value: &str| Some(value.trim().to_owned()).filter(|value| !value.is_empty());
        Ok(EventFilter {
            conversation_id: text(&self.conversation_id).map(Into::into),
            run_id: text(&self.run_id).map(Into::into),
            tool_call_id: text(&self.tool_call_id).map(Into::into),
            stream: text(&self.stream).as_deref().map(ledger::parse_stream).transpose()?,
            event_type: text(&self.r#type),
            actor: text(&self.actor),
        })
    }

    fn after(&self) -> ApiResult<Option<u64>> {
        let Some(text) = self.after.as_deref().map(str::trim).filter(|text| !text.is_empty()) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| ApiError::field("after", "must be a position"))
    }

    /// The set filters as a query, each ending with `&`.
    fn query(&self) -> String {
        let set = self.fields().into_iter().filter(|(_, value, ..)| !value.is_empty());
        set.map(|(name, value, ..)| format!("{name}={}&", utf8_percent(value))).collect()
    }

    fn command(&self) -> String {
        let flags = self.fields().into_iter().filter(|(_, value, ..)| !value.is_empty()).map(|(name, value, ..)| {
            let flag = name.trim_end_matches("_id").replace('_', "-");
            format!(" --{flag} {}", shell(value))
        });
        format!("devmind-replay log{}", flags.collect::<String>())
    }
}

pub async fn show(
    State(app): State<Arc<App>>,
    viewer: Viewer,
    headers: HeaderMap,
    Query(query): Query<LogQuery>,
) -> PageResult {
    let (filter, asked) = (query.filter()?, query.after()?);
    let head = app.ledger.reader().head().await.map_err(ApiError::from)?.position;
    let unfiltered = filter == EventFilter::default();
    let after = asked.unwrap_or(if unfiltered { head.saturating_sub(u64::from(PAGE)) } else { 0 });
    let found = ledger::list(&app, &viewer.caller, &filter, after, PAGE, &mut BTreeSet::new()).await;
    let page = Page::new("Log", Section::Log).style("audit.css").script("audit.js");
    let filters = query.query();
    let found = match found {
        Ok(found) => found,
        // What is filtered by is not there: the form stays, to be mended.
        Err(refusal) if matches!(refusal.code, ErrorCode::RunNotFound | ErrorCode::ConversationNotFound) => {
            return Ok(page.show(&viewer, html! { h1 { "Log" } (form(&query)) (error::card(&refusal)) }));
        }
        Err(refusal) => return Err(refusal.into()),
    };
    let lines = timeline(&found.events);
    let last = found.next_after;
    let live = found.at_head.then(|| format!("/log/stream?{filters}after={last}"));
    let json = format!("/api/ledger/events?{filters}after={after}&limit={PAGE}");
    let content = html! {
        h1 { "Log" }
        (form(&query))
        div.buttons.between {
            p.quiet { (lines.len()) " events after position " (after) " of " (found.position) @if !viewer.caller.role.reads_all() { ": your own" } }
            @if live.is_some() { (follow_buttons()) }
        }
        @if lines.is_empty() {
            @if found.at_head { (empty("No event matches", html! { "Take a filter away, or go " a href=(format!("/log?{filters}after=0")) { "to the beginning" } "." })) }
            @else { (empty("Nothing of yours here", html! { "Go on: later events may be." })) }
        }
        ol.events #events data-live=[live] { @for told in &lines { (line(told)) } }
        (paging(&filters, after, last, found.at_head))
        (take_along(&viewer.caller, parts::host(&headers), &json, &query.command()))
    };
    Ok(page.show(&viewer, content))
}

fn paging(filters: &str, after: u64, last: u64, at_head: bool) -> Markup {
    let earlier = after.saturating_sub(u64::from(PAGE));
    html! {
        nav.buttons aria-label="Pages of the log" {
            @if after > 0 {
                a.button.quiet href=(format!("/log?{filters}after=0")) { "First" }
                a.button.quiet href=(format!("/log?{filters}after={earlier}")) { "Earlier" }
            }
            @if !at_head { a.button.quiet href=(format!("/log?{filters}after={last}")) { "Later" } }
        }
    }
}

fn form(query: &LogQuery) -> Markup {
    let open = query.fields().iter().any(|(_, value, ..)| !value.is_empty());
    html! {
        details.filters open[open] {
            summary { "Filters" @if open { span.quiet { " are set" } } }
            form method="get" action="/log" aria-label="Filters" {
                div.fields {
                    @for (name, value, label, example) in query.fields() {
                        div { label for=(name) { (label) } input id=(name) name=(name) value=(value) placeholder=(example) maxlength="400" autocomplete="off"; }
                    }
                    div { label for="after" { "After position" } input #after name="after" value=[query.after.as_deref()] inputmode="numeric" maxlength="16"; }
                }
                div.buttons { button type="submit" { "Show" } a.button.quiet href="/log" { "Clear" } }
            }
        }
    }
}

/// What comes after a position, as lines of the page; the id of each is its position.
pub async fn stream(
    State(app): State<Arc<App>>,
    viewer: Viewer,
    headers: HeaderMap,
    Query(query): Query<LogQuery>,
) -> Result<Response, PageError> {
    let filter = query.filter()?;
    let seen = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let after = seen.or(query.after()?).unwrap_or(0);
    let caller = viewer.caller;
    let open =
        app.open_streams.take(Some(caller.user_id.clone())).ok_or_else(|| ApiError::of(ErrorCode::RateLimited))?;
    let frames = ledger_stream::follow(app, caller, filter, after, None).flat_map(move |batch| {
        let _counted = &open;
        let frames = match batch {
            Ok(events) => timeline(&events)
                .iter()
                .map(|told| Event::default().id(told.position.to_string()).data(line(told).into_string()))
                .collect(),
            Err(refusal) => vec![Event::default().event("refused").data(refusal.body().to_string())],
        };
        futures::stream::iter(frames.into_iter().map(Ok::<_, Infallible>))
    });
    Ok(sse(frames))
}
