//! Whether the process lives, and whether it can serve.

use crate::error::ApiError;
use crate::state::App;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use devmind_domain::ErrorCode;
use serde_json::{Value, json};
use std::sync::Arc;

/// The process lives.
pub async fn live() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// The ledger can be read and the views have caught up; otherwise 503 with what is missing.
pub async fn ready(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    if app.stopping.is_cancelled() {
        return Err(ApiError::of(ErrorCode::ShuttingDown));
    }
    let position = app.ledger.reader().head().await?.position;
    let caught_up = app.views.wait_for(position).await.is_ok();
    let projections = app.views.status().await?;
    let body = json!({
        "status": if caught_up { "ready" } else { "not_ready" },
        "position": position,
        "projections": projections,
    });
    let status = if caught_up { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok((status, Json(body)).into_response())
}
