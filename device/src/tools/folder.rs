//! The names of one open folder, as far as they may be told.
//!
//! What a listing, a search by name and a search in texts may show is the same, and is decided here:
//! no sensitive name, no second name (hard link) of a sensitive file, nothing of what a link leads to.

use super::{Execution, ToolFailure};
use crate::workspace::Workspace;
use cap_std::fs::{Dir, DirEntry, MetadataExt as _};
use std::collections::HashSet;
use std::time::Instant;

/// What may still be spent on looking at entries.
pub(super) struct Budget {
    /// Entries.
    pub(super) entries: usize,
    /// Time.
    pub(super) ends_at: Instant,
}

impl Budget {
    /// Takes one entry; `false` when the budget is used up.
    fn take(&mut self) -> bool {
        let left = self.entries > 0 && Instant::now() < self.ends_at;
        self.entries = self.entries.saturating_sub(1);
        left
    }
}

/// What kind of thing a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Folder,
    Link,
    /// A pipe, a socket, a device.
    Other,
}

impl Kind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Folder => "dir",
            Self::Link => "symlink",
            Self::Other => "other",
        }
    }
}

/// One name.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Bytes, of files only.
    pub(super) size: Option<u64>,
    /// Device and number, of files that have several names.
    pub(super) identity: Option<(u64, u64)>,
}

/// What was found in a folder.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// Sorted by name.
    pub(super) entries: Vec<Entry>,
    /// Names that the disk spells in something else than UTF-8: they cannot be asked for.
    pub(super) not_utf8: u32,
    /// Whether the budget ended before the folder did.
    pub(super) truncated: bool,
}

/// Reads an open folder of the workspace. `path` is where it is, links resolved.
pub(super) fn read(
    workspace: &Workspace,
    dir: &Dir,
    path: &[String],
    budget: &mut Budget,
    execution: &Execution,
) -> Result<Entries, ToolFailure> {
    let mut found = Entries::default();
    let mut secrets = HashSet::new();
    for entry in dir.entries().map_err(|error| ToolFailure::io(&error))? {
        if !budget.take() {
            found.truncated = true;
            break;
        }
        execution.check()?;
        let entry = entry.map_err(|error| ToolFailure::io(&error))?;
        let Ok(name) = entry.file_name().into_string() else {
            found.not_utf8 += 1;
            continue;
        };
        let described = describe(&entry, name);
        if workspace.may_list(path, &described.name, described.kind == Kind::Link) {
            found.entries.push(described);
        } else {
            secrets.extend(described.identity);
        }
    }
    // A second name of a secret is a secret; where not every name was seen, that cannot be ruled out.
    let truncated = found.truncated;
    found.entries.retain(|entry| entry.identity.is_none_or(|identity| !truncated && !secrets.contains(&identity)));
    found.entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// What the folder itself says of an entry; links are not followed.
fn describe(entry: &DirEntry, name: String) -> Entry {
    let Ok(metadata) = entry.metadata() else {
        return Entry { name, kind: Kind::Other, size: None, identity: None };
    };
    let kind = match metadata.file_type() {
        kind if kind.is_symlink() => Kind::Link,
        kind if kind.is_dir() => Kind::Folder,
        kind if kind.is_file() => Kind::File,
        _ => Kind::Other,
    };
    let is_file = kind == Kind::File;
    Entry {
        name,
        kind,
        size: is_file.then(|| metadata.len()),
        identity: (is_file && metadata.nlink() > 1).then(|| (metadata.dev(), metadata.ino())),
    }
}
