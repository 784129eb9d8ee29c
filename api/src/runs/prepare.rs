//! Preparing a turn: append the question and a queued run, once for each idempotency key.

use crate::error::{ApiError, ApiResult};
use crate::ids::new_id;
use crate::state::App;
use devmind_domain::ErrorCode;
use devmind_domain::canonical::hash_json;
use devmind_domain::conversation::{
    Ask, Conversation, ConversationCommand, ConversationEvent, RunPrepared, TurnPrepared,
};
use devmind_domain::event::{Actor, DomainEvent, RecordedEvent};
use devmind_domain::ids::*;
use devmind_ledger::{AppendError, ExecuteError, Idempotency, execute};
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;

/// A question, validated.
#[derive(Clone, Debug)]
pub struct Question {
    /// Who asks.
    pub user_id: UserId,
    /// The question.
    pub content: String,
    /// The conversation; absent: a new one.
    pub conversation_id: Option<ConversationId>,
    /// The device whose tools may be used.
    pub device_id: Option<DeviceId>,
    /// The client's key.
    pub idempotency_key: String,
}

/// What the client needs for the second step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Prepared {
    /// The conversation.
    pub conversation_id: ConversationId,
    /// The turn.
    pub turn_id: TurnId,
    /// The run to claim.
    pub run_id: RunId,
    /// The question's message.
    pub user_message_id: MessageId,
    /// What the run continues.
    pub kind: &'static str,
}

/// Prepares a turn. The same key and the same request give the first reply again, for ever.
///
/// # Errors
/// What the conversation refuses with, and `IDEMPOTENCY_CONFLICT` for a key of another request.
pub async fn prepare_turn(app: &App, question: Question) -> ApiResult<Prepared> {
    let request_hash = hash_json(&json!({
        "route": "POST /api/turns",
        "content": question.content,
        "conversation_id": question.conversation_id,
        "device_id": question.device_id,
    }));
    let scope = question.user_id.to_string();
    // Looked up before the conversation decides: by now the first reply's run may be running, which
    // would refuse a repetition that must be answered.
    if let Some((hash, events)) = app.ledger.reader().idempotent(&scope, &question.idempotency_key).await? {
        return replayed(hash == request_hash, &events);
    }
    let conversation_id = question.conversation_id.clone().unwrap_or_else(|| new_id().into());
    let ask = Ask {
        user_id: question.user_id.clone(),
        existing: question.conversation_id.is_some(),
        turn_id: new_id().into(),
        message_id: new_id().into(),
        run_id: new_id().into(),
        graph_thread_id: new_id().into(),
        content: question.content,
        device_id: question.device_id,
    };
    let mut metadata = app.metadata(Actor::user(&question.user_id)).conversation(&conversation_id).run(&ask.run_id);
    metadata.idempotency_key = Some(question.idempotency_key.clone());
    metadata.request_hash = Some(request_hash.clone());
    let idempotency = Idempotency { scope, key: question.idempotency_key, request_hash };
    let command = ConversationCommand::Ask(ask);
    match execute::<Conversation>(&app.ledger, conversation_id.as_str(), &metadata, command, Some(idempotency)).await {
        Ok(done) => reply(&done.events),
        Err(ExecuteError::Append(AppendError::KeySeen { same_request, events })) => replayed(same_request, &events),
        Err(error) => Err(error.into()),
    }
}

fn replayed(same_request: bool, events: &[Arc<RecordedEvent>]) -> ApiResult<Prepared> {
    if same_request { reply(events) } else { Err(ApiError::of(ErrorCode::IdempotencyConflict)) }
}

/// The reply is a function of what was appended, so that it is the same whenever it is given.
fn reply(events: &[Arc<RecordedEvent>]) -> ApiResult<Prepared> {
    let (mut turn, mut run): (Option<TurnPrepared>, Option<RunPrepared>) = (None, None);
    let mut conversation_id = None;
    for event in events {
        conversation_id.get_or_insert_with(|| event.stream.aggregate_id.as_str().into());
        match event.decode() {
            Ok(DomainEvent::Conversation(ConversationEvent::TurnPrepared(e))) => turn = Some(e),
            Ok(DomainEvent::Conversation(ConversationEvent::RunPrepared(e))) => run = Some(e),
            Ok(_) => {}
            Err(error) => return Err(ApiError::internal(ErrorCode::Internal, &error)),
        }
    }
    match (conversation_id, turn, run) {
        (Some(conversation_id), Some(turn), Some(run)) => Ok(Prepared {
            conversation_id,
            turn_id: turn.turn_id,
            run_id: run.run_id,
            user_message_id: turn.message_id,
            kind: run.kind.as_str(),
        }),
        _ => Err(ApiError::internal(ErrorCode::Internal, &"a prepared turn without its events")),
    }
}
