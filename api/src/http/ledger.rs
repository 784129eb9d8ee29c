//! The log itself: an owner sees their own conversations and devices, auditors and operators all. The pages read
//! by the same functions as the routes.

use super::access::{Subject, record};
use super::extract::Query;
use super::fields::ClientId;
use super::openapi::refusals;
use crate::error::{ApiError, ApiResult};
use crate::identity::Caller;
use crate::state::App;
use axum::Json;
use axum::extract::State;
use devmind_domain::ErrorCode;
use devmind_domain::Timestamp;
use devmind_domain::conversation::Conversation;
use devmind_domain::device::parse_stream_key;
use devmind_domain::event::{AggregateType, RecordedEvent, StreamId};
use devmind_domain::ids::ConversationId;
use devmind_domain::json::MAX_SAFE_INTEGER;
use devmind_ledger::{EventFilter, load};
use devmind_projections::{ConversationState, conversation_at};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

const DEFAULT_LIMIT: u32 = 100;
pub(super) const MAX_LIMIT: u32 = 1_000;
/// Events looked at for one answer, at most: most of them may be other people's.
const MAX_SCANNED: u32 = 10_000;

/// Events read from the log at once, at least.
const MIN_BATCH: u32 = 500;

/// People whose data one answer shows to an auditor, counted by conversation and device, at most: each
/// of these reads is recorded.
const MAX_RECORDED: usize = 100;

/// Which events.
#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct Which {
    /// Events after this position.
    #[param(maximum = 9_007_199_254_740_991_u64, default = 0)]
    after: u64,
    /// Events in one answer, at most.
    #[param(minimum = 1, maximum = 1_000, default = 100)]
    limit: Option<u32>,
    /// Those of a conversation.
    conversation_id: Option<ClientId>,
    /// Those of a run.
    run_id: Option<ClientId>,
    /// Those of a tool call.
    tool_call_id: Option<ClientId>,
    /// Those of a stream: `aggregate_type/aggregate_id`.
    #[param(max_length = 500, pattern = "/")]
    stream: Option<String>,
    /// Those of a type, for example `TurnPrepared`.
    r#type: Option<ClientId>,
    /// Those that somebody caused, for example `user:ann`.
    actor: Option<ClientId>,
}

/// A page of the log.
#[derive(Serialize, ToSchema)]
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
#[derive(Serialize, ToSchema)]
pub struct EventRow {
    /// The order it stands in; 0 unless the ledger is partitioned.
    partition: u32,
    /// 1, 2, 3 … without gaps, in commit order.
    position: u64,
    event_id: String,
    aggregate_type: String,
    aggregate_id: String,
    /// 1, 2, 3 … within the stream.
    sequence: u64,
    /// For example `TurnPrepared`.
    event_type: String,
    event_version: u32,
    /// The exact canonical JSON that was hashed.
    #[schema(value_type = serde_json::Value)]
    payload: Box<RawValue>,
    /// Who caused it and why: the exact canonical JSON that was hashed.
    #[schema(value_type = serde_json::Value)]
    metadata: Box<RawValue>,
    /// When the writer recorded it.
    #[schema(value_type = Timestamp)]
    recorded_at: String,
    /// The RFC 6962 leaf over the canonical header, hexadecimal.
    leaf_hash: String,
}

impl EventRow {
    pub(crate) fn of(event: &RecordedEvent) -> Self {
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
            leaf_hash: hex::encode(event.leaf_hash),
        }
    }
}

/// The text as it stands; text that is no JSON (a tampered row) as a string.
fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).or_else(|_| serde_json::value::to_raw_value(text)).unwrap_or_default()
}

refusals!(Refusals: PERSONAL, QUERY; Forbidden, ConversationNotFound, RunNotFound);

/// Events in order: of the caller's own conversations and devices, or, for auditors and operators, all.
///
/// An answer may hold fewer than `limit` before the head is reached: go on until `at_head`.
#[utoipa::path(get, path = "/api/ledger/events", tag = "ledger", operation_id = "list_events",
    params(Which), responses((status = 200, body = Page), Refusals))]
