//! Opening beneath the workspace, once, and judging what was really opened.
//!
//! [`super::Backend`] keeps every open beneath the held folder, whatever links or races say; this module
//! adds the names (a link may point at `.env`), the kind (a pipe would block, `/dev/zero` never ends) and
//! the promise that a handle, once judged, is the one that is read from.

use super::{PathDenied, lexical, sensitive};
use crate::clock::timestamp;
use crate::workspace::Workspace;
use cap_std::fs::Dir;
use devmind_domain::limits::MAX_SCANNED_ENTRIES;
use devmind_domain::{ErrorCode, Timestamp};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Links followed for one path, at most (Linux has the same limit).
const MAX_LINKS: usize = 40;
/// What Linux appends to the name of a handle whose file was removed.
const DELETED: &str = " (deleted)";

/// What identifies a file and its content, as far as its handle tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// The device it lies on.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
    /// Its size (bytes).
    pub size: u64,
    /// When its content changed last.
    pub modified: Timestamp,
    /// Under how many names it is known.
    pub links: u64,
}

impl FileFacts {
    /// Asks the handle (`fstat`).
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified: timestamp(metadata.modified()?),
            links: metadata.nlink(),
        })
    }
}

/// A regular file of the workspace, open for reading.
#[derive(Debug)]
pub struct OpenedFile {
    /// The handle that was judged; it is the one to read from.
    pub file: File,
    /// Its path within the workspace, links resolved.
    pub resolved: String,
    /// What the handle said when it was opened.
    pub facts: FileFacts,
}

/// A folder of the workspace.
#[derive(Debug)]
pub struct OpenedDir {
    /// The handle that was judged.
    pub dir: Dir,
    /// Its path within the workspace, links resolved; empty for the workspace itself.
    pub resolved: Vec<String>,
}

impl Workspace {
    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// One of the path policy's codes; see the module's description.
    pub fn open_file(&self, path: &str) -> Result<OpenedFile, PathDenied> {
        self.judge_names(path)?;
        let file = self.backend().open(self.root(), path).map_err(|error| denied(&error))?;
        let resolved = self.judge_handle(&file, path)?;
        let is_regular = file.metadata().map_err(|error| denied(&error))?.is_file();
        if !is_regular {
            return Err(PathDenied::new(ErrorCode::NotAFile));
        }
        let facts = FileFacts::of(&file).map_err(|error| denied(&error))?;
        if facts.links > 1 && self.is_another_name_of_a_secret(&resolved, &facts) {
            return Err(PathDenied::new(ErrorCode::SensitivePathDenied));
        }
        Ok(OpenedFile { file, resolved: resolved.join("/"), facts })
    }

    /// Opens a folder for listing.
    ///
    /// # Errors
    /// One of the path policy's codes.
    pub fn open_folder(&self, path: &str) -> Result<OpenedDir, PathDenied> {
        self.judge_names(path)?;
        let dir =
            self.backend().open_folder(self.root(), path).map_err(|error| match Errno::from_io_error(&error) {
                // It is there, or a component before it is no folder; only the first is "not a folder".
                Some(Errno::NOTDIR) if self.root().metadata(path).is_ok() => PathDenied::new(ErrorCode::NotAFile),
                _ => denied(&error),
            })?;
        let resolved = self.judge_handle(&dir, path)?;
        Ok(OpenedDir { dir, resolved })
    }

    /// Whether a listing may show this entry of the folder: not if reading it would be refused as
    /// sensitive. Links are judged by where they lead.
    pub(crate) fn may_list(&self, folder: &[String], name: &str, is_link: bool) -> bool {
        if sensitive::is_sensitive(folder.last().map(String::as_str), name) {
            return false;
        }
        if !is_link {
            return true;
        }
        let path = folder.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join("/");
        !matches!(self.expand(&path), Err(PathDenied { code: ErrorCode::SensitivePathDenied, .. }))
    }

    /// Everything that can be said without opening the file itself.
    fn judge_names(&self, path: &str) -> Result<(), PathDenied> {
        if !self.is_in_place() {
            return Err(PathDenied::new(ErrorCode::WorkspaceReplaced));
        }
        let components = lexical::components(path)?;
        let mut parent = None;
        for component in components.into_iter().filter(|component| !matches!(*component, "" | "." | "..")) {
            if sensitive::is_sensitive(parent, component) {
                return Err(PathDenied::new(ErrorCode::SensitivePathDenied));
            }
            parent = Some(component);
        }
        self.expand(path).map(drop)
    }

