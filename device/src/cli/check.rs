//! `devmind-device check`: the path policy's answers, without a server and without reading anything.
//!
//! One JSON line in, one out, in the same order. A line that is no question is reported on stderr with
//! its number; the others are answered all the same, and the exit status says that there was one.

use super::line;
use crate::config::Settings;
use crate::error::DeviceError;
use crate::tools::LocalTool;
use crate::workspace::Workspace;
use clap::Args;
use devmind_domain::ErrorCode;
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{BufRead, Read as _, Write};
use std::process::ExitCode;
use std::sync::Arc;

/// Bytes of one line, at most.
const MAX_LINE_BYTES: u64 = 64 << 10;

#[derive(Args, Debug)]
pub(super) struct CheckArgs {
    /// Say why, too
    #[arg(long)]
    explain: bool,
}

#[derive(Deserialize)]
struct Question {
    id: Value,
    tool: String,
    path: String,
}

pub(super) fn check(
    settings: &Settings,
    args: &CheckArgs,
    tools: &[Arc<dyn LocalTool>],
    mut input: impl BufRead,
    mut output: impl Write,
) -> Result<ExitCode, DeviceError> {
    let workspace = Workspace::open(&settings.workspace)?;
    let io = |error: std::io::Error| DeviceError::new(ErrorCode::IoError, "stdin or stdout broke").caused_by(error);
    let (mut number, mut bad) = (0u64, 0u64);
    loop {
        let mut text = Vec::new();
        input.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut text).map_err(io)?;
        if text.is_empty() {
            break;
        }
        number += 1;
        if text.len() as u64 == MAX_LINE_BYTES && text.last() != Some(&b'\n') {
            input.skip_until(b'\n').map_err(io)?;
            bad += 1;
            line!("line {number}: longer than {MAX_LINE_BYTES} bytes");
            continue;
        }
        if text.trim_ascii().is_empty() {
            continue;
        }
        match serde_json::from_slice::<Question>(&text) {
            Ok(question) => {
                let (code, why) = answer(&workspace, tools, &question);
                let mut told = json!({ "id": question.id, "code": code });
                if args.explain {
                    told["why"] = why.into();
                }
                writeln!(output, "{told}").map_err(io)?;
            }
            Err(error) => {
                bad += 1;
                line!("line {number}: {error}");
            }
        }
    }
    output.flush().map_err(io)?;
    if bad > 0 {
        line!("{bad} of {number} lines could not be understood");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// `OK` or a code, and why.
fn answer(workspace: &Workspace, tools: &[Arc<dyn LocalTool>], question: &Question) -> (&'static str, &'static str) {
    let Some(tool) = tools.iter().find(|tool| tool.name() == question.tool) else {
        return (ErrorCode::ToolNotAvailable.as_str(), "this device has no tool of that name");
    };
    match tool.judge(workspace, &question.path) {
        Ok(()) => ("OK", "it would be opened"),
        Err(denied) => (denied.code.as_str(), denied.message),
    }
}