pub async fn events(State(app): State<Arc<App>>, caller: Caller, Query(which): Query<Which>) -> ApiResult<Json<Page>> {
    let limit = which.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(ApiError::field("limit", format!("must be 1-{MAX_LIMIT}")));
    }
    safe("after", which.after)?;
    let filter = EventFilter {
        conversation_id: which.conversation_id.map(ClientId::id),
        run_id: which.run_id.map(ClientId::id),
        tool_call_id: which.tool_call_id.map(ClientId::id),
        stream: which.stream.as_deref().map(parse_stream).transpose()?,
        event_type: which.r#type.map(String::from),
        actor: which.actor.map(String::from),
    };
    let found = list(&app, &caller, &filter, which.after, limit, &mut BTreeSet::new()).await?;
    let Events { events, next_after, at_head, position } = found;
    let events = events.iter().map(|event| EventRow::of(event)).collect();
    Ok(Json(Page { events, next_after, at_head, position }))
}

/// A position that every JSON reader can hold.
pub(super) fn safe(field: &'static str, position: u64) -> ApiResult<()> {
    if position <= MAX_SAFE_INTEGER {
        return Ok(());
    }
    Err(ApiError::field(field, format!("must be at most {MAX_SAFE_INTEGER}")))
}

/// A page of the log, as far as somebody may see it.
pub(crate) struct Events {
    pub events: Vec<Arc<RecordedEvent>>,
    /// Ask again with this `after`.
    pub next_after: u64,
    /// Whether the head was reached.
    pub at_head: bool,
    /// The head this was read at.
    pub position: u64,
}

/// Events in order that pass a filter and that the caller may see. `known` are reads that are recorded already.
///
/// # Errors
/// `FORBIDDEN` and the like for a conversation or run that is named and not the caller's to read.
pub(crate) async fn list(
    app: &Arc<App>,
    caller: &Caller,
    filter: &EventFilter,
    after: u64,
    limit: u32,
    known: &mut BTreeSet<Subject>,
) -> ApiResult<Events> {
    let position = app.caught_up(&["conversation"]).await?;
    check_filter(app, caller, filter).await?;
    list_to(app, caller, filter, after, limit, known, position).await
}

/// The same up to a position that the views have passed: what came later is left for the next time, because nobody
/// may know yet whose it is.
pub(super) async fn list_to(
    app: &Arc<App>,
    caller: &Caller,
    filter: &EventFilter,
    after: u64,
    limit: u32,
    known: &mut BTreeSet<Subject>,
    position: u64,
) -> ApiResult<Events> {
    let mut view = View { app, caller, own: HashMap::new(), shown: BTreeSet::new() };
    let (mut events, mut after, mut scanned, mut at_head) = (Vec::new(), after, 0, false);
    'page: while events.len() < limit as usize && scanned < MAX_SCANNED && !at_head {
        // Small pages of a large log of other people's events would be a query for each of them.
        let batch = app.ledger.reader().query(filter, after, limit.max(MIN_BATCH)).await?;
        at_head = batch.is_empty();
        for event in batch {
            // It would be passed over for good.
            if event.position > position {
                at_head = true;
                break 'page;
            }
            // Before the look: what is not shown is not recorded as read.
            if events.len() == limit as usize {
                break 'page;
            }
            let sight = view.look(&event).await?;
            if sight == Sight::Full {
                break 'page;
            }
            (after, scanned) = (event.position, scanned + 1);
            if sight == Sight::Shown {
                events.push(event);
            }
        }
    }
    let new: Vec<_> = view.shown.into_iter().filter(|subject| !known.contains(subject)).collect();
    record(app, caller, new.iter().cloned(), "ledger_events").await?;
    known.extend(new);
    let next_after = if at_head { after.max(position) } else { after };
    Ok(Events { events, next_after, at_head, position })
}

/// A conversation, and when.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct AsOf {
    /// The conversation.
    conversation_id: ClientId,
    /// A position of the log, or a time of RFC 3339, which stands for the last event recorded until then; absent: now.
    #[param(max_length = 40)]
    at: Option<String>,
}

