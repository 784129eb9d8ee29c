//! What a person allowed for the whole of a conversation: listed and taken back. It is given with the answer to an
//! approval (`runs::resume`).

use super::access::read_conversation;
use super::conversations::OfConversation;
use super::extract::{Body, Query};
use super::fields::{ClientId, FolderPath};
use super::openapi::refusals;
use crate::error::{ApiError, ApiResult};
use crate::identity::{Author, Caller};
use crate::state::App;
use axum::Json;
use axum::extract::State;
use devmind_domain::conversation::{Conversation, ConversationCommand, ConversationEvent, Grant, GrantScope};
use devmind_domain::event::{Actor, AggregateType, StreamId};
use devmind_domain::ids::{ConversationId, GrantId, UserId};
use devmind_domain::tools::plain_path;
use devmind_domain::{ErrorCode, Timestamp};
use devmind_ledger::{EventFilter, MAX_PAGE_EVENTS, execute, load};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::ToSchema;

/// Which further calls of the tool are allowed, as long as the conversation lasts. Of a tool of high risk there are
/// none.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantBody {
    scope: ScopeName,
    /// For the scope `folder`: the path that was shown is in it, too. `.` is the workspace.
    #[serde(default)]
    folder: Option<FolderPath>,
}

/// How far a grant goes.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScopeName {
    /// Every call of the tool in this version.
    Tool,
    /// Its calls with the `path` that was shown.
    Path,
    /// Its calls with a `path` in this folder or below.
    Folder,
}

impl GrantBody {
    /// As it is recorded of a call with this argument `path`.
    ///
    /// # Errors
    /// `VALIDATION_FAILED`: a folder is named without its scope, or the other way around.
    pub fn scope(self, shown: Option<&str>) -> ApiResult<GrantScope> {
        Ok(match (self.scope, self.folder) {
            (ScopeName::Tool, None) => GrantScope::Tool,
            // Without a path there is nothing that it covers, and the conversation says so.
            (ScopeName::Path, None) => GrantScope::Path { path: shown.map(plain_path).unwrap_or_default() },
            (ScopeName::Folder, Some(folder)) => GrantScope::Folder { path: plain_path(folder.as_str()) },
            (ScopeName::Tool | ScopeName::Path, Some(_)) | (ScopeName::Folder, None) => {
                return Err(ApiError::field("grant", "the scope folder, and no other, names a folder"));
            }
        })
    }
}

/// A grant that counts.
#[derive(Debug, Serialize, ToSchema)]
pub struct GrantRow {
    #[serde(flatten)]
    pub(crate) grant: Grant,
    /// The position of its event.
    pub(crate) position: u64,
    /// When it was given.
    #[schema(value_type = String)]
    pub(crate) given_at: Timestamp,
}

refusals!(GrantsRefusals: PERSONAL, QUERY; Forbidden, ConversationNotFound);

/// What its owner allowed for the whole of a conversation and did not revoke, oldest first, at most 64.
#[utoipa::path(get, path = "/api/conversations/grants", tag = "conversations", operation_id = "list_grants",
    params(OfConversation), responses((status = 200, body = Vec<GrantRow>), GrantsRefusals))]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(query): Query<OfConversation>,
) -> ApiResult<Json<Vec<GrantRow>>> {
    app.caught_up(&["conversation"]).await?;
    let id: ConversationId = query.conversation_id.id();
    read_conversation(&app, &caller, &id, "grants").await?;
    grants_of(&app, &id).await.map(Json)
}

/// The grants of a conversation that count.
///
/// # Errors
/// What the ledger fails with.
pub async fn grants_of(app: &App, id: &ConversationId) -> ApiResult<Vec<GrantRow>> {
    let reader = app.ledger.reader();
    let (conversation, _) = load::<Conversation>(reader, id.as_str()).await?;
    let mut given = BTreeMap::new();
    let filter = EventFilter {
        stream: Some(StreamId::new(AggregateType::Conversation, id.as_str())),
        event_type: Some("ToolGrantGiven".to_owned()),
        ..EventFilter::default()
    };
    let mut after = 0;
    while !conversation.grants.is_empty() {
        let page = reader.query(&filter, after, MAX_PAGE_EVENTS).await?;
        let Some(last) = page.last() else { break };
        after = last.position;
        for event in page {
            let facts = event.decode_as().map_err(|error| ApiError::internal(ErrorCode::Internal, &error))?;
            for fact in facts.iter() {
                if let ConversationEvent::ToolGrantGiven(e) = fact {
                    given.insert(e.grant_id.clone(), (event.position, event.recorded_at));
                }
            }
        }
    }
    let row = |grant: &Grant| {
        let (position, given_at) = given.get(&grant.grant_id).copied()?;
        Some(GrantRow { grant: grant.clone(), position, given_at })
    };
    Ok(conversation.grants.iter().filter_map(row).collect())
}

/// Which grant.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeBody {
    conversation_id: ClientId,
    grant_id: ClientId,
}

/// What counts no more.
#[derive(Debug, Serialize, ToSchema)]
pub struct Revoked {
    grant_id: GrantId,
    revoked: bool,
}

refusals!(RevokeRefusals: PERSONAL, CHANGE; Forbidden, ConversationNotFound, GrantNotFound);

/// Takes back what was allowed for the whole of a conversation. Calls that have not begun are not covered any more.
#[utoipa::path(post, path = "/api/conversations/grants/revoke", tag = "conversations", operation_id = "revoke_grant",
    request_body = RevokeBody, responses((status = 200, body = Revoked), RevokeRefusals))]
pub async fn revoke(
    State(app): State<Arc<App>>,
    Author(user): Author,
    Body(body): Body<RevokeBody>,
) -> ApiResult<Json<Revoked>> {
    let (id, grant_id): (ConversationId, GrantId) = (body.conversation_id.id(), body.grant_id.id());
    take_back(&app, &user, &id, &grant_id).await?;
    Ok(Json(Revoked { grant_id, revoked: true }))
}

/// Revokes a grant, for its owner.
///
/// # Errors
/// `FORBIDDEN`, `GRANT_NOT_FOUND`, and what the ledger fails with.
pub(crate) async fn take_back(app: &App, user: &UserId, id: &ConversationId, grant: &GrantId) -> ApiResult<()> {
    let metadata = app.metadata(Actor::user(user)).conversation(id);
    let command = ConversationCommand::RevokeGrant { user_id: user.clone(), grant_id: grant.clone() };
    execute::<Conversation>(&app.ledger, id.as_str(), &metadata, command, None).await?;
    Ok(())
}
