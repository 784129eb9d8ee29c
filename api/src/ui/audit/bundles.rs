//! Bundles: a conversation or a run with everything that somebody elsewhere needs to check it, and the other way
//! round: a bundle from elsewhere, checked and shown. What is uploaded is never written to the log.

use super::parts::clock;
use crate::error::{ApiError, ApiResult};
use crate::http::ledger::may_read;
use crate::ids::now;
use crate::state::App;
use crate::ui::components::{Tone, chip, facts, id};
use crate::ui::error::{PageError, PageResult, card};
use crate::ui::layout::{Page, Section};
use crate::ui::{Viewer, text};
use axum::body::Body;
use axum::extract::{Multipart, Query, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use devmind_domain::ErrorCode;
use devmind_ledger::EventFilter;
use devmind_ledger::bundle::{BundleError, BundleReport, Selection, export_bundle, read_bundle};
use devmind_projections::{TimelineLine, timeline};
use maud::{Markup, html};
use serde::Deserialize;
use std::io::{BufReader, Write as _};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Bytes of an uploaded bundle, at most; larger ones are for `devmind-replay verify`.
pub const MAX_BUNDLE_BYTES: usize = 32 << 20;
/// Events of an uploaded bundle that are shown, at most.
const MAX_SHOWN: usize = 200;
/// Characters of the payload of such an event, at most; the file has it all.
const MAX_PAYLOAD_CHARS: usize = 2_000;
/// An upload must be complete within this time.
const UPLOAD_WITHIN: Duration = Duration::from_secs(60);
/// Bundles that are written or checked at a time.
static AT_ONCE: Semaphore = Semaphore::const_new(2);

/// What to take along: one of the two.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Which {
    conversation_id: String,
    run_id: String,
}

pub async fn show(viewer: Viewer) -> PageResult {
    Ok(page().show(&viewer, forms(&viewer)))
}

fn page() -> Page<'static> {
    Page::new("Bundles", Section::Bundles).style("audit.css").script("audit.js")
}

fn forms(viewer: &Viewer) -> Markup {
    html! {
        h1 { "Bundles" }
        p { "A bundle holds events with their proofs and the signed head of the log. Anybody can check it, without this server." }
        div.two {
            form.card method="get" action="/bundles/download" {
                h2 { "Take along" }
                label for="conversation_id" { "A conversation" }
                input #conversation_id name="conversation_id" maxlength="200" autocomplete="off";
                label for="run_id" { "or a run" }
                input #run_id name="run_id" maxlength="200" autocomplete="off";
                p.hint { "Their pages have a button for it. The whole log: " code { "devmind-replay export FILE" } @if !viewer.caller.role.reads_all() { ", on the server" } "." }
                button type="submit" { "Download" }
            }
            form.card method="post" action="/bundles" enctype="multipart/form-data" {
                h2 { "Check one" }
                label for="bundle" { "A bundle of this or another ledger" }
                input #bundle type="file" name="bundle" accept=".jsonl,application/jsonl" required;
                p.hint { "Up to " (MAX_BUNDLE_BYTES >> 20) " MiB. It is checked and shown, and nothing of it is kept." }
                button type="submit" { "Check and show" }
            }
        }
    }
}

/// Writes a bundle and sends it.
pub async fn download(State(app): State<Arc<App>>, viewer: Viewer, Query(which): Query<Which>) -> PageResult<Response> {
    let (conversation, run) = (which.conversation_id.trim(), which.run_id.trim());
    let (filter, words, name) = match (conversation.is_empty(), run.is_empty()) {
        (false, true) => {
            may_read(&app, &viewer.caller, &conversation.into(), "bundle").await?;
            let filter = EventFilter { conversation_id: Some(conversation.into()), ..EventFilter::default() };
            (filter, format!("conversation {conversation}"), format!("conversation-{conversation}"))
        }
        (true, false) => {
            app.caught_up(&["conversation"]).await?;
            let known = app.views.find_run(&run.into()).await?.ok_or_else(|| ApiError::of(ErrorCode::RunNotFound))?;
            may_read(&app, &viewer.caller, &known.conversation_id, "bundle").await?;
            let filter = EventFilter { run_id: Some(run.into()), ..EventFilter::default() };
            (filter, format!("run {run}"), format!("run-{run}"))
        }
        _ => return Err(ApiError::field("query", "give one of conversation_id, run_id").into()),
    };
    let _turn = AT_ONCE.acquire().await.map_err(|_| ApiError::of(ErrorCode::ShuttingDown))?;
    let checkpoint = app.checkpoints.publish(now()).await.map_err(ApiError::from)?;
    let folder = tempfile::tempdir().map_err(|error| failed(&error))?;
    let file = folder.path().join("bundle.jsonl");
    let (selection, key) = (Selection::Some(Box::new(filter), words), app.checkpoints.key());
    export_bundle(app.ledger.reader(), &selection, &checkpoint, &key, &file, |_, _| {})
        .await
        .map_err(|error| refusal(&error))?;
    let bytes = tokio::fs::read(&file).await.map_err(|error| failed(&error))?;
    // What is no plain character of a file's name is left out.
    let plain: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).take(80).collect();
    let place =
        HeaderValue::from_str(&format!("attachment; filename=\"{plain}.jsonl\"")).map_err(|error| failed(&error))?;
    let headers =
        [(header::CONTENT_TYPE, HeaderValue::from_static("application/jsonl")), (header::CONTENT_DISPOSITION, place)];
    Ok((headers, Body::from(bytes)).into_response())
}

