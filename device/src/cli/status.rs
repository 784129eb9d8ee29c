//! `devmind-device status`: how the device stands, from its lock, its status file and its journal.

use super::print;
use crate::config::Settings;
use crate::error::DeviceError;
use crate::journal::history::{History, Summary};
use crate::policy::Policy;
use crate::state_dir::{is_in_use, journal_file};
use crate::status_file::DeviceStatus;
use clap::Args;
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;

#[derive(Args, Debug)]
pub(super) struct StatusArgs {
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Exit 0 when a device is running, 1 when none is.
pub(super) async fn status(settings: &Settings, args: &StatusArgs) -> Result<ExitCode, DeviceError> {
    let state = settings.state_folder()?;
    let running = is_in_use(&state);
    let last = DeviceStatus::read(&state)?;
    let journal = if journal_file(&state).exists() {
        Some(History::open(&journal_file(&state)).await?.summary().await?)
    } else {
        None
    };
    let rules = Policy::of(&state).rules().map(|rules| rules.len());
    if args.json {
        let (rules, problem) = match &rules {
            Ok(count) => (json!(count), None),
            Err(error) => (json!(null), Some(error.to_string())),
        };
        print(
            &json!({
                "running": running, "state": state, "device": last, "journal": journal, "rules": rules,
                "rules_problem": problem,
            })
            .to_string(),
        );
    } else {
        let rules = rules.map_or_else(|error| format!("none counts: {error}"), |count| count.to_string());
        print(&described(running, &state, last.as_ref(), journal.as_ref(), &rules));
    }
    Ok(if running { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn described(
    running: bool,
    state: &Path,
    last: Option<&DeviceStatus>,
    journal: Option<&Summary>,
    rules: &str,
) -> String {
    let mut rows = vec![("state folder", state.display().to_string())];
    match last {
        None => rows.push(("device", "never started with this folder".to_owned())),
        Some(last) if !running => rows.push(("device", format!("{}, not running", last.device_id))),
        Some(last) => {
            rows.push(("device", format!("{}, running as process {}", last.device_id, last.pid)));
            rows.push(("server", format!("{} as {}", last.server, last.user)));
            rows.push(("connection", last.connection.clone()));
            let workspace = last.workspace.display();
            let replaced = if last.workspace_replaced { ": REPLACED, calls are refused" } else { "" };
            rows.push(("workspace", format!("{workspace}{replaced}")));
            rows.push(("asks", last.confirm.clone()));
            rows.extend(last.page.clone().map(|page| ("page", page)));
            rows.push(("sandbox", last.sandbox.clone()));
            rows.extend(last.clock_offset_ms.map(|ms| ("clock", format!("the server's is {ms} ms ahead"))));
        }
    }
    rows.push(("rules", rules.to_owned()));
    if let Some(journal) = journal {
        let Summary { calls, unacked, max_unacked, output_bytes, max_output_bytes, .. } = journal;
        rows.push(("journal", format!("{calls} calls, {unacked} of at most {max_unacked} results unacknowledged")));
        rows.push(("outputs", format!("{output_bytes} of at most {max_output_bytes} bytes")));
        rows.extend(journal.purged_before.map(|moment| ("forgotten", format!("calls before {moment}"))));
    }
    rows.iter().map(|(name, value)| format!("{name:<14}{value}")).collect::<Vec<_>>().join("\n")
}
