//! The timeline of a run, as it is now or was at a position. How it is shown is `timeline`'s.

use super::parts::{self, LOG, Stops, Travel, follow_buttons, history_link, run_link, shell, take_along};
use super::timeline::{Look, Timeline};
use crate::error::{ApiError, ApiResult};
use crate::http::ledger::{may_read, position_of};
use crate::identity::Caller;
use crate::state::App;
use crate::ui::components::{copy, duration, empty, facts, status, time};
use crate::ui::error::PageResult;
use crate::ui::layout::{Page, Section};
use crate::ui::{Viewer, text, utf8_percent};
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use devmind_domain::ErrorCode;
use devmind_domain::ids::RunId;
use devmind_projections::{RunRow, TimelineLine, ToolCallQuery, ToolCallRow, conversation_at, timeline_of_run};
use maud::{Markup, html};
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::Arc;

/// When.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct AtQuery {
    /// A position or a time; absent: now.
    at: Option<String>,
}

struct Read {
    run: RunRow,
    lines: Vec<TimelineLine>,
    /// Where to travel to, also after `at`.
    stops: Stops,
    position: u64,
    past: bool,
}

async fn read(app: &Arc<App>, caller: &Caller, run_id: &RunId, at: Option<&str>) -> ApiResult<Read> {
    let head = app.caught_up(&["conversation", "tool_call"]).await?;
    let run = app.views.find_run(run_id).await?.ok_or_else(|| ApiError::of(ErrorCode::RunNotFound))?;
    may_read(app, caller, &run.conversation_id, "run_timeline").await?;
    let at = at.map(str::trim).filter(|at| !at.is_empty());
    let position = position_of(app, head, at).await?;
    let mut lines = timeline_of_run(app.ledger.reader(), run_id).await?;
    let stops = Stops {
        first: lines.first().map(|line| line.position),
        before: lines.iter().rev().map(|line| line.position).find(|stop| *stop < position),
        after: lines.iter().map(|line| line.position).find(|stop| *stop > position),
    };
    lines.retain(|line| line.position <= position);
    Ok(Read { run, lines, stops, position, past: at.is_some() })
}

/// The whole timeline, as the operator's program prints it with `--json`.
pub async fn json(
    State(app): State<Arc<App>>,
    viewer: Viewer,
    Path(run_id): Path<String>,
    Query(query): Query<AtQuery>,
) -> ApiResult<Json<Vec<TimelineLine>>> {
    let read = read(&app, &viewer.caller, &run_id.as_str().into(), query.at.as_deref()).await?;
    Ok(Json(read.lines))
}

pub async fn show(
    State(app): State<Arc<App>>,
    viewer: Viewer,
    headers: HeaderMap,
    Path(run_id): Path<String>,
    Query(query): Query<AtQuery>,
    Query(look): Query<Look>,
) -> PageResult {
    let run_id: RunId = run_id.as_str().into();
    let read = read(&app, &viewer.caller, &run_id, query.at.as_deref()).await?;
    let calls = calls(&app, &read).await?;
    let base = run_link(run_id.as_str());
    let at = if read.past { format!("at={}&", read.position) } else { String::new() };
    let view = look.view();
    let travel = Travel {
        path: &format!("{base}?view={view}&"),
        keep: &[("view", view)],
        position: read.position,
        past: read.past,
        stops: read.stops,
    };
    let json = format!("{base}/timeline.json?{}", at.trim_end_matches('&'));
    // What goes on can be followed, from where the page ends.
    let ended = status_of(&read.lines).is_some_and(|status| !matches!(status, "queued" | "running" | "interrupted"));
    let last = read.lines.last().map_or(0, |line| line.position);
    let stream = format!("/log/stream?run_id={}&after={last}", utf8_percent(run_id.as_str()));
    let live = (!read.past && !ended).then(|| (stream.as_str(), follow_buttons()));
    let timeline =
        Timeline { lines: &read.lines, base: &base, keep: &at, events: LOG, calls: &calls, file: Some(&json), live };
    let content = html! {
        p.crumbs { a href=(history_link(read.run.conversation_id.as_str())) { (text::inline(&read.run.title)) } }
        h1 { "Run timeline " @if let Some(status_name) = status_of(&read.lines) { (status(status_name)) } }
        p.lead { (text::inline(&read.run.content)) }
        (travel.show())
        (summary(&read))
        @if read.lines.is_empty() { (empty("The run had not begun then", html! { a href=(base) { "Go to now" } })) }
        (timeline.show(&look))
        (take_along(&viewer.caller, parts::host(&headers), &json, &format!("devmind-replay timeline --run {}", shell(run_id.as_str()))))
    };
    Ok(Page::new("Run timeline", Section::Log).style("audit.css").script("audit.js").show(&viewer, content))
}

/// The calls of the run as they were, by id.
async fn calls(app: &App, read: &Read) -> ApiResult<HashMap<String, ToolCallRow>> {
    let rows = if read.past {
        let state = conversation_at(app.ledger.reader(), &read.run.conversation_id, read.position).await?;
        state.map(|state| state.tool_calls).unwrap_or_default()
    } else {
        app.views.tool_calls(ToolCallQuery::Conversation(read.run.conversation_id.clone())).await?
    };
    Ok(rows.into_iter().map(|row| (row.tool_call_id.to_string(), row)).collect())
}

/// How the run stood after these facts.
fn status_of(lines: &[TimelineLine]) -> Option<&'static str> {
    lines.iter().rev().find_map(|line| match line.event_type.as_str() {
        "RunPrepared" => Some("queued"),
        "RunClaimed" => Some("running"),
        "RunInterrupted" => Some("interrupted"),
        "RunSucceeded" => Some("completed"),
        "RunFailed" => Some("failed"),
        "RunCancelled" => Some("cancelled"),
        _ => None,
    })
}

fn summary(read: &Read) -> Markup {
    let took = read.lines.last().map_or(0, |line| line.offset_ms);
    let mut rows = vec![(
        "Run",
        html! { code.id { (text::inline(read.run.run_id.as_str())) } " " (copy("Copy", read.run.run_id.as_str())) },
    )];
    rows.push(("Asked by", text::inline(read.run.user_id.as_str())));
    if let Some(first) = read.lines.first() {
        rows.push(("Began", time(first.recorded_at)));
        rows.push(("Facts", html! { (read.lines.len()) " in " (duration(took)) }));
    }
    if let Some(parent) = &read.run.parent_run_id {
        rows.push(("Goes on from", html! { a href=(run_link(parent.as_str())) { (text::inline(parent.as_str())) } }));
    }
    facts(&rows)
}
