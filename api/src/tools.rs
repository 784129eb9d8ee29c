//! The tools of this process: their definitions, and the bodies of those that run in the server.
//!
//! A run takes the tools as they are when it begins ([`ToolSet`] is a cheap copy), so that what a model was
//! offered is what it can call until its run ends. How a call is judged and recorded is left to `runs`.

use crate::code_mode::{self, RunCode};
use crate::config::CodeMode;
use crate::ids::now;
use crate::runs::SubCalls;
use devmind_domain::ErrorCode;
use devmind_domain::ids::ToolCallId;
use devmind_domain::tool_call::{ResultStatus, Target};
use devmind_domain::tool_set::ToolSetRecorded;
use devmind_domain::tools::{Registry, RegistryError, ToolDefinition, ToolOutcome, catalogue, server_tools};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long a body that was asked to end may take to do so, before it is left and its outcome is unknown.
const END_WITHIN: Duration = Duration::from_secs(5);

/// What a body knows of its call beside the arguments.
#[derive(Clone, Debug)]
pub struct ToolContext {
    /// The call.
    pub tool_call_id: ToolCallId,
    /// Cancelled when the call is to end: its run is stopped, or its time is over.
    pub cancel: CancellationToken,
    /// What the body may call tools with; a call without a run has none.
    pub sub_calls: Option<SubCalls>,
}

/// How a body ended: what it gave, and whether anybody can know that it did its work.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// What is recorded: succeeded, failed, or that it began and nobody knows what came of it.
    pub status: ResultStatus,
    /// The value, or why there is none.
    pub outcome: ToolOutcome,
}

impl Ended {
    /// It began, and whether it took effect cannot be known.
    pub fn unknown(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { status: ResultStatus::Indeterminate, outcome: ToolOutcome::failure(code, message) }
    }
}

impl From<ToolOutcome> for Ended {
    fn from(outcome: ToolOutcome) -> Self {
        let status = if outcome.ok() { ResultStatus::Succeeded } else { ResultStatus::Failed };
        Self { status, outcome }
    }
}

/// The third layer of a tool that runs in the server.
pub trait ServerTool: Send + Sync {
    /// Does it. Arguments match the tool's schema; the value is checked against the schema of its output. A body
    /// that was asked to end and cannot tell what it did says [`Ended::unknown`] with `RESULT_UNKNOWN`.
    fn call(&self, arguments: Value, context: ToolContext) -> BoxFuture<'_, Ended>;
}

/// A built-in tool: a pure function of its arguments and the time.
struct BuiltIn(String);

impl ServerTool for BuiltIn {
    fn call(&self, arguments: Value, _: ToolContext) -> BoxFuture<'_, Ended> {
        async move { server_tools::execute(&self.0, &arguments, now()).into() }.boxed()
    }
}

/// Definitions and bodies.
#[derive(Clone)]
pub struct ToolSet {
    callable: Registry,
    /// What the model sees instead, in code mode.
    code_mode: Option<Registry>,
    /// What is recorded before a model is offered these tools, and its id; not where this program brings all along.
    to_record: Option<(String, ToolSetRecorded)>,
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
        Self { callable: registry, code_mode: None, to_record: None, bodies }
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

    /// Takes a tool away.
    pub fn remove(&mut self, name: &str) {
        if self.callable.remove(name) {
            self.bodies.remove(name);
            // It was registered before, and its definition is no worse without a tool.
            let _ = self.tell_of_change();
        }
    }

