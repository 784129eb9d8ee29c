//! `devmind-device policy`: the user's always-allow rules.

use super::print;
use crate::config::Settings;
use crate::error::DeviceError;
use crate::policy::{Policy, Rule};
use crate::state_dir::make_state_folder;
use crate::text::visible;
use crate::workspace::Workspace;
use clap::Subcommand;
use devmind_domain::ErrorCode;
use devmind_domain::tools::catalogue;
use std::process::ExitCode;

#[derive(Subcommand, Debug)]
pub(super) enum PolicyCommand {
    /// Show the rules with their numbers
    List {
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Allow a tool on the paths that a glob matches, in the workspace that --workspace names
    Add {
        /// The tool, for example workspace.read_file
        tool: String,
        /// A glob for paths from the workspace's root: * stops at a separator, ** does not
        path: String,
    },
    /// Take a rule back
    Remove {
        /// Its number in the list
        number: usize,
    },
}

pub(super) fn policy(settings: &Settings, command: PolicyCommand) -> Result<ExitCode, DeviceError> {
    let state = settings.state_folder()?;
    let policy = Policy::of(&state);
    match command {
        PolicyCommand::List { json } => {
            let rules = policy.rules()?;
            if rules.is_empty() && !json {
                print("There are no rules: you are asked about every call that needs it.");
            }
            for (index, rule) in rules.iter().enumerate() {
                let number = index + 1;
                print(&if json {
                    let Rule { workspace, tool, path } = rule;
                    serde_json::json!({ "number": number, "workspace": workspace, "tool": tool, "path": path })
                        .to_string()
                } else {
                    format!("{number}  {}", described(rule))
                });
            }
        }
        PolicyCommand::Add { tool, path } => {
            let is_asked = catalogue().get(&tool).is_some_and(|tool| tool.requires_confirmation);
            if !is_asked {
                let message = format!("{tool} is no tool that you are asked about");
                let asked =
                    catalogue().definitions().filter(|tool| tool.requires_confirmation).map(|tool| tool.name.as_str());
                let hint = format!("use one of {}", asked.collect::<Vec<_>>().join(", "));
                return Err(DeviceError::new(ErrorCode::ConfigInvalid, message).with_hint(hint));
            }
            let workspace = Workspace::open(&settings.workspace)?.path().to_owned();
            let rule = Rule { workspace, tool, path };
            make_state_folder(&state)?;
            policy.add(rule.clone())?;
            print(&format!("allowed from now on: {}", described(&rule)));
        }
        PolicyCommand::Remove { number } => {
            let rule = policy.remove(number)?;
            print(&format!("asked about again: {}", described(&rule)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn described(rule: &Rule) -> String {
    format!("{} {} in {}", visible(&rule.tool), visible(&rule.path), visible(&rule.workspace.to_string_lossy()))
}
