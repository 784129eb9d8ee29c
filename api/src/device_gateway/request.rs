//! The request of an attempt as a frame, whoever sends it.

use crate::ids::now;
use devmind_domain::Timestamp;
use devmind_domain::canonical::canonical_json;
use devmind_domain::event::{AggregateType, StreamId};
use devmind_domain::ids::ToolCallId;
use devmind_domain::protocol::{CallRequest, ServerFrame};
use devmind_domain::tool_call::{ToolCall, ToolDispatched};
use devmind_domain::tools::catalogue;
use devmind_ledger::{LedgerError, LedgerReader};

/// The frame; `None` for a tool that the catalogue does not have, which is never dispatched.
pub(super) fn request_frame(
    id: &ToolCallId,
    state: &ToolCall,
    attempt: &ToolDispatched,
    requested_at: Timestamp,
    conversation_title: String,
) -> Option<ServerFrame> {
    let request = state.request.as_ref()?;
    let definition = catalogue().get(&request.tool)?;
    Some(ServerFrame::Request(Box::new(CallRequest {
        tool_call_id: id.clone(),
        run_id: attempt.run_id.clone(),
        attempt_no: attempt.attempt_no,
        tool_name: request.tool.clone(),
        tool_version: request.tool_version.clone(),
        arguments_json: canonical_json(&request.arguments),
        call_hash: request.call_hash.clone(),
        requires_confirmation: definition.requires_confirmation,
        execution_timeout_ms: definition.timeout_ms?,
        ttl_ms: attempt.ttl_ms,
        expires_at: Some(now().plus_millis(attempt.ttl_ms.cast_signed())),
        call_created_at: requested_at,
        device_id: request.device_id.clone()?,
        conversation_title,
    })))
}

/// When a call was first requested; `None` where it is new.
pub(super) async fn requested_at(reader: &LedgerReader, id: &ToolCallId) -> Result<Option<Timestamp>, LedgerError> {
    let events = reader.read_stream(&StreamId::new(AggregateType::ToolCall, id.as_str()), 0).await?;
    Ok(events.first().map(|event| event.recorded_at))
}
