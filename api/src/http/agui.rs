//! `POST /api/agui`: prepare and claim in one request, for stock AG-UI clients that mint their own ids.
//!
//! A client's thread is a conversation of its user: the one of that id, or one whose id is made from
//! user and thread. A client's run id is the idempotency key, so the same run again is refused. Ids
//! are echoed as the client sent them.

use super::agent::stream_response;
use super::extract::Body;
use super::openapi::{RunStreamFrame, refusals};
use crate::agui::{Audience, ResumeEntry, RunAgentInput};
use crate::error::{ApiError, ApiResult};
use crate::identity::Author;
use crate::runs::prepare::{Prepared, Question, prepare_resume, prepare_turn};
use crate::runs::{start, stop};
use crate::state::App;
use axum::extract::State;
use axum::response::Response;
use devmind_domain::ErrorCode;
use devmind_domain::canonical::sha256_hex;
use devmind_domain::conversation::{Conversation, InterruptStatus, RunStatus};
use devmind_domain::ids::{ConversationId, InterruptId, UserId};
use devmind_domain::limits::MAX_CONTENT_CHARS;
use devmind_ledger::load;
use std::collections::BTreeSet;
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
    let prepared = match intent(&app, &user, &conversation_id, &input).await? {
        Intent::Answer(decisions) => prepare_resume(&app, &user, key, decisions, Vec::new()).await?,
        Intent::Ask { abandon } => ask(&app, &user, key, conversation_id, &input, abandon).await?,
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
    abandon: bool,
) -> ApiResult<Prepared> {
    let content = input.question().unwrap_or_default();
    if content.trim().is_empty() || content.chars().count() > MAX_CONTENT_CHARS {
        let problem = format!("must end with a user message of 1-{MAX_CONTENT_CHARS} characters");
        return Err(ApiError::field("messages", problem));
    }
    // A client that steers away abandons its open approvals together with a new message. Under a key that
    // was used, nothing may change: the first reply is given again, or the request is refused.
    if abandon && app.ledger.reader().idempotent(user.as_str(), &key).await?.is_none() {
        stop_waiting_run(app, user, &conversation_id).await?;
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

/// What a client wants.
enum Intent {
    /// To answer every open approval of the thread.
    Answer(Vec<(InterruptId, bool)>),
    /// To ask a question; open approvals are abandoned with it, or there are none.
    Ask { abandon: bool },
}

/// Reads the client's intent, and refuses what cannot be carried out whole before anything is appended.
async fn intent(
    app: &App,
    user: &UserId,
    conversation_id: &ConversationId,
    input: &RunAgentInput,
) -> ApiResult<Intent> {
    for entry in &input.resume {
        check_belongs(app, user, conversation_id, &entry.interrupt_id).await?;
    }
    let (conversation, _) = load::<Conversation>(app.ledger.reader(), conversation_id.as_str()).await?;
    let interrupts = conversation.latest.as_ref().map(|turn| turn.interrupts.as_slice()).unwrap_or_default();
    let ids = |open_only: bool| {
        let wanted = interrupts.iter().filter(move |own| !open_only || own.status == InterruptStatus::Open);
        wanted.map(|own| own.interrupt_id.as_str()).collect::<BTreeSet<_>>()
    };
    let (known, open) = (ids(false), ids(true));
    // A client carries the answers it gave in every later run until one ends well; those about
    // earlier pauses are history, and with a new question after them all are.
    let entries: Vec<_> = input.resume.iter().filter(|entry| known.contains(entry.interrupt_id.as_str())).collect();
    if entries.is_empty() || open.is_empty() && input.question().is_some() {
        return Ok(Intent::Ask { abandon: false });
    }
    if open.iter().any(|id| !entries.iter().any(|entry| entry.interrupt_id == **id)) {
        let message = "resume must answer every open approval of the thread";
        return Err(ApiError::new(ErrorCode::InterruptMismatch, message));
    }
    match entries.iter().filter(|entry| entry.status == "cancelled").count() {
        0 => entries.into_iter().map(decision).collect::<ApiResult<_>>().map(Intent::Answer),
        all if all == entries.len() => Ok(Intent::Ask { abandon: true }),
        _ => Err(ApiError::field("resume", "answer every approval or cancel every one")),
    }
}

/// Unknown → 404, somebody else's → 403, another thread's → 400.
async fn check_belongs(app: &App, user: &UserId, conversation_id: &ConversationId, id: &str) -> ApiResult<()> {
    match app.views.conversation_of_interrupt(&InterruptId::from(id)).await? {
        None => Err(ApiError::of(ErrorCode::InterruptNotFound)),
        Some(own) if own == *conversation_id => Ok(()),
        Some(other) if app.views.conversation_owner(&other).await?.as_ref() == Some(user) => {
            Err(ApiError::new(ErrorCode::InterruptMismatch, format!("{id} is no approval of this thread")))
        }
        Some(_) => Err(ApiError::of(ErrorCode::Forbidden)),
    }
}

fn decision(entry: &ResumeEntry) -> ApiResult<(InterruptId, bool)> {
    let approved = entry.payload.get("approved").and_then(serde_json::Value::as_bool);
    let approved =
        approved.ok_or_else(|| ApiError::field("resume", "payload must be {\"approved\": true or false}"))?;
    Ok((entry.interrupt_id.as_str().into(), approved))
}

/// Stops the interrupted run whose approvals the client abandons: they are cancelled, not refused.
async fn stop_waiting_run(app: &App, user: &UserId, conversation_id: &ConversationId) -> ApiResult<()> {
    let (conversation, _) = load::<Conversation>(app.ledger.reader(), conversation_id.as_str()).await?;
    let run = conversation
        .latest
        .as_ref()
        .and_then(|turn| turn.run.clone())
        .filter(|run| run.status == RunStatus::Interrupted);
    let Some(run) = run else { return Ok(()) };
    if let Some(row) = app.views.find_run(&run.run_id).await? {
        stop::stop(app, user, &row).await?;
    }
    Ok(())
}
