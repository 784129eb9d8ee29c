//! Conversations and their turns; asking a question.

use super::extract::{Body, Query, checked_id};
use crate::error::{ApiError, ApiResult};
use crate::identity::User;
use crate::runs::prepare::{Prepared, Question, prepare_rerun, prepare_turn};
use crate::state::App;
use axum::Json;
use axum::extract::State;
use devmind_domain::ErrorCode;
use devmind_domain::conversation::{Conversation, ConversationCommand};
use devmind_domain::event::Actor;
use devmind_domain::ids::{ConversationId, UserId};
use devmind_domain::limits::{MAX_CONTENT_CHARS, MAX_IDEMPOTENCY_KEY_CHARS, MAX_TITLE_CHARS};
use devmind_ledger::execute;
use devmind_projections::{ConversationRow, TurnRow};
use serde::Deserialize;
use serde_json::{Value, json};
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
#[derive(Debug, Deserialize)]
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
    checked_content(&body.content)?;
    checked_key(&body.idempotency_key)?;
    if let Some(id) = &body.conversation_id {
        checked_id("conversation_id", id)?;
    }
    if let Some(id) = &body.device_id {
        checked_id("device_id", id)?;
    }
    let question = Question {
        content: body.content,
        must_exist: body.conversation_id.is_some(),
        conversation_id: body.conversation_id.map(Into::into),
        device_id: body.device_id.map(Into::into),
    };
    prepare_turn(&app, &user, body.idempotency_key, question).await.map(Json)
}

/// The latest turn once more.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RerunBody {
    turn_id: String,
    #[serde(default)]
    content: Option<String>,
    idempotency_key: String,
}

/// Prepares the latest turn anew: with `content` it is edited, without it is retried.
pub async fn rerun(
    State(app): State<Arc<App>>,
    User(user): User,
    Body(body): Body<RerunBody>,
) -> ApiResult<Json<Prepared>> {
    checked_id("turn_id", &body.turn_id)?;
    checked_key(&body.idempotency_key)?;
    if let Some(content) = &body.content {
        checked_content(content)?;
    }
    prepare_rerun(&app, &user, body.idempotency_key, body.turn_id.into(), body.content).await.map(Json)
}

/// A new title.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenameBody {
    conversation_id: String,
    title: String,
}

/// Changes a conversation's title.
pub async fn rename(
    State(app): State<Arc<App>>,
    User(user): User,
    Body(body): Body<RenameBody>,
) -> ApiResult<Json<Value>> {
    let title = body.title.trim().to_owned();
    if !(1..=MAX_TITLE_CHARS).contains(&title.chars().count()) {
        return Err(ApiError::field("title", format!("must have 1-{MAX_TITLE_CHARS} characters")));
    }
    let command = ConversationCommand::Rename { user_id: user.clone(), title: title.clone() };
    command_on(&app, &user, &body.conversation_id, command).await?;
    Ok(Json(json!({ "conversation_id": body.conversation_id, "title": title })))
}

/// Which conversation to remove.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeleteBody {
    conversation_id: String,
}

/// Removes a conversation from the views; the log keeps it.
pub async fn delete(
    State(app): State<Arc<App>>,
    User(user): User,
    Body(body): Body<DeleteBody>,
) -> ApiResult<Json<Value>> {
    command_on(&app, &user, &body.conversation_id, ConversationCommand::Delete { user_id: user.clone() }).await?;
    Ok(Json(json!({ "conversation_id": body.conversation_id, "deleted": true })))
}

async fn command_on(app: &App, user: &UserId, id: &str, command: ConversationCommand) -> ApiResult<()> {
    checked_id("conversation_id", id)?;
    let metadata = app.metadata(Actor::user(user)).conversation(&id.into());
    execute::<Conversation>(&app.ledger, id, &metadata, command, None).await?;
    Ok(())
}

fn checked_content(content: &str) -> ApiResult<()> {
    if content.trim().is_empty() || content.chars().count() > MAX_CONTENT_CHARS {
        return Err(ApiError::field("content", format!("must have 1-{MAX_CONTENT_CHARS} characters")));
    }
    Ok(())
}

/// A client's key: kept for ever, so it must not be long.
pub(super) fn checked_key(key: &str) -> ApiResult<()> {
    if (1..=MAX_IDEMPOTENCY_KEY_CHARS).contains(&key.chars().count()) {
        return Ok(());
    }
    Err(ApiError::field("idempotency_key", format!("must have 1-{MAX_IDEMPOTENCY_KEY_CHARS} characters")))
}
