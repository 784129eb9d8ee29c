//! Asking a person: interrupts, the calls they are about, and the run's pause, in one append.

use super::call::requested;
use super::execution::{Execution, Halt};
use crate::ids::{new_id, now};
use devmind_domain::Decider;
use devmind_domain::agent::PlannedCall;
use devmind_domain::conversation::{Conversation, ConversationCommand, NewInterrupt};
use devmind_domain::event::{AggregateType, DomainEvent, NewEvent, StreamId};
use devmind_domain::ids::ToolCallId;
use devmind_domain::tool_call::*;
use devmind_domain::tools::{Approval, BY_TOOL, Verdict, admit};
use devmind_ledger::{Append, AppendError, StreamAppend, load};

/// Races lost to other writers before giving up.
const MAX_TRIES: usize = 8;

impl Execution {
    pub(super) async fn interrupt(&mut self, calls: Vec<PlannedCall>) -> Result<(), Halt> {
        let expires_at = self.app.approval_lifetime_ms.map(|lifetime| now().plus_millis(lifetime));
        let (mut asked, mut interrupts) = (Vec::new(), Vec::new());
        for planned in &calls {
            let admission = admit(self.tools.registry(), &planned.call, planned.over_limit);
            let tool_call_id = ToolCallId::of(&self.run.graph_thread_id, &planned.call.id);
            let request = requested(&self.run, &planned.call.id, &admission);
            // It was judged, or nobody would be asked.
            let own = || Verdict::of_tool(Approval::Always);
            let verdict = self.approvals.verdict(&tool_call_id).cloned().unwrap_or_else(own);
            let why = if verdict.by == BY_TOOL { "" } else { verdict.reason.as_str() };
            let message = format!("Allow {} with these arguments? {why}", admission.tool).trim_end().to_owned();
            let decided = verdict.decided();
            asked.push((tool_call_id.clone(), ToolCallCommand::Decide { request: Box::new(request), decided }));
            interrupts.push(NewInterrupt {
                interrupt_id: new_id().into(),
                tool_call_id,
                message,
                tool: admission.tool,
                arguments: admission.arguments,
                arguments_hash: admission.call_hash,
                expires_at,
            });
        }
        for _ in 0..MAX_TRIES {
            let mut streams = Vec::new();
            for (id, command) in &asked {
                let (call, version) = load::<ToolCall>(self.app.ledger.reader(), id.as_str()).await?;
                let events = call.decide(command.clone())?.into_iter().map(DomainEvent::from);
                streams.extend(self.stream_append(AggregateType::ToolCall, id.as_str(), version, events));
            }
            let conversation_id = self.run.conversation_id.as_str();
            let (conversation, version) = load::<Conversation>(self.app.ledger.reader(), conversation_id).await?;
            let events = conversation.decide(ConversationCommand::Interrupt {
                run_id: self.run.run_id.clone(),
                claim: self.app.claim.clone(),
                interrupts: interrupts.clone(),
            })?;
            let events = events.into_iter().map(DomainEvent::from);
            streams.extend(self.stream_append(AggregateType::Conversation, conversation_id, version, events));
            match self.app.ledger.append(Append { streams, idempotency: None }).await {
                Ok(appended) => {
                    self.show(&appended.events).await;
                    return Ok(());
                }
                Err(AppendError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(AppendError::Overloaded.into())
    }

    pub(super) fn stream_append(
        &self,
        kind: AggregateType,
        id: &str,
        expected_version: u64,
        events: impl Iterator<Item = DomainEvent>,
    ) -> Option<StreamAppend> {
        let metadata = self.metadata();
        let new = |event| NewEvent { event_id: new_id(), event, metadata: metadata.clone() };
        let events: Vec<_> = events.map(new).collect();
        let stream = StreamId::new(kind, id);
        (!events.is_empty()).then_some(StreamAppend { stream, expected_version, events })
    }
}
