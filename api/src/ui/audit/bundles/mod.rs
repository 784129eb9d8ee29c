//! Bundles: a conversation or a run with everything that somebody elsewhere needs to check it, and the other way
//! round: a bundle from elsewhere, checked and shown. What is uploaded is never written to the log.

mod kept;
mod shown;

pub use kept::Kept;
pub use shown::{event, run, show as show_kept};

use crate::error::{ApiError, ApiResult};
use crate::http::ledger::may_read;
use crate::ids::now;
use crate::state::App;
use crate::ui::error::{PageError, PageResult, card};
use crate::ui::layout::{Page, Section};
use crate::ui::session::to;
use crate::ui::{Viewer, text};
use axum::body::Body;
use axum::extract::{Multipart, Query, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use devmind_domain::ErrorCode;
use devmind_ledger::EventFilter;
use devmind_ledger::bundle::{BundleError, Selection, export_bundle, read_bundle};
use kept::KEPT_FOR;
use maud::{Markup, html};
use serde::Deserialize;
use std::io::{BufReader, Write as _};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Bytes of an uploaded bundle, at most; larger ones are for `devmind-replay verify`.
pub const MAX_BUNDLE_BYTES: usize = 32 << 20;
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
                p.hint { "Up to " (MAX_BUNDLE_BYTES >> 20) " MiB. It is checked and shown to you alone, kept in memory for at most " (KEPT_FOR.as_secs() / 60) " minutes, and never written to the log." }
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

/// Checks an uploaded bundle, keeps it for a while, and leads to its pages.
pub async fn check(State(app): State<Arc<App>>, viewer: Viewer, upload: Multipart) -> PageResult<Response> {
    let _turn = AT_ONCE.acquire().await.map_err(|_| ApiError::of(ErrorCode::ShuttingDown))?;
    let mut file = tempfile::tempfile().map_err(|error| failed(&error))?;
    let read = timeout(UPLOAD_WITHIN, receive(upload, &mut file)).await;
    let name = read.map_err(|_| PageError(ApiError::of(ErrorCode::RequestTimeout)))??;
    let checked = tokio::task::spawn_blocking(move || {
        std::io::Seek::rewind(&mut file)?;
        let mut events = Vec::new();
        let report = read_bundle(BufReader::new(file), |event| events.push(Arc::new(event)))?;
        Ok((report, events))
    });
    match checked.await.map_err(|error| failed(&error))? {
        Ok((report, events)) => {
            let key = app.bundles.keep(viewer.caller.user_id.clone(), name, report, events);
            Ok(to(&shown::link(&key)))
        }
        Err(error) => {
            let content = html! {
                h1 { "This is no sound bundle" }
                (card(&refusal(&error)))
                p { "Its name is " (text::inline(&name)) "." }
                p { a.button.quiet href="/bundles" { "Another one" } }
            };
            Ok(page().show(&viewer, content).into_response())
        }
    }
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
