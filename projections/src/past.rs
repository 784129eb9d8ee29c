//! A conversation as it was: its views at an earlier position, made in memory from the events that they are
//! made of and nothing else. The cost follows the conversation, not the log; nothing is written, nothing later
//! leaks in.

use crate::conversation::{Conversations, TurnRow};
use crate::error::ViewError;
use crate::projection::Projection;
use crate::store::Store;
use crate::tool_call::{ToolCallQuery, ToolCallRow, ToolCalls};
use crate::unread::{Unread, apply_what_can};
use crate::views::Views;
use devmind_domain::device::stream_key;
use devmind_domain::event::{AggregateType, DomainEvent, RecordedEvent, StreamId};
use devmind_domain::ids::{ConversationId, UserId};
use devmind_domain::tool_call::ToolCallEvent;
use devmind_ledger::{EventFilter, LedgerReader, MAX_PAGE_EVENTS};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Events applied at once.
const PAGE: usize = 500;

/// A conversation as it stood when the log ended at a position.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ConversationState {
    /// The conversation.
    pub conversation_id: ConversationId,
    /// Its owner.
    pub user_id: UserId,
    /// Its title then.
    pub title: String,
    /// Whether its owner had removed it; it has no turns then.
    pub deleted: bool,
    /// The position it was read at.
    pub position: u64,
    /// Its turns, oldest first, at most the newest 500.
    pub turns: Vec<TurnRow>,
    /// Its tool calls, oldest first, at most the newest 500.
    pub tool_calls: Vec<ToolCallRow>,
}

/// A conversation as it was when the log ended at `position`; nothing where it had not begun.
///
/// # Errors
/// When the log cannot be read, or a projection fails on one of the events.
pub async fn conversation_at(
    ledger: &LedgerReader,
    id: &ConversationId,
    position: u64,
) -> Result<Option<ConversationState>, ViewError> {
    let (state, unread) = what_can_be_read_at(ledger, id, position).await?;
    match unread.first() {
        None => Ok(state),
        Some(event) => Err(event.error()),
    }
}

/// The same for whoever looks at a log that is damaged: as far as its events can be understood, and without which.
///
/// # Errors
/// When the log cannot be read.
pub async fn what_can_be_read_at(
    ledger: &LedgerReader,
    id: &ConversationId,
    position: u64,
) -> Result<(Option<ConversationState>, Unread), ViewError> {
    let events = events_of(ledger, id, position).await?;
    let projections: Vec<&'static dyn Projection> = vec![&Conversations, &ToolCalls];
    let store = Store::in_memory(&projections).await?;
    let mut unread = Unread::default();
    for projection in projections.iter().copied() {
        let mut from = 0;
        let skips = unread.skips(ledger, projection).await?;
        for page in events.chunks(PAGE) {
            from = apply_what_can(&store.write, projection, &skips, from, page, &mut unread).await?;
        }
    }
    let views = Views::of_rows(store, &projections, ledger.clone());
    let state = state(&views, id, position).await;
    views.close().await;
    Ok((state?, unread))
}

/// What views say of a conversation.
pub(crate) async fn state(
    views: &Views,
    id: &ConversationId,
    position: u64,
) -> Result<Option<ConversationState>, ViewError> {
    let Some((user_id, title, deleted)) = views.conversation_row(id).await? else { return Ok(None) };
    Ok(Some(ConversationState {
        conversation_id: id.clone(),
        user_id,
        title,
        deleted,
        position,
        turns: views.turns(id).await?,
        tool_calls: views.tool_calls(ToolCallQuery::Conversation(id.clone())).await?,
    }))
}

/// The conversation's own events, those of its tool calls, and those of the devices and server processes that
/// these were sent to, up to a position and in order.
async fn events_of(
    ledger: &LedgerReader,
    id: &ConversationId,
    position: u64,
) -> Result<Vec<Arc<RecordedEvent>>, ViewError> {
    let mut streams = BTreeSet::from([StreamId::new(AggregateType::Conversation, id.as_str())]);
    let requests = EventFilter {
        conversation_id: Some(id.clone()),
        event_type: Some("ToolCallRequested".to_owned()),
        ..EventFilter::default()
    };
    let mut after = 0;
    while after < position {
        let page = ledger.query(&requests, after, MAX_PAGE_EVENTS).await?;
        let Some(last) = page.last() else { break };
        after = last.position;
        streams.extend(page.iter().filter(|event| event.position <= position).map(|event| event.stream.clone()));
    }
    let mut events = BTreeMap::new();
    let mut others = BTreeSet::new();
    for stream in streams {
        for event in ledger.read_stream(&stream, 0).await?.into_iter().filter(|event| event.position <= position) {
            for fact in event.decode().unwrap_or_default() {
                if let DomainEvent::ToolCall(decoded) = fact {
                    others.extend(depends_on(&decoded));
                }
            }
            events.insert(event.position, event);
        }
    }
    for stream in others {
        let own = ledger.read_stream(&stream, 0).await?.into_iter().filter(|event| event.position <= position);
        events.extend(own.map(|event| (event.position, event)));
    }
    Ok(events.into_values().collect())
}

/// The device or server process whose end is the end of an attempt.
fn depends_on(event: &ToolCallEvent) -> Option<StreamId> {
    match event {
        ToolCallEvent::ToolCallRequested(e) => {
            let device = e.device_id.as_ref()?;
            Some(StreamId::new(AggregateType::Device, stream_key(&e.user_id, device)))
        }
        ToolCallEvent::ToolDispatched(e) => Some(StreamId::new(AggregateType::Node, e.node_id.as_str())),
        ToolCallEvent::ToolCallDecided(_)
        | ToolCallEvent::ToolReceived(_)
        | ToolCallEvent::ToolAttemptRefused(_)
        | ToolCallEvent::ToolCancelRequested(_)
        | ToolCallEvent::ToolWaitTimedOut(_)
        | ToolCallEvent::ToolResultRecorded(_)
        | ToolCallEvent::ToolOutcomeRevised(_)
        | ToolCallEvent::ToolResultAcked(_) => None,
    }
}
