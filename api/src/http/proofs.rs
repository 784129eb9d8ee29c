//! Proofs about the log: its signed head, that an event is in it, that it only grew. Heads and roots
//! tell nothing about anybody and are everyone's; an event's proof comes with the event, and is for
//! those who may read it.

use super::extract::Query;
use super::ledger::{EventRow, read_event};
use super::openapi::refusals;
use crate::error::{ApiError, ApiResult};
use crate::identity::Caller;
use crate::ids::now;
use crate::state::App;
use axum::Json;
use axum::extract::State;
use devmind_domain::json::MAX_SAFE_INTEGER;
use devmind_domain::{ErrorCode, Timestamp};
use devmind_ledger::proof::{ProveError, RecordError, RecordedCheckpoint};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

/// The log's head under the server's signature.
#[derive(Serialize, ToSchema)]
pub struct CheckpointReply {
    /// The signed note (C2SP tlog-checkpoint): the log's name, its size, its root, the signature.
    checkpoint: String,
    /// The log's name.
    origin: String,
    /// The size that is signed.
    position: u64,
    /// The RFC 6962 root at that size, hexadecimal.
    root: String,
    /// The public key, as C2SP signed-note writes it. Compare it with one that you got otherwise.
    key: String,
    /// SHA-256 of the public key, hexadecimal.
    fingerprint: String,
    /// When it was signed.
    published_at: Timestamp,
}

/// Which event, in a log of which size.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct WhichProof {
    /// The event's position.
    #[param(minimum = 1, maximum = 9_007_199_254_740_991_u64)]
    position: u64,
    /// The size of the log, for example of a checkpoint; absent: the head's, with its checkpoint.
    #[param(minimum = 1, maximum = 9_007_199_254_740_991_u64)]
    size: Option<u64>,
}

/// A route without parameters: any is a mistake.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoParameters {}

/// That an event is in the log.
#[derive(Serialize, ToSchema)]
pub struct InclusionReply {
    /// The event, from whose columns its leaf hash can be computed.
    event: EventRow,
    /// The size of the log.
    size: u64,
    /// Its root, hexadecimal.
    root: String,
    /// The RFC 6962 audit path of leaf `position - 1`, from the leaf upwards, hexadecimal.
    path: Vec<String>,
    /// The signed head of that size; absent when a size was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint: Option<String>,
}

/// From which size to which.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct WhichSizes {
    /// The earlier size.
    #[param(maximum = 9_007_199_254_740_991_u64)]
    from: u64,
    /// The later size; absent: the head's.
    #[param(maximum = 9_007_199_254_740_991_u64)]
    to: Option<u64>,
}

/// That the log of the later size still holds the log of the earlier one, unchanged and first.
#[derive(Serialize, ToSchema)]
pub struct ConsistencyReply {
    from: u64,
    /// Hexadecimal.
    from_root: String,
    to: u64,
    /// Hexadecimal.
    to_root: String,
    /// The RFC 6962 consistency proof, hexadecimal.
    path: Vec<String>,
}

refusals!(Refusals: PERSONAL, QUERY);
refusals!(ProofRefusals: PERSONAL, QUERY; Forbidden, NotFound);
refusals!(ConsistencyRefusals: PERSONAL, QUERY; NotFound);

/// The head of the log now, signed.
#[utoipa::path(get, path = "/api/ledger/checkpoint", tag = "ledger", operation_id = "read_checkpoint",
    responses((status = 200, body = CheckpointReply), Refusals))]
pub async fn checkpoint(
    State(app): State<Arc<App>>,
    _caller: Caller,
    Query(NoParameters {}): Query<NoParameters>,
) -> ApiResult<Json<CheckpointReply>> {
    let RecordedCheckpoint { at, note, checkpoint } = app.checkpoints.publish(now()).await?;
    let key = app.checkpoints.key();
    Ok(Json(CheckpointReply {
        checkpoint: note,
        origin: checkpoint.origin,
        position: checkpoint.size,
        root: hex::encode(checkpoint.root),
        fingerprint: key.fingerprint(),
        key: key.to_string(),
        published_at: at,
    }))
}

/// That the event at a position is in the log, with the event.
#[utoipa::path(get, path = "/api/ledger/proof", tag = "ledger", operation_id = "prove_event",
    params(WhichProof), responses((status = 200, body = InclusionReply), ProofRefusals))]
pub async fn inclusion(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(WhichProof { position, size }): Query<WhichProof>,
) -> ApiResult<Json<InclusionReply>> {
    for (field, value) in [("position", Some(position)), ("size", size)] {
        if value.is_some_and(|value| !(1..=MAX_SAFE_INTEGER).contains(&value)) {
            return Err(ApiError::field(field, format!("must be 1-{MAX_SAFE_INTEGER}")));
        }
    }
    let event = EventRow::of(&*read_event(&app, &caller, position, "ledger_proof").await?);
    let (size, note) = match size {
        Some(size) => (size, None),
        None => {
            let published = app.checkpoints.publish(now()).await?;
            (published.checkpoint.size, Some(published.note))
        }
    };
    let proof = app.checkpoints.prover().inclusion(position, size).await?;
    Ok(Json(InclusionReply { event, size, root: hex::encode(proof.root), path: texts(&proof.path), checkpoint: note }))
}

/// That the log only grew from one size to another.
#[utoipa::path(get, path = "/api/ledger/consistency", tag = "ledger", operation_id = "prove_growth",
    params(WhichSizes), responses((status = 200, body = ConsistencyReply), ConsistencyRefusals))]
pub async fn consistency(
    State(app): State<Arc<App>>,
    _caller: Caller,
    Query(WhichSizes { from, to }): Query<WhichSizes>,
) -> ApiResult<Json<ConsistencyReply>> {
    let to = match to {
        Some(to) => to,
        None => app.ledger.reader().head().await?.position,
    };
    for (field, value) in [("from", from), ("to", to)] {
        if value > MAX_SAFE_INTEGER {
            return Err(ApiError::field(field, format!("must be at most {MAX_SAFE_INTEGER}")));
        }
    }
    if from > to {
        return Err(ApiError::field("from", format!("must be at most `to` ({to})")));
    }
    let proof = app.checkpoints.prover().consistency(from, to).await?;
    Ok(Json(ConsistencyReply {
        from,
        from_root: hex::encode(proof.from_root),
        to,
        to_root: hex::encode(proof.to_root),
        path: texts(&proof.path),
    }))
}

fn texts(path: &[[u8; 32]]) -> Vec<String> {
    path.iter().map(hex::encode).collect()
}

impl From<ProveError> for ApiError {
    fn from(error: ProveError) -> Self {
        match error {
            ProveError::OutOfRange { .. } => Self::new(ErrorCode::NotFound, error.to_string()),
            ProveError::Ledger(error) => error.into(),
        }
    }
}

impl From<RecordError> for ApiError {
    fn from(error: RecordError) -> Self {
        Self::internal(error.code(), &error)
    }
}
