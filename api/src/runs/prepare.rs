//! Preparing: append what a person wants — a question, an edit, an answer to an approval — and a
//! queued run, once for each idempotency key.

use crate::error::{ApiError, ApiResult};
use crate::http::GrantBody;
use crate::ids::{new_id, now};
use crate::state::App;
use devmind_domain::canonical::hash_json;
use devmind_domain::conversation::*;
use devmind_domain::event::{Actor, AggregateType, RecordedEvent, StreamId};
use devmind_domain::ids::*;
use devmind_domain::tool_call::ToolCall;
use devmind_domain::tools::with_defaults;
use devmind_domain::{Decider, ErrorCode};
use devmind_ledger::{AppendError, ExecuteError, Idempotency, execute, load};
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// What the client needs for the second step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Prepared {
    /// The conversation.
    pub conversation_id: ConversationId,
    /// The turn.
    pub turn_id: TurnId,
    /// The run to claim; absent while other approvals of the turn wait for their answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The question's message.
    pub user_message_id: MessageId,
    /// What the run continues.
    pub kind: &'static str,
    /// Approvals of the turn that wait for their answers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub open_interrupts: Vec<InterruptId>,
    /// Every interrupt of the turn's thread, as the reply was made.
    #[serde(skip)]
    interrupts: Vec<InterruptId>,
}

impl Prepared {
    /// Whether the reply is about the turn that this interrupt belongs to. A request that had nothing
    /// to change is answered from how things stand, and a later turn must not answer for an earlier.
    fn knows(&self, id: &InterruptId) -> bool {
        self.interrupts.contains(id)
    }
}

/// A question, validated.
#[derive(Clone, Debug)]
pub struct Question {
    /// The question.
    pub content: String,
    /// The conversation; absent: a new one.
    pub conversation_id: Option<ConversationId>,
    /// Whether that conversation must exist already.
    pub must_exist: bool,
    /// The device whose tools may be used.
    pub device_id: Option<DeviceId>,
}

/// Prepares a turn. The same key and the same request give the first reply again, for ever.
///
/// # Errors
/// What the conversation refuses with, and `IDEMPOTENCY_CONFLICT` for a key of another request.
pub async fn prepare_turn(app: &App, user_id: &UserId, key: String, question: Question) -> ApiResult<Prepared> {
    let request = json!({
        "route": "POST /api/turns",
        "content": question.content,
        "conversation_id": question.conversation_id,
        "device_id": question.device_id,
    });
    let conversation_id = question.conversation_id.unwrap_or_else(|| new_id().into());
    let ask = ConversationCommand::Ask(Ask {
        user_id: user_id.clone(),
        existing: question.must_exist,
        turn_id: new_id().into(),
        message_id: new_id().into(),
        run_id: new_id().into(),
        graph_thread_id: new_id().into(),
        content: question.content,
        device_id: question.device_id,
    });
    Preparation { app, user_id, key, request: &request }.carry_out(&conversation_id, ask).await
}

/// Prepares the latest turn anew, with an edited question or the same.
///
/// # Errors
/// `TURN_NOT_LATEST`, `RUN_IN_PROGRESS` and the like; `IDEMPOTENCY_CONFLICT`.
pub async fn prepare_rerun(
    app: &App,
    user_id: &UserId,
    key: String,
    turn_id: TurnId,
    content: Option<String>,
) -> ApiResult<Prepared> {
    app.caught_up(&["conversation"]).await?;
    let conversation_id = app.views.conversation_of_turn(&turn_id).await?;
    let conversation_id = conversation_id.ok_or_else(|| ApiError::of(ErrorCode::TurnNotFound))?;
    let request = json!({ "route": "POST /api/turns/rerun", "turn_id": turn_id, "content": content });
    let rerun = ConversationCommand::Rerun(Rerun {
        user_id: user_id.clone(),
        turn_id,
        content,
        message_id: new_id().into(),
        run_id: new_id().into(),
        graph_thread_id: new_id().into(),
    });
    Preparation { app, user_id, key, request: &request }.carry_out(&conversation_id, rerun).await
}

