//! A conversation at any time, and what changed between two: the views, made from the log up to there.

use super::parts::{self, Stops, Travel, history_link, run_link, shell, take_along};
use crate::error::{ApiError, ApiResult};
use crate::http::ledger::{may_read, position_of, state_at};
use crate::state::App;
use crate::ui::components::{Tone, chip, empty, facts, status, time};
use crate::ui::error::PageResult;
use crate::ui::layout::{Page, Section};
use crate::ui::{Viewer, text, utf8_percent};
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use devmind_domain::conversation::ConversationEvent;
use devmind_domain::event::DomainEvent;
use devmind_domain::ids::{ConversationId, RunId, TurnId};
use devmind_ledger::EventFilter;
use devmind_projections::{ConversationState, FieldChange, ToolCallRow, TurnRow, conversation_at, field_changes};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;

/// Turns of one page, at most.
const MAX_TURNS: usize = 20;
/// Events asked for at once.
const EVENTS_AT_ONCE: u32 = 1_000;
/// Differences shown, at most.
const MAX_CHANGES: usize = 300;
/// Characters of a value in a list of differences.
const VALUE_CHARS: usize = 400;

/// When.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct AtQuery {
    at: Option<String>,
    /// The turns before the one with this number; absent: the newest.
    before: Option<u32>,
}

/// Where time travel of a conversation stops, next to a position. However long it is, three events are looked up.
async fn stops(app: &App, filter: &EventFilter, position: u64) -> ApiResult<Stops> {
    let reader = app.ledger.reader();
    let next = async |after| -> ApiResult<Option<u64>> {
        Ok(reader.query(filter, after, 1).await?.first().map(|event| event.position))
    };
    let before = reader.last_before(filter, position).await?;
    Ok(Stops { first: next(0).await?, before, after: next(position).await? })
}

/// The runs of each of these turns, up to a position.
async fn runs_of(
    app: &App,
    filter: &EventFilter,
    turns: &[TurnRow],
    until: u64,
) -> ApiResult<HashMap<TurnId, Vec<RunId>>> {
    let mut runs: HashMap<_, _> = turns.iter().map(|turn| (turn.id.clone(), Vec::new())).collect();
    let filter = EventFilter { event_type: Some("RunPrepared".to_owned()), ..filter.clone() };
    let mut after = 0;
    while after < until {
        let page = app.ledger.reader().query(&filter, after, EVENTS_AT_ONCE).await?;
        let Some(last) = page.last() else { break };
        after = last.position;
        for event in page.iter().filter(|event| event.position <= until) {
            for fact in event.decode().unwrap_or_default() {
                if let DomainEvent::Conversation(ConversationEvent::RunPrepared(e)) = fact
                    && let Some(own) = runs.get_mut(&e.turn_id)
                {
                    own.push(e.run_id);
                }
            }
        }
    }
    Ok(runs)
}

pub async fn show(
    State(app): State<Arc<App>>,
    viewer: Viewer,
    headers: HeaderMap,
    Path(id): Path<String>,
    Query(query): Query<AtQuery>,
) -> PageResult {
    let id: ConversationId = id.as_str().into();
    let at = query.at.as_deref().map(str::trim).filter(|at| !at.is_empty());
    let state = state_at(&app, &viewer.caller, &id, at).await?;
    let filter = EventFilter { conversation_id: Some(id.clone()), ..EventFilter::default() };
    let stops = stops(&app, &filter, state.position).await?;
    let base = history_link(id.as_str());
    let end =
        query.before.map_or(state.turns.len(), |before| state.turns.partition_point(|turn| turn.sequence_no < before));
    let turns = &state.turns[end.saturating_sub(MAX_TURNS)..end];
    let runs = runs_of(&app, &filter, turns, state.position).await?;
    let travel = Travel { path: &format!("{base}?"), keep: &[], position: state.position, past: at.is_some(), stops };
    let json = format!("/api/ledger/state?conversation_id={}&at={}", utf8_percent(id.as_str()), state.position);
    let command = format!("devmind-replay show --conversation {} --at {}", shell(id.as_str()), state.position);
    let first = stops.first.unwrap_or(1);
    let here = if at.is_some() { format!("{base}?at={}&", state.position) } else { format!("{base}?") };
    let content = html! {
        p.crumbs { a href="/log" { "Log" } }
        h1 { (text::inline(&state.title)) }
        (travel.show())
        (facts(&[
            ("Conversation", html! { code.id { (text::inline(id.as_str())) } }),
            ("Owner", text::inline(state.user_id.as_str())),
            ("Turns", html! { (state.turns.last().map_or(0, |turn| turn.sequence_no)) @if state.deleted { " " (chip(Tone::Quiet, "removed by its owner")) } }),
        ]))
        div.buttons {
            a.button.quiet href=(format!("/log?conversation_id={}", utf8_percent(id.as_str()))) { "Its events" }
            a.button.quiet href=(format!("{base}/changes?from={first}&to={}", state.position)) { "What changed" }
            a.button.quiet href=(format!("/bundles/download?conversation_id={}", utf8_percent(id.as_str()))) { "Take it along as a bundle" }
        }
        @if state.turns.is_empty() { (empty("There is no turn", html! { @if state.deleted { "The conversation was removed: an earlier position shows its turns." } @else { "Nothing was asked up to here." } })) }
        (earlier(&here, turns, &state))
        @for turn in turns { (one_turn(turn, &state, runs.get(&turn.id).map_or(&[], Vec::as_slice), &json)) }
        @if end < state.turns.len() {
            nav.buttons aria-label="Later turns" {
                a.button.quiet rel="next" href=(format!("{here}before={}", state.turns[end].sequence_no as usize + MAX_TURNS)) { "Later turns" }
                a.button.quiet href=(here.trim_end_matches(['?', '&'])) { "To the newest" }
            }
        }
        (take_along(&viewer.caller, parts::host(&headers), &json, &command))
    };
    Ok(Page::new(&state.title, Section::Log).style("audit.css").script("audit.js").show(&viewer, content))
}