refusals!(StateRefusals: PERSONAL, QUERY; Forbidden, ConversationNotFound, NotFound);

/// A conversation with its tool calls as it was: nothing later shows, nothing is changed.
#[utoipa::path(get, path = "/api/ledger/state", tag = "ledger", operation_id = "get_state",
    params(AsOf), responses((status = 200, body = ConversationState), StateRefusals))]
pub async fn state(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(query): Query<AsOf>,
) -> ApiResult<Json<ConversationState>> {
    let id: ConversationId = query.conversation_id.id();
    state_at(&app, &caller, &id, query.at.as_deref()).await.map(Json)
}

/// A conversation as it was, which is recorded where it is not the caller's.
///
/// # Errors
/// `NOT_FOUND` for a position beyond the head or before the beginning, and those of [`may_read`].
pub(crate) async fn state_at(
    app: &Arc<App>,
    caller: &Caller,
    id: &ConversationId,
    at: Option<&str>,
) -> ApiResult<ConversationState> {
    let head = app.caught_up(&["conversation"]).await?;
    check_conversation(app, caller, id).await?;
    let position = position_of(app, head, at).await?;
    let state = conversation_at(app.ledger.reader(), id, position).await?;
    let state = state.ok_or_else(|| {
        ApiError::new(ErrorCode::NotFound, format!("up to position {position} the conversation had not begun"))
    })?;
    if state.user_id != caller.user_id {
        record(app, caller, [Subject::Conversation(id.clone())], "ledger_state").await?;
    }
    Ok(state)
}

/// The position that a text stands for: itself, the last event up to a time of RFC 3339, or the head.
///
/// # Errors
/// `NOT_FOUND` beyond the head, `VALIDATION_FAILED`.
pub(crate) async fn position_of(app: &App, head: u64, at: Option<&str>) -> ApiResult<u64> {
    let Some(text) = at else { return Ok(head) };
    match (text.parse::<u64>(), Timestamp::parse(text)) {
        (Ok(position), _) if position > head => {
            Err(ApiError::new(ErrorCode::NotFound, format!("the log has no event {position} yet")))
        }
        (Ok(position), _) => Ok(position),
        (Err(_), Ok(moment)) => Ok(app.ledger.reader().position_at(moment).await?),
        (Err(_), Err(_)) => Err(ApiError::field("at", "must be a position, or a time like 2026-01-31T03:00:00Z")),
    }
}

/// Lets the caller read everything that the log has of a conversation, also of a removed one, and records it where
/// it is not theirs.
///
/// # Errors
/// `CONVERSATION_NOT_FOUND`, `FORBIDDEN`.
pub(crate) async fn may_read(
    app: &Arc<App>,
    caller: &Caller,
    id: &ConversationId,
    what: &'static str,
) -> ApiResult<()> {
    app.caught_up(&["conversation"]).await?;
    check_conversation(app, caller, id).await?;
    if app.views.conversation_owner(id).await?.as_ref() == Some(&caller.user_id) {
        return Ok(());
    }
    record(app, caller, [Subject::Conversation(id.clone())], what).await
}

/// One event that the caller may read, which is recorded where it is not theirs.
///
/// # Errors
/// `NOT_FOUND` beyond the head, `FORBIDDEN` for what belongs to somebody else or to the server alone.
pub(crate) async fn read_event(
    app: &Arc<App>,
    caller: &Caller,
    position: u64,
    what: &'static str,
) -> ApiResult<Arc<RecordedEvent>> {
    app.caught_up(&["conversation"]).await?;
    let found = app.ledger.reader().read(position.saturating_sub(1), 1).await?;
    let Some(event) = found.first().filter(|event| event.position == position) else {
        return Err(ApiError::new(ErrorCode::NotFound, format!("the log has no event {position} yet")));
    };
    let mut view = View { app, caller, own: HashMap::new(), shown: BTreeSet::new() };
    match view.look(event).await? {
        Sight::Shown => {}
        Sight::Hidden | Sight::Full => return Err(ApiError::of(ErrorCode::Forbidden)),
    }
    record(app, caller, view.shown, what).await?;
    Ok(Arc::clone(event))
}

