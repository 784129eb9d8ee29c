//! What an auditor sees: the log, one event, a run's timeline, a conversation at any time and what changed between
//! two, the check of the whole log, bundles. Everything here reads; nothing acts.
//!
//! Every page is a document: filters, pages, positions are in its address. `api/ui/audit.js` adds following live and
//! keys.

mod bundles;
mod conversation;
mod event;
mod groups;
mod lanes;
mod log;
pub mod parts;
mod run;
mod timeline;
mod verify;

pub use bundles::Kept;
pub use verify::Verification;

use crate::state::App;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::get;
use std::sync::Arc;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/log", get(log::show))
        .route("/log/stream", get(log::stream))
        .route("/log/{position}", get(event::show))
        .route("/runs/{run_id}", get(run::show))
        .route("/runs/{run_id}/timeline.json", get(run::json))
        .route("/history/{conversation_id}", get(conversation::show))
        .route("/history/{conversation_id}/changes", get(conversation::changes))
        .route("/verify", get(verify::show).post(verify::begin))
        .route("/bundles/download", get(bundles::download))
        .route("/bundles/shown/{key}", get(bundles::show_kept))
        .route("/bundles/shown/{key}/events/{position}", get(bundles::event))
        .route("/bundles/shown/{key}/runs/{run_id}", get(bundles::run))
        .route(
            "/bundles",
            get(bundles::show).post(bundles::check).layer(DefaultBodyLimit::max(bundles::MAX_BUNDLE_BYTES)),
        )
}
