//! The conversations of a person.

use super::components::{empty, status, time};
use super::layout::{Page, Section};
use super::{PageResult, Viewer, text};
use crate::state::App;
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use maud::html;
use std::sync::Arc;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/", get(list))
}

async fn list(State(app): State<Arc<App>>, viewer: Viewer) -> PageResult {
    app.caught_up(&["conversation"]).await?;
    let rows = app.views.conversations(&viewer.caller.user_id).await?;
    let content = html! {
        h1 { "Conversations" }
        @if rows.is_empty() { (empty("There is no conversation yet", html! { "Ask something and it stands here." })) }
        ul.rows {
            @for row in &rows {
                li {
                    a href=(super::audit::parts::history_link(row.id.as_str())) { (text::inline(&row.title)) }
                    " " @if let Some(name) = &row.latest_turn_status { (status(name)) } " " (time(row.updated_at))
                }
            }
        }
    };
    Ok(Page::new("Conversations", Section::Chat).show(&viewer, content))
}
