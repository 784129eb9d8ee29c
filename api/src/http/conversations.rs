//! Conversations and their turns; asking a question.

use super::extract::{Body, Query, checked_id};
use crate::error::{ApiError, ApiResult};
use crate::identity::User;
use crate::runs::prepare::{Prepared, Question, prepare_turn};
use crate::state::App;
use axum::Json;
use axum::extract::State;
use devmind_domain::ErrorCode;
use devmind_domain::ids::{ConversationId, UserId};
use devmind_domain::limits::{MAX_CONTENT_CHARS, MAX_IDEMPOTENCY_KEY_CHARS};
use devmind_projections::{ConversationRow, TurnRow};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The user's conversations, newest first.
pub async fn list(State(app): State<Arc<App>>, User(user): User) -> ApiResult<Json<Vec<ConversationRow>>> {
    app.caught_up(&["conversation", "tool_call"]).await?;
    Ok(Json(app.views.conversations(&user).await?))
}

/// Which conversation.
#[derive(Deserialize)]
pub struct OfConversation {
    conversation_id: ConversationId,
}

/// A conversation's turns, oldest first.
pub async fn turns(
    State(app): State<Arc<App>>,
    User(user): User,
    Query(query): Query<OfConversation>,
) -> ApiResult<Json<Vec<TurnRow>>> {
    app.caught_up(&["conversation", "tool_call"]).await?;
    check_owner(&app, &query.conversation_id, &user).await?;
    Ok(Json(app.views.turns(&query.conversation_id).await?))
}

/// Unknown → 404, somebody else's → 403.
///
/// # Errors
/// `CONVERSATION_NOT_FOUND`, `FORBIDDEN`.
pub async fn check_owner(app: &App, conversation_id: &ConversationId, user: &UserId) -> ApiResult<()> {
    match app.views.conversation_owner(conversation_id).await? {
        None => Err(ApiError::of(ErrorCode::ConversationNotFound)),
        Some(owner) if owner != *user => Err(ApiError::of(ErrorCode::Forbidden)),
        Some(_) => Ok(()),
    }
}

/// A question.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AskBody {
    content: String,
    idempotency_key: String,
    #[serde(default)]
    conversation_id: Option<String>,
    #[serde(default)]
    device_id: Option<String>,
}

/// Prepares a turn: appends the question and a queued run, and answers their ids.
pub async fn ask(
    State(app): State<Arc<App>>,
    User(user): User,
    Body(body): Body<AskBody>,
) -> ApiResult<Json<Prepared>> {
    let characters = body.content.chars().count();
    if body.content.trim().is_empty() || characters > MAX_CONTENT_CHARS {
        return Err(ApiError::field("content", format!("must have 1-{MAX_CONTENT_CHARS} characters")));
    }
    let key_characters = body.idempotency_key.chars().count();
    if !(1..=MAX_IDEMPOTENCY_KEY_CHARS).contains(&key_characters) {
        return Err(ApiError::field("idempotency_key", format!("must have 1-{MAX_IDEMPOTENCY_KEY_CHARS} characters")));
    }
    if let Some(id) = &body.conversation_id {
        checked_id("conversation_id", id)?;
    }
    if let Some(id) = &body.device_id {
        checked_id("device_id", id)?;
    }
    let question = Question {
        user_id: user,
        content: body.content,
        conversation_id: body.conversation_id.map(Into::into),
        device_id: body.device_id.map(Into::into),
        idempotency_key: body.idempotency_key,
    };
    prepare_turn(&app, question).await.map(Json)
}
