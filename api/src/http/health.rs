//! Whether the process lives, and whether it can serve.

use super::openapi::refusals;
use crate::error::ApiError;
use crate::state::App;
use axum::Json;
use axum::extract::State;
use devmind_domain::ErrorCode;
use devmind_projections::ProjectionStatus;
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;
use utoipa::ToSchema;

/// The process lives.
#[derive(Serialize, ToSchema)]
pub struct Alive {
    /// `ok`.
    status: &'static str,
}

/// The process lives.
#[utoipa::path(get, path = "/healthz", tag = "server", operation_id = "liveness", security(()),
    responses((status = 200, body = Alive)))]
pub async fn live() -> Json<Alive> {
    Json(Alive { status: "ok" })
}

/// The process can serve.
#[derive(Serialize, ToSchema)]
pub struct Ready {
    /// `ready`.
    status: &'static str,
    /// The log's head, which the views have reached.
    position: u64,
    /// How each view stands.
    projections: Vec<ProjectionStatus>,
    /// How each MCP server stands; one that is away keeps nobody from serving.
    mcp: Vec<crate::mcp::Status>,
}

refusals!(Refusals: ;
    NotReady, ShuttingDown, LedgerUnavailable, LedgerCorrupt, LedgerSchemaNewer, Internal);

/// The ledger can be read and the views have caught up; otherwise 503, with what is missing in `details`.
#[utoipa::path(get, path = "/readyz", tag = "server", operation_id = "readiness", security(()),
    responses((status = 200, body = Ready), Refusals))]
pub async fn ready(State(app): State<Arc<App>>) -> Result<Json<Ready>, ApiError> {
    if app.stopping.is_cancelled() {
        return Err(ApiError::of(ErrorCode::ShuttingDown));
    }
    if !app.ledger.is_open() {
        return Err(ApiError::new(
            ErrorCode::LedgerUnavailable,
            "the ledger takes no more appends: restart the server",
        ));
    }
    let position = app.ledger.reader().head().await?.position;
    let caught_up = app.views.wait_for(position).await;
    let projections = app.views.status().await?;
    if let Err(error) = caught_up {
        let mut refusal = ApiError::new(ErrorCode::NotReady, error.to_string());
        refusal.details = Some(json!({ "position": position, "projections": projections }));
        return Err(refusal);
    }
    Ok(Json(Ready { status: "ready", position, projections, mcp: app.mcp.status() }))
}
