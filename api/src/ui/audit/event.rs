//! One event: what it says, who caused it and in what, what came before and after it, and that it is in the log.

use super::parts::{self, history_link, run_link, take_along};
use crate::error::ApiError;
use crate::http::ledger::read_event;
use crate::ids::now;
use crate::state::App;
use crate::ui::components::{Tone, chip, facts, id, time};
use crate::ui::error::PageResult;
use crate::ui::layout::{Page, Section};
use crate::ui::{Viewer, text, utf8_percent};
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use devmind_domain::event::{Metadata, RecordedEvent};
use devmind_domain::proof::verify_inclusion;
use devmind_domain::redaction::Redacted;
use devmind_ledger::EventFilter;
use devmind_projections::timeline;
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

/// Whether the proof is asked for.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct EventQuery {
    proof: Option<u8>,
}

pub async fn show(
    State(app): State<Arc<App>>,
    viewer: Viewer,
    headers: HeaderMap,
    Path(position): Path<String>,
    Query(query): Query<EventQuery>,
) -> PageResult {
    let position: u64 = position.parse().map_err(|_| ApiError::field("position", "must be a number"))?;
    let event = read_event(&app, &viewer.caller, position, "ledger_event").await?;
    let head = app.ledger.reader().head().await.map_err(ApiError::from)?.position;
    let metadata = event.metadata().ok();
    let told = timeline(std::slice::from_ref(&event)).remove(0);
    let raw = format!("/api/ledger/events?after={}&limit=1", position.saturating_sub(1));
    let around = around(&app, &event, metadata.as_ref()).await?;
    let title = format!("Event {position}");
    let content = html! {
        p.crumbs { a href=(format!("/log?after={}", position.saturating_sub(1))) { "Log" } }
        h1 { (title) " " span.quiet { (text::inline(&event.event_type)) } }
        p.lead { (text::cut(&told.text, 500)) }
        @if let Some(Redacted { by, .. }) = Redacted::parse(&event.payload) {
            div.card.doubt { p { "What this event said was erased: " a href=(format!("/log/{by}")) { "event " (by) } " says why. Its place and its hash are unchanged." } }
        }
        nav.buttons aria-label="Neighbours in the log" {
            @if position > 1 { a.button.quiet href=(format!("/log/{}", position - 1)) data-travel="back" { "◀ " (position - 1) } }
            @if position < head { a.button.quiet href=(format!("/log/{}", position + 1)) data-travel="on" { (position + 1) " ▶" } }
        }
        (columns(&event, metadata.as_ref()))
        h2 { "Payload" }
        (text::code(&pretty(&event.payload), &raw))
        h2 { "Metadata" }
        (text::code(&pretty(&event.metadata), &raw))
        h2 { "Causes and effects" }
        (around)
        h2 #proof { "Proof" }
        @if query.proof.is_some() { (proof(&app, &event).await?) } @else {
            p { "The leaf hash " code.id { (hex::encode(event.leaf_hash)) } " is over everything above." }
            p { a.button.quiet href=(format!("/log/{position}?proof=1#proof")) { "Prove that it is in the log" } }
        }
        (take_along(&viewer.caller, parts::host(&headers), &raw, &format!("devmind-replay log --after {} --limit 1 --json", position.saturating_sub(1))))
    };
    Ok(Page::new(&title, Section::Log).style("audit.css").script("audit.js").show(&viewer, content))
}

fn columns(event: &RecordedEvent, metadata: Option<&Metadata>) -> Markup {
    let stream = event.stream.to_string();
    let mut rows = vec![
        ("Recorded", time(event.recorded_at)),
        (
            "Type",
            html! { a href=(format!("/log?type={}", utf8_percent(&event.event_type))) { (text::inline(&event.event_type)) } ", version " (event.event_version) },
        ),
        (
            "Stream",
            html! { a href=(format!("/log?stream={}", utf8_percent(&stream))) { (text::inline(&stream)) } ", event " (event.sequence) " of it" },
        ),
        ("Event id", id(&event.event_id)),
    ];
    if let Some(metadata) = metadata {
        let actor = metadata.actor.to_string();
        rows.push((
            "Caused by",
            html! { a href=(format!("/log?actor={}", utf8_percent(&actor))) { (text::inline(&actor)) } },
        ));
        if let Some(conversation) = &metadata.conversation_id {
            let place = format!("{}?at={}", history_link(conversation.as_str()), event.position);
            rows.push((
                "Conversation",
                html! { a href=(place) { (text::inline(conversation.as_str())) } ", as it was then" },
            ));
        }
        if let Some(run) = &metadata.correlation_id {
            rows.push(("Run", html! { a href=(format!("{}#p{}", run_link(run.as_str()), event.position)) { (text::inline(run.as_str())) } }));
        }
        if let Some(key) = &metadata.idempotency_key {
            rows.push(("Idempotency key", text::inline(key)));
        }
    }
    facts(&rows)
}

