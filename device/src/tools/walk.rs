//! Walking a folder of the workspace: every name that may be told and is not ignored, in order.
//!
//! Each folder is opened by its own name from the handle of the one above it, links not followed, so
//! that no race leads the walk out of the workspace. It ends at its budget, and says so.

use super::folder::{self, Budget, Entry, Kind};
use super::ignored::Ignored;
use super::{Execution, ToolFailure};
use crate::path_policy::{OpenedDir, open_entry, open_folder_entry};
use crate::workspace::Workspace;
use cap_std::fs::Dir;
use devmind_domain::limits::{MAX_SEARCHED_ENTRIES, SEARCH_BUDGET_MS};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};
use std::vec;

/// Folders within folders that are walked, at most; each holds one handle.
const MAX_DEPTH: usize = 64;

/// A walk under way.
pub(super) struct Walk<'a> {
    workspace: &'a Workspace,
    execution: &'a Execution,
    budget: Budget,
    ignored: Ignored,
    open: Vec<Open>,
    /// Where the walk began, in components.
    start: usize,
    /// Whether there is more than was looked at.
    pub(super) truncated: bool,
    /// Names that are not UTF-8.
    pub(super) not_utf8: u32,
    /// Folders that the operating system did not open or read.
    pub(super) unreadable: u32,
}

/// A folder whose entries are being walked.
struct Open {
    dir: Dir,
    path: Vec<String>,
    entries: vec::IntoIter<Entry>,
}

/// One thing that was found.
#[derive(Debug)]
pub(super) struct Found {
    /// From the workspace's root.
    pub(super) path: String,
    /// From the folder that is searched.
    pub(super) below: String,
    pub(super) kind: Kind,
    pub(super) size: Option<u64>,
    identity: Option<(u64, u64)>,
}

impl<'a> Walk<'a> {
    /// Begins at an open folder.
    ///
    /// # Errors
    /// `IO_ERROR` when it cannot be read, or the execution's end.
    pub(super) fn new(
        workspace: &'a Workspace,
        folder: OpenedDir,
        execution: &'a Execution,
    ) -> Result<Self, ToolFailure> {
        let OpenedDir { dir, resolved } = folder;
        let ends_at = Instant::now() + Duration::from_millis(SEARCH_BUDGET_MS);
        let mut walk = Self {
            workspace,
            execution,
            budget: Budget { entries: MAX_SEARCHED_ENTRIES, ends_at },
            ignored: rules_above(workspace, &resolved),
            open: Vec::new(),
            start: resolved.len(),
            truncated: false,
            not_utf8: 0,
            unreadable: 0,
        };
        walk.enter(dir, resolved)?;
        Ok(walk)
    }

    /// The next thing.
    ///
    /// # Errors
    /// The execution's end.
    pub(super) fn next(&mut self) -> Result<Option<Found>, ToolFailure> {
        loop {
            self.execution.check()?;
            let Some(open) = self.open.last_mut() else { return Ok(None) };
            let Some(entry) = open.entries.next() else {
                self.open.pop();
                self.ignored.leave();
                continue;
            };
            let mut path = open.path.clone();
            path.push(entry.name.clone());
            if self.ignored.covers(&path, entry.kind == Kind::Folder) {
                continue;
            }
            let found = Found {
                path: path.join("/"),
                below: path.get(self.start..).unwrap_or_default().join("/"),
                kind: entry.kind,
                size: entry.size,
                identity: entry.identity,
            };
            if entry.kind == Kind::Folder {
                self.descend(&entry.name, path)?;
            }
            return Ok(Some(found));
        }
    }

    /// Opens a file that [`Walk::next`] found last.
    pub(super) fn open(&self, found: &Found) -> io::Result<File> {
        let name = found.path.rsplit('/').next().unwrap_or_default();
        let open = self.open.last().ok_or(io::ErrorKind::NotFound)?;
        let file = open_entry(&open.dir, name)?;
        let metadata = file.metadata()?;
        // Of several names none was sensitive when the folder was read; another file was not looked at.
        if metadata.nlink() > 1 && found.identity != Some((metadata.dev(), metadata.ino())) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(file)
    }

    /// Whether its time is over.
    pub(super) fn is_out_of_time(&self) -> bool {
        Instant::now() >= self.budget.ends_at
    }

    fn descend(&mut self, name: &str, path: Vec<String>) -> Result<(), ToolFailure> {
        if self.open.len() >= MAX_DEPTH {
            self.truncated = true;
            return Ok(());
        }
        let Some(Ok(dir)) = self.open.last().map(|open| open_folder_entry(&open.dir, name)) else {
            self.unreadable += 1;
            return Ok(());
        };
        match self.enter(dir, path) {
            Err(_) if self.execution.check().is_ok() => self.unreadable += 1,
            entered => entered?,
        }
        Ok(())
    }

    fn enter(&mut self, dir: Dir, path: Vec<String>) -> Result<(), ToolFailure> {
        let entries = folder::read(self.workspace, &dir, &path, &mut self.budget, self.execution)?;
        self.truncated |= entries.truncated;
        self.not_utf8 += entries.not_utf8;
        self.ignored.enter(&dir);
        self.open.push(Open { dir, path, entries: entries.entries.into_iter() });
        Ok(())
    }
}

/// The rules of the folders above the one that is searched.
fn rules_above(workspace: &Workspace, path: &[String]) -> Ignored {
    let mut ignored = Ignored::default();
    let mut here = workspace.root().try_clone().ok();
    for name in path {
        match &here {
            Some(dir) => ignored.enter(dir),
            // What cannot be read rules nothing; the depth must be right all the same.
            None => ignored.enter_unread(),
        }
        here = here.and_then(|dir| open_folder_entry(&dir, name).ok());
    }
    ignored
}
