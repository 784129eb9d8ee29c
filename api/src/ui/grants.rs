//! What is allowed for the whole of a conversation: offered beside "Allow once" with the exact scopes, listed, taken back.

use super::audit::parts::chat_link;
use super::components::time;
use super::text;
use crate::error::{ApiError, ApiResult};
use crate::http::access::{Subject, record};
use crate::http::grants::{GrantBody, GrantRow, grants_of};
use crate::identity::Caller;
use crate::state::App;
use devmind_domain::conversation::GrantScope;
use devmind_domain::event::Actor;
use devmind_domain::ids::{ConversationId, UserId};
use devmind_domain::tool_call::Risk;
use devmind_domain::tools::{catalogue, plain_path};
use devmind_ledger::{EventFilter, MAX_PAGE_EVENTS};
use devmind_projections::PendingApproval;
use maud::{Markup, html};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Conversations whose grants are listed, at most: those that had one last.
const MAX_CONVERSATIONS: usize = 50;

/// The form that allows more than the one call; nothing for tools of high risk, which are always asked about.
pub(super) fn offer(approval: &PendingApproval, action: &str) -> Markup {
    if catalogue().get(&approval.tool).is_some_and(|tool| tool.risk == Risk::High) {
        return html! {};
    }
    let path = approval.arguments["path"].as_str().map(plain_path);
    let folder = path.as_deref().map(|path| path.rsplit_once('/').map_or(".", |(folder, _)| folder));
    let field = format!("grant-{}", approval.interrupt_id);
    html! {
        details.grant {
            summary { "Allow for this conversation" span.visually-hidden { ": " (text::inline(&approval.tool)) } }
            form method="post" action=(action) data-act {
                input type="hidden" name="interrupt_id" value=(approval.interrupt_id);
                input type="hidden" name="approved" value="true";
                label for=(field) { "Without asking again, until you take it back:" }
                select id=(field) name="grant" data-kept {
                    @if let Some(path) = &path { option value="path" { (approval.tool) ", only with the path " (text::plain(path)) } }
                    @if let Some(folder) = folder.filter(|folder| !folder.is_empty()) {
                        option value=(format!("folder:{folder}")) { (approval.tool) ", in " @if folder == "." { "the whole workspace" } @else { "the folder " (text::plain(folder)) " and below" } }
                    }
                    option value="tool" { (approval.tool) ", every call" }
                }
                p.hint { "It counts in this conversation alone. What your computer asks by itself, it still asks. " a href="/approvals#grants" { "What is allowed" } " can be taken back." }
                button.quiet type="submit" { "Allow for this conversation" }
            }
        }
    }
}

/// What the form sent: `tool`, `path`, or `folder:` and the folder, read as the API reads it; empty is none.
pub(super) fn read(grant: &str) -> ApiResult<Option<GrantBody>> {
    let body = match grant.split_once(':') {
        None if grant.is_empty() => return Ok(None),
        None => json!({ "scope": grant }),
        Some((scope, folder)) => json!({ "scope": scope, "folder": folder }),
    };
    serde_json::from_value(body).map(Some).map_err(|error| ApiError::field("grant", error.to_string()))
}

/// What counts, by conversation: of one person, or of everybody.
pub(super) async fn list(
    app: &Arc<App>,
    caller: &Caller,
    of: Option<&UserId>,
) -> ApiResult<Vec<(ConversationId, UserId, String, Vec<GrantRow>)>> {
    let filter = EventFilter {
        event_type: Some("ToolGrantGiven".to_owned()),
        actor: of.map(|user| Actor::user(user).to_string()),
        ..EventFilter::default()
    };
    let (mut after, mut newest): (u64, Vec<ConversationId>) = (0, Vec::new());
    loop {
        let page = app.ledger.reader().query(&filter, after, MAX_PAGE_EVENTS).await?;
        let Some(last) = page.last() else { break };
        after = last.position;
        for event in &page {
            let id = ConversationId::from(event.stream.aggregate_id.clone());
            newest.retain(|known| *known != id);
            newest.push(id);
        }
    }
    let (mut found, mut others) = (Vec::new(), BTreeSet::new());
    for id in newest.into_iter().rev().take(MAX_CONVERSATIONS) {
        let Some((owner, title, false)) = app.views.conversation_row(&id).await? else { continue };
        let grants = grants_of(app, &id).await?;
        if grants.is_empty() {
            continue;
        }
        if owner != caller.user_id {
            others.insert(Subject::Conversation(id.clone()));
        }
        found.push((id, owner, title, grants));
    }
    record(app, caller, others, "grants").await?;
    Ok(found)
}

/// The list, with a button for what is the reader's own.
pub(super) fn shown(found: &[(ConversationId, UserId, String, Vec<GrantRow>)], caller: &Caller) -> Markup {
    html! {
        h2 #grants { "Allowed for a conversation" }
        @if found.is_empty() { p.quiet { "Nothing is: each call that needs a person is asked about." } }
        @for (id, owner, title, grants) in found {
            h3 { a href=(chat_link(id.as_str())) { (text::inline(title)) } @if *owner != caller.user_id { " of " (text::inline(owner.as_str())) } }
            ul.rows { @for GrantRow { grant, position, given_at } in grants { li {
                strong { (text::inline(&grant.tool)) } " version " (text::inline(&grant.tool_version)) ", "
                @match &grant.scope {
                    GrantScope::Tool => { "every call" }
                    GrantScope::Path { path } => { "only with the path " code { (text::inline(path)) } }
                    GrantScope::Folder { path } => { "in the folder " code { (text::inline(path)) } " and below" }
                }
                p.hint { a href=(format!("/log/{position}")) { "given" } " " (time(*given_at)) }
                @if *owner == caller.user_id && caller.role.changes() {
                    form.buttons method="post" action="/approvals/revoke" {
                        input type="hidden" name="conversation_id" value=(id);
                        input type="hidden" name="grant_id" value=(grant.grant_id);
                        button.danger type="submit" { "Take back" span.visually-hidden { " what is allowed of " (text::inline(&grant.tool)) } }
                    }
                }
            } } }
        }
    }
}
