//! The check of the whole log, asked for by somebody who may read everything: one at a time, in the background, with
//! its progress, and what it found with the first bad position.

use crate::error::{ApiError, ApiResult};
use crate::identity::Caller;
use crate::ids::now;
use crate::state::App;
use crate::ui::components::{Tone, chip, facts, id, time};
use crate::ui::error::PageResult;
use crate::ui::layout::{Page, Section};
use crate::ui::session::to;
use crate::ui::{Viewer, text};
use axum::extract::State;
use axum::response::Response;
use devmind_domain::{ErrorCode, Timestamp};
use devmind_ledger::verify::{Check, Published, VerifyReport, verify};
use maud::{Markup, html};
use std::sync::{Arc, Mutex, PoisonError};

/// The newest check of this process.
#[derive(Default)]
pub struct Verification(Mutex<Option<Stand>>);

/// How far a check is.
#[derive(Clone)]
enum Stand {
    Running { since: Timestamp, done: u64, all: u64 },
    Done { at: Timestamp, report: Arc<VerifyReport>, checkpoints: usize },
    Failed { at: Timestamp, reason: String },
}

impl Verification {
    fn stand(&self) -> Option<Stand> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, stand: Stand) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(stand);
    }

    /// Takes the place of the one check that may run.
    fn begin(&self) -> bool {
        let mut now_at = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*now_at, Some(Stand::Running { .. })) {
            return false;
        }
        *now_at = Some(Stand::Running { since: now(), done: 0, all: 0 });
        true
    }
}

/// Findings name what they are about, whoever's it is.
fn allowed(caller: &Caller) -> ApiResult<()> {
    if caller.role.reads_all() {
        return Ok(());
    }
    let message = "the whole log is for auditors and operators to verify; a bundle of yours verifies anywhere";
    Err(ApiError::new(ErrorCode::Forbidden, message))
}

pub async fn begin(State(app): State<Arc<App>>, viewer: Viewer) -> PageResult<Response> {
    allowed(&viewer.caller)?;
    if app.verification.begin() {
        let task = app.clone();
        drop(tokio::spawn(async move {
            let stand = tokio::select! {
                () = task.stopping.cancelled() => Stand::Failed { at: now(), reason: "the server stopped".to_owned() },
                stand = run(&task) => stand,
            };
            task.verification.set(stand);
        }));
    }
    Ok(to("/verify"))
}

async fn run(app: &App) -> Stand {
    let failed = |error: &dyn std::fmt::Display| Stand::Failed { at: now(), reason: error.to_string() };
    let checkpoints = match app.checkpoints.published() {
        Ok(checkpoints) => checkpoints,
        Err(error) => return failed(&error),
    };
    let key = app.checkpoints.key();
    let since = now();
    let published = Published { key: Some(&key), checkpoints: &checkpoints, ..Published::default() };
    let progress = |done, all| app.verification.set(Stand::Running { since, done, all });
    match verify(app.ledger.reader(), published, progress).await {
        Ok(report) => Stand::Done { at: now(), report: Arc::new(report), checkpoints: checkpoints.len() },
        Err(error) => failed(&error),
    }
}

pub async fn show(State(app): State<Arc<App>>, viewer: Viewer) -> PageResult {
    let page = Page::new("Verify the log", Section::Operations).style("audit.css").script("audit.js");
    let intro = html! {
        h1 { "Verify the log" }
        p { "Reads every event: order, every hash, the Merkle root, the signed checkpoints, and the rules that must hold over the whole history." }
    };
    if let Err(refusal) = allowed(&viewer.caller) {
        return Ok(page.show(&viewer, html! { (intro) (super::super::error::card(&refusal)) p { a.button.quiet href="/bundles" { "To the bundles" } } }));
    }
    let stand = app.verification.stand();
    let running = matches!(stand, Some(Stand::Running { .. }));
    let content = html! {
        (intro)
        div #verification data-running[running] { (told(stand.as_ref())) }
        @if running {
            // Without scripts the reader asks again.
            noscript { p { a.button.quiet href="/verify" { "Look again" } } }
        } @else {
            form method="post" action="/verify" { button type="submit" { @if stand.is_some() { "Verify again" } @else { "Verify now" } } }
        }
        p.hint { "On the server, also with the server stopped: " code { "devmind-replay verify" } ". Who can rewrite the whole file with its key is found only by a checkpoint noted elsewhere: " a href="/api/ledger/checkpoint" { "note one" } "." }
    };
    Ok(page.show(&viewer, content))
}

fn told(stand: Option<&Stand>) -> Markup {
    match stand {
        None => html! { p.quiet { "This process has not verified yet." } },
        Some(Stand::Running { since, done, all }) => html! {
            div.card {
                p { (chip(Tone::Busy, "verifying")) " since " (time(*since)) }
                label for="progress" { (done) @if *all > 0 { " of " (all) } " events" }
                progress #progress value=(done) max=((*all).max(1)) {}
            }
        },
        Some(Stand::Failed { at, reason }) => html! {
            div.card.bad role="alert" { p { (chip(Tone::Bad, "could not be verified")) " " (time(*at)) } p { (text::cut(reason, 1_000)) } }
        },
        Some(Stand::Done { at, report, checkpoints }) => done(*at, report, *checkpoints),
    }
}

fn done(at: Timestamp, report: &VerifyReport, checkpoints: usize) -> Markup {
    let first = report.findings.iter().map(|finding| finding.position).filter(|position| *position > 0).min();
    html! {
        @if report.is_sound() {
            div.card.good role="status" { p { (chip(Tone::Good, "everything holds")) " " (report.position) " events, " (time(at)) } }
        } @else {
            div.card.bad role="alert" {
                p { (chip(Tone::Bad, "does not hold")) " " (report.findings_total) " findings in " (report.position) " events, " (time(at)) }
                @match first {
                    Some(first) => p { strong { "The first bad position is " a href=(format!("/log/{first}")) { (first) } "." } " What stands before it is as it was written." },
                    None => p { "The findings are about the file as a whole." },
                }
                p { "Keep the files as they are, and compare with a copy and with checkpoints that were noted elsewhere." }
            }
        }
        (facts(&[
            ("Root", id(&hex::encode(report.root))),
            ("Compared with", html! { (checkpoints) " signed checkpoints" }),
        ]))
        @if !report.findings.is_empty() {
            h2 { "Findings" }
            ol.rows { @for finding in &report.findings { li {
                @if finding.position > 0 { a href=(format!("/log/{}", finding.position)) { "Event " (finding.position) } ": " }
                strong { (finding.check) } ": " (text::cut(&finding.reason, 500))
            } } }
        }
        h2 { "Checks" }
        ul.checks { @for check in Check::ALL {
            @let broken = report.findings.iter().any(|finding| finding.check == *check);
            li { @if broken { (chip(Tone::Bad, "broken")) } @else { (chip(Tone::Good, "holds")) } " " (check) }
        } }
        @if !report.notes.is_empty() {
            h2 { "Worth knowing" }
            ul.rows { @for note in &report.notes { li { a href=(format!("/log/{}", note.position)) { "Event " (note.position) } ": " (text::cut(&note.text, 500)) } } }
        }
    }
}