    /// Runs a tool's body within its time. A body that panics has failed; one that does not end when it is asked
    /// to is left, and nobody knows what it did.
    pub async fn execute(&self, tool: &str, arguments: Value, context: ToolContext) -> Ended {
        let Some(body) = self.bodies.get(tool) else {
            return ToolOutcome::failure(ErrorCode::UnknownTool, format!("{tool} does not run in the server")).into();
        };
        let limit = self.definition(tool).and_then(|definition| definition.timeout_ms).map(Duration::from_millis);
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
            // It knows no more than that it was asked to end: the code says why it was.
            Ok(Ok(ended)) if ended.outcome.error_code().as_deref() == Some(ErrorCode::ResultUnknown.as_str()) => {
                let message = ended.outcome.result.err().map(|error| error.message).unwrap_or_default();
                Ended::unknown(code, message)
            }
            Ok(ended) => ended.unwrap_or_else(|_panic| panicked(tool)),
            Err(_elapsed) => Ended::unknown(code, "the tool was asked to end and did not: what it did is unknown"),
        }
    }
}

fn panicked(tool: &str) -> Ended {
    tracing::error!(tool.name = tool, "a tool panicked");
    ToolOutcome::failure(ErrorCode::ExecutionFailed, "the tool has a fault").into()
}

/// The tools of a process, which can change while it runs.
pub struct Tools(RwLock<Arc<ToolSet>>);

impl Default for Tools {
    fn default() -> Self {
        Self(RwLock::new(Arc::new(ToolSet::built_in())))
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

    struct Body(fn(ToolContext) -> BoxFuture<'static, Ended>);

    impl ServerTool for Body {
        fn call(&self, _: Value, context: ToolContext) -> BoxFuture<'_, Ended> {
            (self.0)(context)
        }
    }

    /// How a body with a time limit of 1 ms ended, and its code.
    async fn ended(body: fn(ToolContext) -> BoxFuture<'static, Ended>, stop: bool) -> (ResultStatus, String) {
        let any = json!({"type": "object"});
        let mut definition = ToolDefinition::new("t", "", any.clone(), any);
        definition.timeout_ms = Some(1);
        let tools = Tools::default();
        tools.change(|tools| tools.register(definition, Arc::new(Body(body)))).expect("whole");
        let context = ToolContext { tool_call_id: "c".into(), cancel: CancellationToken::new(), sub_calls: None };
        if stop {
            context.cancel.cancel();
        }
        let Ended { status, outcome } = tools.current().execute("t", json!({}), context).await;
        (status, outcome.error_code().unwrap_or_default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_panics_or_hangs_fails_alone_and_one_that_ends_when_asked_is_heard() {
        use ResultStatus::{Failed, Indeterminate, Succeeded};
        let ends_when_asked = |context: ToolContext| {
            async move {
                context.cancel.cancelled().await;
                ToolOutcome::success(json!({"late": true})).into()
            }
            .boxed()
        };
        let cannot_tell = |context: ToolContext| {
            async move {
                context.cancel.cancelled().await;
                Ended::unknown(ErrorCode::ResultUnknown, "sent, and not answered")
            }
            .boxed()
        };
        for (what, body, stop, expected) in [
            (
                "a value",
                (|_| async { ToolOutcome::success(json!({})).into() }.boxed()) as fn(_) -> _,
                false,
                (Succeeded, ""),
            ),
            ("a panic", |_| panic!("a fault"), false, (Failed, "EXECUTION_FAILED")),
            ("a late panic", |_| async { panic!("a fault") }.boxed(), false, (Failed, "EXECUTION_FAILED")),
            // Left in the middle of what it does: nobody can say that it did nothing.
            ("silence", |_| std::future::pending().boxed(), false, (Indeterminate, "TOOL_TIMEOUT")),
            ("silence, stopped", |_| std::future::pending().boxed(), true, (Indeterminate, "RESULT_UNKNOWN")),
            ("an end when asked", ends_when_asked, false, (Succeeded, "")),
            ("an unknown end", cannot_tell, false, (Indeterminate, "TOOL_TIMEOUT")),
            ("an unknown end, stopped", cannot_tell, true, (Indeterminate, "RESULT_UNKNOWN")),
        ] {
            let (status, code) = ended(body, stop).await;
            assert_eq!((status, code.as_str()), expected, "{what}");
        }
    }
}