/// The canonical text with line breaks, for the eye; what is no JSON as it stands.
pub fn pretty(text: &str) -> String {
    let value: Option<Value> = serde_json::from_str(text).ok();
    value.and_then(|value| serde_json::to_string_pretty(&value).ok()).unwrap_or_else(|| text.to_owned())
}

/// What led to it and what followed, in its stream, its run and its tool call. All of that belongs to the same
/// conversation or device as the event, so who may read it may read them.
async fn around(app: &App, event: &RecordedEvent, metadata: Option<&Metadata>) -> PageResult {
    let reader = app.ledger.reader();
    let near = reader.stream_page(&event.stream, event.sequence.saturating_sub(2), 3).await?;
    let mut chains = vec![("In its stream", near)];
    if let Some(run) = metadata.and_then(|metadata| metadata.correlation_id.clone()) {
        let filter = EventFilter { run_id: Some(run), ..EventFilter::default() };
        chains.push(("Next in its run", reader.query(&filter, event.position, 3).await?));
    }
    if event.stream.aggregate_type == "tool_call" {
        let filter =
            EventFilter { tool_call_id: Some(event.stream.aggregate_id.as_str().into()), ..EventFilter::default() };
        chains.push(("Everything about its tool call", reader.query(&filter, 0, 20).await?));
    }
    if let Some(cause) = metadata.and_then(|metadata| metadata.causation_id.as_deref()) {
        return Ok(
            html! { p { "Caused by the event with the id " (id(cause)) "." } (chains_of(event.position, &chains)) },
        );
    }
    Ok(chains_of(event.position, &chains))
}

fn chains_of(position: u64, chains: &[(&str, Vec<Arc<RecordedEvent>>)]) -> Markup {
    html! {
        @for (name, events) in chains {
            @if events.iter().any(|event| event.position != position) {
                h3 { (name) }
                ol.chain {
                    @for told in timeline(events) {
                        li aria-current=[(told.position == position).then_some("true")] {
                            @if told.position == position { strong { "Event " (position) ", this one" } }
                            @else { a href=(format!("/log/{}", told.position)) { "Event " (told.position) } }
                            " " (text::cut(&told.text, 160))
                        }
                    }
                }
            }
        }
    }
}

async fn proof(app: &App, event: &RecordedEvent) -> PageResult {
    let published = app.checkpoints.publish(now()).await.map_err(ApiError::from)?;
    let (size, root) = (published.checkpoint.size, published.checkpoint.root);
    let proof = app.checkpoints.prover().inclusion(event.position, size).await.map_err(ApiError::from)?;
    let whole = event.expected_leaf_hash() == event.leaf_hash;
    let held = whole && verify_inclusion(event.position - 1, &event.leaf_hash, size, &proof.path, &root).is_ok();
    let key = app.checkpoints.key();
    Ok(html! {
        @if held {
            div.card.good { p { (chip(Tone::Good, "proven")) " This event, unchanged, is leaf " (event.position - 1) " of the log of " (size) " events that the checkpoint below signs (RFC 6962)." } }
        } @else {
            div.card.bad role="alert" { p { (chip(Tone::Bad, "does not hold")) " The event is not what was recorded. Verify the log, and keep this page." } }
        }
        (facts(&[
            ("Leaf hash", id(&hex::encode(event.leaf_hash))),
            ("Root", id(&hex::encode(root))),
            ("Key", id(&key.fingerprint())),
        ]))
        details { summary { "The path, " (proof.path.len()) " hashes" } ol.mono { @for hash in &proof.path { li.id { (hex::encode(hash)) } } } }
        details { summary { "The signed checkpoint" } (text::code(&published.note, "/api/ledger/checkpoint")) }
        p { a href=(format!("/api/ledger/proof?position={}", event.position)) { "The same as JSON" } ", to check it elsewhere." }
    })
}
