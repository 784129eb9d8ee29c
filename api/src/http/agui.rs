//! `POST /api/agui`: prepare and claim in one request, for stock AG-UI clients that mint their own ids.
//!
//! A client's thread is a conversation of its user: the one of that id, or one whose id is made from
//! user and thread. A client's run id is the idempotency key, so the same run again is refused. Ids
//! are echoed as the client sent them.

use super::agent::stream_response;
use super::extract::Body;
use super::openapi::{RunStreamFrame, refusals};
use crate::agui::{Audience, RunAgentInput};
use crate::error::{ApiError, ApiResult};
use crate::identity::Author;
use crate::runs::prepare::{Prepared, Question, prepare_resume, prepare_turn};
use crate::runs::{start, stop};
use crate::state::App;
use axum::extract::State;
use axum::response::Response;
use devmind_domain::ErrorCode;
use devmind_domain::canonical::sha256_hex;
use devmind_domain::ids::{ConversationId, InterruptId, UserId};
use devmind_domain::limits::MAX_CONTENT_CHARS;
use std::sync::Arc;

refusals!(Refusals: PERSONAL, CHANGE;
    Forbidden, ConversationNotFound, RunNotFound, RunInProgress, TurnWaitingApproval, IdempotencyConflict,
    InterruptMismatch, InterruptNotFound, InterruptAlreadyResolved, InterruptClosed, InterruptExpired,
    RunAlreadyClaimed, RunNotActive);

/// Prepares and claims a run in one request, for stock AG-UI clients that make their own ids.
///
/// The last message is the question, or `resume` answers every open approval of the thread.
#[utoipa::path(post, path = "/api/agui", tag = "runs", operation_id = "run_agui",
    request_body = RunAgentInput,
    responses((status = 200, description = "The run's AG-UI events, one a frame. A client that goes away stops it.",
        content_type = "text/event-stream", body = RunStreamFrame), Refusals))]
pub async fn run(
    State(app): State<Arc<App>>,
    Author(user): Author,
    Body(input): Body<RunAgentInput>,
) -> ApiResult<Response> {
    let conversation_id = conversation_of(&app, &user, &input.thread_id).await?;
    let key = format!("agui:{}", sha256_hex(format!("{}/{}", input.thread_id, input.run_id).as_bytes()));
    let prepared = match answers(&input)? {
        Some(decisions) => prepare_resume(&app, &user, key, decisions).await?,
        None => ask(&app, &user, key, conversation_id, &input).await?,
    };
    let Some(run_id) = prepared.run_id else {
        let message = "resume must answer every open approval of the thread";
        return Err(ApiError::new(ErrorCode::InterruptMismatch, message));
    };
    app.caught_up(&["conversation"]).await?;
    let run = app.views.find_run(&run_id).await?.ok_or_else(|| ApiError::of(ErrorCode::RunNotFound))?;
    let audience =
        Audience { declared: input.protocol_version.is_some(), thread_id: input.thread_id, run_id: input.run_id };
    start(&app, run, audience).await.map(stream_response)
}

async fn ask(
    app: &App,
    user: &UserId,
    key: String,
    conversation_id: ConversationId,
    input: &RunAgentInput,
) -> ApiResult<Prepared> {
    let content = input.question().unwrap_or_default();
    if content.trim().is_empty() || content.chars().count() > MAX_CONTENT_CHARS {
        let problem = format!("must end with a user message of 1-{MAX_CONTENT_CHARS} characters");
        return Err(ApiError::field("messages", problem));
    }
    // A client that steers away abandons its open approvals together with a new message.
    if !input.resume.is_empty() {
        abandon(app, user, input).await?;
    }
    let question = Question { content, conversation_id: Some(conversation_id), must_exist: false, device_id: None };
    prepare_turn(app, user, key, question).await
}

/// The user's conversation that a client's thread stands for.
async fn conversation_of(app: &App, user: &UserId, thread_id: &str) -> ApiResult<ConversationId> {
    app.caught_up(&["conversation"]).await?;
    let named = ConversationId::from(thread_id);
    if app.views.conversation_owner(&named).await?.as_ref() == Some(user) {
        return Ok(named);
    }
    Ok(format!("agui-{}", &sha256_hex(format!("{user}/{thread_id}").as_bytes())[..32]).into())
}

/// The answers that the client gives, where it gives answers and nothing else.
fn answers(input: &RunAgentInput) -> ApiResult<Option<Vec<(InterruptId, bool)>>> {
    if input.resume.is_empty() || input.resume.iter().any(|entry| entry.status == "cancelled") {
        return Ok(None);
    }
    let mut decisions = Vec::new();
    for entry in &input.resume {
        let approved = entry.payload.get("approved").and_then(serde_json::Value::as_bool);
        let approved =
            approved.ok_or_else(|| ApiError::field("resume", "payload must be {\"approved\": true or false}"))?;
        decisions.push((entry.interrupt_id.as_str().into(), approved));
    }
    Ok(Some(decisions))
}

/// Stops the interrupted run whose approvals the client abandons: they are cancelled, not refused.
async fn abandon(app: &App, user: &UserId, input: &RunAgentInput) -> ApiResult<()> {
    for entry in &input.resume {
        let id = InterruptId::from(entry.interrupt_id.as_str());
        let Some(run) = app.views.run_of_interrupt(&id).await? else {
            return Err(ApiError::of(ErrorCode::InterruptNotFound));
        };
        stop::stop(app, user, &run).await?;
    }
    Ok(())
}
