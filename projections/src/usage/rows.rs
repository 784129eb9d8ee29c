//! What the usage view answers.

use devmind_domain::ids::UserId;
use serde::Serialize;

/// What one model used for one person on one day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsageRow {
    /// The person whose conversations it answered in.
    pub user_id: UserId,
    /// The day, UTC: `2026-11-30`.
    pub day: String,
    /// The model that answered, in the provider's word.
    pub model: String,
    /// Its answers: a run has one a round.
    pub answers: u64,
    /// Those among them whose tokens the provider did not count: the sums lack theirs.
    pub uncounted: u64,
    /// Tokens of the prompts.
    pub input_tokens: u64,
    /// Tokens of the answers.
    pub output_tokens: u64,
    /// Of the prompts' tokens, those served from a cache.
    pub cached_tokens: u64,
    /// Of the answers' tokens, those spent on reasoning.
    pub reasoning_tokens: u64,
}