/// Checks an uploaded bundle and shows what is in it.
pub async fn check(State(app): State<Arc<App>>, viewer: Viewer, upload: Multipart) -> PageResult<Response> {
    let _turn = AT_ONCE.acquire().await.map_err(|_| ApiError::of(ErrorCode::ShuttingDown))?;
    let mut file = tempfile::tempfile().map_err(|error| failed(&error))?;
    let read = timeout(UPLOAD_WITHIN, receive(upload, &mut file)).await;
    let name = read.map_err(|_| PageError(ApiError::of(ErrorCode::RequestTimeout)))??;
    let checked = tokio::task::spawn_blocking(move || {
        std::io::Seek::rewind(&mut file)?;
        let mut events = Vec::new();
        let report = read_bundle(BufReader::new(file), |event| {
            if events.len() < MAX_SHOWN {
                events.push(Arc::new(event));
            }
        });
        let payloads = events.iter().map(|event| event.payload.clone()).collect::<Vec<_>>();
        report.map(|report| (report, timeline(&events).into_iter().zip(payloads).collect::<Vec<_>>()))
    });
    let checked = checked.await.map_err(|error| failed(&error))?;
    let own = app.checkpoints.key().fingerprint();
    let content = html! {
        @match &checked {
            Ok((report, lines)) => (told(&name, report, lines, &own)),
            Err(error) => {
                h1 { "This is no sound bundle" }
                (card(&refusal(error)))
                p { "Its name is " (text::inline(&name)) "." }
            },
        }
        p { a.button.quiet href="/bundles" { "Another one" } }
    };
    Ok(page().show(&viewer, content).into_response())
}

async fn receive(mut upload: Multipart, file: &mut std::fs::File) -> ApiResult<String> {
    let broken = |error: axum::extract::multipart::MultipartError| {
        let code = if error.status().as_u16() == 413 { ErrorCode::BodyTooLarge } else { ErrorCode::ValidationFailed };
        ApiError::new(code, error.body_text())
    };
    let Some(mut field) = upload.next_field().await.map_err(broken)? else {
        return Err(ApiError::field("bundle", "choose a file"));
    };
    let name = field.file_name().unwrap_or("bundle").to_owned();
    let mut size = 0;
    while let Some(chunk) = field.chunk().await.map_err(broken)? {
        size += chunk.len();
        file.write_all(&chunk).map_err(|error| failed(&error))?;
    }
    if size == 0 { Err(ApiError::field("bundle", "choose a file")) } else { Ok(name) }
}

fn told(name: &str, report: &BundleReport, lines: &[(TimelineLine, String)], own: &str) -> Markup {
    let sound = report.findings_total == 0;
    let first = report.findings.iter().map(|(_, position, _)| *position).filter(|position| *position > 0).min();
    html! {
        div.card.doubt.past role="status" { p { strong { "You look at a bundle." } " It was read, not taken in: nothing of it is in this log, and nothing here acts." } }
        h1 { (text::inline(name)) }
        @if sound {
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
        ]))
        @if !report.findings.is_empty() {
            h2 { "Findings" }
            ol.rows { @for (number, position, reason) in &report.findings { li { "Line " (number) @if *position > 0 { ", event " (position) } ": " (text::cut(reason, 400)) } } }
        }
        h2 { "Events" }
        @if report.events > MAX_SHOWN as u64 { p.hint { "The first " (MAX_SHOWN) " of " (report.events) "." } }
        ol.groups { @for (told, payload) in lines { li { (event(told, payload)) } } }
    }
}

/// An event of another place: nothing of it leads into this log.
fn event(told: &TimelineLine, payload: &str) -> Markup {
    let at = told.recorded_at.to_string();
    html! {
        details.group {
            summary {
                span.kind { "Event " (told.position) }
                span.words { (text::cut(&told.text, 200)) br; span.by { (text::inline(&told.actor)) " · " (text::inline(&told.event_type)) } }
                span.end { time.clock datetime=(at) { (clock(&at)) } }
            }
            div.payload { pre.code dir="ltr" tabindex="0" { code { (text::cut(payload, MAX_PAYLOAD_CHARS)) } } }
        }
    }
}

fn refusal(error: &BundleError) -> ApiError {
    match error {
        BundleError::Line { .. } | BundleError::Partial => {
            ApiError::new(ErrorCode::ValidationFailed, error.to_string())
        }
        BundleError::NoCheckpoint => ApiError::new(ErrorCode::NotFound, error.to_string()),
        BundleError::NotEmpty | BundleError::Io(_) | BundleError::Ledger(_) | BundleError::Prove(_) => failed(error),
    }
}

fn failed(cause: &dyn std::fmt::Display) -> ApiError {
    ApiError::internal(ErrorCode::Internal, cause)
}
