//! The timeline of a run: folded into groups, every event, or JSON; as it is now or was at a position.

use super::groups::{Group, Kind, groups};
use super::lanes::lanes;
use super::parts::{self, Travel, history_link, line, path_segment, run_link, shell, take_along};
use crate::error::{ApiError, ApiResult};
use crate::http::ledger::{may_read, position_of};
use crate::identity::Caller;
use crate::state::App;
use crate::ui::components::{copy, copy_of, duration, facts, status, time};
use crate::ui::error::PageResult;
use crate::ui::layout::{Page, Section};
use crate::ui::{Viewer, text, utf8_percent};
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use devmind_device::text::is_invisible;
use devmind_domain::ErrorCode;
use devmind_domain::ids::RunId;
use devmind_projections::{RunRow, TimelineLine, ToolCallQuery, ToolCallRow, conversation_at, timeline_of_run};
use maud::{Markup, html};
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::Arc;

/// Lines of one page: a page of these stays well under 100 kB.
const PAGE: usize = 120;
/// Lines of a group that are shown in it, at most.
const MAX_GROUP_LINES: usize = 40;

/// How it is shown.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct RunQuery {
    /// `groups`, `events` or `json`.
    view: String,
    /// A position or a time.
    at: Option<String>,
    /// 1, 2, 3 …
    page: Option<usize>,
}

struct Read {
    run: RunRow,
    lines: Vec<TimelineLine>,
    /// The positions of all facts, also of those after `at`.
    stops: Vec<u64>,
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
    let stops = lines.iter().map(|line| line.position).collect();
    lines.retain(|line| line.position <= position);
    Ok(Read { run, lines, stops, position, past: at.is_some() })
}

/// The whole timeline, as the operator's program prints it with `--json`.
pub async fn json(
    State(app): State<Arc<App>>,
    viewer: Viewer,
    Path(run_id): Path<String>,
    Query(query): Query<RunQuery>,
) -> ApiResult<Json<Vec<TimelineLine>>> {
    let read = read(&app, &viewer.caller, &run_id.as_str().into(), query.at.as_deref()).await?;
    Ok(Json(read.lines))
}

