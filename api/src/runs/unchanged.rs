//! Commands on tool calls that count only as long as the conversation is as it was looked at.
//!
//! What a person allowed for a whole conversation can be taken back at any moment. A dispatch that rests on it is
//! appended together with the version of the conversation in which it was found: so none stands in the log after the
//! event that took it back. Looking again, and refusing the call, is left to `call`.

use devmind_domain::Decider;
use devmind_domain::conversation::Conversation;
use devmind_domain::event::{Metadata, NewEvent, StreamId};
use devmind_domain::ids::ToolCallId;
use devmind_domain::tool_call::{ToolCall, ToolCallCommand, ToolCallError};
use devmind_ledger::{Append, AppendError, ExecuteError, Executed, Ledger, StreamAppend, load};
use std::sync::Arc;

/// Races lost to other writers of the call before giving up.
const MAX_TRIES: usize = 8;

/// A conversation as it was looked at.
#[derive(Clone, Debug)]
pub struct Unchanged {
    conversation: StreamId,
    version: u64,
}

impl Unchanged {
    /// The conversation in this version.
    pub(super) fn new(conversation_id: &str, version: u64) -> Self {
        Self { conversation: StreamId::new(Conversation::TYPE, conversation_id), version }
    }

    /// Carries out a command, if the conversation is still as it was.
    ///
    /// # Errors
    /// The conversation is not as it was ([`Self::is_why`]); what the call's rules refuse; what the ledger fails with.
    pub async fn execute(
        &self,
        ledger: &Ledger,
        id: &ToolCallId,
        metadata: &Metadata,
        command: &ToolCallCommand,
    ) -> Result<Executed<ToolCall>, ExecuteError<ToolCallError>> {
        for _ in 0..MAX_TRIES {
            let loaded = load::<ToolCall>(ledger.reader(), id.as_str()).await.map_err(ExecuteError::Ledger)?;
            let (mut state, expected_version) = loaded;
            let decided = state.decide(command.clone()).map_err(ExecuteError::Refused)?;
            let new = |event| NewEvent { event_id: crate::ids::new_id(), event, metadata: metadata.clone() };
            let stream = StreamId::new(ToolCall::TYPE, id.as_str());
            let events = decided.iter().cloned().map(|event| new(event.into())).collect();
            let call = StreamAppend { stream, expected_version, events };
            // Nothing is written to it: its version is what the append rests on.
            let (stream, expected_version) = (self.conversation.clone(), self.version);
            let conversation = StreamAppend { stream, expected_version, events: Vec::new() };
            match ledger.append(Append { streams: vec![call, conversation], idempotency: None }).await {
                Ok(appended) => {
                    let call = Arc::make_mut(&mut state);
                    decided.iter().for_each(|event| call.evolve(event));
                    let position = appended.position();
                    return Ok(Executed { state, events: appended.events, position });
                }
                Err(AppendError::Conflict { stream, .. }) if stream != self.conversation => {}
                Err(error) => return Err(ExecuteError::Append(error)),
            }
        }
        Err(ExecuteError::Append(AppendError::Overloaded))
    }

    /// Whether nothing was carried out because the conversation is not as it was.
    pub fn is_why<E>(&self, error: &ExecuteError<E>) -> bool {
        matches!(error, ExecuteError::Append(AppendError::Conflict { stream, .. }) if *stream == self.conversation)
    }
}
