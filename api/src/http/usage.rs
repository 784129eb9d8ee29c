//! What models used, for each person, day and model.

use super::access::whose;
use super::extract::Query;
use super::fields::{Day, UserName};
use super::openapi::refusals;
use crate::error::{ApiError, ApiResult};
use crate::identity::Caller;
use crate::state::App;
use axum::Json;
use axum::extract::State;
use devmind_domain::ErrorCode;
use devmind_projections::UsageRow;
use serde::Deserialize;
use std::sync::Arc;
use utoipa::IntoParams;

/// Whose usage, and when.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct Which {
    /// Another person's, for auditors and operators; absent: one's own.
    user_id: Option<UserName>,
    /// Everybody's, for auditors and operators.
    #[serde(default)]
    #[param(default = false)]
    everybody: bool,
    /// The first day, UTC.
    from: Option<Day>,
    /// The last day, UTC.
    to: Option<Day>,
}

refusals!(ListRefusals: PERSONAL, QUERY; Forbidden);

/// Tokens by person, day (UTC) and model, the newest day first, at most 1,000 rows.
#[utoipa::path(get, path = "/api/usage", tag = "server", operation_id = "list_usage",
    params(Which), responses((status = 200, body = Vec<UsageRow>), ListRefusals))]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(query): Query<Which>,
) -> ApiResult<Json<Vec<UsageRow>>> {
    let Which { user_id, everybody, from, to } = query;
    let owner = match (everybody, user_id) {
        (true, Some(_)) => {
            return Err(ApiError::new(ErrorCode::ValidationFailed, "user_id and everybody exclude each other"));
        }
        (true, None) if !caller.role.reads_all() => return Err(ApiError::of(ErrorCode::Forbidden)),
        (true, None) => None,
        (false, named) => Some(whose(&caller, named.map(|name| name.as_str().into()))?),
    };
    app.caught_up(&["usage"]).await?;
    let (from, to) = (from.as_ref().map(Day::as_str), to.as_ref().map(Day::as_str));
    // Figures, of no conversation: such a read is not recorded.
    Ok(Json(app.views.usage(owner.as_ref(), from, to).await?))
}