pub(crate) fn parse_stream(text: &str) -> ApiResult<StreamId> {
    let (aggregate_type, aggregate_id) =
        text.split_once('/').ok_or_else(|| ApiError::field("stream", "must be aggregate_type/aggregate_id"))?;
    Ok(StreamId { aggregate_type: aggregate_type.to_owned(), aggregate_id: aggregate_id.to_owned() })
}

/// What is asked for by its conversation or run must be there and be the caller's to read.
pub(super) async fn check_filter(app: &App, caller: &Caller, filter: &EventFilter) -> ApiResult<()> {
    if let Some(id) = &filter.conversation_id {
        check_conversation(app, caller, id).await?;
    }
    if let Some(run_id) = &filter.run_id {
        let run = app.views.find_run(run_id).await?.ok_or_else(|| ApiError::of(ErrorCode::RunNotFound))?;
        check_conversation(app, caller, &run.conversation_id).await?;
    }
    Ok(())
}

async fn check_conversation(app: &App, caller: &Caller, id: &ConversationId) -> ApiResult<()> {
    match app.views.conversation_owner(id).await? {
        Some(owner) if owner == caller.user_id || caller.role.reads_all() => Ok(()),
        Some(_) => Err(ApiError::of(ErrorCode::Forbidden)),
        // The views hide what was deleted; the log keeps it for those who may read everything.
        None if caller.role.reads_all() && load::<Conversation>(app.ledger.reader(), id.as_str()).await?.1 > 0 => {
            Ok(())
        }
        None => Err(ApiError::of(ErrorCode::ConversationNotFound)),
    }
}

/// What becomes of an event in an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sight {
    Shown,
    Hidden,
    /// To be shown in the next answer: this one holds as much of others as may be recorded at once.
    Full,
}

/// What one caller sees of the log.
struct View<'a> {
    app: &'a App,
    caller: &'a Caller,
    /// Whether conversations are the caller's, looked up once.
    own: HashMap<ConversationId, bool>,
    /// Whose data was shown besides the caller's own.
    shown: BTreeSet<Subject>,
}

impl View<'_> {
    async fn look(&mut self, event: &RecordedEvent) -> ApiResult<Sight> {
        let subject = subject_of(event);
        let own = match &subject {
            Some(Subject::Conversation(id)) => self.owns(id).await?,
            Some(Subject::Device(owner, _)) => *owner == self.caller.user_id,
            None => false,
        };
        if own || !self.caller.role.reads_all() {
            return Ok(if own { Sight::Shown } else { Sight::Hidden });
        }
        // The record of a read holds nothing of what was read: recording it again, reading to the
        // head would move the head for ever.
        let Some(subject) = subject.filter(|_| !READS.contains(&event.event_type.as_str())) else {
            return Ok(Sight::Shown);
        };
        if self.shown.len() == MAX_RECORDED && !self.shown.contains(&subject) {
            return Ok(Sight::Full);
        }
        self.shown.insert(subject);
        Ok(Sight::Shown)
    }

    async fn owns(&mut self, id: &ConversationId) -> ApiResult<bool> {
        if let Some(own) = self.own.get(id) {
            return Ok(*own);
        }
        let own = self.app.views.conversation_owner(id).await?.as_ref() == Some(&self.caller.user_id);
        self.own.insert(id.clone(), own);
        Ok(own)
    }
}

/// The event types of recorded reads.
const READS: [&str; 2] = ["ConversationRead", "DeviceRead"];

/// What an event tells about; nothing for events of the server itself.
fn subject_of(event: &RecordedEvent) -> Option<Subject> {
    if event.stream.aggregate_type == AggregateType::Device.as_str() {
        return parse_stream_key(&event.stream.aggregate_id).map(|(user, device)| Subject::Device(user, device));
    }
    event.metadata().ok()?.conversation_id.map(Subject::Conversation)
}
