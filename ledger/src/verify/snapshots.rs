//! Stored states: each must be what the events of its stream fold to, because decisions rest on it.

use super::report::{Check, Report};
use crate::error::LedgerError;
use crate::limits::MAX_PAGE_EVENTS;
use crate::load::{decode, state_version};
use crate::reader::LedgerReader;
use crate::store::Snapshot;
use devmind_domain::Decider;
use devmind_domain::conversation::Conversation;
use devmind_domain::device::Device;
use devmind_domain::event::AggregateType;
use devmind_domain::history::History;
use devmind_domain::node::Node;
use devmind_domain::projection::ProjectionSkips;
use devmind_domain::redaction::Redaction;
use devmind_domain::thread::Thread;
use devmind_domain::tool_call::ToolCall;
use devmind_domain::tool_set::ToolSet;

/// Folds every stream that has a stored state.
pub(super) async fn check(reader: &LedgerReader, report: &mut Report) -> Result<(), LedgerError> {
    let mut after = None;
    loop {
        let page = reader.store().snapshots(after.as_ref(), MAX_PAGE_EVENTS).await;
        let page = page.map_err(|error| reader.error("verify the stored states", &error))?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some(last.stream.clone());
        for snapshot in &page {
            let kind = AggregateType::ALL.into_iter().find(|kind| kind.as_str() == snapshot.stream.aggregate_type);
            let reason = match kind {
                Some(AggregateType::Conversation) => differs::<Conversation>(reader, snapshot).await?,
                Some(AggregateType::Thread) => differs::<Thread>(reader, snapshot).await?,
                Some(AggregateType::ToolCall) => differs::<ToolCall>(reader, snapshot).await?,
                Some(AggregateType::Device) => differs::<Device>(reader, snapshot).await?,
                Some(AggregateType::Node) => differs::<Node>(reader, snapshot).await?,
                Some(AggregateType::Redaction) => differs::<Redaction>(reader, snapshot).await?,
                Some(AggregateType::Projection) => differs::<ProjectionSkips>(reader, snapshot).await?,
                Some(AggregateType::History) => differs::<History>(reader, snapshot).await?,
                Some(AggregateType::ToolSet) => differs::<ToolSet>(reader, snapshot).await?,
                // Of a newer program, which folds it; this one never uses it.
                None => None,
            };
            if let Some((position, reason)) = reason {
                let stream = &snapshot.stream;
                let reason = format!("{} {}: {reason}", stream.aggregate_type, stream.aggregate_id);
                report.find(Check::StoredStates, position, reason);
            }
        }
    }
}

/// Where and how a stored state is not the fold of its events; a state of another program is skipped.
async fn differs<A: Decider + PartialEq>(
    reader: &LedgerReader,
    snapshot: &Snapshot,
) -> Result<Option<(u64, String)>, LedgerError> {
    if snapshot.state_version != state_version::<A>() {
        return Ok(None);
    }
    let (mut folded, mut version, mut position) = (A::default(), 0, 0);
    while version < snapshot.sequence {
        let page = match reader.stream_page(&snapshot.stream, version, MAX_PAGE_EVENTS).await {
            // A row that holds no event is a finding of its own.
            Err(LedgerError::Damaged { .. }) => return Ok(None),
            page => page?,
        };
        if page.is_empty() {
            let reason = format!("a state of version {} is stored, the stream ends at {version}", snapshot.sequence);
            return Ok(Some((position, reason)));
        }
        for event in page.iter().take_while(|event| event.sequence <= snapshot.sequence) {
            // So is one that is not there, and one that does not decode.
            if event.sequence != version + 1 {
                return Ok(None);
            }
            let Ok(decoded) = decode::<A>(event) else { return Ok(None) };
            decoded.iter().for_each(|fact| folded.evolve(fact));
            (version, position) = (event.sequence, event.position);
        }
    }
    let stored: Result<A, _> = serde_json::from_str(&snapshot.state);
    let same = stored.is_ok_and(|stored| stored == folded);
    Ok((!same).then(|| (position, format!("the stored state of version {version} is not what its events fold to"))))
}
