//! The log itself, as its owner may see it.

use super::conversations::check_owner;
use super::extract::Query;
use crate::error::{ApiError, ApiResult};
use crate::identity::User;
use crate::state::App;
use axum::Json;
use axum::extract::State;
use devmind_domain::ErrorCode;
use devmind_domain::event::{AggregateType, RecordedEvent, StreamId};
use devmind_domain::ids::{ConversationId, RunId, ToolCallId, UserId};
use devmind_ledger::EventFilter;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::sync::Arc;

const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 1_000;
/// Events looked at for one answer, at most: most of them may be other people's.
const MAX_SCANNED: u32 = 10_000;

/// Which events.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Which {
    after: u64,
    limit: Option<u32>,
    conversation_id: Option<ConversationId>,
    run_id: Option<RunId>,
    tool_call_id: Option<ToolCallId>,
    /// `aggregate_type/aggregate_id`.
    stream: Option<String>,
    r#type: Option<String>,
    actor: Option<String>,
}

/// A page of the log.
#[derive(Serialize)]
pub struct Page {
    events: Vec<EventRow>,
    /// Ask again with this `after`.
    next_after: u64,
    /// Whether the head was reached.
    at_head: bool,
    /// The head this was read at.
    position: u64,
}

/// An event as it is recorded; payload and metadata are the exact texts that were hashed.
#[derive(Serialize)]
pub struct EventRow {
    partition: u32,
    position: u64,
    event_id: String,
    aggregate_type: String,
    aggregate_id: String,
    sequence: u64,
    event_type: String,
    event_version: u32,
    payload: Box<RawValue>,
    metadata: Box<RawValue>,
    recorded_at: String,
    leaf_hash: String,
}

impl EventRow {
    fn of(event: &RecordedEvent) -> Self {
        Self {
            partition: event.partition,
            position: event.position,
            event_id: event.event_id.clone(),
            aggregate_type: event.stream.aggregate_type.clone(),
            aggregate_id: event.stream.aggregate_id.clone(),
            sequence: event.sequence,
            event_type: event.event_type.clone(),
            event_version: event.event_version,
            payload: raw(&event.payload),
            metadata: raw(&event.metadata),
            recorded_at: event.recorded_at.to_string(),
            leaf_hash: hex(&event.leaf_hash),
        }
    }
}

/// The text as it stands; text that is no JSON (a tampered row) as a string.
fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).or_else(|_| serde_json::value::to_raw_value(text)).unwrap_or_default()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Events of the user's own conversations and devices, in order.
pub async fn events(
    State(app): State<Arc<App>>,
    User(user): User,
    Query(which): Query<Which>,
) -> ApiResult<Json<Page>> {
    let limit = which.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(ApiError::field("limit", format!("must be 1-{MAX_LIMIT}")));
    }
    let stream = which.stream.as_deref().map(parse_stream).transpose()?;
    let position = app.caught_up(&["conversation"]).await?;
    if let Some(conversation_id) = &which.conversation_id {
        check_owner(&app, conversation_id, &user).await?;
    }
    if let Some(run_id) = &which.run_id {
        let run = app.views.find_run(run_id).await?.ok_or_else(|| ApiError::of(ErrorCode::RunNotFound))?;
        check_owner(&app, &run.conversation_id, &user).await?;
    }
    let filter = EventFilter {
        conversation_id: which.conversation_id,
        run_id: which.run_id,
        tool_call_id: which.tool_call_id,
        stream,
        event_type: which.r#type,
        actor: which.actor,
    };
    let mut visible = Visibility { app: &app, user: &user, owners: HashMap::new() };
    let (mut rows, mut after, mut scanned, mut at_head) = (Vec::new(), which.after, 0, false);
    while rows.len() < limit as usize && scanned < MAX_SCANNED && !at_head {
        let batch = app.ledger.reader().query(&filter, after, limit).await?;
        at_head = batch.is_empty();
        for event in batch {
            if rows.len() == limit as usize {
                break;
            }
            (after, scanned) = (event.position, scanned + 1);
            if visible.of(&event).await? {
                rows.push(EventRow::of(&event));
            }
        }
    }
    let next_after = if at_head { after.max(position) } else { after };
    Ok(Json(Page { events: rows, next_after, at_head, position }))
}

fn parse_stream(text: &str) -> ApiResult<StreamId> {
    let (aggregate_type, aggregate_id) =
        text.split_once('/').ok_or_else(|| ApiError::field("stream", "must be aggregate_type/aggregate_id"))?;
    Ok(StreamId { aggregate_type: aggregate_type.to_owned(), aggregate_id: aggregate_id.to_owned() })
}

/// Whose an event is, with the owners of conversations looked up once.
struct Visibility<'a> {
    app: &'a App,
    user: &'a UserId,
    owners: HashMap<ConversationId, bool>,
}

impl Visibility<'_> {
    async fn of(&mut self, event: &RecordedEvent) -> ApiResult<bool> {
        if event.stream.aggregate_type == AggregateType::Device.as_str() {
            let owner = devmind_domain::device::parse_stream_key(&event.stream.aggregate_id).map(|(user, _)| user);
            return Ok(owner.as_ref() == Some(self.user));
        }
        let Some(conversation_id) = event.metadata().ok().and_then(|metadata| metadata.conversation_id) else {
            return Ok(false);
        };
        if let Some(own) = self.owners.get(&conversation_id) {
            return Ok(*own);
        }
        let own = self.app.views.conversation_owner(&conversation_id).await?.as_ref() == Some(self.user);
        self.owners.insert(conversation_id, own);
        Ok(own)
    }
}