    /// Where the path leads, links followed by name. What does not exist is followed by name too,
    /// so that a link to a missing secret, or out of the workspace, answers as if it were there.
    fn expand(&self, path: &str) -> Result<Vec<String>, PathDenied> {
        let mut todo: VecDeque<String> = path.split('/').map(str::to_owned).collect();
        let mut here: Vec<String> = Vec::new();
        let mut links = 0;
        let mut missing = false;
        while let Some(name) = todo.pop_front() {
            match name.as_str() {
                "" | "." => continue,
                ".." => {
                    here.pop().ok_or(PathDenied::new(ErrorCode::PathOutOfScope))?;
                    continue;
                }
                _ => {}
            }
            if sensitive::is_sensitive(here.last().map(String::as_str), &name) {
                return Err(PathDenied::new(ErrorCode::SensitivePathDenied));
            }
            here.push(name);
            if missing {
                continue;
            }
            match self.root().read_link_contents(here.join("/")) {
                Ok(target) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(PathDenied::new(ErrorCode::PathNotFound));
                    }
                    let target = target.to_string_lossy();
                    if lexical::is_absolute(&target) {
                        return Err(PathDenied::new(ErrorCode::PathOutOfScope));
                    }
                    here.pop();
                    for component in target.split('/').rev() {
                        todo.push_front(component.to_owned());
                    }
                }
                Err(error) => missing = error.kind() == io::ErrorKind::NotFound,
            }
        }
        Ok(here)
    }

    /// The name of what was opened, which must lie beneath the workspace and not be sensitive.
    fn judge_handle(&self, handle: &(impl AsFd + ?Sized), path: &str) -> Result<Vec<String>, PathDenied> {
        let resolved = match (name_of(handle), name_of(self.root())) {
            (Some(name), Some(root)) => {
                let beneath =
                    Path::new(&name).strip_prefix(&root).map_err(|_| PathDenied::new(ErrorCode::PathOutOfScope))?;
                let names = beneath.components().map(|component| component.as_os_str().to_string_lossy().into_owned());
                names.collect()
            }
            // No /proc here: the name that the links spell out is the best there is.
            _ => self.expand(path)?,
        };
        let mut parent: Option<&str> = None;
        for name in &resolved {
            let was = name.strip_suffix(DELETED).unwrap_or(name);
            if sensitive::is_sensitive(parent, name) || sensitive::is_sensitive(parent, was) {
                return Err(PathDenied::new(ErrorCode::SensitivePathDenied));
            }
            parent = Some(name);
        }
        Ok(resolved)
    }

    /// Whether a sensitive name in the same folder is a hard link to the same file. Errors count as
    /// yes: what cannot be ruled out is refused.
    fn is_another_name_of_a_secret(&self, resolved: &[String], facts: &FileFacts) -> bool {
        let folder = &resolved[..resolved.len().saturating_sub(1)];
        let parent = folder.last().map(String::as_str);
        let path = if folder.is_empty() { ".".to_owned() } else { folder.join("/") };
        let Ok(entries) = self.root().read_dir(path) else { return true };
        entries.take(MAX_SCANNED_ENTRIES).any(|entry| {
            let Ok(entry) = entry else { return true };
            if !sensitive::is_sensitive(parent, &entry.file_name().to_string_lossy()) {
                return false;
            }
            entry.metadata().is_ok_and(|metadata| {
                use cap_std::fs::MetadataExt as _;
                metadata.dev() == facts.device && metadata.ino() == facts.inode
            })
        })
    }
}

/// Opens a regular file by its own name in an open folder, for reading; a link is not followed.
/// Whether the name may be opened has been judged by who read it from the folder.
///
/// # Errors
/// Anything but a regular file is refused, as is every error of the operating system's.
pub(crate) fn open_entry(dir: &Dir, name: &str) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = open_by_own_name(dir, name, flags)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// The same for a folder.
///
/// # Errors
/// Anything but a folder is refused, as is every error of the operating system's.
pub(crate) fn open_folder_entry(dir: &Dir, name: &str) -> io::Result<Dir> {
    open_by_own_name(dir, name, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::DIRECTORY).map(Dir::from_std_file)
}

/// A name without a separator, opened without following a link, lies in the folder: there is no way
/// out of it.
fn open_by_own_name(dir: &Dir, name: &str, flags: OFlags) -> io::Result<File> {
    if name.contains('/') || matches!(name, "" | "." | "..") {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(File::from(openat(dir, name, flags | OFlags::CLOEXEC, Mode::empty())?))
}

/// The path of an open handle as the kernel knows it.
fn name_of(handle: &(impl AsFd + ?Sized)) -> Option<std::path::PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd())).ok()
}

/// The policy's answer to an error of the operating system. Nothing is let through.
fn denied(error: &io::Error) -> PathDenied {
    let code = match Errno::from_io_error(error) {
        Some(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::LOOP | Errno::INVAL) => ErrorCode::PathNotFound,
        // A socket, or a device without a driver, cannot be opened at all.
        Some(Errno::NXIO | Errno::NODEV | Errno::OPNOTSUPP) => ErrorCode::NotAFile,
        Some(Errno::XDEV) => ErrorCode::PathOutOfScope,
        // cap-std's own refusal to leave the folder carries no code of the operating system.
        None if error.kind() == io::ErrorKind::PermissionDenied => ErrorCode::PathOutOfScope,
        _ => ErrorCode::IoError,
    };
    PathDenied::new(code)
}