/// Records answers to approvals; the last one prepares the run that goes on.
///
/// # Errors
/// `INTERRUPT_ALREADY_RESOLVED` for the opposite answer, also under the same key.
pub async fn prepare_resume(
    app: &App,
    user_id: &UserId,
    key: String,
    decisions: Vec<(InterruptId, bool)>,
    grants: Vec<(InterruptId, GrantBody)>,
) -> ApiResult<Prepared> {
    app.caught_up(&["conversation"]).await?;
    let mut conversation_id: Option<ConversationId> = None;
    for (interrupt_id, _) in &decisions {
        let own = app.views.conversation_of_interrupt(interrupt_id).await?;
        let own = own.ok_or_else(|| ApiError::of(ErrorCode::InterruptNotFound))?;
        if conversation_id.get_or_insert_with(|| own.clone()) != &own {
            return Err(ApiError::field("decisions", "must be about one conversation"));
        }
    }
    let conversation_id = conversation_id.ok_or_else(|| ApiError::field("decisions", "must not be empty"))?;
    let new_grants = new_grants(app, &conversation_id, grants).await?;
    let mut request = json!({ "route": "POST /api/runs/resume", "decisions": decisions });
    if !new_grants.is_empty() {
        request["grants"] = new_grants.iter().map(|new| json!([new.interrupt_id, new.scope])).collect();
    }
    let interrupts: Vec<InterruptId> = decisions.iter().map(|(id, _)| id.clone()).collect();
    let answer = ConversationCommand::Answer(Answer {
        user_id: user_id.clone(),
        decisions,
        grants: new_grants,
        now: now(),
        run_id: new_id().into(),
    });
    let preparation = Preparation { app, user_id, key, request: &request };
    match preparation.carry_out(&conversation_id, answer.clone()).await {
        // The key of an approval is made from its id, so another request under it is another answer:
        // the conversation says what is wrong with it.
        Err(error) if error.code == ErrorCode::IdempotencyConflict => {
            // It is only asked: under a key of another request nothing may be appended.
            let conversation = conversation_at(app, &conversation_id, u64::MAX).await?;
            conversation.decide(answer)?;
            Err(error)
        }
        Ok(prepared) if !interrupts.iter().all(|id| prepared.knows(id)) => {
            Err(ApiError::of(ErrorCode::InterruptClosed))
        }
        done => done,
    }
}

/// What is to be allowed for the whole conversation, beside the calls that are shown by these interrupts.
async fn new_grants(
    app: &App,
    conversation_id: &ConversationId,
    grants: Vec<(InterruptId, GrantBody)>,
) -> ApiResult<Vec<NewGrant>> {
    if grants.is_empty() {
        return Ok(Vec::new());
    }
    let (conversation, _) = load::<Conversation>(app.ledger.reader(), conversation_id.as_str()).await?;
    let (tools, mut new) = (app.tools.current(), Vec::new());
    for (interrupt_id, grant) in grants {
        let mut interrupts = conversation.latest.iter().flat_map(|turn| &turn.interrupts);
        // The answer to an approval that is not the latest turn's is refused, or was given long ago.
        let Some(shown) = interrupts.find(|own| own.interrupt_id == interrupt_id) else { continue };
        let (call, _) = load::<ToolCall>(app.ledger.reader(), shown.tool_call_id.as_str()).await?;
        let Some(call) = call.request.clone() else { continue };
        let definition = tools.registry().get(&call.tool);
        let parameters = definition.map_or(&Value::Null, |definition| &definition.parameters);
        let arguments = with_defaults(parameters, &call.arguments);
        let scope = grant.scope(arguments["path"].as_str())?;
        new.push(NewGrant { grant_id: new_id().into(), interrupt_id, call: Box::new(call), arguments, scope });
    }
    Ok(new)
}

