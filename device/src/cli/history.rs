//! `devmind-device history`: what was asked, who allowed it, what came of it — from the journal.

use super::print;
use crate::config::Settings;
use crate::error::DeviceError;
use crate::journal::history::{History, PastCall};
use crate::state_dir::journal_file;
use crate::text::visible;
use clap::Args;
use std::process::ExitCode;

#[derive(Args, Debug)]
pub(super) struct HistoryArgs {
    /// How many calls, the newest first
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    limit: u32,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

pub(super) async fn history(settings: &Settings, args: &HistoryArgs) -> Result<ExitCode, DeviceError> {
    let mut history = History::open(&journal_file(&settings.state_folder()?)).await?;
    let calls = history.latest(args.limit).await?;
    if calls.is_empty() && !args.json {
        print("No call has come yet.");
    }
    for call in &calls {
        print(&if args.json { serde_json::json!(call).to_string() } else { described(call) });
    }
    Ok(ExitCode::SUCCESS)
}

/// Three lines for people. What others wrote is escaped.
fn described(call: &PastCall) -> String {
    let decided = call.decided_by.as_deref().map_or(String::new(), |by| format!(", decided by {}", visible(by)));
    let outcome = match (&call.status, &call.error_code) {
        (Some(status), Some(code)) => format!("{status} ({code})"),
        (Some(status), None) => status.clone(),
        (None, _) => call.phase.clone(),
    };
    let given = if call.output_bytes > 0 { format!(", {} bytes given", call.output_bytes) } else { String::new() };
    format!(
        "{}  {} {}\n    {outcome}{decided}{given}, delivery {}\n    in \"{}\", call {}",
        call.asked_at,
        visible(&call.tool),
        visible(&call.arguments),
        call.delivery,
        visible(&call.conversation_title),
        visible(&call.tool_call_id),
    )
}
