//! A bundle from elsewhere as pages: what checking it found, its events, the timelines of its runs. Nothing of it is
//! in this log, nothing here acts, and no link leads from it into this log.

use super::kept::{Bundle, KEPT_FOR};
use crate::error::{ApiError, ApiResult};
use crate::state::App;
use crate::ui::audit::event::pretty;
use crate::ui::audit::parts::{line_of, path_segment};
use crate::ui::audit::timeline::{Look, Timeline};
use crate::ui::components::{Tone, chip, empty, facts, id, time};
use crate::ui::error::PageResult;
use crate::ui::{Viewer, text};
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use devmind_domain::ErrorCode;
use devmind_domain::conversation::ConversationEvent;
use devmind_domain::event::{DomainEvent, RecordedEvent};
use devmind_domain::ids::RunId;
use devmind_projections::{timeline, timeline_of_run_in};
use maud::{Markup, html};
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::Arc;

/// Events of one page.
const PAGE: usize = 100;
/// Runs of one page.
const RUNS: usize = 50;

/// The address of a kept bundle's pages.
pub(super) fn link(key: &str) -> String {
    format!("/bundles/shown/{}", path_segment(key))
}

fn find(app: &App, viewer: &Viewer, key: &str) -> ApiResult<Arc<Bundle>> {
    app.bundles.find(&viewer.caller.user_id, key).ok_or_else(|| {
        let minutes = KEPT_FOR.as_secs() / 60;
        let message = format!(
            "this bundle is not kept any more (for {minutes} minutes, the two newest of yours): upload it again"
        );
        ApiError::new(ErrorCode::NotFound, message)
    })
}

fn banner(base: &str, bundle: &Bundle) -> Markup {
    html! {
        div.card.doubt.past role="status" {
            p { strong { "You look at a bundle." } " It was read, not taken in: nothing of it is in this log, and nothing here acts." }
            @if bundle.report.findings_total > 0 { p { (chip(Tone::Bad, "does not hold")) " Do not rely on what it says: " a href=(base) { "the findings" } "." } }
        }
    }
}

/// Which page.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Pages {
    /// Of the events: 1, 2, 3 …
    page: Option<usize>,
    /// Of the runs.
    runs: Option<usize>,
}

pub async fn show(
    State(app): State<Arc<App>>,
    viewer: Viewer,
    Path(key): Path<String>,
    Query(pages): Query<Pages>,
) -> PageResult {
    let bundle = find(&app, &viewer, &key)?;
    let base = link(&key);
    let runs = runs(&bundle.events);
    let (run_page, run_pages) = at(pages.runs, runs.len().div_ceil(RUNS));
    let (page, count) = at(pages.page, bundle.events.len().div_ceil(PAGE));
    let own: Vec<_> = bundle.events.iter().skip((page - 1) * PAGE).take(PAGE).cloned().collect();
    let place = |page: usize, runs: usize| format!("{base}?page={page}&runs={runs}");
    let content = html! {
        (banner(&base, &bundle))
        (report(&bundle, &app.checkpoints.key().fingerprint()))
        @if !runs.is_empty() {
            h2 #runs { "Runs" }
            ul.rows { @for run in runs.iter().skip((run_page - 1) * RUNS).take(RUNS) { li {
                a href=(run_link(&base, &run.id)) { (text::cut(&run.question, 120)) } " " span.quiet { "from event " (run.position) }
            } } }
            (paging("Pages of the runs", run_page, run_pages, |at| format!("{}#runs", place(page, at))))
        }
        h2 #events-title { "Events" }
        ol.events #events { @for told in timeline(&own) { (line_of(&told, &format!("{base}/events"))) } }
        (paging("Pages of the events", page, count, |at| format!("{}#events-title", place(at, run_page))))
        p { a.button.quiet href="/bundles" { "Another bundle" } }
    };
    Ok(super::page().show(&viewer, content))
}

/// A page that there is, and how many there are.
fn at(asked: Option<usize>, pages: usize) -> (usize, usize) {
    (asked.unwrap_or(1).clamp(1, pages.max(1)), pages)
}

fn paging(name: &str, page: usize, pages: usize, link: impl Fn(usize) -> String) -> Markup {
    html! {
        @if pages > 1 {
            nav.buttons aria-label=(name) {
                @if page > 1 { a.button.quiet href=(link(page - 1)) rel="prev" { "Earlier" } }
                span { "Page " (page) " of " (pages) }
                @if page < pages { a.button.quiet href=(link(page + 1)) rel="next" { "Later" } }
            }
        }
    }
}

fn report(bundle: &Bundle, own: &str) -> Markup {
    let Bundle { name, report, at, .. } = bundle;
    let first = report.findings.iter().map(|(_, position, _)| *position).filter(|position| *position > 0).min();
    html! {
        h1 { (text::inline(name)) }
        @if report.findings_total == 0 {
            div.card.good {
                p { (chip(Tone::Good, "everything holds")) " " (report.events) " events, unchanged, in a log of " (report.size) "." }
                @if report.fingerprint == own { p { "It was signed by the key of this server." } }
                @else { p { "Whether the key is that of the ledger it should come from, only a fingerprint noted elsewhere can tell." } }
            }
        } @else {
            div.card.bad role="alert" {
                p { (chip(Tone::Bad, "does not hold")) " " (report.findings_total) " findings. Do not rely on what follows." }
                @if let Some(first) = first { p { strong { "The first bad position is " (first) "." } } }
            }
        }
        (facts(&[
            ("What is in it", text::inline(&report.selection)),
            ("Log", text::inline(&report.origin)),
            ("Key", id(&report.fingerprint)),
            ("Root", id(&hex::encode(report.root))),
            ("Erased", html! { (report.redacted.len()) " events" }),
            ("Checked", time(*at)),
        ]))
        @if !report.findings.is_empty() {
            h2 { "Findings" }
            ol.rows { @for (number, position, reason) in &report.findings { li { "Line " (number) @if *position > 0 { ", event " (position) } ": " (text::cut(reason, 400)) } } }
        }
    }
}