/// One request that prepares something.
struct Preparation<'a> {
    app: &'a App,
    user_id: &'a UserId,
    key: String,
    request: &'a Value,
}

impl Preparation<'_> {
    async fn carry_out(self, conversation_id: &ConversationId, command: ConversationCommand) -> ApiResult<Prepared> {
        let Self { app, user_id, key, request } = self;
        let request_hash = hash_json(request);
        let mut metadata = app.metadata(Actor::user(user_id)).conversation(conversation_id);
        if let Some(run_id) = run_id_of(&command) {
            metadata = metadata.run(run_id);
        }
        metadata.idempotency_key = Some(key.clone());
        metadata.request_hash = Some(request_hash.clone());
        let idempotency = Idempotency { scope: user_id.to_string(), key, request_hash };
        let done =
            execute::<Conversation>(&app.ledger, conversation_id.as_str(), &metadata, command, Some(idempotency));
        let events = match done.await {
            Ok(done) => done.events,
            Err(ExecuteError::Append(AppendError::KeySeen { same_request: true, events })) => events,
            Err(ExecuteError::Append(AppendError::KeySeen { same_request: false, .. })) => {
                return Err(ApiError::of(ErrorCode::IdempotencyConflict));
            }
            Err(error) => return Err(error.into()),
        };
        reply(app, conversation_id, &events).await
    }
}

fn run_id_of(command: &ConversationCommand) -> Option<&RunId> {
    match command {
        ConversationCommand::Ask(ask) => Some(&ask.run_id),
        ConversationCommand::Rerun(rerun) => Some(&rerun.run_id),
        ConversationCommand::Answer(answer) => Some(&answer.run_id),
        _ => None,
    }
}

/// The reply is a function of the log as it stood after the request's own events, so that it is the
/// same whenever it is given.
async fn reply(app: &App, conversation_id: &ConversationId, events: &[Arc<RecordedEvent>]) -> ApiResult<Prepared> {
    // Where the first request made a new conversation, a repetition carries another id.
    let conversation_id =
        events.first().map_or_else(|| conversation_id.clone(), |event| event.stream.aggregate_id.as_str().into());
    // A request that had nothing to change is answered from how things stand.
    let until = events.last().map_or(u64::MAX, |event| event.sequence);
    let turn = conversation_at(app, &conversation_id, until).await?.latest;
    let turn = turn.ok_or_else(|| ApiError::of(ErrorCode::ConversationNotFound))?;
    let open_interrupts: Vec<_> = turn.open_interrupts().map(|open| open.interrupt_id.clone()).collect();
    let run = turn.run.as_ref();
    let waits = run.is_some_and(|run| run.status == RunStatus::Interrupted);
    Ok(Prepared {
        conversation_id,
        turn_id: turn.turn_id.clone(),
        run_id: run.filter(|_| !waits).map(|run| run.run_id.clone()),
        user_message_id: turn.message_id.clone(),
        kind: if waits { RunKind::Resume.as_str() } else { run.map_or("", |run| run.kind.as_str()) },
        open_interrupts,
        interrupts: turn.interrupts.iter().map(|own| own.interrupt_id.clone()).collect(),
    })
}

/// The conversation after its event `until`.
async fn conversation_at(app: &App, id: &ConversationId, until: u64) -> ApiResult<Conversation> {
    let stream = StreamId::new(AggregateType::Conversation, id.as_str());
    let events = app.ledger.reader().read_stream(&stream, 0).await?;
    let mut conversation = Conversation::default();
    for event in events.iter().take_while(|event| event.sequence <= until) {
        let facts = event.decode_as().map_err(|error| ApiError::internal(ErrorCode::Internal, &error))?;
        facts.iter().for_each(|fact| conversation.evolve(fact));
    }
    Ok(conversation)
}
