//! The calls of one message: which begin when, and that the thread observes exactly one result of each, when it comes.
//!
//! Every call has a task of its own, so that none waits for another, nor for the client. Once the run is to stop, or
//! one of them cannot go on, none begins any more; those under way are awaited, so that what they did is recorded. What
//! has no result then gets its stand-in with the run's end.

use super::active::StopReason;
use super::call::{Calls, Carried, requested};
use super::execution::{Execution, Halt};
use devmind_domain::Decider;
use devmind_domain::agent::{PlannedCall, Schedule};
use devmind_domain::event::{AggregateType, DomainEvent};
use devmind_domain::ids::ToolCallId;
use devmind_domain::thread::{ThreadCommand, ToolResultObserved};
use devmind_domain::tool_call::{ToolCall, ToolCallCommand};
use devmind_domain::tools::admit;
use devmind_ledger::{Append, load};
use futures::StreamExt;
use futures::future::try_join_all;
use futures::stream::FuturesUnordered;
use std::sync::Arc;

impl Execution {
    pub(super) async fn carry_out(&mut self, planned: Vec<PlannedCall>) -> Result<(), Halt> {
        let calls = Arc::new(self.calls());
        let mut schedule = Schedule::of(self.tools.registry(), &planned);
        let (mut under_way, mut halt) = (FuturesUnordered::new(), None);
        loop {
            let mut done = Ok(());
            if halt.is_none() && calls.signal.reason().is_none() {
                let begun = schedule.begin();
                done = self.request(begun.iter().map(|index| &planned[*index])).await;
                for index in begun.into_iter().filter(|_| done.is_ok()) {
                    let (calls, planned) = (calls.clone(), planned[index].clone());
                    // Of the process, not of this future: whatever becomes of the run, it comes to its end.
                    let task = self.app.run_tasks.spawn(async move { calls.carry_out(&planned).await });
                    under_way.push(async move { (index, task.await) });
                }
            }
            if done.is_ok() {
                let Some((index, ended)) = under_way.next().await else { break };
                schedule.end(index);
                done = match ended {
                    Ok(Ok(carried)) => self.observe(carried).await,
                    Ok(Err(halted)) => Err(halted),
                    Err(broken) => Err(Halt::Broken(broken)),
                };
            }
            if let Err(error) = done {
                // The run ends: who waits for a device or a tool need not wait for all of their time.
                calls.signal.stop(StopReason::ShuttingDown);
                halt = halt.or(Some(error));
            }
        }
        match (halt, self.signal.reason()) {
            (Some(halt), _) => Err(halt),
            (None, Some(reason)) if !schedule.is_over() => Err(Halt::Stopped(reason)),
            (None, _) => Ok(()),
        }
    }

    /// Requests calls that begin together, in the model's order, in which people see them from then on. One alone is
    /// requested by what is decided about it.
    async fn request(&self, begun: impl ExactSizeIterator<Item = &PlannedCall>) -> Result<(), Halt> {
        if begun.len() < 2 {
            return Ok(());
        }
        let mut streams = Vec::new();
        for planned in begun {
            let id = ToolCallId::of(&self.run.graph_thread_id, &planned.call.id);
            let admission = admit(self.tools.registry(), &planned.call, planned.over_limit);
            let request = requested(&self.run, &planned.call.id, &admission);
            let (call, version) = load::<ToolCall>(self.app.ledger.reader(), id.as_str()).await?;
            let events = call.decide(ToolCallCommand::Request(Box::new(request)))?.into_iter().map(DomainEvent::from);
            streams.extend(self.stream_append(AggregateType::ToolCall, id.as_str(), version, events));
        }
        if !streams.is_empty() {
            self.app.ledger.append(Append { streams, idempotency: None }).await?;
        }
        Ok(())
    }

    pub(super) async fn hear_policies(&mut self, planned: &[PlannedCall]) -> Result<(), Halt> {
        if let Some(reason) = self.signal.reason() {
            return Err(Halt::Stopped(reason));
        }
        let (calls, somebody) = (self.calls(), self.app.policies.asks());
        // Side by side: a policy that takes all of its time takes it once.
        let heard = planned.iter().map(|planned| calls.judge(&planned.call, planned.over_limit, somebody));
        for judged in try_join_all(heard).await?.into_iter().flatten() {
            self.approvals.judged(judged.tool_call_id, judged.call_hash, judged.verdict);
        }
        Ok(())
    }

    fn calls(&self) -> Calls {
        let (app, run, tools) = (self.app.clone(), self.run.clone(), self.tools.clone());
        Calls { app, run, tools, signal: self.signal.of_a_part(), claimed: true, parent: None }
    }

    pub(super) async fn observe(&mut self, carried: Carried) -> Result<(), Halt> {
        let observed = ToolResultObserved {
            tool_call_id: carried.tool_call_id,
            ok: carried.outcome.ok(),
            error: carried.outcome.error_code(),
            content: carried.content,
        };
        let done = self.record(ThreadCommand::ObserveResult(observed, carried.deferred)).await;
        let Some(reason) = carried.stopped else { return done };
        // Where it cannot be recorded now, the stand-in at the run's end says so: the run ends because it was told to.
        if let Err(error) = done {
            tracing::warn!(run.id = %self.run.run_id, cause = %error, "an outcome was not recorded");
        }
        Err(Halt::Stopped(reason))
    }
}
