//! Which names a search passes over because an ignore file says so.
//!
//! `.gitignore` and `.ignore` files of the workspace, with gitignore's own rules: those of a deeper
//! folder win, `.ignore` wins over `.gitignore`. Files outside the workspace are never looked at, so
//! neither are a user's global rules. Opening a folder by name searches it even if it is ignored.

use crate::path_policy::open_entry;
use cap_std::fs::Dir;
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::io::Read as _;

/// The files with rules, the more important first.
const NAMES: [&str; 2] = [".ignore", ".gitignore"];
/// Bytes of one of them that are read, at most; rules beyond do not count.
const MAX_BYTES: u64 = 256 << 10;

/// The rules of the folders from the workspace's root down to where a search is.
#[derive(Default)]
pub(super) struct Ignored(Vec<Vec<Gitignore>>);

impl Ignored {
    /// Adds the rules of the next folder on the way down.
    pub(super) fn enter(&mut self, dir: &Dir) {
        self.0.push(NAMES.into_iter().filter_map(|name| rules(dir, name)).collect());
    }

    /// The same for a folder whose rules cannot be read.
    pub(super) fn enter_unread(&mut self) {
        self.0.push(Vec::new());
    }

    /// The way back up.
    pub(super) fn leave(&mut self) {
        self.0.pop();
    }

    /// Whether the thing at this path (from the workspace's root) is ignored.
    pub(super) fn covers(&self, path: &[String], is_folder: bool) -> bool {
        for (depth, rules) in self.0.iter().enumerate().rev() {
            let below = path.get(depth..).unwrap_or_default().join("/");
            for rules in rules {
                match rules.matched(&below, is_folder) {
                    Match::None => {}
                    Match::Ignore(_) => return true,
                    Match::Whitelist(_) => return false,
                }
            }
        }
        false
    }
}

/// The rules of one file. One that cannot be read, or a line that is no rule, rules nothing.
fn rules(dir: &Dir, name: &str) -> Option<Gitignore> {
    let file = open_entry(dir, name).ok()?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    let mut builder = GitignoreBuilder::new(".");
    for line in String::from_utf8_lossy(&bytes).lines() {
        let _ = builder.add_line(None, line);
    }
    builder.build().ok()
}
