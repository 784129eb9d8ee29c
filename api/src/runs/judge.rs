//! Stage 1 of a call in this process: the policies are heard, and a person's grants.
//!
//! What is decided is a pure function (`devmind_domain::tools::conclude`); here it gets what it is a function of. A
//! verdict that the call's own stream has is the verdict, also after a restart with other rules. A new one is
//! recorded with what follows from it: the question to a person, the refusal, or, just before the dispatch, that a
//! policy allows it. What the tool itself allows to everybody nobody decided, and no event says so.

use super::call::{Calls, requested};
use super::execution::Halt;
use super::unchanged::Unchanged;
use devmind_domain::conversation::Conversation;
use devmind_domain::ids::ToolCallId;
use devmind_domain::thread::ModelToolCall;
use devmind_domain::tool_call::ToolCall;
use devmind_domain::tools::{PolicyCall, Verdict, admit, conclude, would_ask};
use devmind_ledger::load;
use std::sync::Arc;

/// A call that was judged.
pub(super) struct Judged {
    pub tool_call_id: ToolCallId,
    pub call_hash: String,
    pub verdict: Verdict,
}

impl Calls {
    /// Hears the policies about a call; nothing about one that can only fail. `somebody`: whether there is a person
    /// who can be asked.
    pub async fn judge(&self, call: &ModelToolCall, over_limit: bool, somebody: bool) -> Result<Option<Judged>, Halt> {
        let admission = admit(self.callable(), call, over_limit);
        let definition = self.callable().get(&admission.tool);
        let Some(definition) = definition.filter(|_| admission.refusal.is_none()) else { return Ok(None) };
        let tool_call_id = ToolCallId::of(&self.run.graph_thread_id, &call.id);
        let request = requested(&self.run, &call.id, &admission);
        let (state, _) = load::<ToolCall>(self.app.ledger.reader(), tool_call_id.as_str()).await?;
        let is_this = state.request.as_ref().is_some_and(|own| own.call_hash == admission.call_hash);
        let verdict = match state.verdict().filter(|_| is_this) {
            Some(recorded) => recorded,
            None => {
                let call = PolicyCall::of(definition, &request);
                let word = self.app.policies.first_word(&call).await;
                let conversation = match would_ask(word.as_ref(), &call) {
                    true => self.conversation().await?.0,
                    false => Arc::default(),
                };
                conclude(word, &conversation.grants, &call, somebody)
            }
        };
        Ok(Some(Judged { tool_call_id, call_hash: admission.call_hash, verdict }))
    }

    /// The verdict as it stands when the call begins, and the conversation that it rests on: a grant may have been
    /// revoked since it was judged, and may be at any moment.
    pub async fn standing(&self, verdict: &Verdict) -> Result<(Verdict, Option<Unchanged>), Halt> {
        let Some(grant_id) = verdict.grant() else { return Ok((verdict.clone(), None)) };
        let (conversation, version) = self.conversation().await?;
        let counts = conversation.grants.iter().any(|own| own.grant_id == grant_id);
        let verdict = if counts { verdict.clone() } else { verdict.clone().revoked() };
        Ok((verdict, Some(Unchanged::new(self.run.conversation_id.as_str(), version))))
    }

    async fn conversation(&self) -> Result<(Arc<Conversation>, u64), Halt> {
        Ok(load::<Conversation>(self.app.ledger.reader(), self.run.conversation_id.as_str()).await?)
    }
}
