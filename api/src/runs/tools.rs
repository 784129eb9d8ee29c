//! The calls of one message: which begin when, and that the thread observes exactly one result of each.

use super::call::{Calls, Carried};
use super::execution::{Execution, Halt};
use devmind_domain::agent::PlannedCall;
use devmind_domain::thread::{ThreadCommand, ToolResultObserved};

impl Execution {
    pub(super) async fn carry_out(&mut self, planned: Vec<PlannedCall>) -> Result<(), Halt> {
        let calls = self.calls();
        for planned in &planned {
            let carried = calls.carry_out(planned).await?;
            self.observe(carried).await?;
        }
        Ok(())
    }

    fn calls(&self) -> Calls {
        let (app, run, tools, signal) = (self.app.clone(), self.run.clone(), self.tools.clone(), self.signal.clone());
        Calls { app, run, tools, signal, parent: None }
    }

    async fn observe(&mut self, carried: Carried) -> Result<(), Halt> {
        let observed = ThreadCommand::ObserveResult(ToolResultObserved {
            tool_call_id: carried.tool_call_id,
            ok: carried.outcome.ok(),
            error: carried.outcome.error_code(),
            content: carried.content,
        });
        let done = self.record(observed).await;
        let Some(reason) = carried.stopped else { return done };
        // Where it cannot be recorded now, the stand-in at the run's end says so: the run ends because it was told to.
        if let Err(error) = done {
            tracing::warn!(run.id = %self.run.run_id, cause = %error, "an outcome was not recorded");
        }
        Err(Halt::Stopped(reason))
    }
}