struct Run {
    id: RunId,
    position: u64,
    question: String,
}

/// The runs that were prepared in it, in order, with their questions where these are in it, too.
fn runs(events: &[Arc<RecordedEvent>]) -> Vec<Run> {
    let (mut runs, mut questions) = (Vec::new(), HashMap::new());
    let tells = ["TurnPrepared", "TurnRerunPrepared", "RunPrepared"];
    for event in events.iter().filter(|event| tells.contains(&event.event_type.as_str())) {
        for fact in event.decode().unwrap_or_default() {
            let DomainEvent::Conversation(fact) = fact else { continue };
            if let ConversationEvent::TurnPrepared(e) = fact {
                questions.insert(e.turn_id, e.content);
            } else if let ConversationEvent::TurnRerunPrepared(e) = fact {
                questions.insert(e.turn_id, e.content);
            } else if let ConversationEvent::RunPrepared(e) = fact {
                let question = questions.get(&e.turn_id).cloned().unwrap_or_else(|| format!("run {}", e.run_id));
                runs.push(Run { id: e.run_id, position: event.position, question });
            }
        }
    }
    runs
}

fn run_link(base: &str, id: &RunId) -> String {
    format!("{base}/runs/{}", path_segment(id.as_str()))
}

/// The timeline of one of its runs, made of what it holds alone.
pub async fn run(
    State(app): State<Arc<App>>,
    viewer: Viewer,
    Path((key, run_id)): Path<(String, String)>,
    Query(look): Query<Look>,
) -> PageResult {
    let bundle = find(&app, &viewer, &key)?;
    let (base, run_id) = (link(&key), RunId::from(run_id));
    let lines = timeline_of_run_in(&bundle.events, &run_id).await?;
    let (own, events) = (run_link(&base, &run_id), format!("{base}/events"));
    let timeline = Timeline {
        lines: &lines,
        base: &own,
        keep: "",
        events: &events,
        calls: &HashMap::new(),
        file: None,
        live: None,
    };
    let content = html! {
        (banner(&base, &bundle))
        p.crumbs { a href=(base) { (text::inline(&bundle.name)) } }
        h1 { "Run timeline" }
        (facts(&[("Run", id(run_id.as_str())), ("Facts in the bundle", html! { (lines.len()) })]))
        @if lines.is_empty() { (empty("The bundle says nothing of this run", html! { a href=(base) { "What is in it" } })) }
        @else { (timeline.show(&look)) }
    };
    Ok(super::page().show(&viewer, content))
}

/// Whether the payload alone is wanted, as it stands.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Raw {
    raw: Option<u8>,
}

/// One of its events.
pub async fn event(
    State(app): State<Arc<App>>,
    viewer: Viewer,
    Path((key, position)): Path<(String, String)>,
    Query(query): Query<Raw>,
) -> PageResult<Response> {
    let bundle = find(&app, &viewer, &key)?;
    let position: u64 = position.parse().map_err(|_| ApiError::field("position", "must be a number"))?;
    let index = bundle.events.iter().position(|event| event.position == position);
    let absent = || ApiError::new(ErrorCode::NotFound, format!("the bundle has no event {position}"));
    let index = index.ok_or_else(absent)?;
    let event = &bundle.events[index];
    if query.raw.is_some() {
        return Ok(([("content-type", "application/json")], event.payload.clone()).into_response());
    }
    let base = link(&key);
    let place = |at: usize| format!("{base}/events/{}", bundle.events[at].position);
    let raw = format!("{base}/events/{position}?raw=1");
    let told = timeline(std::slice::from_ref(event)).remove(0);
    let run = event.metadata().ok().and_then(|metadata| metadata.correlation_id);
    let mut rows = vec![
        ("Recorded", time(event.recorded_at)),
        ("Type", html! { (text::inline(&event.event_type)) ", version " (event.event_version) }),
        ("Stream", html! { (text::inline(&event.stream.to_string())) ", event " (event.sequence) " of it" }),
        ("Caused by", text::inline(&told.actor)),
        ("Event id", id(&event.event_id)),
        ("Leaf hash", id(&hex::encode(event.leaf_hash))),
    ];
    if let Some(run) = &run {
        rows.push(("Run", html! { a href=(run_link(&base, run)) { (text::inline(run.as_str())) } }));
    }
    let content = html! {
        (banner(&base, &bundle))
        p.crumbs { a href=(format!("{base}?page={}#events-title", index / PAGE + 1)) { (text::inline(&bundle.name)) } }
        h1 { "Event " (position) " " span.quiet { (text::inline(&event.event_type)) } }
        p.lead { (text::cut(&told.text, 500)) }
        nav.buttons aria-label="Neighbours in the bundle" {
            @if index > 0 { a.button.quiet href=(place(index - 1)) data-travel="back" { "◀ " (bundle.events[index - 1].position) } }
            @if index + 1 < bundle.events.len() { a.button.quiet href=(place(index + 1)) data-travel="on" { (bundle.events[index + 1].position) " ▶" } }
        }
        @if event.expected_leaf_hash() != event.leaf_hash { p { (chip(Tone::Bad, "does not hold")) " It is not what was recorded under this leaf hash." } }
        (facts(&rows))
        h2 { "Payload" }
        (text::code(&pretty(&event.payload), &raw))
        h2 { "Metadata" }
        (text::code(&pretty(&event.metadata), &raw))
    };
    Ok(super::page().show(&viewer, content).into_response())
}