/// The way to the turns before those that are shown. The views hold the newest ones; earlier still, the past does.
fn earlier(here: &str, turns: &[TurnRow], state: &ConversationState) -> Markup {
    let Some(first) = turns.first().map(|turn| turn.sequence_no).filter(|first| *first > 1) else { return html! {} };
    let is_kept = state.turns.first().is_some_and(|turn| turn.sequence_no < first);
    html! {
        nav.buttons aria-label="Earlier turns" {
            @if is_kept { a.button.quiet rel="prev" href=(format!("{here}before={first}")) { "Earlier turns" } span.hint { (first - 1) " before these" } }
            @else { p.hint { "Turns before turn " (first) " are shown at an earlier time: go back with the bar above." } }
        }
    }
}

fn one_turn(turn: &TurnRow, state: &ConversationState, runs: &[RunId], json: &str) -> Markup {
    let calls: Vec<&ToolCallRow> = turn
        .tool_calls
        .iter()
        .filter_map(|call| state.tool_calls.iter().find(|full| full.tool_call_id == call.tool_call_id))
        .collect();
    html! {
        section.card aria-labelledby=(format!("turn-{}", turn.sequence_no)) {
            h2 id=(format!("turn-{}", turn.sequence_no)) { "Turn " (turn.sequence_no) " " (status(&turn.status)) }
            h3 { "Question" }
            (text::block(&turn.question, json))
            @if let Some(answer) = &turn.answer {
                h3 { "Answer" @if turn.partial { " " (chip(Tone::Quiet, "cut off")) } }
                (text::block(answer, json))
            }
            @if let Some(code) = &turn.error_code {
                p { (chip(Tone::Bad, code)) " " @if let Some(message) = &turn.error_message { (text::inline(message)) } }
            }
            @for open in &turn.pending_approvals {
                p { (chip(Tone::Person, "waits for approval")) " " (text::inline(&open.message)) @if let Some(at) = open.expires_at { ", until " (time(at)) } }
            }
            @if !calls.is_empty() {
                h3 { "Tool calls" }
                ul.rows { @for call in calls { li {
                    (status(&call.status)) " "
                    a href=(format!("/log?tool_call_id={}", utf8_percent(call.tool_call_id.as_str()))) { (text::inline(&call.tool)) }
                    " " (text::inline(&call.summary))
                    @if let Some(code) = &call.error_code { " " code { (text::inline(code)) } }
                    @if call.attempts.len() > 1 { span.quiet { ", " (call.attempts.len()) " attempts" } }
                } } }
            }
            @if !runs.is_empty() {
                p.hint { "Timelines: " @for (index, run) in runs.iter().enumerate() { @if index > 0 { ", " } a href=(run_link(run.as_str())) { "run " (index + 1) } } }
            }
        }
    }
}

/// Between which positions or times.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct ChangesQuery {
    from: Option<String>,
    to: Option<String>,
}

