//! Calls that a person was asked about, and whose tool is another by the time the run goes on: an MCP server describes
//! it otherwise or is away, or this program is of another version.
//!
//! What was allowed is the tool as it was; that one is not there any more, and an id is one call's for ever. So the
//! call is refused before the loop looks at it, and the model is told why.

use super::call::Carried;
use super::execution::{Execution, Halt};
use devmind_domain::ErrorCode;
use devmind_domain::ids::ToolCallId;
use devmind_domain::thread::Deferred;
use devmind_domain::tool_call::{ToolCall, ToolCallCommand, ToolCallDecided, ToolError};
use devmind_domain::tools::{Finish, Registry, Seen, ToolOutcome, admit};
use devmind_ledger::{execute, load};

impl Execution {
    /// Refuses the calls of the latest answer that were asked about and are not what they were.
    pub(super) async fn refuse_what_changed(&mut self) -> Result<(), Halt> {
        let unanswered: Vec<_> = self.thread.exchanges.last().into_iter().flat_map(|last| last.unanswered()).collect();
        let unanswered: Vec<_> = unanswered.into_iter().cloned().collect();
        for planned in unanswered {
            let id = ToolCallId::of(&self.run.graph_thread_id, &planned.id);
            let (call, _) = load::<ToolCall>(self.app.ledger.reader(), id.as_str()).await?;
            let now = admit(self.tools.registry(), &planned, false);
            let Some(own) = call.request.clone().filter(|own| own.call_hash != now.call_hash) else { continue };
            let error = ToolError::of(ErrorCode::ToolChanged);
            let decided = ToolCallDecided::deny("offer", &error, "pipeline");
            // The tool's own last word was that of another tool.
            let finish = Finish::captured(&Registry::default(), &own.tool, self.tools.post_execute());
            let Seen { outcome, content, revisions } =
                finish.see(&own.arguments, ToolOutcome { result: Err(error) }.into());
            let refuse = ToolCallCommand::Decide { request: Box::new(own), decided };
            for command in [refuse, ToolCallCommand::Revise(revisions)] {
                let done = execute::<ToolCall>(&self.app.ledger, id.as_str(), &self.metadata(), command, None).await;
                done.map_err(super::call::halted)?;
            }
            let (tool_call_id, deferred, stopped) = (id, Deferred::default(), None);
            self.observe(Carried { tool_call_id, outcome, content, deferred, stopped }).await?;
        }
        Ok(())
    }
}
