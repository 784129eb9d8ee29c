//! The tools of this process: their definitions, and the bodies of those that run in the server.
//!
//! A run takes the tools as they are when it begins ([`ToolSet`] is a cheap copy), so that what a model was
//! offered is what it can call until its run ends. How a call is judged and recorded is left to `runs`.

use crate::ids::now;
use devmind_domain::ErrorCode;
use devmind_domain::ids::ToolCallId;
use devmind_domain::limits::{MAX_DEFERRED_BYTES, MAX_DEFERRED_CONTEXTS};
use devmind_domain::thread::Deferred;
use devmind_domain::tool_call::Target;
use devmind_domain::tools::{Registry, RegistryError, ToolDefinition, ToolOutcome, catalogue, server_tools};
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
}

/// A body wants to leave more for the model than one call may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a call leaves {MAX_DEFERRED_CONTEXTS} messages of {MAX_DEFERRED_BYTES} bytes together at most")]
pub struct TooMuchDeferred;

impl ToolContext {
    /// A call that has left nothing yet.
    pub fn new(tool_call_id: ToolCallId, cancel: CancellationToken) -> Self {
        Self { tool_call_id, cancel, deferred: Arc::default() }
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

    /// What was left so far.
    pub(crate) fn take_deferred(&self) -> Deferred {
        std::mem::take(&mut self.deferred.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The third layer of a tool that runs in the server.
pub trait ServerTool: Send + Sync {
    /// Does it. Arguments match the tool's schema; the value is checked against the schema of its output.
    fn call(&self, arguments: Value, context: ToolContext) -> BoxFuture<'_, ToolOutcome>;
}

/// A built-in tool: a pure function of its arguments and the time.
struct BuiltIn(String);

impl ServerTool for BuiltIn {
    fn call(&self, arguments: Value, _: ToolContext) -> BoxFuture<'_, ToolOutcome> {
        async move { server_tools::execute(&self.0, &arguments, now()) }.boxed()
    }
}

/// Definitions and bodies.
#[derive(Clone)]
pub struct ToolSet {
    registry: Registry,
    bodies: BTreeMap<String, Arc<dyn ServerTool>>,
}

impl ToolSet {
    /// The tools that this program brings along.
    pub fn built_in() -> Self {
        let registry = catalogue().clone();
        let of_server = registry.definitions().filter(|definition| definition.target == Target::Server);
        let body = |definition: &ToolDefinition| -> (String, Arc<dyn ServerTool>) {
            (definition.name.clone(), Arc::new(BuiltIn(definition.name.clone())))
        };
        let bodies = of_server.map(body).collect();
        Self { registry, bodies }
    }

    /// The definitions.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Adds a tool that runs in the server.
    ///
    /// # Errors
    /// What is wrong with its definition.
    pub fn register(&mut self, definition: ToolDefinition, body: Arc<dyn ServerTool>) -> Result<(), RegistryError> {
        let name = definition.name.clone();
        self.registry.register(definition)?;
        self.bodies.insert(name, body);
        Ok(())
    }

    /// Takes a tool away.
    pub fn remove(&mut self, name: &str) {
        self.registry.remove(name);
        self.bodies.remove(name);
    }

    /// Runs a tool's body within its time. A body that panics has failed; one that does not end when it is asked
    /// to is left, and nobody knows what it did.
    pub async fn execute(&self, tool: &str, arguments: Value, context: ToolContext) -> ToolOutcome {
        let Some(body) = self.bodies.get(tool) else {
            return ToolOutcome::failure(ErrorCode::UnknownTool, format!("{tool} does not run in the server"));
        };
        let limit = self.registry.get(tool).and_then(|definition| definition.timeout_ms).map(Duration::from_millis);
        let cancel = context.cancel.clone();
        // The making of the future is the body's own code, too.
        let running = AssertUnwindSafe(async { body.call(arguments, context).await }).catch_unwind();
        let mut running = std::pin::pin!(running);
        let time_is_over = async {
            match limit {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        let code = tokio::select! {
            biased;
            ended = &mut running => return ended.unwrap_or_else(|_panic| panicked(tool)),
            () = cancel.cancelled() => ErrorCode::ResultUnknown,
            () = time_is_over => ErrorCode::ToolTimeout,
        };
        cancel.cancel();
        match tokio::time::timeout(END_WITHIN, running).await {
            Ok(ended) => ended.unwrap_or_else(|_panic| panicked(tool)),
            Err(_elapsed) => {
                ToolOutcome::failure(code, "the tool was asked to end and did not: what it did is unknown")
            }
        }
    }
}

fn panicked(tool: &str) -> ToolOutcome {
    tracing::error!(tool.name = tool, "a tool panicked");
    ToolOutcome::failure(ErrorCode::ExecutionFailed, "the tool has a fault")
}

/// The tools of a process, which can change while it runs.
pub struct Tools(RwLock<Arc<ToolSet>>);

impl Default for Tools {
    fn default() -> Self {
        Self(RwLock::new(Arc::new(ToolSet::built_in())))
    }
}

impl Tools {
    /// The tools there are now.
    pub fn current(&self) -> Arc<ToolSet> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes them for every run that begins from now on.
    pub fn change<T>(&self, change: impl FnOnce(&mut ToolSet) -> T) -> T {
        change(Arc::make_mut(&mut self.0.write().unwrap_or_else(PoisonError::into_inner)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    struct Body(fn(ToolContext) -> BoxFuture<'static, ToolOutcome>);

    impl ServerTool for Body {
        fn call(&self, _: Value, context: ToolContext) -> BoxFuture<'_, ToolOutcome> {
            (self.0)(context)
        }
    }

    async fn code(body: fn(ToolContext) -> BoxFuture<'static, ToolOutcome>) -> Option<String> {
        let any = json!({"type": "object"});
        let mut definition = ToolDefinition::new("t", "", any.clone(), any);
        definition.timeout_ms = Some(1);
        let tools = Tools::default();
        tools.change(|tools| tools.register(definition, Arc::new(Body(body)))).expect("whole");
        let context = ToolContext::new("c".into(), CancellationToken::new());
        tools.current().execute("t", json!({}), context).await.error_code()
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_panics_or_hangs_fails_alone_and_one_that_ends_when_asked_is_heard() {
        assert_eq!(code(|_| async { ToolOutcome::success(json!({})) }.boxed()).await, None);
        assert_eq!(code(|_| panic!("a fault")).await.as_deref(), Some("EXECUTION_FAILED"));
        assert_eq!(code(|_| async { panic!("a fault") }.boxed()).await.as_deref(), Some("EXECUTION_FAILED"));
        assert_eq!(code(|_| std::future::pending().boxed()).await.as_deref(), Some("TOOL_TIMEOUT"));
        let ends_when_asked = |context: ToolContext| {
            async move {
                context.cancel.cancelled().await;
                ToolOutcome::success(json!({"late": true}))
            }
            .boxed()
        };
        assert_eq!(code(ends_when_asked).await, None, "what really happened is what is recorded");
    }

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
