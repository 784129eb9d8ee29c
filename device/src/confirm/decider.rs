//! Who decides about a call that must be asked about: a rule that the user wrote, or the user now.
//! Either way the journal knows who it was before the call may begin.

use super::{Answer, Confirm, ConfirmationRequest};
use crate::journal::Journal;
use crate::policy::Policy;
use async_trait::async_trait;
use std::path::PathBuf;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Rules before people, and both on record.
pub(crate) struct Decider {
    pub(crate) policy: Policy,
    /// Links resolved.
    pub(crate) workspace: PathBuf,
    pub(crate) person: Arc<dyn Confirm>,
    pub(crate) journal: Arc<Journal>,
}

#[async_trait]
impl Confirm for Decider {
    async fn ask(&self, request: &ConfirmationRequest, cancel: &CancellationToken) -> Answer {
        let (answer, by) = match self.policy.allowing(&self.workspace, request) {
            Some((_, rule)) => (Answer::Allow, format!("the rule {} {}", rule.tool, rule.path)),
            None => {
                let (answer, by) = self.person.decide(request, cancel).await;
                (answer, by.to_owned())
            }
        };
        if answer == Answer::NoAnswer {
            return answer;
        }
        match self.journal.note_decision(&request.tool_call_id, &by).await {
            Ok(()) => answer,
            Err(error) => {
                tracing::error!(%error, "who decided could not be recorded; the call is denied");
                Answer::NoAnswer
            }
        }
    }
}
