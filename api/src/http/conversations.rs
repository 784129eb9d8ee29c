//! Conversations and their turns; asking a question.

use super::access::{Subject, read_conversation, record, whose};
use super::extract::{Body, Query};
use super::fields::{ClientId, Content, IdempotencyKey, SearchText, Title, UserName};
use super::openapi::refusals;
use crate::error::{ApiError, ApiResult};
use crate::identity::{Author, Caller};
use crate::runs::prepare::{Prepared, Question, prepare_rerun, prepare_turn};
use crate::state::App;
use axum::Json;
use axum::extract::State;
use devmind_domain::conversation::{Conversation, ConversationCommand};
use devmind_domain::event::Actor;
use devmind_domain::ids::{ConversationId, UserId};
use devmind_ledger::execute;
use devmind_projections::{ConversationRow, MAX_LISTED_TURNS, SearchHit, TurnRow};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

/// Whose list.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct Whose {
    /// Another person's, for auditors and operators; absent: one's own.
    user_id: Option<UserName>,
}

impl Whose {
    pub(super) fn of(self, caller: &Caller) -> ApiResult<UserId> {
        whose(caller, self.user_id.map(|name| name.as_str().into()))
    }
}

refusals!(ListRefusals: PERSONAL, QUERY; Forbidden);

/// The conversations, newest by their last turn first, at most 100.
#[utoipa::path(get, path = "/api/conversations", tag = "conversations", operation_id = "list_conversations",
    params(Whose), responses((status = 200, body = Vec<ConversationRow>), ListRefusals))]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(query): Query<Whose>,
) -> ApiResult<Json<Vec<ConversationRow>>> {
    let owner = query.of(&caller)?;
    app.caught_up(&["conversation", "tool_call"]).await?;
    let rows = app.views.conversations(&owner).await?;
    if owner != caller.user_id {
        let subjects = rows.iter().map(|row| Subject::Conversation(row.id.clone()));
        record(&app, &caller, subjects, "conversations").await?;
    }
    Ok(Json(rows))
}

/// What to look for, and in whose conversations.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct SearchQuery {
    /// Words, or how they begin; a text that is found has all of them.
    #[param(inline)]
    q: SearchText,
    /// Another person's conversations, for auditors and operators; absent: one's own.
    user_id: Option<UserName>,
}

/// Titles, questions and answers that have every word, the newest first, at most 50.
#[utoipa::path(get, path = "/api/conversations/search", tag = "conversations", operation_id = "search_conversations",
    params(SearchQuery), responses((status = 200, body = Vec<SearchHit>), ListRefusals))]
pub async fn search(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(query): Query<SearchQuery>,
) -> ApiResult<Json<Vec<SearchHit>>> {
    let owner = whose(&caller, query.user_id.map(|name| name.as_str().into()))?;
    app.caught_up(&["search"]).await?;
    let hits = app.views.search(&owner, query.q.as_str()).await?.unwrap_or_default();
    if owner != caller.user_id {
        let conversations: BTreeSet<_> = hits.iter().map(|hit| hit.conversation_id.clone()).collect();
        record(&app, &caller, conversations.into_iter().map(Subject::Conversation), "search").await?;
    }
    Ok(Json(hits))
}

/// Which conversation.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct OfConversation {
    /// The conversation.
    pub(super) conversation_id: ClientId,
}

/// Which turns of a conversation.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct TurnsQuery {
    /// The conversation.
    conversation_id: ClientId,
    /// Only turns before the one with this number.
    before: Option<u32>,
    /// Turns in one answer, at most.
    #[param(minimum = 1, maximum = 500, default = 500)]
    limit: Option<u32>,
}

refusals!(TurnsRefusals: PERSONAL, QUERY; Forbidden, ConversationNotFound);

/// A conversation's turns, oldest first, at most the newest 500, or the last before one of them.
#[utoipa::path(get, path = "/api/turns", tag = "conversations", operation_id = "list_turns",
    params(TurnsQuery), responses((status = 200, body = Vec<TurnRow>), TurnsRefusals))]
pub async fn turns(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(query): Query<TurnsQuery>,
) -> ApiResult<Json<Vec<TurnRow>>> {
    app.caught_up(&["conversation", "tool_call"]).await?;
    let id: ConversationId = query.conversation_id.id();
    let limit = query.limit.unwrap_or(MAX_LISTED_TURNS);
    if !(1..=MAX_LISTED_TURNS).contains(&limit) {
        return Err(ApiError::field("limit", format!("must be 1-{MAX_LISTED_TURNS}")));
    }
    read_conversation(&app, &caller, &id, "turns").await?;
    Ok(Json(app.views.turns_before(&id, query.before, limit).await?))
}