pub async fn changes(
    State(app): State<Arc<App>>,
    viewer: Viewer,
    Path(id): Path<String>,
    Query(query): Query<ChangesQuery>,
) -> PageResult {
    let id: ConversationId = id.as_str().into();
    may_read(&app, &viewer.caller, &id, "changes").await?;
    let head = app.ledger.reader().head().await.map_err(ApiError::from)?.position;
    let text_of =
        |text: &Option<String>| text.as_deref().map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
    let from = position_of(&app, head, Some(&text_of(&query.from).unwrap_or_else(|| "0".to_owned()))).await?;
    let to = position_of(&app, head, text_of(&query.to).as_deref()).await?;
    let state = async |at| -> ApiResult<Option<Value>> {
        let state = conversation_at(app.ledger.reader(), &id, at).await?;
        Ok(state.and_then(|state| serde_json::to_value(state).ok()))
    };
    let (before, after) = (state(from).await?, state(to).await?);
    let mut found = field_changes(before.as_ref(), after.as_ref());
    // A field that came without a value says nothing to a reader.
    found.retain(|change| !(is_nothing(change.before.as_ref()) && is_nothing(change.after.as_ref())));
    let base = history_link(id.as_str());
    let content = html! {
        p.crumbs { a href=(base) { "The conversation" } }
        h1 { "What changed" }
        form.travel method="get" action=(format!("{base}/changes")) aria-label="Between" {
            label for="from" { "From event or time" } input #from name="from" value=(from) maxlength="40" required;
            label for="to" { "to" } input #to name="to" value=(to) maxlength="40" required;
            button.quiet type="submit" { "Compare" }
        }
        p.quiet { a href=(format!("{base}?at={from}")) { "As it was after event " (from) } " · " a href=(format!("{base}?at={to}")) { "as it was after event " (to) } " · " a href=(format!("/log?conversation_id={}&after={from}", utf8_percent(id.as_str()))) { "the events between" } }
        @if before.is_none() { p { "After event " (from) " the conversation had not begun." } }
        @if found.is_empty() { (empty("Nothing changed", html! { "Between the two, the views of this conversation are the same." })) }
        @else { (differences(&found, [after.as_ref(), before.as_ref()])) }
    };
    Ok(Page::new("What changed", Section::Log).style("audit.css").script("audit.js").show(&viewer, content))
}

/// The differences, by what they are about.
fn differences(found: &[FieldChange], states: [Option<&Value>; 2]) -> Markup {
    let mut groups: Vec<(&str, Vec<&FieldChange>)> = Vec::new();
    for change in found.iter().take(MAX_CHANGES) {
        let about = change.field.split_inclusive(']').next().filter(|about| about.ends_with(']')).unwrap_or("");
        match groups.last_mut().filter(|(known, _)| *known == about) {
            Some((_, changes)) => changes.push(change),
            None => groups.push((about, vec![change])),
        }
    }
    html! {
        p.quiet { (found.len()) " fields differ" @if found.len() > MAX_CHANGES { "; the first " (MAX_CHANGES) " are shown" } "." }
        @for (about, changes) in &groups {
            @let came = !about.is_empty() && changes.iter().all(|change| change.before.is_none());
            // What is new is one difference; its fields are there for who wants them.
            details.group open[!came] {
                summary.plain { (heading(about, states)) @if came { " " (chip(Tone::Good, "new")) } " " span.quiet { (changes.len()) " fields" } }
                ul.changes { @for change in changes { li {
                    code { (text::inline(change.field.get(about.len()..).unwrap_or(&change.field).trim_start_matches('.'))) }
                    span { (value("before", change.before.as_ref())) " " span aria-hidden="true" { "→" } " " (value("after", change.after.as_ref())) }
                } } }
            }
        }
    }
}

/// What a group is about: a turn by its number, a call by its tool, else the conversation.
fn heading(about: &str, states: [Option<&Value>; 2]) -> Markup {
    let (kind, id) = about.trim_end_matches(']').split_once('[').unwrap_or(("", ""));
    let is_it = |item: &&Value| ["id", "tool_call_id"].iter().any(|name| item[*name] == id);
    let item = states.into_iter().flatten().find_map(|state| state[kind].as_array()?.iter().find(is_it));
    let field = |name: &str| item.map(|item| plain(&item[name])).unwrap_or_default();
    html! {
        @match kind {
            "turns" => { strong { "Turn " (field("sequence_no")) } " " },
            "tool_calls" => { strong { "Tool call " (text::inline(&field("tool"))) } " " },
            _ => strong { "The conversation" },
        }
        @if !id.is_empty() { code.quiet { (text::inline(id)) } }
    }
}

fn value(when: &str, value: Option<&Value>) -> Markup {
    html! {
        span.visually-hidden { (when) ": " }
        @match (value, when) {
            (None, _) => span.quiet { "nothing" },
            (Some(value), "before") => del { (text::cut(&plain(value), VALUE_CHARS)) },
            (Some(value), _) => ins { (text::cut(&plain(value), VALUE_CHARS)) },
        }
    }
}

fn is_nothing(value: Option<&Value>) -> bool {
    value.is_none_or(|value| value.is_null() || *value == json!([]) || *value == json!({}))
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
