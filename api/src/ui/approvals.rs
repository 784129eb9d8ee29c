//! What waits for a person's decision, over all conversations; answered here by the one whose it is.

use super::audit::parts::{chat_link, history_link, path_segment, run_link};
use super::components::{Tone, chip, empty, facts, id, time};
use super::error::PageResult;
use super::layout::{Page, Section};
use super::session::to;
use super::{Viewer, grants, text};
use crate::error::ApiError;
use crate::http::access::{Subject, record};
use crate::http::grants::take_back;
use crate::runs::prepare::prepare_resume;
use crate::state::App;
use axum::Router;
use axum::extract::{Form, Query, State};
use axum::response::Response;
use axum::routing::{get, post};
use devmind_domain::ErrorCode;
use devmind_projections::InboxRow;
use maud::{Markup, html};
use serde::Deserialize;
use std::sync::Arc;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/approvals", get(show).post(answer)).route("/approvals/revoke", post(revoke))
}

/// Whose.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Whose {
    everybody: Option<u8>,
}

async fn show(State(app): State<Arc<App>>, viewer: Viewer, Query(query): Query<Whose>) -> PageResult {
    let caller = &viewer.caller;
    let everybody = query.everybody.is_some();
    if everybody && !caller.role.reads_all() {
        return Err(ApiError::of(ErrorCode::Forbidden).into());
    }
    app.caught_up(&["conversation"]).await?;
    let rows = app.views.open_approvals((!everybody).then_some(&caller.user_id)).await?;
    let others = rows
        .iter()
        .filter(|row| row.user_id != caller.user_id)
        .map(|row| Subject::Conversation(row.conversation_id.clone()));
    record(&app, caller, others.collect::<std::collections::BTreeSet<_>>(), "approvals").await?;
    let allowed = grants::list(&app, caller, (!everybody).then_some(&caller.user_id)).await?;
    let content = html! {
        h1 { "Approvals" }
        @if caller.role.reads_all() {
            nav.tabs aria-label="Whose" {
                a href="/approvals" aria-current=[(!everybody).then_some("page")] { "Yours" }
                a href="/approvals?everybody=1" aria-current=[everybody.then_some("page")] { "Everybody's" }
            }
        }
        @if rows.is_empty() { (empty("Nothing waits", html! { "When a run needs a decision before it calls a tool, it stands here." })) }
        @for row in &rows { (card(row, row.user_id == caller.user_id && caller.role.changes())) }
        (grants::shown(&allowed, caller))
    };
    Ok(Page::new("Approvals", Section::Approvals).style("audit.css").script("audit.js").show(&viewer, content))
}

fn card(row: &InboxRow, own: bool) -> Markup {
    let InboxRow { approval, .. } = row;
    let title = format!("approval-{}", path_segment(approval.interrupt_id.as_str()));
    let arguments = serde_json::to_string_pretty(&approval.arguments).unwrap_or_default();
    html! {
        section.card aria-labelledby=(title) {
            h2 id=(title) { (text::inline(&approval.tool)) " " (chip(Tone::Person, "waits for a decision")) }
            p { (text::cut(&approval.message, 500)) }
            (text::code(&arguments, &format!("/log/{}", row.raised_position)))
            (facts(&[
                ("Conversation", html! { a href=(history_link(row.conversation_id.as_str())) { (text::inline(&row.title)) } }),
                ("Run", html! { a href=(run_link(row.run_id.as_str())) { "its timeline" } }),
                ("Asked", html! { a href=(format!("/log/{}", row.raised_position)) { (time(row.raised_at)) } " of " (text::inline(row.user_id.as_str())) }),
                ("Until", html! { @match approval.expires_at { Some(at) => (time(at)), None => "whenever" } }),
                ("Counts for", html! { "this call with exactly these arguments, once " (id(&row.arguments_hash)) }),
            ]))
            @if own {
                form.buttons method="post" action="/approvals" {
                    input type="hidden" name="interrupt_id" value=(approval.interrupt_id.as_str());
                    button.danger type="submit" name="approved" value="false" { "Refuse" }
                    button type="submit" name="approved" value="true" { "Allow once" }
                }
                (grants::offer(approval, "/approvals"))
            } @else { p.quiet { "Its owner decides." } }
        }
    }
}

/// A decision.
#[derive(Deserialize)]
struct Decision {
    interrupt_id: String,
    approved: bool,
    #[serde(default)]
    grant: String,
}

async fn answer(State(app): State<Arc<App>>, viewer: Viewer, Form(decision): Form<Decision>) -> PageResult<Response> {
    if !viewer.caller.role.changes() {
        return Err(ApiError::of(ErrorCode::ReadOnlyRole).into());
    }
    // The same key as the conversation's page has: whichever is pressed first counts, pressing twice is once.
    let key = format!("approval:{}", decision.interrupt_id);
    let decisions = vec![(decision.interrupt_id.as_str().into(), decision.approved)];
    let grants = grants::read(&decision.grant)?.map(|grant| (decision.interrupt_id.as_str().into(), grant));
    let grants = grants.into_iter().collect();
    let prepared = prepare_resume(&app, &viewer.caller.user_id, key, decisions, grants).await?;
    super::chat::go_on(&app, &viewer.caller.user_id, &prepared).await?;
    Ok(to(&chat_link(prepared.conversation_id.as_str())))
}

/// What is to count no more.
#[derive(Deserialize)]
struct Revocation {
    conversation_id: String,
    grant_id: String,
}

async fn revoke(State(app): State<Arc<App>>, viewer: Viewer, Form(which): Form<Revocation>) -> PageResult<Response> {
    if !viewer.caller.role.changes() {
        return Err(ApiError::of(ErrorCode::ReadOnlyRole).into());
    }
    let (id, grant) = (which.conversation_id.into(), which.grant_id.into());
    take_back(&app, &viewer.caller.user_id, &id, &grant).await?;
    Ok(to("/approvals#grants"))
}
