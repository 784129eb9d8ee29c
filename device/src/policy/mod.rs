//! Always-allow rules: calls that their user allowed once and for all.
//!
//! There are none until the user writes one. A rule names a workspace, a tool, and a glob; it is used
//! only when all three match, the glob the path that was really opened (links resolved). The file is
//! read for every question, so a rule that was removed counts no more. A file that cannot be trusted or
//! understood allows nothing.

use crate::confirm::ConfirmationRequest;
use crate::error::DeviceError;
use devmind_domain::ErrorCode;
use globset::{GlobBuilder, GlobMatcher};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The rules' file in the state folder.
const FILE: &str = "policy.toml";
/// Rules, at most.
const MAX_RULES: usize = 200;
/// Bytes of the file, at most.
const MAX_BYTES: u64 = 256 << 10;

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The workspace it counts in, links resolved.
    pub workspace: PathBuf,
    /// The tool, by its whole name.
    pub tool: String,
    /// A glob for the path within the workspace; `*` stops at a separator, `**` does not. The
    /// workspace itself is `.`.
    pub path: String,
}

impl Rule {
    fn matcher(&self) -> Result<GlobMatcher, globset::Error> {
        Ok(GlobBuilder::new(&self.path).literal_separator(true).backslash_escape(true).build()?.compile_matcher())
    }

    /// Whether it allows what is asked.
    pub fn allows(&self, workspace: &Path, request: &ConfirmationRequest) -> bool {
        let Some(subject) = &request.subject else { return false };
        let path = if subject.resolved_path.is_empty() { "." } else { &subject.resolved_path };
        self.workspace == workspace
            && self.tool == request.tool
            && self.matcher().is_ok_and(|matcher| matcher.is_match(path))
    }
}

/// What the file holds.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default, rename = "rule", skip_serializing_if = "Vec::is_empty")]
    rules: Vec<Rule>,
}

/// The rules of one device.
#[derive(Clone, Debug)]
pub struct Policy {
    file: PathBuf,
}

impl Policy {
    /// The rules in a state folder.
    pub fn of(state_folder: &Path) -> Self {
        Self { file: state_folder.join(FILE) }
    }

    /// All of them, in the order they are numbered (from 1).
    ///
    /// # Errors
    /// `CONFIG_INVALID`: others may change the file, or it is not a list of rules.
    pub fn rules(&self) -> Result<Vec<Rule>, DeviceError> {
        let invalid = |why: String| {
            let message = format!("the rules in {} cannot be used: {why}", self.file.display());
            DeviceError::new(ErrorCode::ConfigInvalid, message).with_hint("correct the file, or remove it")
        };
        let metadata = match fs::metadata(&self.file) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(invalid(error.to_string())),
        };
        if metadata.permissions().mode() & 0o022 != 0 {
            return Err(invalid("others may change it".to_owned()));
        }
        if metadata.len() > MAX_BYTES {
            return Err(invalid("it is too long".to_owned()));
        }
        let text = fs::read_to_string(&self.file).map_err(|error| invalid(error.to_string()))?;
        let File { rules } = toml::from_str(&text).map_err(|error| invalid(error.message().to_owned()))?;
        if rules.len() > MAX_RULES {
            return Err(invalid(format!("it holds more than {MAX_RULES} rules")));
        }
        for (index, rule) in rules.iter().enumerate() {
            rule.matcher().map_err(|error| invalid(format!("rule {}: {error}", index + 1)))?;
        }
        Ok(rules)
    }

    /// The number (from 1) and the first rule that allows what is asked. A file that cannot be used
    /// allows nothing.
    pub fn allowing(&self, workspace: &Path, request: &ConfirmationRequest) -> Option<(usize, Rule)> {
        let rules = self.rules().unwrap_or_else(|error| {
            tracing::warn!(%error, "no always-allow rule counts");
            Vec::new()
        });
        let mut numbered = rules.into_iter().enumerate().map(|(index, rule)| (index + 1, rule));
        numbered.find(|(_, rule)| rule.allows(workspace, request))
    }

    /// Adds a rule; a rule that is there already is not added again.
    ///
    /// # Errors
    /// `CONFIG_INVALID`.
    pub fn add(&self, rule: Rule) -> Result<(), DeviceError> {
        rule.matcher().map_err(|error| {
            DeviceError::new(ErrorCode::ConfigInvalid, format!("the path {} is no glob: {}", rule.path, error.kind()))
        })?;
        let mut rules = self.rules()?;
        if rules.contains(&rule) {
            return Ok(());
        }
        if rules.len() == MAX_RULES {
            let message = format!("there may be {MAX_RULES} rules at most");
            return Err(DeviceError::new(ErrorCode::ConfigInvalid, message).with_hint("remove one first"));
        }
        rules.push(rule);
        self.write(rules)
    }

    /// Removes the rule of this number (from 1) and answers it.
    ///
    /// # Errors
    /// `CONFIG_INVALID` when there is none.
    pub fn remove(&self, number: usize) -> Result<Rule, DeviceError> {
        let mut rules = self.rules()?;
        if number == 0 || number > rules.len() {
            let message = format!("there is no rule {number}");
            return Err(DeviceError::new(ErrorCode::ConfigInvalid, message).with_hint("devmind-device policy list"));
        }
        let removed = rules.remove(number - 1);
        self.write(rules)?;
        Ok(removed)
    }

    fn write(&self, rules: Vec<Rule>) -> Result<(), DeviceError> {
        let unusable = |error: String| {
            DeviceError::new(ErrorCode::ConfigInvalid, format!("{} cannot be written: {error}", self.file.display()))
        };
        let text = toml::to_string(&File { rules }).map_err(|error| unusable(error.to_string()))?;
        let folder = self.file.parent().unwrap_or(Path::new("."));
        crate::state_dir::write_durably(folder, &self.file, &text).map_err(|error| unusable(error.to_string()))
    }
}

#[cfg(test)]
mod tests;
