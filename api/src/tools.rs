//! The tools of this process: their definitions, the bodies of those that run in the server, and the guards,
//! wrappers and post-execute steps that every call of them passes.
//!
//! A run takes the tools as they are when it begins ([`ToolSet`] is a cheap copy), so that what a model was
//! offered is what it can call until its run ends, and no stage changes under a call. How a call is judged and
//! recorded is left to `runs`.

mod built_in;
mod wrappers;

pub use built_in::Durations;
pub use wrappers::{Clock, Next, Wrapped, WrappedCall, Wrapper, around};

use crate::code_mode::{self, RunCode};
use crate::config::CodeMode;
use crate::ids::now;
use crate::runs::SubCalls;
use built_in::{Measured, TimeLimit, durations};
use devmind_domain::ErrorCode;
use devmind_domain::ids::ToolCallId;
use devmind_domain::limits::{MAX_DEFERRED_BYTES, MAX_DEFERRED_CONTEXTS};
use devmind_domain::thread::Deferred;
use devmind_domain::tool_call::{ResultStatus, Target};
use devmind_domain::tool_set::ToolSetRecorded;
use devmind_domain::tools::{
    Guard, PostExecute, Registry, RegistryError, ToolDefinition, ToolOutcome, built_in_guards, catalogue, server_tools,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long a body that was asked to end may take to do so, before it is left and its outcome is unknown.
const END_WITHIN: Duration = Duration::from_secs(5);

/// What a body knows of its call beside the arguments, and what it can do for its turn.
#[derive(Clone, Debug)]
pub struct ToolContext {
    /// The call.
    pub tool_call_id: ToolCallId,
    /// Cancelled when the call is to end: its run is stopped, or its time is over.
    pub cancel: CancellationToken,
    /// What the body leaves for the time after its message.
    pub deferred: Arc<Mutex<Deferred>>,
    /// What the body may call tools with; a call without a run has none.
    pub sub_calls: Option<SubCalls>,
}

/// A body wants to leave more for the model than one call may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a call leaves {MAX_DEFERRED_CONTEXTS} messages of {MAX_DEFERRED_BYTES} bytes together at most")]
pub struct TooMuchDeferred;

impl ToolContext {
    /// A call that has left nothing yet.
    pub fn new(tool_call_id: ToolCallId, cancel: CancellationToken) -> Self {
        Self { tool_call_id, cancel, deferred: Arc::default(), sub_calls: None }
    }

    /// Tells the model something after all results of this message, in words of the user's side, if the call succeeds.
    ///
    /// # Errors
    /// [`TooMuchDeferred`]: this message is not kept.
    pub fn defer_context(&self, message: impl Into<String>) -> Result<(), TooMuchDeferred> {
        let (message, mut deferred) = (message.into(), self.deferred.lock().unwrap_or_else(PoisonError::into_inner));
        let bytes: usize = deferred.contexts.iter().map(String::len).sum();
        if deferred.contexts.len() >= MAX_DEFERRED_CONTEXTS || bytes + message.len() > MAX_DEFERRED_BYTES {
            return Err(TooMuchDeferred);
        }
        deferred.contexts.push(message);
        Ok(())
    }

    /// Ends the turn with the results of this message, if the call succeeds: the model is not asked again, and the
    /// answer is what this tool gives. What is deferred does not keep the turn open.
    pub fn conclude_turn(&self) {
        self.deferred.lock().unwrap_or_else(PoisonError::into_inner).concludes_turn = true;
    }

    /// What a call that this body made left is left by this one.
    pub(crate) fn forward(&self, deferred: Deferred) {
        for message in deferred.contexts {
            if let Err(error) = self.defer_context(message) {
                tracing::warn!(tool_call.id = %self.tool_call_id, cause = %error, "a context of a sub-call is not kept");
            }
        }
        if deferred.concludes_turn {
            self.conclude_turn();
        }
    }

    /// What was left so far.
    pub(crate) fn take_deferred(&self) -> Deferred {
        std::mem::take(&mut self.deferred.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// How a body ended: what it gave, and whether anybody can know that it did its work.
#[derive(Clone, Debug, PartialEq)]
pub struct BodyEnd {
    /// What is recorded: succeeded, failed, or that it began and nobody knows what came of it.
    pub status: ResultStatus,
    /// The value, or why there is none.
    pub outcome: ToolOutcome,
}

impl BodyEnd {
    /// It began, and whether it took effect cannot be known.
    pub fn unknown(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { status: ResultStatus::Indeterminate, outcome: ToolOutcome::failure(code, message) }
    }
}

impl BodyEnd {
    /// What of it can be recorded.
    fn bounded(self) -> Self {
        let outcome = self.outcome.bounded();
        let lost = self.status == ResultStatus::Succeeded && !outcome.ok();
        Self { status: if lost { ResultStatus::Failed } else { self.status }, outcome }
    }
}

impl From<ToolOutcome> for BodyEnd {
    fn from(outcome: ToolOutcome) -> Self {
        let status = if outcome.ok() { ResultStatus::Succeeded } else { ResultStatus::Failed };
        Self { status, outcome }
    }
}

/// The third layer of a tool that runs in the server.
pub trait ServerTool: Send + Sync {
    /// Does it. Arguments match the tool's schema; the value is checked against the schema of its output. A body
    /// that was asked to end and cannot tell what it did says [`BodyEnd::unknown`] with `RESULT_UNKNOWN`.
    fn call(&self, arguments: Value, context: ToolContext) -> BoxFuture<'_, BodyEnd>;
}

/// A built-in tool: a pure function of its arguments and the time.
struct BuiltIn(String);

impl ServerTool for BuiltIn {
    fn call(&self, arguments: Value, _: ToolContext) -> BoxFuture<'_, BodyEnd> {
        async move { server_tools::execute(&self.0, &arguments, now()).into() }.boxed()
    }
}

/// Definitions, bodies, and what stands around them.
#[derive(Clone)]
pub struct ToolSet {
    callable: Registry,
    /// What the model sees instead, in code mode.
    code_mode: Option<Registry>,
    /// What is recorded before a model is offered these tools, and its id; not where this program brings all along.
    to_record: Option<(String, ToolSetRecorded)>,
    bodies: BTreeMap<String, Arc<dyn ServerTool>>,
    guards: Vec<Guard>,
    wrappers: Vec<Arc<dyn Wrapper>>,
    post_execute: Arc<[PostExecute]>,
}

impl ToolSet {
    /// The tools that this program brings along.
    fn built_in(durations: &Durations) -> Self {
        let registry = catalogue().clone();
        let of_server = registry.definitions().filter(|definition| definition.target == Target::Server);
        let body = |definition: &ToolDefinition| -> (String, Arc<dyn ServerTool>) {
            (definition.name.clone(), Arc::new(BuiltIn(definition.name.clone())))
        };
        let bodies = of_server.map(body).collect();
        let wrappers: Vec<Arc<dyn Wrapper>> = vec![Arc::new(Measured(durations.clone())), Arc::new(TimeLimit)];
        Self {
            callable: registry,
            code_mode: None,
            to_record: None,
            bodies,
            guards: built_in_guards(),
            wrappers,
            post_execute: Arc::new([]),
        }
    }

    /// Lets the model see `run_code` alone, and its programs all other tools.
    ///
    /// # Errors
    /// When another tool has its name.
    pub fn enter_code_mode(&mut self, body: RunCode) -> Result<(), RegistryError> {
        self.code_mode = Some(Registry::default());
        self.bodies.insert(code_mode::RUN_CODE.to_owned(), Arc::new(body));
        self.tell_of_change()
    }

    /// What is to be recorded before a model is offered these tools, and its id.
    pub fn to_record(&self) -> Option<&(String, ToolSetRecorded)> {
        self.to_record.as_ref()
    }

    /// What a model is offered and can call.
    pub fn registry(&self) -> &Registry {
        self.code_mode.as_ref().unwrap_or(&self.callable)
    }

    /// What the program of a model can call.
    pub fn callable(&self) -> &Registry {
        &self.callable
    }

    /// The definition of a tool, whoever can call it.
    pub fn definition(&self, name: &str) -> Option<&ToolDefinition> {
        self.registry().get(name).or_else(|| self.callable.get(name))
    }

    /// What the model is told, and what is recorded of it, follows what there is.
    fn tell_of_change(&mut self) -> Result<(), RegistryError> {
        if self.code_mode.is_some() {
            self.code_mode = Some(Registry::new([code_mode::definition(&self.callable)])?);
        }
        let offered = ToolSetRecorded::of(self.registry());
        self.to_record = (offered != ToolSetRecorded::of(catalogue())).then(|| (offered.id(), offered));
        Ok(())
    }

    /// Adds a tool that runs in the server.
    ///
    /// # Errors
    /// What is wrong with its definition.
    pub fn register(&mut self, definition: ToolDefinition, body: Arc<dyn ServerTool>) -> Result<(), RegistryError> {
        let name = definition.name.clone();
        self.callable.register(definition)?;
        self.bodies.insert(name, body);
        self.tell_of_change()
    }

    /// Adds a guard, before those that are there: the built-in ones have the last look.
    pub fn add_guard(&mut self, guard: Guard) {
        self.guards.insert(0, guard);
    }

    /// Adds a wrapper, around those that are there but inside the one that measures.
    pub fn add_wrapper(&mut self, wrapper: Arc<dyn Wrapper>) {
        self.wrappers.insert(1, wrapper);
    }

    /// Adds a post-execute step, after those that are there.
    pub fn add_post_execute(&mut self, step: PostExecute) {
        self.post_execute = self.post_execute.iter().cloned().chain([step]).collect();
    }

    /// The guards, in order.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// The wrappers, the outermost first.
    pub fn wrappers(&self) -> &[Arc<dyn Wrapper>] {
        &self.wrappers
    }

    /// The post-execute steps, in order.
    pub fn post_execute(&self) -> &Arc<[PostExecute]> {
        &self.post_execute
    }

    /// Takes a tool away.
    pub fn remove(&mut self, name: &str) {
        if self.callable.remove(name) {
            self.bodies.remove(name);
            // It was registered before, and its definition is no worse without a tool.
            let _ = self.tell_of_change();
        }
    }

    /// Runs a tool's body. One that panics has failed; one that does not end when it is asked to is left, and nobody
    /// knows what it did. How long it may run is left to the wrappers.
    pub async fn execute(&self, tool: &str, arguments: Value, context: ToolContext) -> BodyEnd {
        let Some(body) = self.bodies.get(tool) else {
            return ToolOutcome::failure(ErrorCode::UnknownTool, format!("{tool} does not run in the server")).into();
        };
        let cancel = context.cancel.clone();
        // The making of the future is the body's own code, too.
        let running = AssertUnwindSafe(async { body.call(arguments, context).await }).catch_unwind();
        let mut running = std::pin::pin!(running);
        tokio::select! {
            biased;
            ended = &mut running => return ended.unwrap_or_else(|_panic| panicked(tool)).bounded(),
            () = cancel.cancelled() => {}
        }
        match tokio::time::timeout(END_WITHIN, running).await {
            Ok(ended) => ended.unwrap_or_else(|_panic| panicked(tool)).bounded(),
            Err(_elapsed) => {
                let message = "the tool was asked to end and did not: what it did is unknown";
                BodyEnd::unknown(ErrorCode::ResultUnknown, message)
            }
        }
    }
}

fn panicked(tool: &str) -> BodyEnd {
    tracing::error!(tool.name = tool, "a tool panicked");
    ToolOutcome::failure(ErrorCode::ExecutionFailed, "the tool has a fault").into()
}

/// The tools of a process, which can change while it runs.
pub struct Tools {
    now: RwLock<Arc<ToolSet>>,
    durations: Durations,
}

impl Default for Tools {
    fn default() -> Self {
        let durations = durations();
        Self { now: RwLock::new(Arc::new(ToolSet::built_in(&durations))), durations }
    }
}

impl Tools {
    /// The tools of a process with these settings.
    ///
    /// # Errors
    /// When code mode is on and this program does not know its own file.
    pub fn new(code_mode: &CodeMode) -> anyhow::Result<Self> {
        let tools = Self::default();
        if code_mode.enabled {
            tools.change(|tools| anyhow::Ok(tools.enter_code_mode(RunCode::new(code_mode)?)?))?;
        }
        Ok(tools)
    }

    /// The tools there are now.
    pub fn current(&self) -> Arc<ToolSet> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes them for every run that begins from now on.
    pub fn change<T>(&self, change: impl FnOnce(&mut ToolSet) -> T) -> T {
        change(Arc::make_mut(&mut self.now.write().unwrap_or_else(PoisonError::into_inner)))
    }

    /// How long calls took.
    pub fn durations(&self) -> &Durations {
        &self.durations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_leaves_only_so_much_for_the_model() {
        let context = || ToolContext::new("c".into(), CancellationToken::new());
        let many = context();
        for _ in 0..MAX_DEFERRED_CONTEXTS {
            assert_eq!(many.clone().defer_context("x"), Ok(()));
        }
        assert_eq!(many.defer_context("x"), Err(TooMuchDeferred));
        assert_eq!(many.take_deferred().contexts.len(), MAX_DEFERRED_CONTEXTS);
        let large = context();
        assert_eq!(large.defer_context("x".repeat(MAX_DEFERRED_BYTES)), Ok(()));
        assert_eq!(large.defer_context("x"), Err(TooMuchDeferred));
    }
}