pub async fn show(
    State(app): State<Arc<App>>,
    viewer: Viewer,
    headers: HeaderMap,
    Path(run_id): Path<String>,
    Query(query): Query<RunQuery>,
) -> PageResult {
    let run_id: RunId = run_id.as_str().into();
    let read = read(&app, &viewer.caller, &run_id, query.at.as_deref()).await?;
    let calls = calls(&app, &read).await?;
    let base = run_link(run_id.as_str());
    let at = if read.past { format!("at={}&", read.position) } else { String::new() };
    let view = if matches!(query.view.as_str(), "events" | "json") { query.view.as_str() } else { "groups" };
    let travel = Travel {
        path: &format!("{base}?view={view}&"),
        keep: &[("view", view)],
        position: read.position,
        past: read.past,
        stops: &read.stops,
    };
    let (content, pages, page) = match view {
        "groups" => {
            let groups = groups(&read.lines);
            let pages = split(&groups);
            let page = query.page.unwrap_or(1).clamp(1, pages.len().max(1));
            let own = pages.get(page - 1).cloned().unwrap_or(0..0);
            (group_list(&groups[own], &calls, &base), pages.len(), page)
        }
        other => {
            let pages = read.lines.len().div_ceil(PAGE);
            let page = query.page.unwrap_or(1).clamp(1, pages.max(1));
            let own: Vec<_> = read.lines.iter().skip((page - 1) * PAGE).take(PAGE).collect();
            (
                if other == "json" {
                    json_view(&own, &base, &at)
                } else {
                    html! { ol.events #events { @for told in own { (line(told)) } } }
                },
                pages,
                page,
            )
        }
    };
    let json = format!("/runs/{}/timeline.json?{}", path_segment(run_id.as_str()), at.trim_end_matches('&'));
    // Beyond the first page the picture is known.
    let picture = page == 1 && view != "json" && !read.lines.is_empty();
    let to_line = |position: u64| {
        format!(
            "{base}?view=events&{at}page={}#p{position}",
            1 + read.lines.partition_point(|line| line.position < position) / PAGE
        )
    };
    let content = html! {
        p.crumbs { a href=(history_link(read.run.conversation_id.as_str())) { (text::inline(&read.run.title)) } }
        h1 { "Run timeline " @if let Some(status_name) = status_of(&read.lines) { (status(status_name)) } }
        p.lead { (text::inline(&read.run.content)) }
        (travel.show())
        (summary(&read))
        @if read.lines.is_empty() { (crate::ui::components::empty("The run had not begun then", html! { a href=(base) { "Go to now" } })) }
        @if picture { (lanes(&read.lines, to_line)) }
        nav.tabs aria-label="View" {
            @for (name, words) in [("groups", "Compact"), ("events", "All events"), ("json", "JSON")] {
                a href=(format!("{base}?view={name}&{at}").trim_end_matches('&')) aria-current=[(name == view).then_some("page")] { (words) }
            }
        }
        (content)
        (paging(&base, view, &at, page, pages))
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

/// Groups of one page: together not many more lines than fit.
fn split(groups: &[Group<'_>]) -> Vec<std::ops::Range<usize>> {
    let (mut pages, mut begin, mut lines) = (Vec::new(), 0, 0);
    for (index, group) in groups.iter().enumerate() {
        // A group's own line, and those in it.
        let own = 1 + group.lines.len().min(MAX_GROUP_LINES);
        if lines + own > PAGE && index > begin {
            pages.push(begin..index);
            (begin, lines) = (index, 0);
        }
        lines += own;
    }
    pages.push(begin..groups.len());
    pages
}

fn group_list(groups: &[Group<'_>], calls: &HashMap<String, ToolCallRow>, base: &str) -> Markup {
    html! { ol.groups #events { @for group in groups { li { (one_group(group, calls, base)) } } } }
}

fn one_group(group: &Group<'_>, calls: &HashMap<String, ToolCallRow>, base: &str) -> Markup {
    let (Some(first), Some(last)) = (group.lines.first(), group.lines.last()) else { return html! {} };
    let call = group.call.and_then(|id| calls.get(id));
    let more = group.lines.len().saturating_sub(MAX_GROUP_LINES);
    html! {
        details.group id=(format!("g{}", first.position)) {
            summary {
                span.kind { (group.kind.words()) }
                span.words {
                    @if let Some(call) = call { strong { (text::cut(&call.tool, 60)) } " " (text::cut(&call.summary, 100)) } @else { (text::cut(&first.text, 140)) }
                    @if group.kind != Kind::Call && group.lines.len() > 1 { span.quiet { " → " (text::cut(&last.text, 140)) } }
                }
                span.end { @if let Some(call) = call { (status(&call.status)) " " } @if group.took_ms() > 0 { span.took { (duration(group.took_ms())) } } }
            }
            ol.events { @for told in group.lines.iter().take(MAX_GROUP_LINES) { (line(told)) } }
            @if more > 0 { p.hint { "And " (more) " more: " a href=(format!("{base}?view=events")) { "all events" } } }
            @if let Some(id) = group.call { p.hint { a href=(format!("/log?tool_call_id={}", utf8_percent(id))) { "Everything about this call" } } }
        }
    }
}

fn json_view(lines: &[&TimelineLine], base: &str, at: &str) -> Markup {
    let whole = format!("{base}/timeline.json?{}", at.trim_end_matches('&'));
    // Escaped as JSON does it, what would not be seen is seen, and can be copied as it stands.
    let text = serde_json::to_string_pretty(lines).unwrap_or_default();
    let escaped: String =
        text.chars().map(|c| if c != '\n' && is_invisible(c) { json_escape(c) } else { c.to_string() }).collect();
    html! {
        div.buttons { (copy_of("Copy this page", "json")) a href=(whole) { "All of it, as a file" } }
        div #json { (text::code_of(&escaped, escaped.len(), &whole)) }
    }
}

/// A character as JSON may write it (RFC 8259, section 7).
fn json_escape(character: char) -> String {
    character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
}

fn paging(base: &str, view: &str, at: &str, page: usize, pages: usize) -> Markup {
    let link = |page: usize| format!("{base}?view={view}&{at}page={page}");
    html! {
        @if pages > 1 {
            nav.buttons aria-label="Pages of the timeline" {
                @if page > 1 { a.button.quiet href=(link(page - 1)) rel="prev" { "Earlier" } }
                span { "Page " (page) " of " (pages) }
                @if page < pages { a.button.quiet href=(link(page + 1)) rel="next" { "Later" } }
            }
        }
    }
}
