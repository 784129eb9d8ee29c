//! Executions of tool bodies that are under way and may call tools themselves.
//!
//! A body gets [`SubCalls`]: a handle that this process drew at random and that counts as long as the body runs. A
//! call with any other handle is the call of a tool that does not exist, before any policy. A sub-call goes through
//! the same stages as a model's call and has a stream of its own that names its parent; all of an execution together put only so much into the log.

use super::call::{Calls, Carried};
use super::execution::Halt;
use crate::ids::new_secret;
use crate::tools::ToolContext;
use devmind_domain::ErrorCode;
use devmind_domain::agent::{Approvals, PlannedCall};
use devmind_domain::canonical::canonical_json;
use devmind_domain::conversation::Conversation;
use devmind_domain::ids::{SUB_CALL_MARK, ToolCallId};
use devmind_domain::thread::ModelToolCall;
use devmind_domain::tools::ToolOutcome;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Who makes sub-calls, and how much of them is recorded.
pub(super) struct Caller {
    pub tool_call_id: ToolCallId,
    recorded_bytes: AtomicUsize,
    /// Bytes of arguments and results that its calls put into the log, all together.
    pub most_bytes: usize,
}

impl Caller {
    /// Counts what is recorded of a call.
    pub fn recorded(&self, arguments: &Value, outcome: &ToolOutcome) {
        let given =
            outcome.result.as_ref().map_or_else(|error| error.message.len(), |value| canonical_json(value).len());
        self.recorded_bytes.fetch_add(canonical_json(arguments).len() + given, Ordering::Relaxed);
    }

    fn is_over_limit(&self) -> bool {
        self.recorded_bytes.load(Ordering::Relaxed) >= self.most_bytes
    }
}

/// The executions under way in this process, by their handles.
#[derive(Clone)]
pub struct LiveExecutions {
    parents: Arc<Mutex<HashMap<String, Arc<Parent>>>>,
    most_bytes: usize,
}

/// An execution that may call tools.
struct Parent {
    /// What its sub-calls share; they are calls of this parent.
    calls: Calls,
    /// Where what its sub-calls leave is left.
    context: ToolContext,
    model_call_id: String,
    made: AtomicU32,
}

/// What a body calls tools with. A copy is the same handle; nothing else is.
#[derive(Clone)]
pub struct SubCalls {
    live: LiveExecutions,
    handle: String,
}

impl std::fmt::Debug for SubCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SubCalls")
    }
}

/// An execution in the table, until it is dropped.
pub(super) struct Live(SubCalls);

impl Live {
    pub fn sub_calls(&self) -> SubCalls {
        self.0.clone()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.live.lock().remove(&self.0.handle);
    }
}

impl LiveExecutions {
    /// None yet. `most_bytes`: of arguments and results that the calls of one put into the log, all together; those
    /// under way when it is reached come to their end, every later one is refused with `TOOL_LIMIT_REACHED`.
    pub fn new(most_bytes: usize) -> Self {
        Self { parents: Arc::default(), most_bytes }
    }

    /// Enters the execution of a call; not where nothing random can be drawn.
    pub(super) fn enter(&self, calls: &Calls, context: &ToolContext, model_call_id: &str) -> Option<Live> {
        let (tool_call_id, most_bytes) = (context.tool_call_id.clone(), self.most_bytes);
        let caller = Caller { tool_call_id, recorded_bytes: AtomicUsize::new(0), most_bytes };
        let calls = Calls { parent: Some(Arc::new(caller)), ..calls.clone() };
        let context = context.clone();
        let parent = Parent { calls, context, model_call_id: model_call_id.to_owned(), made: AtomicU32::new(0) };
        let handle = new_secret().inspect_err(|error| tracing::error!(cause = %error, "no handle")).ok()?;
        self.lock().insert(handle.clone(), Arc::new(parent));
        Some(Live(SubCalls { live: self.clone(), handle }))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Parent>>> {
        self.parents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SubCalls {
    /// Calls a tool: its name as a model writes it, its arguments as JSON text. Gives the value itself, not what a
    /// model would see of it.
    pub async fn call(&self, name: String, arguments: String) -> ToolOutcome {
        let parent = self.live.lock().get(&self.handle).cloned();
        let Some(parent) = parent else {
            return ToolOutcome::failure(ErrorCode::UnknownTool, "there is no such tool");
        };
        let number = parent.made.fetch_add(1, Ordering::Relaxed) + 1;
        let call = ModelToolCall { id: format!("{}{SUB_CALL_MARK}{number}", parent.model_call_id), name, arguments };
        match parent.calls.sub_call(call).await {
            Ok(carried) => {
                // Only a success leaves anything, and whether this body succeeds is not known yet.
                if carried.outcome.ok() {
                    parent.context.forward(carried.deferred);
                }
                carried.outcome
            }
            Err(halt) => {
                let run_id = &parent.calls.run.run_id;
                match halt {
                    Halt::Stopped(_) => tracing::debug!(run.id = %run_id, "a sub-call came after its run's stop"),
                    halt => tracing::error!(run.id = %run_id, cause = %halt, "a sub-call was not carried out"),
                }
                ToolOutcome::failure(ErrorCode::AbortedBeforeDispatch, ErrorCode::AbortedBeforeDispatch.help())
            }
        }
    }
}

impl Calls {
    /// A program cannot wait for a person: a call that needs one is refused.
    async fn sub_call(&self, call: ModelToolCall) -> Result<Carried, Halt> {
        let over_limit = self.parent.as_ref().is_some_and(|caller| caller.is_over_limit());
        let mut approvals = Approvals::of(&Conversation::default(), &self.run.graph_thread_id);
        if let Some(judged) = self.judge(&call, over_limit, false).await? {
            approvals.judged(judged.tool_call_id, judged.call_hash, judged.verdict);
        }
        let permission = approvals.about(self.callable(), &call, over_limit);
        self.carry_out(&PlannedCall { call, over_limit, permission }).await
    }
}