/// A question.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AskBody {
    content: Content,
    idempotency_key: IdempotencyKey,
    /// The conversation; absent: a new one.
    #[serde(default)]
    conversation_id: Option<ClientId>,
    /// The device whose tools may be used.
    #[serde(default)]
    device_id: Option<ClientId>,
}

refusals!(AskRefusals: PERSONAL, CHANGE;
    Forbidden, ConversationNotFound, RunInProgress, TurnWaitingApproval, IdempotencyConflict);

/// Prepares a turn: appends the question and a queued run, and answers their ids.
///
/// The run is executed by `POST /api/agent`.
#[utoipa::path(post, path = "/api/turns", tag = "conversations", operation_id = "ask",
    request_body = AskBody, responses((status = 200, body = Prepared), AskRefusals))]
pub async fn ask(
    State(app): State<Arc<App>>,
    Author(user): Author,
    Body(body): Body<AskBody>,
) -> ApiResult<Json<Prepared>> {
    let question = Question {
        content: body.content.into(),
        must_exist: body.conversation_id.is_some(),
        conversation_id: body.conversation_id.map(ClientId::id),
        device_id: body.device_id.map(ClientId::id),
    };
    prepare_turn(&app, &user, body.idempotency_key.into(), question).await.map(Json)
}

/// The latest turn once more.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RerunBody {
    turn_id: ClientId,
    /// The edited question; absent: the same one is retried.
    #[serde(default)]
    content: Option<Content>,
    idempotency_key: IdempotencyKey,
}

refusals!(RerunRefusals: PERSONAL, CHANGE;
    Forbidden, ConversationNotFound, TurnNotFound, TurnNotLatest, RunInProgress, IdempotencyConflict);

/// Prepares the latest turn anew: with `content` it is edited, without it is retried.
#[utoipa::path(post, path = "/api/turns/rerun", tag = "conversations", operation_id = "rerun",
    request_body = RerunBody, responses((status = 200, body = Prepared), RerunRefusals))]
pub async fn rerun(
    State(app): State<Arc<App>>,
    Author(user): Author,
    Body(body): Body<RerunBody>,
) -> ApiResult<Json<Prepared>> {
    let content = body.content.map(String::from);
    prepare_rerun(&app, &user, body.idempotency_key.into(), body.turn_id.id(), content).await.map(Json)
}

/// A new title.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenameBody {
    conversation_id: ClientId,
    title: Title,
}

/// The title as it is now.
#[derive(Debug, Serialize, ToSchema)]
pub struct Renamed {
    conversation_id: String,
    title: String,
}

refusals!(ChangeRefusals: PERSONAL, CHANGE; Forbidden, ConversationNotFound, RunInProgress);

/// Changes a conversation's title.
#[utoipa::path(post, path = "/api/conversations/rename", tag = "conversations", operation_id = "rename_conversation",
    request_body = RenameBody, responses((status = 200, body = Renamed), ChangeRefusals))]
pub async fn rename(
    State(app): State<Arc<App>>,
    Author(user): Author,
    Body(body): Body<RenameBody>,
) -> ApiResult<Json<Renamed>> {
    let (conversation_id, title) = (String::from(body.conversation_id), String::from(body.title));
    let command = ConversationCommand::Rename { user_id: user.clone(), title: title.clone() };
    command_on(&app, &user, &conversation_id, command).await?;
    Ok(Json(Renamed { conversation_id, title }))
}

/// Which conversation to remove.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteBody {
    conversation_id: ClientId,
}

/// What was removed.
#[derive(Debug, Serialize, ToSchema)]
pub struct Deleted {
    conversation_id: String,
    deleted: bool,
}

/// Removes a conversation from the views; the log keeps it.
#[utoipa::path(post, path = "/api/conversations/delete", tag = "conversations", operation_id = "delete_conversation",
    request_body = DeleteBody, responses((status = 200, body = Deleted), ChangeRefusals))]
pub async fn delete(
    State(app): State<Arc<App>>,
    Author(user): Author,
    Body(body): Body<DeleteBody>,
) -> ApiResult<Json<Deleted>> {
    let conversation_id = String::from(body.conversation_id);
    command_on(&app, &user, &conversation_id, ConversationCommand::Delete { user_id: user.clone() }).await?;
    Ok(Json(Deleted { conversation_id, deleted: true }))
}

async fn command_on(app: &App, user: &UserId, id: &str, command: ConversationCommand) -> ApiResult<()> {
    let metadata = app.metadata(Actor::user(user)).conversation(&id.into());
    execute::<Conversation>(&app.ledger, id, &metadata, command, None).await?;
    Ok(())
}
