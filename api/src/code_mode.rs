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

/// Characters of the description that the tools which a program can call are told in, at most: the model reads it in
/// every round.
const MAX_TOOLS_CHARS: usize = 32 * 1024;
/// Of these, for the names of tools that are not described.
const MAX_NAMES_CHARS: usize = 4 * 1024;

/// The definition, which tells the model of the tools that a program can call.
pub fn definition(callable: &Registry) -> ToolDefinition {
    let mut description = "Runs a program: the body of an async JavaScript function. It has no files, no network, no \
        timers and no modules. It calls tools with `await tools.NAME(arguments)`, returns its result with `return` \
        (JSON) and prints with console.log. A tool that is refused or fails throws an Error with a `code`. Tools:"
        .to_owned();
    description.push_str(&told(callable));
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

/// What the model is told of the tools: in their order, as long as there is room; of the others their names, and of what
/// has no room even for that, how many there are. Each can be called.
fn told(callable: &Registry) -> String {
    let (mut told, mut left_out) = (String::new(), Vec::new());
    let mut room = MAX_TOOLS_CHARS - MAX_NAMES_CHARS;
    for tool in callable.definitions() {
        let ModelVisible { name, description: about, parameters } = tool.model_visible();
        let line = format!("\n- tools.{name}({parameters}) → {}: {about}", tool.output);
        match room.checked_sub(line.chars().count()) {
            Some(left) => {
                room = left;
                told.push_str(&line);
            }
            None => left_out.push(name),
        }
    }
    if left_out.is_empty() {
        return told;
    }
    let (mut room, mut named) = (MAX_NAMES_CHARS - 200, Vec::new());
    for name in &left_out {
        match room.checked_sub(name.len() + ", tools.".len()) {
            Some(left) => room = left,
            None => break,
        }
        named.push(format!("tools.{name}"));
    }
    let unnamed = left_out.len() - named.len();
    tracing::warn!(tools.left_out = ?left_out, "tools that programs can call are not described to the model");
    // Writing to a text does not fail.
    let _ = write!(told, "\nThere is no room to describe these, which can be called as well: {}", named.join(", "));
    if unnamed > 0 {
        let _ = write!(told, " and {unnamed} more");
    }
    told
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_tools_there_are_the_model_reads_so_much_of_them_and_what_is_left_out_is_named() {
        let tool = |number: usize, about: usize| {
            let any = json!({ "type": "object" });
            ToolDefinition::new(format!("tool_{number:04}"), "x".repeat(about), any.clone(), any)
        };
        let few = definition(&Registry::new([tool(1, 10), tool(2, 10)]).expect("whole")).description;
        assert!(
            few.contains("- tools.tool_0001({\"type\":\"object\"}) → {\"type\":\"object\"}: xxxxxxxxxx\n"),
            "{few}"
        );
        assert!(!few.contains("no room"), "{few}");
        // One that is too long for the room leaves it to those behind it.
        let long = definition(&Registry::new([tool(1, MAX_TOOLS_CHARS), tool(2, 10)]).expect("whole")).description;
        assert!(
            long.contains("- tools.tool_0002") && long.ends_with("can be called as well: tools.tool_0001"),
            "{long}"
        );
        let many = definition(&Registry::new((0..2_000).map(|n| tool(n, 100))).expect("whole")).description;
        let (described, named) = (many.matches("\n- tools.").count(), many.matches("tools.tool_").count());
        assert!(described > 100 && named > described && named < 2_000, "{described} {named}");
        assert!(many.ends_with(&format!(" and {} more", 2_000 - named)), "{named}");
        let about_programs = few.find("Tools:").expect("it is there") + "Tools:".len();
        assert!(many.chars().count() <= about_programs + MAX_TOOLS_CHARS, "{}", many.chars().count());
    }
}
