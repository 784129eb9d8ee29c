//! Figures for Prometheus, read from what is there when they are asked for.
//!
//! They are states (how far, how many) that the ledger, the views and the gateway hold anyway; beside the log this
//! process counts only how long its tool calls took.

use super::openapi::refusals;
use crate::error::{ApiError, ApiResult};
use crate::state::App;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use devmind_domain::ErrorCode;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;

/// The text format that is sent (OpenMetrics 1.0).
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels = Vec<(String, String)>;

refusals!(Refusals: ;
    LedgerUnavailable, LedgerCorrupt, LedgerSchemaNewer, NotReady, Internal);

/// Figures in the OpenMetrics text format.
#[utoipa::path(get, path = "/metrics", tag = "server", operation_id = "metrics", security(()),
    responses((status = 200, description = "Figures in the OpenMetrics text format.",
        content_type = "application/openmetrics-text", body = String), Refusals))]
pub async fn metrics(State(app): State<Arc<App>>) -> ApiResult<Response> {
    let mut registry = Registry::with_prefix("devmind");
    let gauge = |registry: &mut Registry, name: &str, help: &str, value: u64| {
        let gauge = Gauge::<i64>::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(name, help, gauge);
    };
    let position = app.ledger.reader().head().await?.position;
    gauge(&mut registry, "ledger_position", "Events in the log", position);
    gauge(&mut registry, "ledger_open", "Whether the log takes appends", u64::from(app.ledger.is_open()));
    gauge(&mut registry, "runs_active", "Runs that this process executes", app.runs.len() as u64);
    gauge(
        &mut registry,
        "devices_online",
        "Devices with a socket at this process",
        app.gateway.connections.len() as u64,
    );
    gauge(&mut registry, "node_epoch", "Starts of this process", app.claim.epoch);

    let (positions, lags) = (Family::<Labels, Gauge>::default(), Family::<Labels, Gauge>::default());
    let (failed, skipped) = (Family::<Labels, Gauge>::default(), Family::<Labels, Gauge>::default());
    for view in app.views.status().await? {
        let labels = vec![("projection".to_owned(), view.name)];
        let set = |family: &Family<Labels, Gauge>, value: u64| {
            family.get_or_create(&labels).set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        set(&positions, view.position);
        set(&lags, view.lag);
        set(&failed, u64::from(view.failed.is_some()));
        set(&skipped, view.skipped_unknown);
    }
    registry.register("projection_position", "The last event a view has applied", positions);
    registry.register("projection_lag", "Events a view has not applied yet", lags);
    registry.register("projection_failed", "Whether a view stopped at an event", failed);
    registry.register("projection_skipped", "Events of unknown types a view passed", skipped);

    let calls = app.tools.durations().clone();
    registry.register_with_unit("tool_call_duration", "How long tool calls of this process took", Unit::Seconds, calls);

    let mut text = String::new();
    encode(&mut text, &registry).map_err(|error| ApiError::internal(ErrorCode::Internal, &error))?;
    Ok(([(header::CONTENT_TYPE, FORMAT)], text).into_response())
}
