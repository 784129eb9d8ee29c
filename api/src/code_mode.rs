//! `run_code`: the one tool that a model sees in code mode, whose program calls all others.
//!
//! The program runs in a process of its own (`devmind program`, package `code-mode`); its calls are sub-calls of the
//! call of `run_code` (`runs::live`). It has no effect beside them, so nobody is asked about it, only about them:
//! and as a program cannot wait for a person, a sub-call that needs one is refused with `APPROVAL_UNAVAILABLE`.

use crate::config::CodeMode;
use crate::tools::{BodyEnd, ServerTool, ToolContext};
use devmind_code_mode::{CallError, Failure, Limits, Program, Start, SubCall, ToProgram, run};
use devmind_domain::ErrorCode;
use devmind_domain::tool_call::{Risk, Target};
use devmind_domain::tools::{Approval, ModelVisible, Registry, ToolDefinition, ToolOutcome};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use std::fmt::Write;

/// Its name.
pub const RUN_CODE: &str = "run_code";
/// The longest program (characters).
const MAX_SOURCE_CHARS: usize = 64 * 1024;

/// The definition, which tells the model of the tools that a program can call.
pub fn definition(callable: &Registry) -> ToolDefinition {
    let mut description = "Runs a program: the body of an async JavaScript function. It has no files, no network, no \
        timers and no modules. It calls tools with `await tools.NAME(arguments)`, returns its result with `return` \
        (JSON) and prints with console.log. A tool that is refused or fails throws an Error with a `code`. Tools:"
        .to_owned();
    for tool in callable.definitions() {
        let ModelVisible { name, description: about, parameters } = tool.model_visible();
        // Writing to a text does not fail.
        let _ = write!(description, "\n- tools.{name}({parameters}) → {}: {about}", tool.output);
    }
    ToolDefinition {
        target: Target::Server,
        risk: Risk::Low,
        requires_confirmation: false,
        approval: Approval::Never,
        ..ToolDefinition::new(
            RUN_CODE,
            description,
            json!({
                "type": "object",
                "properties": { "source": {"type": "string", "minLength": 1, "maxLength": MAX_SOURCE_CHARS} },
                "required": ["source"],
                "additionalProperties": false,
            }),
            json!({
                "type": "object",
                "properties": { "value": {}, "printed": {"type": "string"} },
                "required": ["value", "printed"],
            }),
        )
    }
}

/// The body.
pub struct RunCode {
    program: Program,
    limits: Limits,
}

impl RunCode {
    /// With these settings.
    ///
    /// # Errors
    /// When this program does not know its own file.
    pub fn new(settings: &CodeMode) -> std::io::Result<Self> {
        let executable = settings.executable.clone().map_or_else(std::env::current_exe, Ok)?;
        let program = Program { executable, arguments: vec!["program".to_owned()] };
        Ok(Self { program, limits: settings.limits })
    }

    async fn run(&self, source: String, context: ToolContext) -> ToolOutcome {
        let Some(tools) = context.sub_calls else {
            return ToolOutcome::failure(ErrorCode::ExecutionFailed, "this execution may not call tools");
        };
        let start = Start { source, limits: self.limits };
        let call = |call: SubCall| {
            let tools = tools.clone();
            async move {
                match tools.call(call.tool, call.arguments).await.result {
                    Ok(value) => ToProgram::Value(value),
                    Err(error) => ToProgram::Error(CallError { code: error.code, message: error.message }),
                }
            }
        };
        match run(&self.program, &start, &context.cancel, call).await {
            Ok(finished) => ToolOutcome::success(json!({ "value": finished.value, "printed": finished.printed })),
            Err(failure) => ToolOutcome::failure(code(&failure), failure.to_string()),
        }
    }
}

fn code(failure: &Failure) -> ErrorCode {
    match failure {
        Failure::Program(_) | Failure::Process(_) => ErrorCode::ExecutionFailed,
        Failure::OutOfTime(_) => ErrorCode::ToolTimeout,
        Failure::Stopped => ErrorCode::RunCancelled,
    }
}

impl ServerTool for RunCode {
    fn call(&self, arguments: Value, context: ToolContext) -> BoxFuture<'_, BodyEnd> {
        let source = arguments["source"].as_str().unwrap_or_default().to_owned();
        async move { self.run(source, context).await.into() }.boxed()
    }
}
