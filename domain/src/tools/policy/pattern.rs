//! What a rule says about one argument: a glob over a path, or a regular expression over any text.

use super::path::plain_path;
use crate::canonical::canonical_json;
use globset::{GlobBuilder, GlobMatcher};
use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A pattern as it is configured: one of the two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pattern {
    /// For paths, compared without their detours (`./a/../b` is `b`). `*` stops at a `/`, `**` does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glob: Option<String>,
    /// For any text. It must match the whole value; `.` matches line ends, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
}

/// A pattern that can be matched.
#[derive(Clone, Debug)]
pub(super) enum Matcher {
    Path(GlobMatcher),
    Text(Regex),
}

impl Pattern {
    pub(super) fn compile(&self) -> Result<Matcher, String> {
        match (&self.glob, &self.regex) {
            (Some(pattern), None) => glob(pattern).map(Matcher::Path),
            (None, Some(pattern)) => {
                let whole = RegexBuilder::new(&format!("^(?:{pattern})$")).dot_matches_new_line(true).build();
                // Alone first: a pattern must not close the group that makes it match the whole value.
                Regex::new(pattern).and(whole).map(Matcher::Text).map_err(|error| error.to_string())
            }
            (None, None) | (Some(_), Some(_)) => Err("give glob or regex, and one of them".to_owned()),
        }
    }
}

/// A glob over names and paths.
pub(super) fn glob(pattern: &str) -> Result<GlobMatcher, String> {
    let glob = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
    glob.map(|glob| glob.compile_matcher()).map_err(|error| error.kind().to_string())
}

impl Matcher {
    /// Whether a value is meant. Of a list, every part must be for a rule that `allows`, and any part for another: no
    /// list smuggles something past either.
    pub fn matches(&self, value: &Value, allows: bool) -> bool {
        match value {
            Value::Array(parts) if allows => !parts.is_empty() && parts.iter().all(|part| self.matches(part, allows)),
            Value::Array(parts) => parts.iter().any(|part| self.matches(part, allows)),
            Value::String(text) => self.matches_text(text),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
                self.matches_text(&canonical_json(value))
            }
        }
    }

    fn matches_text(&self, text: &str) -> bool {
        match self {
            Self::Path(glob) => glob.is_match(plain_path(text)),
            Self::Text(regex) => regex.is_match(text),
        }
    }
}
